"""``agent targets``: what ships and can be named after ``--task``, ``--target`` and ``--gpu``."""

from __future__ import annotations

from agent.console import console, emit, table
from kernels_generated.runtime.expr import show
from knowledge_base.chips import CHIPS, DEFAULT
from knowledge_base.errors import EXIT_DONE
from knowledge_base.snf import everyday
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.graph import Tensor
from knowledge_base.snf.shipped import targets
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
    return EXIT_DONE


def signature(task: Task) -> str:
    """The task's arrays in the order of ``launch``: ``linear(x[M,K], w[N,K], b[N]) -> y[M,N]``."""
    inputs = ", ".join(map(_array, task.inputs))
    return f"{task.name}({inputs}) -> {', '.join(map(_array, task.outputs))}"


def _array(tensor: Tensor) -> str:
    sizes = ",".join(str(size) if isinstance(size, int) else show(size) for size in tensor.shape)
    return f"{tensor.name}[{sizes}]"
