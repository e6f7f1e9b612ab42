"""Thousands of candidates, good, wrong, hanging and hostile, through the judges: what is left, and how many a minute.

    python benchmarks/soak.py [--pool N] [--check N] [--jobs N] [--seed N]

The first N go through the pool of judge processes that `agent run` uses, the others each through an `agent check` of
its own; both --jobs at a time.  After every hundred, or twenty checks, nothing runs, and what the processes hold is
looked at: their memory (proportional set size), descriptors and children, and the files in the folder for temporary
ones.  Prints a line each time and at the end one line of JSON.

Exit code 1 if a good candidate is not correct or another one is, if anything is left at the end, or if memory grew by
more than 5 % after the first fifth.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.loop.judges import Judges
from evaluator.confinement import lockdown
from evaluator.confinement.confine import containment
from evaluator.plans import Plans
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.records import Candidate
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
CHIP = chip("rtx5070")
SEED = 5  # as in a run, whose judgements of one task ask for the same inputs
GROWTH = 1.05
MIX = {"good": 0.45, "wrong": 0.3, "hostile": 0.24, "hanging": 0.01}  # hanging ones take fifteen to ninety seconds
HANGING = ("loops_", "compiles_without_end", "endless")


@dataclass(frozen=True)
class Scripted:
    """A candidate and what it is."""

    kind: str
    name: str
    source: str
    task: Task


def scripted() -> dict[str, list[Scripted]]:
    """All candidates, by kind: the files of tests/candidates, the wrong kernels of tests/evaluator, and large ones."""
    found: dict[str, list[Scripted]] = {kind: [] for kind in MIX}
    for path in sorted((TESTS / "candidates").glob("*.py")):
        source = path.read_text()
        task = everyday(source.split("\n")[0].removeprefix("# task: "))
        found["good"].append(Scripted("good", path.stem, source, task))
    for path in sorted((TESTS / "candidates" / "hostile").glob("*.py")):
        kind = "hanging" if path.name.startswith(HANGING) else "hostile"
        found[kind].append(Scripted(kind, path.stem, path.read_text(), everyday("gelu", M=100, N=192)))
    wrong = _module(TESTS / "evaluator" / "test_judge_wrong.py")
    for name, case in wrong.WRONG.items():
        kind = "hanging" if "endless" in case.error_class else "wrong"
        found[kind].append(Scripted(kind, name, case.text(), everyday(case.task, **wrong.SIZES[case.task])))
    kernel = _module(TESTS / "evaluator" / "test_judge_process.py").kernel
    for name, lines in LARGE.items():
        found["hanging"].append(Scripted("hanging", name, kernel(*lines), everyday("gelu", M=100, N=70)))
    return found


LARGE = {  # bodies of kernels: minutes and gigabytes, did nobody end them
    "sixty tiles of 2^24 elements": [
        *(f"t{i} = ct.full((4096, 4096), {i}.0, ct.float32) + v.astype(ct.float32)" for i in range(60)),
        "z = " + " + ".join(f"t{i}" for i in range(60)),
    ],
    "eight multiply-adds on 2^23 elements": ["z = ct.full((2048, 4096), 1.5, ct.float64) + v", *["z = z * z + v"] * 8],
}


def drawn(count: int, rng: random.Random) -> Iterator[Scripted]:
    kinds = scripted()
    for kind in rng.choices(list(MIX), list(MIX.values()), k=count):
        yield rng.choice(kinds[kind])


# ---------------------------------------------------------------------------------------------------- what is held


@dataclass(frozen=True)
class Held:
    """What this process and those below it hold."""

    megabytes: float
    descriptors: int
    processes: int
    files: int

    @classmethod
    def now(cls, folder: Path) -> Held:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # an orphan that ended by itself
        pids = [os.getpid(), *below(os.getpid())]
        return cls(
            round(sum(_pss(pid) for pid in pids) / 1024, 1),
            sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            len(pids),
            sum(1 for _ in folder.rglob("*")),
        )


def below(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
            found += [child, *below(child)]
    return found


def _pss(pid: int) -> int:
    """Proportional set size in KiB: private pages, and of shared ones a share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------------------------------- both ways


def soak(
    name: str, candidates: Iterable[Scripted], one: Callable[[Scripted], str], batches: int, jobs: int, folder: Path
) -> dict[str, Any]:
    """All candidates by ``one``, which gives a status; what came of it."""
    statuses: collections.Counter[tuple[str, str]] = collections.Counter()
    surprises: list[str] = []
    held: list[Held] = []
    rest, done, working = list(candidates), 0, 0.0
    with ThreadPoolExecutor(jobs) as pool:
        while rest:
            batch, rest = rest[:batches], rest[batches:]
            start = time.monotonic()
            for candidate, status in zip(batch, pool.map(one, batch), strict=True):
                statuses[candidate.kind, status] += 1
                if (status == "correct") != (candidate.kind == "good"):
                    surprises.append(f"{candidate.kind} {candidate.name}: {status}")
            working += time.monotonic() - start
            done += len(batch)
            time.sleep(0.5)  # what ends, ends
            held.append(Held.now(folder))
            print(f"{name} {done}: {done / working * 60:.0f} a minute, {held[-1]}", flush=True)
    warm = [h.megabytes for h in held[len(held) // 5 :]]
    return {
        "candidates": done,
        "a_minute": round(done / working * 60, 1),
        "statuses": {" ".join(key): count for key, count in sorted(statuses.items())},
        "surprises": surprises,
        "megabytes": [h.megabytes for h in held],
        "growth": round(max(warm) / warm[0], 3) if warm else 1.0,
        "descriptors": [h.descriptors for h in held],
        "processes": [h.processes for h in held],
        "files": [h.files for h in held],
    }


def by_pool(candidates: Iterable[Scripted], jobs: int, folder: Path) -> dict[str, Any]:
    with Judges(jobs) as judges:

        def one(c: Scripted) -> str:
            trial = begin(Candidate(source=c.source, task=c.task.identity), c.task, CHIP)
            verdict = judges.judge(trial, c.task, CHIP, Plans(), SEED).verdict
            assert verdict is not None
            return verdict.status.value

        return soak("pool", candidates, one, 100, jobs, folder)


def by_check(candidates: Iterable[Scripted], jobs: int, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:  # it is none of those that are counted

        def one(c: Scripted) -> str:
            descriptor, path = tempfile.mkstemp(suffix=".py", dir=place)
            with open(descriptor, "w") as file:
                file.write(c.source)
            shape = [option for name, size in c.task.sizes.items() for option in ("--shape", f"{name}={size}")]
            command = [sys.executable, "-m", "agent", "check", path, "--task", c.task.name, *shape]
            command += ["--db", f"{place}/knowledge.db", "--json"]
            done = subprocess.run(
                command, cwd=place, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False
            )
            try:
                return str(json.loads(done.stdout)["verdict"]["status"])
            except ValueError:
                return f"exit code {done.returncode}: {done.stderr.decode()[-300:]}"

        return soak("check", candidates, one, 20, jobs, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=2000)
    parser.add_argument("--check", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lockdown.adopt_orphans()  # whoever detaches becomes our child, and is counted
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TMPDIR"] = tempfile.tempdir = name
        containment()  # has started what confines, which stays
        time.sleep(0.5)
        before = Held.now(folder)
        report: dict[str, Any] = {}
        for way, count in ((by_pool, options.pool), (by_check, options.check)):
            if count:
                report[way.__name__] = way(drawn(count, rng), options.jobs, folder)
        time.sleep(1.0)
        after = Held.now(folder)
    left = {what: getattr(after, what) - getattr(before, what) for what in ("descriptors", "processes", "files")}
    report["left"] = left
    print(json.dumps(report))
    parts = [report[name] for name in ("by_pool", "by_check") if name in report]
    sys.exit(any(left.values()) or any(p["surprises"] or p["growth"] > GROWTH for p in parts))


if __name__ == "__main__":
    main()
