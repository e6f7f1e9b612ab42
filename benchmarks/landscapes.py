"""How near the loop comes to the best configuration where trying one is dear.  Prints one JSON line.

    python benchmarks/landscapes.py [--seeds N]

Whole runs (trace, compile, judge, keep) of each file of knowledge_base/seed/landscapes/h200_product, whose times are
looked up there instead of measured: by space the winner's time ÷ the best one's, and how many configurations were
tried, of TRIES at most.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.loop import RunFolder, RunOptions, run, task_work
from agent.progress import Silent
from agent.proposers import Choice, Offer, Proposal, ProposalRequest, Proposer, Workplace
from evaluator.timing import Known
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.landscapes import LandscapeRow, landscape, landscape_sources
from knowledge_base.records import Candidate, Measurement
from knowledge_base.snf import decompose, load_target
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task
from knowledge_base.store import RunRecord, Store

CHIP = chip("h200")
TRIES = 60  # of each file
# Tasks of llama3-8b-block that are no everyday ones: what the landscape calls them, and how they are called there.
LLAMA = {
    "rmsnorm": "rmsnorm_43ef8d",
    "rope with permute": "rope_1da0a8",
    "linear without bias": "linear_nobias",
    "linear times SiLU(x2), no bias": "linear_silu_mul_c0ad0d",
}


@dataclass(frozen=True)
class _Given(Choice):
    """The proposer that has one file."""

    candidate: Candidate | None = None

    def proposers(self, place: Workplace) -> tuple[Proposer, ...]:
        return (_Has(self.candidate),) if self.candidate is not None else ()


class _Has:
    name, learns = "synthesizer", False

    def __init__(self, candidate: Candidate) -> None:
        self._offers = [candidate]

    def propose(self, request: ProposalRequest) -> Offer:
        return Offer((Proposal(self._offers.pop()),)) if self._offers else Offer((), "that was its only file")

    def hear(self, task: object, trial: object) -> None:
        pass


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=1)
    seeds = options.parse_args().seeds
    task_work.LIMIT = TRIES
    spaces: dict[tuple[str, str, str], list[LandscapeRow]] = {}
    for row in landscape("h200_product"):
        if row.us is not None:
            spaces.setdefault((row.task, row.source, json.dumps(row.sizes)), []).append(row)
    found = {}
    for (name, source, sizes), rows in spaces.items():
        label = f"{name} {source} {' '.join(f'{d}={n}' for d, n in json.loads(sizes).items())}"
        found[label] = [_found(name, source, rows, seed) for seed in range(seeds)]
    print(json.dumps({"benchmark": "landscapes", "chip": CHIP.name, "spaces": found}))


def _task(name: str, sizes: dict[str, int]) -> Task:
    if name not in LLAMA:
        return everyday(name, **sizes)
    tasks = decompose(load_target("llama3-8b-block").graph).tasks
    return next(task for task in tasks if task.name == LLAMA[name]).at(**sizes)


def _found(name: str, source: str, rows: list[LandscapeRow], seed: int) -> dict[str, float | int | str]:
    task = _task(name, rows[0].sizes)
    candidate = Candidate(source=landscape_sources()[source], task=task.identity, proposer="synthesizer")
    timer = Known(
        begin(candidate, task, CHIP, row.axes).fuller(
            measurements=(Measurement(kind="measured", chip=CHIP.name, us=row.us or 0.0, floor_us=1.0),)
        )
        for row in rows
    )
    with tempfile.TemporaryDirectory() as folder, Store.open(os.path.join(folder, "kb.db")) as store:
        choice = _Given("synthesizer", "for the benchmark", candidate=candidate)
        store.start_run(RunRecord("run", name, CHIP.name, "cpu", choice.name, "running"))
        where = RunFolder("run", Path(folder))
        try:
            asked = RunOptions(name, seed=seed)
            summary = run("run", asked, task.graph, CHIP, choice, store, where, Silent(), timer)
            won = store.best_at(task.identity, CHIP.name, task.sizes)  # a file for some sizes alone is no task's winner
        finally:
            where.close()
    (one,) = summary.tasks
    best = min(row.us for row in rows if row.us is not None)
    time = won[0].timed("measured") if won else None
    said: dict[str, float | int | str] = {"status": one.status, "tried": one.effort.of_all, "of": len(rows)}
    return said | ({"over_best": round(time.us / best, 4)} if time is not None else {})


if __name__ == "__main__":
    main()
