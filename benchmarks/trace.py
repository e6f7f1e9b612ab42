"""How long a trace takes: cold (process start, imports, candidate, export), more requests, and a confined run alone.

    python benchmarks/trace.py [--repeat N]

Prints one JSON line; times in ms, the least of the repeats (neighbours only add) and the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evaluator.confinement.confine import run
from evaluator.trace import Request, Traced, trace
from knowledge_base.chips import chip
from knowledge_base.snf.everyday import everyday

CANDIDATES = Path(__file__).resolve().parent.parent / "tests" / "candidates"
LIMIT_COLD_MS = 300.0


def times(action: Callable[[], object], repeat: int) -> dict[str, float]:
    action()
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1e3)
    return {"least": round(min(taken), 2), "median": round(statistics.median(taken), 2)}


def cold(name: str, task_name: str, policies: tuple[str, ...] = ("general",)) -> Callable[[], None]:
    source, task, gpu = (CANDIDATES / name).read_text(), everyday(task_name), chip("rtx5070")
    requests = [Request(task.sizes, policy=policy) for policy in policies]

    def once() -> None:
        for answer in trace(source, task, requests, gpu):
            if not isinstance(answer, Traced):
                raise SystemExit(f"{name}: {answer}")

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    result = {
        "benchmark": "trace",
        "unit": "ms",
        "limit_cold": LIMIT_COLD_MS,
        "layernorm": times(cold("layernorm_rows.py", "layernorm"), repeat),
        "linear": times(cold("linear_tiles.py", "linear"), repeat),
        "attention": times(cold("attention_online.py", "attention"), repeat),
        "attention_general_and_sample": times(cold("attention_online.py", "attention", ("general", "sample")), repeat),
        "attention_10_concrete": times(cold("attention_online.py", "attention", ("concrete",) * 10), repeat),
        "python_start": times(lambda: run([sys.executable, "-I", "-S", "-c", "pass"]), repeat),
        "confined_true": times(lambda: run(["/bin/true"]), repeat * 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
