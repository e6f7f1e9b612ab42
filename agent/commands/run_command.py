"""``agent run``: from what was typed to a run under way, and from its summary to what is printed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from agent import loop
from agent.console import console, emit
from agent.loop import RunFolder, RunOptions, final_table, find_run, new_id, versions
from agent.progress import Bars, Lines, Progress
from agent.proposers import Choice, choose, replayed
from evaluator.confinement import containment
from evaluator.replay import runner_for
from evaluator.timing import MODEL, Measured
from knowledge_base import browse
from knowledge_base.chips import Chip
from knowledge_base.content import readable
from knowledge_base.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE, UserError
from knowledge_base.snf import load_target, parse
from knowledge_base.snf.graph import Graph
from knowledge_base.snf.printer import show
from knowledge_base.store import RunRecord, Store

from . import recordings
from .hardware import check_cluster, check_device, check_toolchain, chip_for, device_for
from .options import typed


def run(
    *,
    target: str,
    shape: dict[str, int],
    gpu: str | None,
    device: str,
    proposer: str,
    model: str | None,
    rounds: int | None,
    budget_minutes: float | None,
    budget_tokens: int | None,
    budget_usd: float | None,
    prices: str | None,
    db: str | None,
    resume: str | None,
    replay: str | None,
    record: str | None,
    seed: int | None,
    jobs: int,
    search_seconds: float | None,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Runs the loop and prints the final table (or JSON); returns the exit code.  Raises UserError before any work."""
    if not target and not resume and not replay:
        raise UserError(
            "--target is missing", "For example: agent run --target gpt2-block. `agent targets` lists them."
        )
    if resume:
        _check_resume(target=target, shape=shape, seed=seed, proposer=proposer)
    check_device(device)
    check_toolchain()
    asked = RunOptions(
        target=target,
        shape=shape,
        proposer=proposer,
        model=model,
        rounds=rounds,
        budget_minutes=budget_minutes,
        budget_tokens=budget_tokens,
        budget_usd=budget_usd,
        prices=prices and os.path.abspath(prices),
        replay=replay,
        record=record and recordings.check_place(record),
        seed=secrets.randbits(31) if seed is None else seed,
        jobs=jobs,
        cluster=cluster,
        search_seconds=search_seconds,
    )
    if replay:
        if resume:
            raise UserError("--resume goes on with the answers that the run had", "Leave --replay out.")
        if shape and not target:
            raise UserError("--replay has the sizes of the recorded run", "Leave --shape out, or name a --target.")
        _check_replay(asked)
    err = console(error=True)
    with Store.open(db) as store:
        if resume and gpu and chip_for(gpu).name != (its := store.run(find_run(resume).name).chip):
            raise UserError(f"--gpu {gpu}: the run is for {its}", "Leave --gpu out.")
        if resume and not _asks_more(asked) and (done := _done(store, resume)) is not None:
            code = _say_done(done, err, as_json)
            _say_recorded(store, done["id"], asked, err)
            return code
        if resume:
            begun = _resume(store, resume, asked, device)
        elif replay:
            begun = _begin_replay(store, asked, gpu, device, seed)
        else:
            begun = _begin(store, asked, gpu, device)
        run_id, asked, chip, where, choice, graph, folder = begun
        held = containment()
        progress, shown = _progress(err)
        try:
            with (
                shown,
                runner_for(chip) if where == "cuda" else nullcontext() as runner,
                loop.Cluster(asked.cluster, chip, asked.seed, progress.say)
                if asked.cluster
                else nullcontext() as elsewhere,
            ):
                progress.say(f"run {run_id}: {asked.target} for {chip.name} ({chip.arch}), run on {where}")
                progress.say(f"kernels by the {choice.by}: {choice.why}")
                progress.say(f"candidates are contained: {held.level.value}{held.short_of}")
                if choice.name != "synthesizer":
                    progress.say(held.says)
                timer = MODEL if runner is None else Measured(runner, asked.seed)
                summary = loop.run(
                    run_id, asked, graph, chip, choice, store, folder, progress, timer, runner, elsewhere
                )
        except KeyboardInterrupt:
            err.print(
                f"\ninterrupted; nothing is lost. Go on with:\n  agent run --resume {run_id}"
                + (f" --db {db}" if db else "")
            )
            if as_json:
                emit({"id": run_id, "status": "interrupted", "exit_code": EXIT_INTERRUPTED})
            return EXIT_INTERRUPTED
        except BrokenPipeError:  # whoever read the progress is gone
            with suppress(Exception):
                folder.log("interrupted: nobody reads the output any more")
                store.finish_run(run_id, "interrupted", EXIT_INTERRUPTED, {"why": "output closed"})
            raise
        except Exception as error:
            with suppress(Exception):  # what failed may be the disk: the first error is the one to show
                folder.log(f"failed: {error}")
                store.finish_run(run_id, "failed", getattr(error, "exit_code", 1), {"why": str(error)})
            raise
        finally:
            folder.close()
            _say_recorded(store, run_id, asked, err)
    document = summary.document()
    if as_json:
        emit(document)
    final_table(document, err)
    return summary.exit_code


def _check_resume(**given: Any) -> None:
    """Raises UserError for what a run that is gone on with has of its own."""
    for name, value in given.items():
        if value not in (None, "", {}, "auto"):
            said = typed(value) if isinstance(value, dict) else value
            raise UserError(f"--{name} {said}: --resume goes on with the run's own", f"Leave --{name} out.")


def _asks_more(asked: RunOptions) -> bool:
    """Whether what was typed gives a run more to do, even one that is done."""
    more = (asked.rounds, asked.model, asked.budget_tokens, asked.budget_usd, asked.prices)
    return any(value is not None for value in more)


def _done(store: Any, run_id: str) -> dict[str, Any] | None:
    """The record of a run in which nothing is left to do; None if it can be gone on with."""
    name = find_run(run_id).name
    rows = [r for r in browse.runs(store.database, status="done", limit=1_000_000) if r["id"] == name]
    if not rows or rows[0]["exit_code"] != EXIT_DONE:
        return None
    return dict(browse.show(store.database, name))


def _check_replay(options: RunOptions) -> None:
    """Raises UserError for what has no meaning where no model is asked."""
    given = {
        "--proposer": None if options.proposer == "auto" else options.proposer,
        "--model": options.model,
        "--budget-tokens": options.budget_tokens,
        "--budget-usd": options.budget_usd,
        "--prices": options.prices,
    }
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} {value}: a replay has its recorded answers", f"Leave {option} out.")


def _say_done(record: dict[str, Any], err: Any, as_json: bool) -> int:
    """A run that is done is not run again: its table as it was, and its exit code."""
    stored = record["summary"]
    if as_json:
        emit(stored)
    err.print(f"run {record['id']} is already done", markup=False, soft_wrap=True)
    final_table(stored, err)
    if stored.get("asked"):
        err.print("To ask the model again, with what was found so far: --resume RUN --rounds N", style="dim")
    return int(record["exit_code"])


def _say_recorded(store: Store, run_id: str, asked: RunOptions, err: Any) -> None:
    if asked.record:
        err.print(recordings.write(store, run_id, asked.record), markup=False, soft_wrap=True)


Begun = tuple[str, RunOptions, Chip, str, Choice, Graph, RunFolder]  # the string before Choice: cpu or cuda


def _begin(store: Store, asked: RunOptions, gpu: str | None, device: str) -> Begun:
    """A new run: everything that can be wrong is found before anything is stored."""
    chip = chip_for(gpu)
    where = device_for(device, chip)
    choice = _choice(store, asked)
    if asked.record and choice.model is None:
        raise UserError(f"--record {asked.record}: the {choice.name} asks no language model", "Leave --record out.")
    target = load_target(asked.target, dict(asked.shape))
    return _started(store, asked, chip, where, choice, target.graph, target.notes)


def _begin_replay(store: Store, asked: RunOptions, gpu: str | None, device: str, seed: int | None) -> Begun:
    """A new run that a recording answers: what was not typed is as it was recorded."""
    assert asked.replay is not None, "the caller has a recording's name"
    recording, lasting = recordings.find(store, asked.replay)
    if asked.target:
        target = load_target(asked.target, dict(asked.shape))
        graph, notes = target.graph, target.notes
    else:
        graph, notes = parse(recording.snf, recording.target), ()
    asked = replace(
        asked,
        replay=lasting,
        target=asked.target or recording.target,
        rounds=asked.rounds or recording.rounds,
        seed=recording.seed if seed is None else seed,
    )
    chip = chip_for(gpu or recording.chip)
    return _started(store, asked, chip, device_for(device, chip), replayed(recording), graph, notes)


def _started(
    store: Store,
    asked: RunOptions,
    chip: Chip,
    device: str,
    choice: Choice,
    graph: Graph,
    notes: Sequence[str],
) -> Begun:
    """The run, stored, and its folder."""
    asked = replace(asked, target=readable(asked.target))
    check_cluster(asked.cluster, device)
    run_id = new_id(asked.target)
    folder = RunFolder(run_id)
    folder.write("target.snf", show(graph))
    record = RunRecord(
        id=run_id,
        target=asked.target,
        chip=chip.name,
        device=device,
        proposer=choice.name,
        status="running",
        options=asked.stored(),
        versions=versions(),
    )
    store.start_run(record)
    folder.log(f"started: {asked.target} for {chip.name}, proposer {choice.name} ({choice.why}), seed {asked.seed}")
    for note in notes:
        folder.log(f"note: {note}")
        console(error=True).print(f"note: {note}", markup=False)
    return run_id, asked, chip, device, choice, graph, folder


def _resume(store: Store, run_id: str, asked: RunOptions, device: str) -> Begun:
    """A run that stopped: its target as it was, its options; minutes and jobs as they are asked for now.

    Rounds and what it may spend in all stay, unless they are asked for anew.  It goes on where it began, with or
    without a GPU: times of both kinds do not compare.
    """
    path = find_run(run_id)
    before = store.run(path.name)
    if device not in ("auto", before.device):
        raise UserError(f"--device {device}: the run began on {before.device}", "Leave --device out.")
    chip = chip_for(before.chip)
    where = device_for(before.device, chip)
    folder = RunFolder(path.name)
    check_cluster(asked.cluster, where)
    record = store.resume_run(path.name)
    options = RunOptions(**record.options)
    names = ("model", "rounds", "budget_tokens", "budget_usd", "prices", "record", "search_seconds")
    now = {name: getattr(asked, name) for name in names}
    options = replace(
        options, budget_minutes=asked.budget_minutes, jobs=asked.jobs, cluster=asked.cluster,
        **{name: value for name, value in now.items() if value is not None},
    )  # fmt: skip
    try:
        if options.replay:
            _check_replay(options)
        choice = _choice(store, options)
    except UserError:
        store.finish_run(path.name, record.status, EXIT_USAGE, record.summary)  # it stays as it was
        folder.close()
        raise
    graph = parse((path / "target.snf").read_text(encoding="utf-8"), record.target)
    folder.log("resumed")
    return path.name, options, chip, where, choice, graph, folder


def _choice(store: Store, options: RunOptions) -> Choice:
    if options.replay:
        return replayed(recordings.find(store, options.replay)[0])
    return choose(
        options.proposer,
        options.model,
        tokens=options.budget_tokens,
        usd=options.budget_usd,
        prices=options.prices,
    )


def _progress(err: Any) -> tuple[Progress, AbstractContextManager[Any]]:
    if err.is_terminal:
        bars = Bars(err)
        return bars, bars
    return Lines(), nullcontext()
