"""``agent targets``: what ships and can be named after ``--target`` and ``--task``."""

from __future__ import annotations

from knowledge_base.errors import EXIT_DONE

from .console import console, emit, table


def listing(as_json: bool) -> int:
    """Lists the shipped targets, each with its first line."""
    from knowledge_base.snf.targets import targets

    rows = [{"name": name, "about": about} for name, about in targets()]
    if as_json:
        emit(rows)
        return EXIT_DONE
    made = table([("target", "left", 18), ("what it is", "left", None)])
    for row in rows:
        made.add_row(row["name"], row["about"])
    out = console()
    out.print(made)
    out.print("Or a file of your own: --target my.snf", style="dim", markup=False)
    return EXIT_DONE
