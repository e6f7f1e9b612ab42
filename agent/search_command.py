"""``agent search``: every configuration of one file, compiled and ranked by modelled time; printed and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowledge_base.errors import EXIT_DONE, EXIT_REJECTED

from .check import note_of, read_source
from .console import console, emit, pairs, table, us
from .machine import chip_for
from .ranking import evaluations

SHOWN = 20  # rows of the table; --json has all


def search(
    file: str, task_name: str, shape: Mapping[str, int], gpu: str | None, jobs: int, db: str | None, as_json: bool
) -> int:
    """Ranks the file's configurations; exit 0 if one is usable, 1 if none is."""
    from evaluator.version import evaluator_version
    from knowledge_base.records import Candidate
    from knowledge_base.snf import task_named

    from . import search as searching
    from .check import print_verdict

    chip = chip_for(gpu)
    source = read_source(file)
    task = task_named(task_name, dict(shape))
    err = console(error=True)
    with err.status("tracing …") as status:

        def progress(done: int, expected: int, _: searching.Row) -> None:
            status.update(f"{done} of {expected} configurations")

        found = searching.search(source, task, chip, jobs=jobs or None, progress=progress)
    candidate = Candidate(source=source, task=task.identity, proposer="manual", note=Path(file).name)
    noted = note_of(task, candidate, evaluations(found, candidate, task, chip, evaluator_version()), db)
    usable = found.best is not None
    if as_json:
        emit(_document(found) | {"usable": usable, "recorded": noted == ""})
    elif found.verdict is not None:
        print_verdict(err, found.verdict)
    else:
        made = table(
            [("µs", "right", 9), ("registers", "right", 9), ("spilled", "right", 7), ("configuration", "left", None)]
        )
        for row in found.rows[:SHOWN]:
            time = us(row.us, "modelled") if row.measurement else "-"
            registers = max((e.registers for e in row.evidence), default=0)
            spilled = sum(e.spill_bytes for e in row.evidence)
            figures = (str(registers or "-"), str(spilled) if row.evidence else "-") if row.evidence else ("-", "-")
            reason = f" [dim]{row.status}: {_short(row.reason)}[/dim]" if row.status != "ranked" else ""
            made.add_row(time, *figures, pairs(dict(row.axes)) + reason)
        err.print(made)
        counts = ", ".join(f"{count} {status}" for status, count in found.counts().items())
        err.print(f"{found.total} configurations: {counts}; {found.left_out} not looked at", style="dim")
        err.print(f"times are modelled for {chip.name}, floor {_floor(found)} µs; {found.seconds:.1f} s", style="dim")
        err.print("ranked only: correctness is not judged here, see agent check", style="dim")
    if noted:
        err.print(noted, markup=False)
    return EXIT_DONE if usable else EXIT_REJECTED


def _document(found: Any) -> dict[str, Any]:
    rows = [
        {
            "axes": dict(row.axes),
            "status": row.status,
            "reason": row.reason,
            "us": row.measurement.us if row.measurement else None,
            "kind": "modelled" if row.measurement else None,
            "floor_us": row.measurement.floor_us if row.measurement else None,
            "terms": row.measurement.terms if row.measurement else {},
            "evidence": [e.model_dump() for e in row.evidence],
            "kernels": row.kernels,
        }
        for row in found.rows
    ]
    return {
        "task": found.task,
        "chip": found.chip,
        "shape": dict(found.sizes),
        "rows": rows,
        "total": found.total,
        "left_out": found.left_out,
        "seconds": found.seconds,
        "verdict": found.verdict.model_dump() if found.verdict is not None else None,
    }


def _floor(found: Any) -> str:
    return next((us(row.measurement.floor_us) for row in found.rows if row.measurement), "-")


def _short(text: str) -> str:
    from rich.markup import escape

    return escape(text if len(text) <= 90 else text[:89] + "…")
