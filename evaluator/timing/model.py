"""Modelled time: what a launch plan would take on a chip, from the plan, its cubins' evidence and its Tile IR.

It ranks configurations where there is no GPU.  It is a model: its answers are labelled ``modelled`` and never stand
beside measured ones.  Every term, its constants and their sources, and by how much it is off, are in docs/model.md; the
names here are the names there.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from evaluator.kernel import Kernel
from evaluator.kernel_counts import Totals
from kernels_generated.runtime.bound import Array, BoundLaunch, bind
from kernels_generated.runtime.expr import Dims
from kernels_generated.runtime.plan import Fill, LaunchPlan
from knowledge_base.chips import FULL_RATE, Chip
from knowledge_base.records import PACKING, TOO_FAST, CompileEvidence, Measurement
from knowledge_base.snf.cost import cost
from knowledge_base.snf.task import Task

from .work import Work, count

# Fitted on an H200 (``benchmarks/model.py --fit``; docs/model.md says on what, and how well they carry over).  Seconds
# that no bandwidth removes:
LAUNCH_S = 4.54e-6  # the first launch of a plan
BLOCK_S = 1.16e-6  # of a block with a pipeline: descriptors, barriers, warps' roles, the first tile
PLAIN_BLOCK_S = 0.165e-6  # of a block whose threads load for themselves
CROWD_S = 0.0149e-6  # what every further block of an SM waits for its start
PHASE_S = 0.289e-6  # the first tile of each further loop
TRIP_S = 0.0446e-6  # a trip of a loop that loads and has no tensor-core work: its barriers
SHARED_TRIP_S = 0.0361e-6  # … and what of it the SM's other blocks wait for too
REDUCE_S = 0.0206e-6  # a reduction over the warps of a block: an exchange and its barrier
SHARED_REDUCE_S = 0.0281e-6  # … and what of it the SM's other blocks wait for too
SPLIT_REDUCE_S = 0.417e-6  # one over rows of a contraction's result that two warpgroups share
ISSUE_S = 0.0259e-6  # of a step around the tensor cores: its barriers
DRAIN_S = 0.0311e-6  # of a step that waits until its wgmma has ended: other blocks of the SM fill half of it
SERIAL_WGMMA_S = 0.0767e-6  # of a step, where the code waits after every wgmma group
CROWDED_LOOP_S = 0.139e-6  # where several persistent blocks share an SM
STAGE_S = 0.697e-6  # from the request of a stage's tiles to their arrival
MEMORY_LATENCY_S = 0.494e-6  # of HBM, for Little's law

# Fitted, and no times:
ARITHMETIC = 2.65  # of four warps by themselves, × the lanes' time; more warps hide each other's latency
OVERLAP = 1.55  # exponent of the sum of what partly hides each other; 1: nothing, ∞: all
PLAIN_COPY = 4.32  # × the time of L2, of a block whose threads load for themselves
SPILL_CLOCKS = 3.38  # of an SM, for each load or store of local memory by a warp
FAR_SPILLS = 1.72  # × those, where they do not fit L1
OUTER_SPILLS = 0.244  # of those outside the loop around the tensor cores, how many run for each tile

NEXT_LAUNCH_S = 1.5e-6  # each further launch, back to back in a graph (estimated)
SHARED_ARITHMETIC = 0.8  # × the lanes' time, of blocks that fill an SM: many an addition is part of a multiplication
EXPONENT = 4.0  # of the soft maximum of what a step's pipeline waits for
LANES_PER_CLOCK = 128  # float32 lanes of an SM
SHARED_BYTES_PER_CLOCK = 128  # shared memory and L1, per SM
SPECIAL = 0.5  # of the time of the special function units, as half of what they do hides behind the lanes (estimated)
L1_BYTES = 256 * 1024  # of an SM, with its shared memory (Hopper and Blackwell tuning guides)
L2_SHARE = 0.8  # of L2 that holds operands read again (estimated)
WARPS_OF_TMA = 4  # warps of a block that work for TMA alone (in the code of tileiras 13.4.92)
SCALAR_MMA = 0.5  # of the float32 rate that a contraction on scalar units reaches (estimated)
OLD_MMA = 0.6  # of the peak that mma.sync reaches where wgmma or tcgen05 is the full-rate instruction (estimated)
HALF_TCGEN05_M = 128  # rows below which tcgen05 runs at half rate
REGISTER_UNIT = 256  # registers are given to a warp in units of 8 a thread
RESERVED_SHARED = 1024  # bytes of shared memory the system keeps per block; a cubin's figure includes them
WRITTEN = 0.5  # of the outputs' bytes that the blocks which are looked at must write; else they stand for no grid
SIMULATED_BLOCKS = 8192  # more blocks of unequal length than that even each other out


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
    Preparing weights is no part of it: its time is the term ``packing``.
    The time is quarantined where it is faster than light, and undetermined where the trips of a loop depend on data or
    the blocks that are looked at write too little of the outputs.
    Raises KeyError for a kernel without bytecode or evidence, ExprError for sizes the plan has no value at.
    """
    bound = bind(plan, {"num_sms": chip.sm_count, **sizes})
    terms: dict[str, float] = {}
    total, packing, first = 0.0, 0.0, True
    counted, stored = True, 0.0
    for number, step in enumerate(bound.steps):
        if number == bound.packing:
            packing, total, first, stored, terms = total, 0.0, True, 0.0, {}
        if isinstance(step, Fill):
            found = {"memory": bound.buffer(step.argument).nbytes / _bandwidth(chip)}
            time = found["memory"]
        else:
            work = launch_work(step, kernels[step.kernel])
            counted &= work.bounded
            stored += work.blocks * sum(work.mean.stores.values())
            found = launch_terms(work, traffic_of(step, work), evidence[step.kernel], chip)
            time = found.pop("body")
        found["launch"] = LAUNCH_S if first else NEXT_LAUNCH_S
        total += time + found["launch"]
        first = False
        for name, value in found.items():
            terms[name] = terms.get(name, 0.0) + value
    if bound.packing:
        terms[PACKING] = packing
    floor = floor_us(task, sizes, chip)
    status = "quarantined" if total * 1e6 < TOO_FAST * floor else "stable"
    if not counted or stored < WRITTEN * cost(task.graph, sizes).write_bytes:
        status = "undetermined"
    return Measurement(
        kind="modelled",
        chip=chip.name,
        us=round(total * 1e6, 3),
        floor_us=round(floor, 3),
        status=status,
        terms={name: round(value if name in COUNTS else value * 1e6, 3) for name, value in terms.items()},
    )


def ideal_us(sizes: Dims, plan: LaunchPlan, kernels: Mapping[str, bytes], chip: Chip) -> float:
    """The modelled µs of ``plan`` with cubins that no assembler could better: no real one makes it faster.

    0 where conditions depend on data: it may do any part of what is counted.

    Raises as :func:`modelled` does.
    """
    bound = bind(plan, {"num_sms": chip.sm_count, **sizes}).parts[1]
    total = LAUNCH_S + NEXT_LAUNCH_S * (len(bound.steps) - 1)
    for step in bound.steps:
        if isinstance(step, Fill):
            total += bound.buffer(step.argument).nbytes / _bandwidth(chip)
            continue
        work = launch_work(step, kernels[step.kernel])
        if not work.exact:
            return 0.0
        traffic = traffic_of(step, work)
        total += min(launch_terms(work, traffic, ideal, chip)["body"] for ideal in _ideals(step.kernel, work, chip))
    return total * 1e6


def _ideals(kernel: str, work: Work, chip: Chip) -> Iterator[CompileEvidence]:
    """Evidence of cubins with all that an assembler may choose at its best, of each kind of block that there is.

    An SM holds as many of them as have room for their accumulator in its registers, and for the tiles of one step in
    its shared memory.
    """
    pairs = (1, 2) if FULL_RATE[chip.arch] == "tcgen05" else (1,)
    for ctas, (threads, tma) in itertools.product(pairs, ((256, True), (384, True), (128, False))):
        part = _per_cta(work, ctas)
        rooms = [chip.registers_per_sm / (part.mma[0] * part.mma[1])] if part.mma else []
        rooms += [chip.shared_per_sm / part.mean.step_bytes] if tma and part.mean.step_bytes else []
        registers = chip.registers_per_sm // (threads * max(1, math.floor(min(rooms, default=32))))
        yield CompileEvidence(
            arch=chip.arch, kernel=kernel, symbol="", registers=min(255, max(32, registers)), stack_bytes=0,
            spill_bytes=0, shared_bytes=0, mma=FULL_RATE[chip.arch], tma=tma, threads=threads, ctas=ctas,
            wgmma_in_flight=1,
        )  # fmt: skip


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
    """Bytes of one launch: what its blocks load in all, and what is distinct of what they load and store."""

    loaded: float
    distinct_reads: float
    distinct_writes: float


def traffic_of(launch: BoundLaunch, work: Work) -> Traffic:
    """The traffic of a launch that does this work."""
    sizes = {i: float(word.nbytes) for i, word in enumerate(launch.words) if isinstance(word, Array)}
    loads = {i: work.blocks * n for i, n in work.mean.loads.items()}
    stores = {i: work.blocks * n for i, n in work.mean.stores.items()}
    reads = (min(n, sizes.get(i, n)) for i, n in loads.items())
    writes = (min(n, sizes.get(i, n)) for i, n in stores.items())
    return Traffic(sum(loads.values()), sum(reads), sum(writes))


def launch_terms(work: Work, traffic: Traffic, evidence: CompileEvidence, chip: Chip) -> dict[str, float]:
    """Seconds of one launch by term; ``body`` is the launch's time, which the others explain.

    mma, shared, lanes, special, l2, spill: pipes of an SM, over all its blocks; memory: HBM; latency: starts, first
    tiles and barriers of the blocks that run one after the other.  ``occupancy`` counts blocks per SM, ``waves`` how
    often all SMs are filled with them.
    """
    work = _per_cta(work, evidence.ctas)
    held = occupancy(evidence, chip)
    resident = max(1, held.blocks)
    pipes = _pipes(work, evidence, resident, chip)
    contracts = work.mean.steps > 0
    block = _contraction(work, evidence, pipes, resident, chip) if contracts else _elementwise(work, evidence, pipes)
    chain, load = schedule(work.sizes, work.blocks, chip.sm_count, resident)
    # What runs one after the other in a slot, and what all slots of the SM together need of its pipes.
    compute = _overlapped(chain * block.alone, load * block.filling, less=chain * block.filling)
    memory = _memory(work, traffic, evidence, resident, chip)
    body = _overlapped(compute, memory) if held.blocks else math.inf
    found = {name: seconds * load for name, seconds in pipes.items()}
    counted = {"occupancy": float(resident), "waves": work.blocks / (chip.sm_count * resident)}
    return {**found, "memory": memory, "latency": block.latency * chain, "body": body, **counted}


def _per_cta(work: Work, ctas: int) -> Work:
    """The same work by CTA: those of a cluster share its tiles' rows, and what they load of columns by multicast."""
    if ctas == 1:
        return work
    whole, part = work.mean, Totals()
    part.add(whole, 1 / ctas)
    mean = replace(
        whole, flops=part.flops, lanes=part.lanes, special=part.special, loads=part.loads, stores=part.stores,
        step_bytes=whole.step_bytes / ctas, step_lanes=whole.step_lanes / ctas, step_special=whole.step_special / ctas,
    )  # fmt: skip
    mma = work.mma and (work.mma[0] // ctas, *work.mma[1:])
    return replace(work, blocks=work.blocks * ctas, mean=mean, mma=mma)


def _overlapped(*seconds: float, less: float = 0.0) -> float:
    """The time of things that partly hide each other."""
    together = sum(s**OVERLAP for s in seconds) - less**OVERLAP
    return float(max(together, 0.0) ** (1 / OVERLAP))


@functools.lru_cache(maxsize=1024)
def schedule(sizes: tuple[float, ...], blocks: int, sms: int, resident: int) -> tuple[float, float]:
    """(longest row of blocks that one slot runs, work of the busiest SM), both in mean blocks.

    Each SM has ``resident`` slots; a slot takes the next block as it ends one.  ``sizes``: of blocks sampled evenly in
    the order in which they start.
    """
    slots = sms * resident
    longest = max(sizes)
    if longest < 1.02:
        return float(-(-blocks // slots)), float(-(-blocks // sms))
    if blocks > SIMULATED_BLOCKS:
        late = (longest - 1) / 2
        return blocks / slots + late, blocks / sms + late
    free = [(0.0, slot) for slot in range(min(slots, blocks))]
    work = [0.0] * sms
    for block in range(blocks):
        size = sizes[block * len(sizes) // blocks]
        end, slot = free[0]
        work[slot % sms] += size
        heapq.heapreplace(free, (end + size, slot))
    return max(free)[0], max(work)


@dataclass(frozen=True)
class _Block:
    """Seconds of one mean block: what it waits for, what it takes by itself, what of its SM's pipes it fills."""

    latency: float
    alone: float
    filling: float


def _waits(work: Work, start: float) -> tuple[float, float]:
    """Seconds that a block waits for tiles and at barriers, ``start`` included; what others of its SM wait with it."""
    mean = work.mean
    latency = start + PHASE_S * max(0.0, mean.phases - 1) + TRIP_S * mean.trips
    return latency, CROWD_S + SHARED_TRIP_S * mean.trips


def _arithmetic(lanes: float, special: float) -> float:
    """Seconds of element operations, given what the lanes and the special function units need for their parts."""
    return max(lanes, SPECIAL * special)


def _elementwise(work: Work, evidence: CompileEvidence, pipes: Mapping[str, float]) -> _Block:
    """A block without tensor cores: it loads, computes and stores, one after the other."""
    latency, shared = _waits(work, BLOCK_S if evidence.tma else PLAIN_BLOCK_S)
    latency += REDUCE_S * work.mean.reduces
    shared += SHARED_REDUCE_S * work.mean.reduces
    arithmetic = _arithmetic(pipes["lanes"], pipes["special"])
    copies = pipes["l2"] * (1 if evidence.tma else PLAIN_COPY)
    alone = latency + copies + _by_itself(evidence) * arithmetic + pipes["spill"]
    filling = max(shared + SHARED_ARITHMETIC * arithmetic, pipes["l2"]) + pipes["spill"]
    return _Block(latency, alone, filling)


def _contraction(
    work: Work, evidence: CompileEvidence, pipes: Mapping[str, float], resident: int, chip: Chip
) -> _Block:
    """A block with a loop around the tensor cores.

    A step of that loop takes its contraction and arithmetic, its copies, or its turn in the ring of buffers, whichever
    is longest; what is computed outside it (an epilogue) follows.
    """
    mean, steps = work.mean, work.mean.steps
    latency, shared = _waits(work, BLOCK_S)
    if work.mma and work.mma[0] < 16 * _workers(evidence):
        latency += SPLIT_REDUCE_S * mean.reduces
    issue = ISSUE_S if evidence.mma in ("wgmma", "tcgen05") else 0.0
    drain = DRAIN_S if evidence.mma == "wgmma" and not evidence.wgmma_in_flight else 0.0
    wait = issue + drain + (SERIAL_WGMMA_S if evidence.serialised_wgmma else 0.0)
    if mean.phases >= 4 and min(resident, work.blocks / chip.sm_count) > 1:  # a loop over tiles around that along K
        wait += CROWDED_LOOP_S

    clock = chip.boost_hz
    lanes, special = LANES_PER_CLOCK * clock, chip.special_per_sm_clock * clock
    whole = _arithmetic(pipes["lanes"], pipes["special"])
    inner = _arithmetic(mean.step_lanes / lanes, mean.step_special / special)
    tensor = max(pipes["mma"], pipes["shared"])

    contraction = tensor / steps + wait
    copy = sum(mean.loads.values()) / steps / (chip.l2_bytes_per_s / chip.sm_count)
    ring = 0.0
    if evidence.shared_bytes:  # else it is an ideal cubin: as many buffers as it likes
        stages = max(1.0, (evidence.shared_bytes - RESERVED_SHARED) / max(1.0, mean.step_bytes))
        # Each of a step's contractions frees its own buffers, but those of a common left operand do so together.
        ring = (STAGE_S + (copy + contraction) * steps / mean.mmas) / stages
    factor = _by_itself(evidence)
    own = contraction + factor * inner / steps
    step = (own**EXPONENT + copy**EXPONENT + ring**EXPONENT) ** (1 / EXPONENT)
    alone = latency + steps * step + factor * max(0.0, whole - inner) + pipes["spill"]
    busy = tensor + shared + steps * (issue + drain / 2) + SHARED_ARITHMETIC * whole
    return _Block(latency + steps * wait, alone, max(busy, pipes["l2"]) + pipes["spill"])


def _by_itself(evidence: CompileEvidence) -> float:
    """× the lanes' time, for the arithmetic of a block that has its SM to itself."""
    return max(SHARED_ARITHMETIC, ARITHMETIC * 4 / _workers(evidence))


def _workers(evidence: CompileEvidence) -> int:
    """Warps of a block that compute."""
    warps = math.ceil((evidence.threads or 128) / 32)
    return warps - WARPS_OF_TMA if evidence.tma and warps > WARPS_OF_TMA else warps


def _pipes(work: Work, evidence: CompileEvidence, resident: int, chip: Chip) -> dict[str, float]:
    """Seconds that one mean block keeps each pipe of its SM busy."""
    clock, mean = chip.boost_hz, work.mean
    mma = shared = 0.0
    for kind, flops in mean.flops.items():
        seconds, staged = _mma(kind, flops, work, evidence, chip)
        mma += seconds
        shared += staged
    moved = sum(mean.loads.values()) + sum(mean.stores.values())
    return {
        "mma": mma,
        "shared": shared,
        "lanes": mean.lanes / (LANES_PER_CLOCK * clock),
        "special": mean.special / (chip.special_per_sm_clock * clock),
        "l2": moved / (chip.l2_bytes_per_s / chip.sm_count),
        "spill": _spills(work, evidence, resident) / clock,
    }


def _spills(work: Work, evidence: CompileEvidence, resident: int) -> float:
    """Clocks of an SM for one block's loads and stores of local memory."""
    mean, workers = work.mean, _workers(evidence)
    everywhere, looped = evidence.local_instructions, evidence.loop_local_instructions
    if mean.steps:
        run = mean.steps * looped + OUTER_SPILLS * mean.phases * (everywhere - looped)
    else:
        run = everywhere * max(1.0, mean.trips / mean.phases)
    far = evidence.spill_bytes * 32 * workers * resident > L1_BYTES
    return SPILL_CLOCKS * (FAR_SPILLS if far else 1) * workers * run


_TENSOR_NAMES = {"f8E4M3FN": "f8", "f8E5M2": "f8", "i8": "f8"}  # int8 runs at the rate of f8


def _mma(kind: str, flops: float, work: Work, evidence: CompileEvidence, chip: Chip) -> tuple[float, float]:
    """(seconds of the tensor cores, of shared memory feeding them) for one block's flops of operand ``kind``."""
    per_sm = chip.tensor_flops.get(_TENSOR_NAMES.get(kind, kind), 0.0) / chip.sm_count
    if kind == "f32" or evidence.mma in ("", "fma") or not per_sm:
        rate = chip.fp32_flops / chip.sm_count * SCALAR_MMA * (1 if kind != "f64" else 1 / 64)
        return flops / rate, 0.0
    seconds = flops / per_sm
    if evidence.mma != FULL_RATE[chip.arch]:
        seconds /= OLD_MMA
    elif evidence.mma == "mma.sync":  # its losses are not counted step by step
        seconds /= chip.sustained_tensor
    if evidence.mma == "tcgen05" and work.mma and work.mma[0] < HALF_TCGEN05_M:
        seconds *= 2
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
    miss = max(0.0, 1 - L2_SHARE * chip.l2_bytes / max(1.0, traffic.distinct_reads))
    # Blocks that run together are near each other: a square of n tiles, whose rows and columns are loaded √n times.
    again = max(0.0, traffic.loaded / math.sqrt(slots) - traffic.distinct_reads) * miss
    moved = traffic.distinct_reads + traffic.distinct_writes + again
    # Little's law: a block has its pipeline's buffers in flight, or the tiles of one trip where it has none.
    buffers = max(work.mean.step_bytes, float(evidence.shared_bytes if evidence.tma else 0), 1.0)
    bandwidth = _bandwidth(chip)
    if evidence.shared_bytes or not evidence.tma:  # else it is an ideal cubin: as many buffers as it likes
        bandwidth = min(bandwidth, min(slots, work.blocks) * buffers / MEMORY_LATENCY_S)
    return moved / bandwidth


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
