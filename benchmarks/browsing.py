"""How long it takes to ask a large knowledge base: each `agent kb` table, what a prompt is told, and the process.

    python benchmarks/browsing.py [--evaluations 1000000] [--base FILE]

Makes a base of so many trials (about 1.5 KB each, 500 of each file, of everyday tasks), unless FILE is there, and
prints a JSON line for each question: milliseconds of the query and of `agent kb …` as a process, the fastest of three.
Limits: 100 ms of a query, and of what a prompt is told; 700 ms of a process.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from knowledge_base import browse
from knowledge_base.advice import advice
from knowledge_base.chips import CHIPS
from knowledge_base.content import content_key
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.task import Task
from knowledge_base.store import COUNTED, RunRecord, Store, count
from knowledge_base.tables import ATTEMPTS, TRIALS, WINNERS

ROOT = Path(__file__).resolve().parent.parent
FILES = 2000  # candidates, of all tasks; each has many configurations
RUNS = 200
LIMITS_MS = {"query": 100, "process": 700}
STATUSES = ("compiled", "compiled", "compiled", "pruned", "correct", "wrong", "build-error", "compile-error")


def trial(task: Task, candidate: Candidate, chip: str, configuration: dict[str, int], status: str, us: float) -> Trial:
    """A trial as runs store them."""
    verdict = None
    if status not in ("compiled", "pruned"):
        numbers = {"normal": {"y": {"rms_ratio": 1.01, "largest_ratio": 1.2}}}
        verdict = Verdict(status=Status(status), stage=Stage.DONE, message="as it is", numbers=numbers)
    evidence = CompileEvidence(
        arch=CHIPS[chip].arch, kernel="0" * 64, symbol="kernel", registers=168, stack_bytes=0, spill_bytes=0,
        shared_bytes=66560, mma="wgmma", tma=True, threads=128, cubin_bytes=20_000, seconds=0.4,
    )  # fmt: skip
    time_ = Measurement(kind="modelled", chip=chip, us=us, floor_us=10.0, terms={"memory": us, "math": us / 2})
    timed = {"evidence": (evidence,), "measurements": (time_,)} if status != "pruned" else {"pruned": "its price"}
    return Trial(
        candidate=candidate, configuration=configuration, chip=chip, shape=task.sizes, evaluator="e" * 64,
        plans=("p" * 64,), verdict=verdict, **timed,
    )  # fmt: skip


def filled(file: Path, evaluations: int) -> None:
    """Makes the base: a template of each file and status through the store, its many configurations by hand."""
    rng = random.Random(0)
    tasks = [everyday(name) for name in NAMES]
    each = evaluations // FILES
    with Store.open(str(file)) as store:
        store.record_tasks(tasks)
        for i in range(RUNS):
            run = f"run-{i:04}"
            store.start_run(RunRecord(run, "gpt2-block", "h200", "cpu", "synthesizer", "running"))
            store.finish_run(run, "done", 0, {})
        for number in range(FILES):
            task, chip = tasks[number % len(tasks)], ("h200", "b200", "rtx5070")[number % 3]
            source = f"# {number}\n" + "x = 1  # of a kernel\n" * 150
            by = {"proposer": "openai", "prompt": "p"} if number % 4 == 0 else {"proposer": "synthesizer"}
            candidate = Candidate(source=source, task=task.identity, **by)
            made = [
                trial(task, candidate, chip, {"TM": 0, "TN": 64, "occupancy": 1}, status, rng.uniform(20, 400))
                for status in STATUSES
            ]
            run = f"run-{number % RUNS:04}"
            store.record(made[:1], run=run, move="search")
            with store.database.write() as connection:
                (head,) = connection.execute(TRIALS.select().where(TRIALS.c.key == made[0].key)).mappings()
                rows = list(_rows(dict(head), made, number, each, rng))
                connection.execute(TRIALS.insert(), rows)
                count(connection, Counter(tuple(row[name] for name in COUNTED) for row in rows))
                tried = [{"run_id": run, "trial": r["key"], "move": "search", "reused": False} for r in rows[:200]]
                connection.execute(ATTEMPTS.insert(), [t | {"created_at": head["created_at"]} for t in tried])
                won = [r["key"] for r in rows if r["status"] == "correct"][:2]
                fields = {"run_id": run, "folder": "f", "promoted_at": "", "created_at": head["created_at"]}
                connection.execute(WINNERS.insert(), [fields | {"key": content_key("w", k), "trial": k} for k in won])


def _rows(
    head: dict[str, Any], made: list[Trial], number: int, each: int, rng: random.Random
) -> Iterator[dict[str, Any]]:
    documents = [one.model_dump(mode="json", exclude={"candidate"}) for one in made]
    for i in range(1, each):
        one, status = i % len(made), made[i % len(made)].status
        us = round(rng.uniform(20, 400), 3) if status != "pruned" else None
        day = f"2026-{1 + i % 11:02}-{1 + number % 28:02}T{i % 24:02}:{i // 24 % 60:02}:{i // 1440 % 60:02}.000000Z"
        document = documents[one] | {"configuration": {"TM": i}}
        said = (document[name] for name in ("configuration", "chip", "shape", "evaluator"))
        key = content_key("evaluation", head["task"], made[0].candidate.digest, *said)
        fields = {"key": key, "status": status, "us": us, "created_at": day, "record": document}
        fields |= {"standing": made[one].standing}
        yield head | fields | {"kind": "modelled" if us is not None else ""}


def best_of(function: Callable[[], Any]) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return 1000 * min(seconds() for _ in range(3))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--evaluations", type=int, default=1_000_000)
    options.add_argument("--base", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = asked.base or Path(folder) / "kb.db"
        if not file.exists():
            filled(file, asked.evaluations)
        with Store.open(str(file)) as store:
            base = store.database
            one = browse.attempts(base, limit=1)[0]
            questions: list[tuple[str, Callable[[], Any], list[str]]] = [
                ("facts", lambda: browse.facts(base), ["facts"]),
                ("rules", lambda: browse.rules(base, op="linear"), ["rules", "--op", "linear"]),
                ("kernels", lambda: browse.kernels(base), ["kernels"]),
                ("kernels of an op on a chip", lambda: browse.kernels(base, op="linear", gpu="h200"),
                 ["kernels", "--op", "linear", "--gpu", "h200"]),
                ("runs", lambda: browse.runs(base), ["runs"]),
                ("attempts", lambda: browse.attempts(base), ["attempts"]),
                ("attempts that are wrong", lambda: browse.attempts(base, status="wrong", op="linear"),
                 ["attempts", "--status", "wrong", "--op", "linear"]),
                ("attempts of a run", lambda: browse.attempts(base, run="run-0001"), ["attempts", "--run", "run-0001"]),
                ("tasks", lambda: browse.tasks(base), ["tasks"]),
                ("tasks on a chip", lambda: browse.tasks(base, gpu="h200"), ["tasks", "--gpu", "h200"]),
                ("search for words", lambda: browse.search(base, ["kernel", "x = 1"]), ["search", "kernel", "x = 1"]),
                ("search messages", lambda: browse.search(base, ["as it"], kinds=["trial"]),
                 ["search", "as it", "--kind", "trial"]),
                ("show a trial", lambda: browse.show(base, one["trial"][:12]), ["show", one["trial"][:12]]),
                ("show a kernel", lambda: browse.show(base, one["kernel"][:12]), ["show", one["kernel"][:12]]),
                ("show a task", lambda: browse.show(base, "linear"), ["show", "linear"]),
                ("show a run", lambda: browse.show(base, "run-0001"), ["show", "run-0001"]),
                ("why", lambda: advice(store, everyday("linear_gelu"), CHIPS["h200"]),
                 ["why", "linear_gelu", "--gpu", "h200"]),
            ]  # fmt: skip
            for name, query, arguments in questions:
                command = [sys.executable, "-m", "agent", "kb", *arguments, "--db", str(file)]
                found = {"query": best_of(query), "process": best_of(lambda c=command: ran(c))}
                over = [what for what, ms in found.items() if ms > LIMITS_MS[what]]
                row = {"ask": name} | {what: round(ms, 1) for what, ms in found.items()} | {"over": over}
                print(json.dumps(row), flush=True)


def ran(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)


if __name__ == "__main__":
    main()
