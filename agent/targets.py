"""``agent targets``: what ships and can be named after ``--target`` and ``--task``."""

from __future__ import annotations

from knowledge_base.errors import EXIT_DONE

from .console import console, emit, table


def listing(as_json: bool) -> int:
    """Lists the shipped targets with their sample sizes."""
    from knowledge_base.snf import load_target, targets

    rows = []
    for name in targets():
        graph = load_target(name, {})
        rows.append({"name": name, "sizes": graph.sizes, "nodes": len(graph.nodes), "outputs": list(graph.outputs)})
    if as_json:
        emit(rows)
        return EXIT_DONE
    made = table([("target", "left", 18), ("ops", "right", 5), ("sample sizes (--shape changes them)", "left", None)])
    for row in rows:
        made.add_row(row["name"], str(row["nodes"]), ", ".join(f"{k}={v}" for k, v in row["sizes"].items()))
    out = console()
    out.print(made)
    out.print("Or a file of your own: --target my.snf", style="dim", markup=False)
    return EXIT_DONE
