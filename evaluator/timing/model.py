"""Modelled time: what a launch plan would take on a chip, from the plan, its cubins' evidence and its Tile IR.

It ranks configurations where there is no GPU.  It is a model: its answers are labelled ``modelled`` and never stand
beside measured ones.  Every term, its constants and their sources, and by how much it is off, are in docs/model.md; the
names here are the names there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from evaluator.kernel import Kernel
from kernels_generated.runtime.bound import Array, BoundLaunch, bind
from kernels_generated.runtime.expr import Dims
from kernels_generated.runtime.plan import Fill, LaunchPlan
from knowledge_base.chips import FULL_RATE, Chip
from knowledge_base.records import CompileEvidence, Measurement
from knowledge_base.snf.cost import cost
from knowledge_base.snf.task import Task

from .work import Work, count

# Time that no amount of bandwidth removes, in seconds.
LAUNCH_S = 4.0e-6  # the first launch of a plan: two memory-bound kernels on the H200, measured less their bytes
NEXT_LAUNCH_S = 1.5e-6  # each further one, back to back in a graph
BLOCK_S = 0.5e-6  # start of a block: its parameters, descriptors and barriers
PHASE_S = 0.7e-6  # a block's first tile from memory: one trip to HBM and its barrier
NEXT_PHASE_S = 0.3e-6  # the first tile of each further loop: a trip to L2, as its rows or weights were asked for before
STEP_S = 15e-9  # a trip of the loop around the tensor cores: the wait on its pipeline's barrier
MEMORY_LATENCY_S = 0.8e-6  # loaded latency of HBM, for Little's law

SERIAL = 0.7  # of a block's arithmetic that does not run beside its own copies and tensor cores
CONTENTION = 4.0  # exponent of the soft maximum of pipes and latency
LANES_PER_CLOCK = 128  # float32 lanes of an SM
SHARED_BYTES_PER_CLOCK = 128  # shared memory and L1, per SM
LANE_EFFICIENCY = 0.8  # issue slots left by addresses and barriers
L2_SHARE = 0.8  # of L2 that holds operands read again
SERIALISED_WGMMA = 1.5  # a wait after every wgmma exposes its latency
SCALAR_MMA = 0.5  # of the float32 rate that a contraction on scalar units reaches
OLD_MMA = 0.6  # of the peak that mma.sync reaches where wgmma or tcgen05 is the full-rate instruction
HALF_TCGEN05_M = 128  # rows below which tcgen05 runs at half rate
REGISTER_UNIT = 256  # registers are given to a warp in units of 8 a thread
RESERVED_SHARED = 1024  # bytes of shared memory the system keeps per block; a cubin's figure includes them


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit an SM at once, and what limits them: registers, shared memory, warps or blocks."""

    blocks: int
    limit: str


def occupancy(evidence: CompileEvidence, chip: Chip) -> Occupancy:
    """How many blocks of a kernel an SM of ``chip`` holds; 0 where not even one fits."""
    warps = max(1, math.ceil((evidence.threads or 128) / 32))
    per_warp = math.ceil(evidence.registers * 32 / REGISTER_UNIT) * REGISTER_UNIT
    shared = evidence.shared_bytes or RESERVED_SHARED
    fits = {
        "registers": chip.registers_per_sm // (per_warp * warps),
        "shared memory": chip.shared_per_sm // shared,
        "warps": chip.warps_per_sm // warps,
        "blocks": chip.blocks_per_sm,
    }
    if shared > chip.shared_per_block + RESERVED_SHARED:
        fits["shared memory"] = 0
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit], limit)


def modelled(
    task: Task,
    sizes: Dims,
    plan: LaunchPlan,
    kernels: Mapping[str, bytes],
    evidence: Mapping[str, CompileEvidence],
    chip: Chip,
) -> Measurement:
    """The modelled time of ``plan`` at ``sizes`` on ``chip``, in µs, with its terms (µs, summed over launches).

    kernels: the bytecodes by SHA-256; evidence: of their cubins for the chip's architecture, by the same hash.
    Raises KeyError for a kernel without bytecode or evidence, ExprError for sizes the plan has no value at.
    """
    bound = bind(plan, {"num_sms": chip.sm_count, **sizes})
    terms: dict[str, float] = {}
    total, first = 0.0, True
    for step in bound.steps:
        if isinstance(step, Fill):
            found = {"memory": bound.buffer(step.argument).nbytes / _bandwidth(chip)}
            time = found["memory"]
        else:
            work = launch_work(step, kernels[step.kernel])
            found = launch_terms(work, _traffic(step, work), evidence[step.kernel], chip)
            time = found.pop("body")
        found["launch"] = LAUNCH_S if first else NEXT_LAUNCH_S
        total += time + found["launch"]
        first = False
        for name, value in found.items():
            terms[name] = terms.get(name, 0.0) + value
    return Measurement(
        kind="modelled",
        chip=chip.name,
        us=round(total * 1e6, 3),
        floor_us=round(floor_us(task, sizes, chip), 3),
        terms={name: round(value if name in COUNTS else value * 1e6, 3) for name, value in terms.items()},
    )


# ---------------------------------------------------------------------------------------------------- one launch


def launch_work(launch: BoundLaunch, bytecode: bytes) -> Work:
    """The work of one launch; an axis of the grid that is empty counts as one block."""
    x, y, z = (max(1, g) for g in launch.grid)
    return _counted(bytecode, tuple(None if isinstance(word, Array) else word for word in launch.words), (x, y, z))


@functools.lru_cache(maxsize=256)  # a search asks for each launch twice: before it is compiled, and after
def _counted(bytecode: bytes, words: tuple[int | float | bool | None, ...], grid: tuple[int, int, int]) -> Work:
    return count(Kernel.of(bytecode).counts, words, grid)


COUNTS = ("occupancy", "waves")  # terms that are no times


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch: what its blocks load and store in all, and what of it is distinct."""

    loaded: float
    stored: float
    distinct_reads: float
    distinct_writes: float
    reread: float  # loaded beyond the first time, at most once a wave


def _traffic(launch: BoundLaunch, work: Work) -> Traffic:
    sizes = {i: float(word.nbytes) for i, word in enumerate(launch.words) if isinstance(word, Array)}
    loads = {i: work.blocks * n for i, n in work.mean.loads.items()}
    stores = {i: work.blocks * n for i, n in work.mean.stores.items()}
    reads = {i: min(n, sizes.get(i, n)) for i, n in loads.items()}
    writes = {i: min(n, sizes.get(i, n)) for i, n in stores.items()}
    reread = sum(loads[i] - reads[i] for i in loads)
    return Traffic(sum(loads.values()), sum(stores.values()), sum(reads.values()), sum(writes.values()), reread)


def launch_terms(work: Work, traffic: Traffic, evidence: CompileEvidence, chip: Chip) -> dict[str, float]:
    """Seconds of one launch by term; ``body`` is the launch's time, which the others explain.

    mma, lanes, special, shared, l2, spill: pipes of an SM, over all its blocks; memory: HBM; latency: starts and first
    tiles that nothing hides.  ``occupancy`` counts blocks per SM, ``waves`` how often all SMs are filled with them.
    """
    held = occupancy(evidence, chip)
    resident = max(1, held.blocks)
    pipes = _pipes(work, evidence, chip)
    largest = max(pipes.values())
    latency = BLOCK_S + PHASE_S + NEXT_PHASE_S * max(0.0, work.mean.phases - 1) + STEP_S * work.mean.steps
    # One block by itself: copies and tensor cores run beside each other, arithmetic on the results waits for them.
    streams = max(pipes["mma"], pipes["shared"], pipes["l2"])
    alone = latency + streams + SERIAL * max(pipes["lanes"], pipes["special"]) + pipes["spill"]

    def together(blocks: int) -> float:
        """Time of ``blocks`` that start at once on an SM."""
        if blocks == 0:
            return 0.0
        return float((alone**CONTENTION + (blocks * largest) ** CONTENTION) ** (1 / CONTENTION))

    slots = chip.sm_count * resident
    waves, left = divmod(work.blocks, slots)
    busiest = waves * together(resident) + together(math.ceil(left / chip.sm_count))
    even = work.blocks / slots * together(resident)
    # Blocks of unequal length fill each other's gaps: the end is about half the longest block late.
    uneven = even + (work.longest - 1) * alone * 0.5
    compute = busiest if work.longest < 1.05 else max(uneven, alone * work.longest)

    memory = _memory(work, traffic, evidence, resident, chip)
    body = (compute**CONTENTION + memory**CONTENTION) ** (1 / CONTENTION)
    if held.blocks == 0:
        body = math.inf
    per_sm = work.blocks / chip.sm_count
    found = {name: seconds * per_sm for name, seconds in pipes.items()}
    counted = {"occupancy": float(resident), "waves": work.blocks / slots}
    return {**found, "memory": memory, "latency": latency * per_sm / resident, "body": body, **counted}


def _pipes(work: Work, evidence: CompileEvidence, chip: Chip) -> dict[str, float]:
    """Seconds that one mean block keeps each pipe of its SM busy."""
    clock, mean = chip.boost_hz, work.mean
    mma = shared = 0.0
    for kind, flops in mean.flops.items():
        seconds, staged = _mma(kind, flops, work, evidence, chip)
        mma += seconds
        shared += staged
    moved = sum(mean.loads.values()) + sum(mean.stores.values())
    shared += moved / (SHARED_BYTES_PER_CLOCK * clock)
    # Spilled registers are stored and loaded once a step of the loop, through L1.
    spilled = 2.0 * evidence.spill_bytes * (evidence.threads or 128) * max(1.0, mean.steps)
    return {
        "mma": mma,
        "lanes": mean.lanes / (LANES_PER_CLOCK * clock * LANE_EFFICIENCY),
        "special": mean.special / (chip.special_per_sm_clock * clock),
        "shared": shared,
        "l2": moved / (chip.l2_bytes_per_s / chip.sm_count),
        "spill": spilled / (SHARED_BYTES_PER_CLOCK * clock),
    }


_TENSOR_NAMES = {"f8E4M3FN": "f8", "f8E5M2": "f8", "i8": "f8"}  # int8 runs at the rate of f8


def _mma(kind: str, flops: float, work: Work, evidence: CompileEvidence, chip: Chip) -> tuple[float, float]:
    """(seconds of the tensor cores, of shared memory feeding them) for one block's flops of operand ``kind``."""
    per_sm = chip.tensor_flops.get(_TENSOR_NAMES.get(kind, kind), 0.0) * chip.sustained_tensor / chip.sm_count
    if kind == "f32" or evidence.mma in ("", "fma") or not per_sm:
        rate = chip.fp32_flops / chip.sm_count * SCALAR_MMA * (1 if kind != "f64" else 1 / 64)
        return flops / rate, 0.0
    seconds = flops / per_sm
    if evidence.mma != FULL_RATE[chip.arch]:
        seconds /= OLD_MMA
    if evidence.mma == "tcgen05" and work.mma and work.mma[0] < HALF_TCGEN05_M:
        seconds *= 2
    if evidence.serialised_wgmma:
        seconds *= SERIALISED_WGMMA
    rows, columns, _ = work.mma or (64, 64, 16)
    size = {"f8": 1, "f16": 2, "bf16": 2, "tf32": 4, "f64": 8}.get(_TENSOR_NAMES.get(kind, kind), 2)
    # Operand elements read from shared memory per product: an M × N instruction reads (M + N) for M · N products.
    m, n = _instruction(evidence.mma, rows, columns)
    staged = flops / 2 * (1 / m + 1 / n) * size
    return seconds, staged / (SHARED_BYTES_PER_CLOCK * chip.boost_hz)


def _instruction(mma: str, rows: int, columns: int) -> tuple[int, int]:
    """(M, N) over which one read of the operands serves: the instruction's, for mma.sync a warp's part of the tile."""
    if mma == "wgmma":
        return 64, min(256, columns)
    if mma == "tcgen05":
        return min(128, rows), min(256, columns)
    return max(16, rows // 4), max(8, columns // 2)  # eight warps, four by two


def _memory(work: Work, traffic: Traffic, evidence: CompileEvidence, resident: int, chip: Chip) -> float:
    """Seconds of HBM: distinct bytes, rereads that L2 does not hold, at the bandwidth the bytes in flight reach."""
    slots = chip.sm_count * resident
    waves = math.ceil(work.blocks / slots)
    miss = max(0.0, 1 - L2_SHARE * chip.l2_bytes / max(1.0, traffic.distinct_reads))
    again = min(traffic.reread, (waves - 1) * traffic.distinct_reads) * miss
    moved = traffic.distinct_reads + traffic.distinct_writes + again
    # Little's law: a block has its pipeline's buffers in flight, or the tiles of one trip where it has none.
    buffers = max(work.mean.step_bytes, float(evidence.shared_bytes if evidence.tma else 0))
    in_flight = min(slots, work.blocks) * max(buffers, 1.0)
    return moved / min(_bandwidth(chip), in_flight / MEMORY_LATENCY_S)


def _bandwidth(chip: Chip) -> float:
    return chip.memory_bytes_per_s * chip.sustained_memory


# ---------------------------------------------------------------------------------------------------- the floor


def floor_us(task: Task, sizes: Dims, chip: Chip) -> float:
    """Speed of light in µs: the largest of contractions at their peak, element operations on the float32 lanes, and
    compulsory reads at the memory's bandwidth.

    Writes are left out, as they may stay in L2; special functions too, as lanes can compute them.
    """
    needed = cost(task.graph, sizes)
    contractions = needed.flops.get("matmul", 0) / peak(task, chip)
    elements = needed.flops.get("elementwise", 0) / chip.fp32_flops
    return max(needed.read_bytes / chip.memory_bytes_per_s, contractions, elements) * 1e6


def peak(task: Task, chip: Chip) -> float:
    """The chip's FLOP/s for the task's contractions: their operands' tensor type, or the float32 lanes."""
    rates = [chip.fp32_flops]
    for node in task.graph.nodes:
        if node.op in ("linear", "matmul"):
            dtype = task.graph.value(node.args[0]).dtype
            name = "tf32" if dtype == "f32" and task.precision == "tf32" else dtype
            rates.append(chip.tensor_flops.get(name, chip.fp32_flops))
    return max(rates)
