"""How long the commands take, as a user waits for them: one JSON line each, seconds on the wall.

Cold means an empty knowledge base and an empty cubin cache; warm is the same command again.

    python benchmarks/commands.py [--no-cold]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS_S = {"help": 0.5, "check": 10.0, "run, cold": 120.0, "run, warm": 20.0}


def timed(name: str, arguments: list[str], folder: Path) -> None:
    environment = os.environ | {"TILEWRIGHT_CACHE": str(folder / "cache")}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "agent", *arguments], cwd=folder, env=environment, capture_output=True, check=False
    )
    seconds = round(time.perf_counter() - start, 2)
    row = {"command": name, "seconds": seconds, "limit": LIMITS_S[name], "exit": done.returncode}
    print(json.dumps(row | {"cores": os.cpu_count()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-cold", action="store_true", help="leave the runs of the GPT-2 block out")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed("help", ["--help"], folder)
        candidate = str(ROOT / "tests/candidates/linear_tiles.py")
        timed("check", ["check", candidate, "--task", "linear"], folder)
        if not chosen.no_cold:
            timed("run, cold", ["run", "--target", "gpt2-block", "--proposer", "synthesizer"], folder)
            timed("run, warm", ["run", "--target", "gpt2-block", "--proposer", "synthesizer"], folder)


if __name__ == "__main__":
    main()
