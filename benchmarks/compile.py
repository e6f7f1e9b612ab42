"""How fast kernels are compiled and configurations searched.  Prints one JSON line.

    python benchmarks/compile.py [--jobs N] [--chip h200]

cold: every configuration of a tiled linear for one architecture with an empty cache; warm: again.  search_cold and
search_warm: the whole configuration search (trace, price, prune, compile, model) of the same file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.loop.enumeration import configurations
from agent.loop.searching import search
from evaluator.compile import Cache, Compiled, compile_kernels
from evaluator.compile.pool import cores
from evaluator.trace import Request, Traced, read_axes, trace
from knowledge_base.chips import chip
from knowledge_base.records import Candidate
from knowledge_base.snf.everyday import everyday

CANDIDATE = Path(__file__).resolve().parent.parent / "tests" / "candidates" / "linear_tiles.py"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=cores())
    options.add_argument("--chip", default="h200")
    chosen = options.parse_args()
    gpu, task, source = chip(chosen.chip), everyday("linear"), CANDIDATE.read_text()
    candidate = Candidate(source=source, task=task.identity)
    axes = read_axes(source)
    assert isinstance(axes, dict)
    requests = [Request(task.sizes, c) for c in configurations(axes, 64)]
    found, traced_s = timed(lambda: trace(source, task, requests, gpu))
    kernels = {k: b for one in found if isinstance(one, Traced) for k, b in one.kernels.items()}
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        compiled, cold_s = timed(lambda: compile_kernels(kernels, [gpu.arch], jobs=chosen.jobs, cache=Cache(first)))
        _, warm_s = timed(lambda: compile_kernels(kernels, [gpu.arch], jobs=chosen.jobs, cache=Cache(first)))
        result, search_s = timed(lambda: search(candidate, task, gpu, jobs=chosen.jobs, cache=Cache(second)))
        _, again_s = timed(lambda: search(candidate, task, gpu, jobs=chosen.jobs, cache=Cache(second)))
    print(
        json.dumps(
            {
                "benchmark": "compile",
                "chip": gpu.name,
                "jobs": chosen.jobs,
                "configurations": len(requests),
                "kernels": len(kernels),
                "compiled": sum(isinstance(a, Compiled) for a in compiled.values()),
                "trace_s": traced_s,
                "cold_s": cold_s,
                "warm_s": warm_s,
                "search_cold_s": search_s,
                "search_warm_s": again_s,
                "search": result.counts(),
            }
        )
    )


def timed(work):  # type: ignore[no-untyped-def]
    """(the answer, seconds) of a call."""
    start = time.perf_counter()
    answer = work()
    return answer, round(time.perf_counter() - start, 3)


if __name__ == "__main__":
    main()
