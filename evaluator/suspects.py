"""Kernels that may meet a known fault of the assembler (:mod:`knowledge_base.compiler_faults`), by their Tile IR.

A pattern says where a fault was seen, not that this kernel has it: only a GPU says that.  So it is a finding beside a
verdict, and rejects nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from evaluator.kernel import Kernel
from evaluator.tileir import ir, walk
from evaluator.toolchain import VERSION
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
            loads = {
                op.results[0]: op
                for op in region.ops
                if op.name == "load_view_tko" and "allow_tma = false" not in str(op.attrs.get("hints"))
            }
            for op in region.ops:
                if op.name == "continue":
                    yield from (loads[value] for value in op.operands if value in loads)


PATTERNS: dict[str, Callable[[ir.Region], Iterator[ir.Op]]] = {"tile-carried-by-a-loop": _carried_loads}
