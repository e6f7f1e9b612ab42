"""What a Dask worker of the tests runs first: its host's GPU is the emulated one, and cubins are bytecodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def dask_setup(_worker: object) -> None:
    from card_runs import bytecodes
    from device_double import DOUBLE

    from agent.loop import cluster
    from evaluator.replay import Runner
    from evaluator.timing import clock
    from knowledge_base.chips import Chip
    from knowledge_base.errors import EnvironmentLacks

    def runner_for(chip: Chip) -> Runner:
        if os.environ.get("GPU_OF_TESTS") == "none":
            raise EnvironmentLacks(f"this machine has no {chip.product}")
        return Runner(DOUBLE, {}, {})

    cluster.runner_for = runner_for
    clock.cubins_of = bytecodes
