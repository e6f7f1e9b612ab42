"""Known faults of the assembler: kernels that are right by the language and wrong on a chip.

``seed/compiler_faults.jsonl`` has a line for each, with the evidence.  How a kernel that may meet one is recognised in
its Tile IR is the evaluator's part, by the fault's name.
"""

from __future__ import annotations

import functools
from pathlib import Path

from knowledge_base.records import Record

FAULTS_TABLE = Path(__file__).with_name("seed") / "compiler_faults.jsonl"
FAULT_OF_COMPILER = "compiler-fault"  # the kind of a finding, and the class of a verdict, that names one


class CompilerFault(Record):
    """archs, compilers: where it was seen: architectures, versions of tileiras.  around: what avoids it."""

    name: str
    archs: tuple[str, ...]
    compilers: tuple[str, ...]
    says: str
    around: str
    source: str


@functools.cache
def compiler_faults() -> tuple[CompilerFault, ...]:
    """All of them."""
    lines = FAULTS_TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(CompilerFault.model_validate_json(line) for line in lines if line.strip())
