"""``agent kb verify``: the cheapest paired experiment that could refute a rule, and what became of the rule by it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from agent import loop
from agent.console import console, count, emit, pairs, percent, table, us
from agent.verification import Experiment, Outcome, PairedPlace, planned, verified
from evaluator.compile import cores
from evaluator.replay import runner_for
from evaluator.timing import Measured
from knowledge_base import browse
from knowledge_base.chips import Chip
from knowledge_base.chips import chip as chip_named
from knowledge_base.errors import EXIT_DONE, EXIT_INTERRUPTED, EnvironmentLacks, UserError
from knowledge_base.rules import Lesson, RuleForm, claimed, form_of, learn
from knowledge_base.snf import task_named
from knowledge_base.store import RunRecord, Store

from .hardware import check_toolchain, chip_for, device_for
from .kb import plain, reading

PROPOSER = "verify"  # of its runs: nobody proposed a kernel


def verify(
    rule: str,
    task: str,
    shape: Mapping[str, int],
    gpu: str | None,
    plan: bool,
    seed: int,
    jobs: int,
    seconds: float,
    db: str | None,
    as_json: bool,
) -> int:
    """Tests the rule whose id begins with ``rule`` on this machine's GPU; ``plan``: only says what would be measured.

    Raises UserError for what is no rule, or one that no configuration can be evidence of; EnvironmentLacks without a
    GPU that the rule speaks of.
    """
    if shape and not task:
        raise UserError("--shape: of which task?", "Name it: --task linear --shape M=4096.")
    with reading(db) if plan else Store.open(db) as store:
        row = _rule(store, rule)
        form = form_of(row)
        if form is None or not form.when:
            why = "its conditions are not of an axis or of how a kernel is made"
            raise UserError(f"no configuration is evidence of rule {row['key'][:8]}: {why}")
        chip = _chip(form, gpu)
        if not plan:
            if device_for("auto", chip) != "cuda":
                raise EnvironmentLacks(
                    f"the rule is tested on a GPU of the kind {chip.name}, and there is none here",
                    "--plan shows what would be measured.",
                )
            check_toolchain()
        known = loop.measured_spaces(store, foreign=False)
        where = task_named(task, dict(shape)) if task else None
        experiment = planned(store, form, claimed(row), chip, known, seed, where)
        if plan:
            if as_json:
                emit(_document(row, experiment, [], ""))
            else:
                _say_plan(row, experiment)
            return EXIT_DONE
        return _carried_out(store, row, experiment, seed, jobs or cores(), seconds, as_json)


def _rule(store: Store, rule: str) -> dict[str, Any]:
    row: dict[str, Any] = browse.show(store.database, rule)
    if row["is"] != "rule":
        raise UserError(f"{rule!r} is a {row['is']}, no rule", "`agent kb rules` lists them.")
    return row


def _chip(form: RuleForm, gpu: str | None) -> Chip:
    """The rule's; of a rule of all chips the one that is named, or this machine's."""
    if not form.scope.chip:
        return chip_for(gpu)
    if gpu is not None and chip_named(gpu).name != form.scope.chip:
        raise UserError(f"--gpu {gpu}: the rule speaks of {form.scope.chip}", "Leave --gpu out.")
    return chip_named(form.scope.chip)


def _carried_out(
    store: Store, row: dict[str, Any], experiment: Experiment, seed: int, jobs: int, seconds: float, as_json: bool
) -> int:
    err, chip, began = console(error=True), experiment.chip, time.monotonic()
    run = loop.new_id(f"verify-{row['key'][:8]}")
    asked = {"rule": row["key"], "seed": seed, "jobs": jobs, "seconds": seconds}
    store.start_run(
        RunRecord(run, f"rule {row['key'][:8]}", chip.name, "cuda", PROPOSER, "running", asked, loop.versions())
    )
    try:
        with err.status("starting the GPU's process …") as status, runner_for(chip) as runner:

            def say(line: str) -> None:
                status.update(plain(line))

            outcomes = list(verified(experiment, store, run, Measured(runner, seed), jobs, began + seconds, say))
            status.update("holding the rules to it")
            lesson = learn(store.database, loop.NEWEST)
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", EXIT_INTERRUPTED, {"why": "interrupted"})
        raise
    except Exception as error:
        with suppress(Exception):  # what failed may be the disk: the first error is the one to show
            store.finish_run(run, "failed", getattr(error, "exit_code", 1), {"why": str(error)})
        raise
    now = browse.show(store.database, row["key"])
    document = _document(row, experiment, outcomes, run) | {
        "status": now["status"], "why": _why(row, now, outcomes, lesson), "seconds": round(time.monotonic() - began, 3),
        "changes": [asdict(change) for change in lesson.changes] if lesson is not None else None,
    }  # fmt: skip
    store.finish_run(run, "done", EXIT_DONE, {"verified": document})
    if as_json:
        emit(document)
    else:
        _say(row, experiment, document)
    return EXIT_DONE


def _why(row: Mapping[str, Any], now: Mapping[str, Any], outcomes: list[Outcome], lesson: Lesson | None) -> str:
    """Why the rule has the status that it has now."""
    if lesson is None:
        return f"the base has more than {loop.NEWEST:,} measured configurations: `agent kb mine` holds rules to them"
    if not any(outcome.found is not None for outcome in outcomes):
        return "too few pairs ran"
    history = now["history"] or []
    if len(history) > len(row["history"] or []):
        return str(history[-1]["why"])
    said = {outcome.says or "nothing" for outcome in outcomes}
    return f"the places say {' and '.join(sorted(said))}"


# ------------------------------------------------------------------------------------------------ what is said


def _document(row: Mapping[str, Any], experiment: Experiment, outcomes: list[Outcome], run: str) -> dict[str, Any]:
    told = {id(outcome.place): outcome for outcome in outcomes}
    return {
        "rule": row["key"], "statement": row["statement"], "claimed": experiment.claimed, "was": row["status"],
        "status": row["status"], "why": "", "chip": experiment.chip.name, "enough": experiment.enough, "run": run,
        "seconds": 0.0, "changes": [],
        "places": [_place(place) | {"outcome": _outcome(told.get(id(place)))} for place in experiment.places],
    }  # fmt: skip


def _place(place: PairedPlace) -> dict[str, Any]:
    pairing = place.pairing
    return {
        "task": place.task.name, "identity": place.task.identity, "shape": place.task.sizes, "new": place.new,
        "floor_us": round(place.floor_us, 3), "groups": len(pairing.groups), "pairs": pairing.pairs,
        "configurations": pairing.configurations, "kernels": [file.digest for file in pairing.files],
    }  # fmt: skip


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    found, (having, without) = outcome.found, outcome.fastest
    figures = {} if found is None else {
        "effect": found.best.value, "effect_low": found.best.low, "effect_high": found.best.high,
        "paired": found.paired.value, "pairs": found.pairs,
    }  # fmt: skip
    return {
        "timed": outcome.timed, "failed": outcome.failed, "says": outcome.says,
        "with_us": having, "without_us": without,
    } | figures  # fmt: skip


def _say_plan(row: Mapping[str, Any], experiment: Experiment) -> None:
    out = console()
    out.print(plain(f"{row['status']} rule {row['key'][:8]}: {row['statement']}"))
    of = count(len(experiment.places), "place")
    if row["status"] != "supported":
        out.print(f"What would say more of it ({of}):")
    elif experiment.enough:
        out.print(f"What has to say the contrary, so that it is not believed any more ({of}):")
    else:
        out.print(f"It takes more places than that to outweigh what speaks for it ({of}):")
    made = table([
        ("task and sizes", "left", None), ("floor µs", "right", 8), ("configurations", "right", 14),
        ("pairs", "right", 5), ("", "left", 12),
    ])  # fmt: skip
    for place in experiment.places:
        made.add_row(
            plain(f"{place.task.name} {pairs(place.task.sizes)}"), us(place.floor_us),
            str(place.pairing.configurations), str(place.pairing.pairs), "new" if place.new else "was measured",
        )  # fmt: skip
    out.print(made)
    out.print("Up to so many configurations: it ends at a place once that says something.", style="dim")


def _say(row: Mapping[str, Any], experiment: Experiment, document: Mapping[str, Any]) -> None:
    out = console()
    out.print(plain(f"{row['status']} rule {row['key'][:8]}: {row['statement']}"))
    made = table([
        ("task and sizes", "left", None), ("with", "right", 7), ("without", "right", 7),
        ("best against best", "left", 25), ("pairs", "right", 5), ("says", "left", 7),
    ])  # fmt: skip
    for place in document["places"]:
        found = place["outcome"]
        if found is None:
            continue
        effect = "-"
        if "effect" in found:
            low, high = (percent(found[name]) for name in ("effect_low", "effect_high"))
            effect = f"{percent(found['effect'])}, {low[:-1]} to {high[:-1]}"
        made.add_row(
            plain(f"{place['task']} {pairs(place['shape'])}"), us(found["with_us"]), us(found["without_us"]), effect,
            str(found.get("pairs", 0)), found["says"] or "nothing",
        )  # fmt: skip
    out.print(made)
    status = document["status"]
    out.print(plain(f"{'It stays' if status == row['status'] else 'Now it is'} {status}: {document['why']}."))
    others = [change for change in document["changes"] or () if change["key"] != row["key"]]
    if others:
        out.print(f"{count(len(others), 'other rule')} changed by it: agent kb rules")
    failed = sum(place["outcome"]["failed"] for place in document["places"] if place["outcome"])
    if failed:
        out.print(f"{count(failed, 'configuration')} did not run, or had no steady time.", style="dim")
    out.print(f"µs, measured on {experiment.chip.name}; agent kb show {document['run']}", style="dim")
