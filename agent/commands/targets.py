"""``agent targets``: what ships and can be named after ``--task``, ``--target`` and ``--gpu``."""

from __future__ import annotations

from agent.console import console, emit, table
from knowledge_base.chips import CHIPS, DEFAULT
from knowledge_base.errors import EXIT_DONE
from knowledge_base.snf import everyday
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.printer import signature
from knowledge_base.snf.shipped import targets


def listing(as_json: bool) -> int:
    """Lists everyday tasks with their signatures, whole targets with their first lines, and the chips."""
    signatures = {name: signature(everyday(name)) for name in NAMES}
    tasks = {name.replace("_", "-") for name in NAMES}
    rows = [
        {"name": name, "about": about, "signature": signatures.get(name.replace("-", "_"), "")}
        for name, about in targets()
    ]
    if as_json:
        emit(rows)
        return EXIT_DONE
    out = console()
    out.print("[bold]everyday tasks[/bold]: launch takes a stream, then these arrays in this order")
    for text in signatures.values():
        out.print(f"  {text}", markup=False)
    made = table([("target", "left", 18), ("what it is", "left", None)])
    for row in rows:
        if row["name"] not in tasks:
            made.add_row(row["name"], row["about"])
    out.print()
    out.print(made)
    out.print()
    out.print(f"[bold]chips[/bold]: {', '.join(CHIPS)}, auto (default: the GPU that is there, else {DEFAULT})")
    out.print("Or a file of your own: --target my.snf (docs/snf.md)", style="dim", markup=False)
    return EXIT_DONE
