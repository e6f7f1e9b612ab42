"""``agent targets``: what ships and can be named after ``--task``, ``--target`` and ``--gpu``."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from agent.console import console, emit, pairs, table
from knowledge_base.chips import CHIPS, DEFAULT
from knowledge_base.content import readable
from knowledge_base.errors import EXIT_DONE
from knowledge_base.snf import decompose, everyday, load_target, task_named
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.shipped import MAX_TASK_NODES, targets
from knowledge_base.snf.signatures import arguments, signature
from knowledge_base.snf.task import Task


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
    out.print("What launch gets for a target's tasks: agent targets NAME|my.snf", style="dim", markup=False)
    return EXIT_DONE


def tasks(name_or_path: str, as_json: bool) -> int:
    """Lists the tasks that ``agent run`` makes of a target, and the one that ``agent check --task`` takes it for.

    Each with its sizes and the arguments of launch in order.  Raises UserError for an unknown name or a bad text.
    """
    target = load_target(name_or_path)
    cut = decompose(target.graph)
    for note in target.notes:
        console(error=True).print(f"note: {note}", markup=False)
    rows = [_row(task, cut.calls_of(task), "--target") for task in cut.tasks]
    if len(target.graph.nodes) <= MAX_TASK_NODES:
        whole = task_named(name_or_path)
        rows += [] if whole.place in {t.place for t in cut.tasks} else [_row(whole, 1, "--task")]
    if as_json:
        emit(rows)
        return EXIT_DONE
    out = console()
    for option, says in (("--target", "each a kernel"), ("--task", "the whole text as one kernel")):
        of = [row for row in rows if row["option"] == option]
        if of:
            out.print(f"[bold]{option} {escape(readable(name_or_path))}[/bold]: {says}")
        for row in of:
            times = f"{row['calls']} × " if row["calls"] > 1 else ""
            out.print(f"  {times}{row['task']}  {pairs(row['sizes'])}", markup=False, style="bold")
            out.print(f"    launch(stream, {', '.join(row['launch'])}, *, …)", markup=False)
            out.print(f"    {row['dtypes']}", markup=False, style="dim")
    return EXIT_DONE


def _row(task: Task, calls: int, option: str) -> dict[str, Any]:
    return {
        "task": task.name,
        "identity": task.identity,
        "option": option,
        "calls": calls,
        "sizes": task.sizes,
        "launch": list(arguments(task)),
        "dtypes": ", ".join(f"{t.name} {t.dtype}" for t in (*task.inputs, *task.outputs)),
    }
