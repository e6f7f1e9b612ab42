"""Measures whole spaces on this machine's GPU: every configuration of what the synthesizer writes for a target.

    python benchmarks/spaces.py [TARGET [OUT]] [--shape B=1,T=1024] [--seconds 540]
    python benchmarks/spaces.py [TARGET [OUT]] [--shape B=1,T=1024] --base runs/knowledge.db --gpu h200

Writes OUT.jsonl.gz, a row a configuration as knowledge_base/landscapes.py reads them, and OUT_sources.json.gz, the
files by the first eight digits of their digests.  Prints one JSON line: by file the best time, how many configurations
were measured, and of how many.  What would begin later than so many seconds is left out.  With ``--base`` nothing is
measured: the rows are what runs have left in that knowledge base, the parts of the spaces that they had time for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.commands.hardware import chip_for, device_for
from agent.commands.options import sizes
from agent.loop import PLAN, label_tasks, search
from agent.loop.assay import Assemblers
from agent.loop.ranking import span
from agent.proposers.synthesizer import synthesize
from evaluator.compile import cores
from evaluator.replay import runner_for
from evaluator.timing import Measured
from knowledge_base.chips import Chip
from knowledge_base.landscapes import LandscapeRow
from knowledge_base.records import Candidate, Trial
from knowledge_base.snf import decompose, load_target
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

ALL = 1_000_000

File = tuple[str, Task, Candidate]  # with the task's label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="gpt2-block")
    parser.add_argument("out", nargs="?", default="space")
    parser.add_argument("--shape", action="append")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--base")
    parser.add_argument("--gpu")
    asked = parser.parse_args()
    chip = chip_for(asked.gpu)
    if asked.base is None and device_for("auto", chip) != "cuda":
        print(json.dumps({"benchmark": "spaces", "lacking": "a GPU that kernels can run on"}))
        return
    tasks = decompose(load_target(asked.target, sizes(asked.shape)).graph, PLAN).tasks
    files = [
        (label, task, candidate)
        for label, task in zip(label_tasks(tasks), tasks, strict=True)
        for candidate in synthesize(task, chip)
    ]
    started = time.monotonic()
    found = measured(files, chip, started + asked.seconds) if asked.base is None else known(files, chip, asked.base)
    out, rows, took = Path(asked.out), [], {}
    for (label, task, candidate), one in zip(files, found, strict=True):
        of_file = list(rows_of(label, task, candidate, chip, one))
        times = [row.us for row in of_file if row.us is not None]
        took[f"{label} {candidate.digest[:8]}"] = {
            "us": min(times, default=None),
            "measured": len(times),
            "of": span(candidate.source),
        }
        rows += of_file
    sources = {candidate.digest[:8]: candidate.source for _, _, candidate in files}
    write(out.with_name(f"{out.name}.jsonl.gz"), "".join(row.model_dump_json(exclude_none=True) + "\n" for row in rows))
    write(out.with_name(f"{out.name}_sources.json.gz"), json.dumps(sources, sort_keys=True))
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({"benchmark": "spaces", "chip": chip.name, "seconds": seconds, "files": took}))


def measured(files: Sequence[File], chip: Chip, end: float) -> list[Sequence[Trial]]:
    """The trials of each file's whole space, as far as the time (monotonic) lasts."""
    assemblers, started = Assemblers(cores()), time.monotonic()

    def search_one(label: str, task: Task, candidate: Candidate) -> Sequence[Trial]:
        def progress(done: int, of: int, _: object) -> None:
            if done % 50 == 0:
                print(
                    f"{time.monotonic() - started:6.1f} s  {label} {candidate.digest[:8]}: {done} of {of}",
                    file=sys.stderr,
                )

        return search(
            candidate, task, chip, limit=ALL, assemblers=assemblers, seconds=max(0.0, end - time.monotonic()),
            timer=timer, progress=progress,
        ).trials  # fmt: skip

    with runner_for(chip) as runner, ThreadPoolExecutor(max_workers=6) as pool:
        timer = Measured(runner, 1)
        return list(pool.map(lambda one: search_one(*one), files))


def known(files: Sequence[File], chip: Chip, base: str) -> list[Sequence[Trial]]:
    """What runs have left of each file, by the version of the evaluator that has the fastest kernel of its task."""
    found: list[Sequence[Trial]] = []
    store = Store.open(base)
    for _, task, candidate in files:
        best = store.best_at(task.identity, chip.name, task.sizes)
        evaluator = best[0].evaluator if best else ""
        found.append(store.of_candidate(task.identity, candidate.digest, chip.name, task.sizes, evaluator))
    store.close()
    return found


def rows_of(
    label: str, task: Task, candidate: Candidate, chip: Chip, trials: Sequence[Trial]
) -> Iterator[LandscapeRow]:
    """What was measured, and what was found wrong; what was pruned has no row."""
    for trial in trials:
        time = trial.timed("measured")
        if time is None and trial.verdict is None:
            continue
        yield LandscapeRow(
            task=label,
            sizes=dict(task.sizes),
            dtype=task.outputs[0].dtype,
            chip=chip.name,
            axes=dict(trial.configuration),
            us=None if time is None else round(time.us, 2),
            status="correct" if trial.verdict is None else trial.verdict.status.value,
            source=candidate.digest[:8],
        )


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
