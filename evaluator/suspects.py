"""Kernels that may meet a known fault of the assembler (:mod:`knowledge_base.compiler_faults`), by their Tile IR.

A pattern says where a fault was seen, not that this kernel has it: only a GPU says that.  So it is a finding beside a
verdict, and rejects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from evaluator.kernel import Kernel
from evaluator.kernel_counts import element_bytes
from evaluator.tileir import ir, walk
from evaluator.toolchain import VERSION
from knowledge_base.chips import TMA_UNIT
from knowledge_base.compiler_faults import FAULT_OF_COMPILER, CompilerFault, compiler_faults
from knowledge_base.records import CompileEvidence, Finding


def suspects(kernels: Mapping[str, bytes], evidence: Iterable[CompileEvidence]) -> tuple[Finding, ...]:
    """A finding for each line of the source and each fault that a compiled kernel may meet there.

    kernels: bytecode by hash.  evidence: of their cubins, which says for which architecture, and whether TMA is used.
    """
    found: dict[tuple[str, int | None], Finding] = {}
    for one in evidence:
        if not one.tma:
            continue  # every fault that is known needs it
        for fault in compiler_faults():
            if one.arch not in fault.archs or VERSION not in fault.compilers:
                continue
            module = Kernel.of(kernels[one.kernel]).module
            op = next(PATTERNS[fault.name](module.body), None)
            if op is not None:
                finding = _finding(fault, module, op, one.arch)
                found.setdefault((fault.name, finding.line), finding)
    return tuple(found.values())


def _finding(fault: CompilerFault, module: ir.Module, op: ir.Op, arch: str) -> Finding:
    where = module.location(op)
    message = f"a known fault of tileiras {VERSION} on {arch} may make this wrong: {fault.says}; {fault.around}"
    return Finding(kind=FAULT_OF_COMPILER, message=message, op=op.name, line=where.line if where is not None else None)


def _carried_loads(body: ir.Region) -> Iterator[ir.Op]:
    """Loads of tiles, TMA allowed, whose result a loop hands on to its next turn as it is."""
    for loop in walk(body):
        if loop.name not in ("for", "loop"):
            continue
        for region in loop.regions:
            loads = {op.results[0]: op for op in region.ops if op.name == "load_view_tko" and _may_use_tma(op)}
            for op in region.ops:
                if op.name == "continue":
                    yield from (loads[value] for value in op.operands if value in loads)


def _stores_of_part_units(body: ir.Region) -> Iterator[ir.Op]:
    """Stores of tiles, TMA allowed, to arrays whose contiguous extent may be no multiple of TMA's unit of 16 bytes."""
    made = {value: op for op in walk(body) for value in op.results}
    for op in walk(body):
        if op.name != "store_view_tko" or not _may_use_tma(op):
            continue
        tiles = made.get(op.operands[1])
        array = made.get(tiles.operands[0]) if tiles is not None else None
        if array is not None and array.name == "make_tensor_view" and _ends_within_a_unit(array, made):
            yield op


def _ends_within_a_unit(view: ir.Op, made: Mapping[int, ir.Op]) -> bool:
    """Whether TMA can address the array, as far as the kernel says, and its rows need not end with a unit."""
    of = view.result_types[0]
    assert isinstance(of, ir.TensorViewType), "what makes a view has its type"
    dynamic = iter(view.operands[1:])
    shape = [next(dynamic) if size is None else None for size in of.shape]
    strides = [next(dynamic) if stride is None else None for stride in of.strides]
    unit = max(1, int(TMA_UNIT / element_bytes(of.elem)))  # in elements
    ends = False
    for size, extent, stride, step in zip(of.shape, shape, of.strides, strides, strict=True):
        if size == 1:
            continue  # its stride is never taken
        if stride == 1:
            ends = ends or _divisor(size, extent, made) % unit != 0
        elif _divisor(stride, step, made) % unit != 0:
            return False
    return ends


def _divisor(static: int | None, value: int | None, made: Mapping[int, ir.Op]) -> int:
    """A number that divides a size or a stride, by what the kernel says of it."""
    if static is not None or value is None:
        return static or 1
    known = 1
    while (op := made.get(value)) is not None and op.name == "assume":
        known = math.lcm(known, op.attrs["assume"].divisor)
        value = op.operands[0]
    return known


def _may_use_tma(op: ir.Op) -> bool:
    return "allow_tma = false" not in str(op.attrs.get("hints"))


PATTERNS: dict[str, Callable[[ir.Region], Iterator[ir.Op]]] = {  # by a fault's name
    "tile-carried-by-a-loop": _carried_loads,
    "store-of-part-of-a-unit": _stores_of_part_units,
}
