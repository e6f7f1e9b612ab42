"""``agent search``: every configuration of one file, compiled, ranked by its time, printed and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agent import loop
from agent.console import console, emit, pairs, table, us
from agent.loop import SearchResult
from evaluator.plans import Plans
from evaluator.replay import runner_for
from evaluator.timing import MODEL, Measured
from knowledge_base.content import readable
from knowledge_base.errors import EXIT_DONE, EXIT_REJECTED, EnvironmentLacks
from knowledge_base.records import Candidate, Trial
from knowledge_base.rules import Space
from knowledge_base.snf import task_named
from knowledge_base.store import Store

from .check import note_of, print_verdict, read_source
from .hardware import check_cluster, chip_for, device_for

SHOWN = 20  # rows of the table; --json has all


def search(
    file: str,
    task_name: str,
    shape: Mapping[str, int],
    gpu: str | None,
    device: str,
    seed: int,
    jobs: int,
    seconds: float | None,
    cluster: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Ranks the file's configurations; exit 0 if one is usable, 1 if none is.

    On a GPU they are ranked by measured times, and each is right at the task's sizes or rejected.
    """
    chip = chip_for(gpu)
    where = device_for(device, chip)
    check_cluster(cluster, where)
    source = read_source(file)
    task = task_named(task_name, dict(shape))
    candidate = Candidate(source=source, task=task.identity, proposer="manual", note=readable(Path(file).name))
    plans = Plans()
    err = console(error=True)
    with err.status("tracing …") as status:

        def progress(done: int, expected: int, _: Trial) -> None:
            status.update(f"{done} of {expected} configurations")

        def say(line: str) -> None:
            err.print(line, markup=False)

        with (
            runner_for(chip) if where == "cuda" else nullcontext() as runner,
            loop.Cluster(cluster, chip, seed, say) if cluster else nullcontext() as elsewhere,
        ):
            timer = MODEL if runner is None else Measured(runner, seed)
            found = loop.search(
                candidate, task, chip, jobs=jobs or None, elsewhere=elsewhere, seed=seed, seconds=seconds,
                near=_spaces(db) if runner is not None else (), timer=timer, plans=plans, progress=progress,
            )  # fmt: skip
    noted = note_of(task, found.trials, db)
    usable = found.best is not None
    if as_json:
        emit(_document(found, plans) | {"usable": usable, "recorded": noted == ""})
    elif found.verdict is not None:
        print_verdict(err, found.verdict)
    else:
        made = table(
            [("µs", "right", 9), ("registers", "right", 9), ("spilled", "right", 7), ("configuration", "left", None)]
        )
        for trial in found.trials[:SHOWN]:
            timed = trial.timed(found.kind)
            time = us(timed.us, timed.kind) if timed else "-"
            registers = max((e.registers for e in trial.evidence), default=0)
            spilled = sum(e.spill_bytes for e in trial.evidence)
            figures = (str(registers or "-"), str(spilled)) if trial.evidence else ("-", "-")
            standing, reason = trial.standing, trial.reason
            said = f" [dim]{standing}: {_short(reason)}[/dim]" if standing != "ranked" else ""
            made.add_row(time, *figures, pairs(trial.configuration) + said)
        err.print(made)
        counts = ", ".join(f"{count} {status}" for status, count in found.counts().items())
        err.print(f"{found.total} configurations: {counts}; {found.left_out} not looked at", style="dim")
        err.print(
            f"times are {found.kind} for {chip.name}, floor {_floor(found)} µs; {found.seconds:.1f} s", style="dim"
        )
        checked = "each was right on the GPU at these sizes" if where == "cuda" else "correctness is not judged here"
        err.print(f"ranked only: {checked}, see agent check", style="dim")
    if noted:
        err.print(noted, markup=False)
    return EXIT_DONE if usable else EXIT_REJECTED


def _spaces(db: str | None) -> tuple[Space, ...]:
    """What was measured before; where the default base can't be opened, what ships."""
    try:
        with Store.open(db) as store:
            return loop.measured_spaces(store)
    except EnvironmentLacks:
        if db is not None:
            raise
        return loop.measured_spaces(None)


def _document(found: SearchResult, plans: Plans) -> dict[str, Any]:
    rows = [
        trial.document(plans.of(trial)) | {"standing": trial.standing, "reason": trial.reason} for trial in found.trials
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


def _floor(found: SearchResult) -> str:
    return next((us(trial.time.floor_us) for trial in found.trials if trial.time), "-")


def _short(text: str) -> str:
    from rich.markup import escape

    return escape(text if len(text) <= 90 else text[:89] + "…")
