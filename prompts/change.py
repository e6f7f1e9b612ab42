"""A right kernel that is slow: what its cubin and the terms of its modelled time show, and the one change to try first.

The order is that of what was seen to cost most: spilled registers, products off the tensor cores, too few blocks,
then the busiest pipe.  One change at a time, as nobody knows which of two helped.
"""

from __future__ import annotations

from knowledge_base.chips import FULL_RATE, Chip
from knowledge_base.records import CompileEvidence, Trial
from knowledge_base.snf.task import Task

CLOSE = 1.1  # times the speed of light: nearer than this there is little to win
TAIL = 0.8  # of the last wave's places filled: below it the tail costs as much as what is left out
FEW_WAVES = 4  # beyond them the tail is small against the rest

PIPES = {
    "special": "The special function units are busiest: use approximate forms (ct.exp2 with flush_to_zero, ct.tanh and "
    "ct.truediv with rounding_mode=ct.RoundingMode.APPROX), or fewer of these functions.",
    "lanes": "Element arithmetic is the busiest part: move what does not change out of the loop, fold constants into "
    "one multiply-add, mask the tiles that need it alone.",
    "shared": "Shared memory feeding the tensor cores is busiest: take larger output tiles, so that each operand that "
    "is read serves more products.",
    "l2": "Loads through L2 are busiest: take larger output tiles, or walk the tiles in groups whose operands stay in "
    "L2.",
    "memory": "Memory is busiest: read each input once, and keep more bytes in flight (higher occupancy, latency=8 on "
    "the loads, larger tiles).",
    "latency": "Starts of blocks and first loads, which nothing hides, take most of it: a persistent loop with "
    "parameters loaded once before it, more blocks on a multiprocessor, or larger tiles.",
    "launch": "The launch takes most of it, and nothing in a kernel changes that: there is little left to win, unless "
    "several launches can be one.",
    "mma": "The tensor cores are busiest, as they should be: what is left is in the tile's shape, the number of warps, "
    "and what stands between two products.",
    "spill": "Spilled registers cost most: take a smaller tile or more warps.",
}


def change(trial: Trial, task: Task, chip: Chip) -> str:
    """One change to a right kernel, with the evidence for it; empty where nothing speaks for one."""
    time, model = trial.time, trial.timed("modelled")
    if time is None:
        return ""
    if time.us <= CLOSE * time.floor_us:
        return "It is within a tenth of the speed of light: there is little left to win."
    for evidence in trial.evidence:
        if said := _cubin(evidence, task, chip):
            return said
    terms = model.terms if model is not None else {}
    return _blocks(terms, len(trial.evidence), chip) or _pipe(terms)


def _cubin(e: CompileEvidence, task: Task, chip: Chip) -> str:
    """What the machine code of one kernel shows."""
    if e.spill_bytes:
        return (
            f"{e.symbol} spills {e.spill_bytes} bytes a thread, which costs two to fourteen times: take a smaller "
            "tile, or num_worker_warps=8 for the same one."
        )
    contracts = any(node.op in ("linear", "matmul") for node in task.graph.nodes)
    halves = any(tensor.dtype in ("bf16", "f16") for tensor in task.inputs)
    full = FULL_RATE[chip.arch]
    if contracts and halves and e.mma == "fma":
        return (
            f"{e.symbol} multiplies on scalar units: give ct.mma the bfloat16 or float16 tiles as they were loaded; "
            "float32 belongs into the accumulator alone."
        )
    if contracts and e.mma not in ("", "fma", full):
        return (
            f"{e.symbol} uses {e.mma}, not {full}, the full-rate instruction of {chip.arch}: give it tiles of at least "
            "64 rows and 64 columns, operands straight from ct.load."
        )
    if e.serialised_wgmma:
        return f"{e.symbol} waits after every wgmma: use the accumulator after the loop alone."
    if contracts and e.mma and not e.tma:
        return f"{e.symbol} loads without TMA: load whole tiles by tile index, not by gather or with allow_tma=False."
    return ""


def _blocks(terms: dict[str, float], kernels: int, chip: Chip) -> str:
    """Whether the grid fits the chip; of one launch alone, as terms are added up over launches."""
    waves, occupancy = terms.get("waves", 0.0), terms.get("occupancy", 1.0)
    if kernels != 1 or not 0 < waves <= FEW_WAVES:
        return ""
    blocks = round(waves * occupancy * chip.sm_count)
    if blocks < chip.sm_count:
        return (
            f"There are {blocks} blocks for {chip.sm_count} multiprocessors: take smaller tiles, or split the work "
            "along a dimension that is summed over."
        )
    tail = waves % 1
    if 0.001 < tail < TAIL:
        return (
            f"The blocks fill the chip {waves:.2f} times: in the last round {100 * (1 - tail):.0f}% of it stands idle. "
            "Use smaller tiles, or tiles whose number divides better: a loop over tiles leaves as much idle."
        )
    return ""


def _pipe(terms: dict[str, float]) -> str:
    """The pipe that the modelled time puts most into, with its share."""
    busy = {name: us for name, us in terms.items() if name in PIPES}
    if not busy or not max(busy.values()):
        return ""
    name = max(busy, key=lambda pipe: busy[pipe])
    listed = ", ".join(f"{pipe} {busy[pipe]:.1f}" for pipe in sorted(busy, key=lambda p: -busy[p])[:4] if busy[pipe])
    return f"{PIPES[name]} (µs by pipe, modelled: {listed}.)"
