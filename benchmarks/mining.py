"""How long mining takes, and how much memory: the times that ship, and as many of them, jittered, as asked for.

    python benchmarks/mining.py [--configurations 100000]

Prints one JSON line: configurations, spaces, rules, seconds and the process's peak memory in MiB.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from knowledge_base.rules import Timed, in_spaces, mine, shipped


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--configurations", type=int, default=100_000)
    asked = options.parse_args().configurations
    rng = random.Random(0)
    there = list(shipped())
    rows: list[Timed] = []
    while len(rows) < asked:  # further sessions of the same spaces, at sizes of their own
        number = len(rows) // len(there)
        rows += [
            dataclasses.replace(
                row,
                session=f"{row.session} {number}",
                sizes={name: size * (number + 1) for name, size in row.sizes.items()},
                us=row.us * rng.lognormvariate(0, 0.003),
            )
            for row in there[: asked - len(rows)]
        ]
    began = time.perf_counter()
    spaces = in_spaces(rows)
    rules = mine(spaces)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found = {"configurations": len(rows), "spaces": len(spaces), "rules": len(rules)}
    print(json.dumps({"benchmark": "mining"} | found | {"seconds": round(seconds, 1), "peak_mib": peak}))


if __name__ == "__main__":
    main()
