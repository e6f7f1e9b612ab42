"""Known faults of the assembler: the kernel that met one is recognised, its neighbours are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.compile import Compiled, compile_kernels
from evaluator.suspects import PATTERNS, suspects
from evaluator.trace import Request, Traced, trace
from knowledge_base.chips import ARCHS, chip
from knowledge_base.compiler_faults import compiler_faults
from knowledge_base.records import Finding
from knowledge_base.snf.everyday import everyday

TEXT = (Path(__file__).parent / "kernels" / "layernorm_prefetch.py").read_text()
TASK = everyday("layernorm", M=8192, N=768)
CHIP = chip("h200")
LINE = "        n0 = ct.load(x, index=(nxt, 0), shape=(TM, P), padding_mode=zero_pad, latency=LAT)"


def found(text: str, arch: str = "sm_90") -> tuple[Finding, ...]:
    (traced,) = trace(text, TASK, [Request(TASK.sizes, {"TM": 8})], CHIP)
    assert isinstance(traced, Traced), traced
    answers = compile_kernels(traced.kernels, [arch])
    return suspects(traced.kernels, [a.evidence for a in answers.values() if isinstance(a, Compiled)])


def test_a_tile_that_a_loop_carries_is_named_with_its_line_and_the_way_around() -> None:
    (finding,) = found(TEXT)
    assert finding.kind == "compiler-fault"
    assert finding.line is not None
    assert TEXT.splitlines()[finding.line - 1] == LINE
    assert "allow_tma=False" in finding.message


def test_the_way_around_is_not_named() -> None:
    without_tma = TEXT.replace("latency=LAT)", "latency=LAT, allow_tma=False)")
    assert without_tma != TEXT
    assert found(without_tma) == ()


def test_another_chip_is_not_named() -> None:
    assert found(TEXT, "sm_100") == ()


@pytest.mark.parametrize("row", compiler_faults(), ids=lambda row: row.name)
def test_a_row_has_its_pattern_its_chips_and_its_evidence(row) -> None:
    assert row.name in PATTERNS
    assert set(row.archs) <= set(ARCHS)
    assert row.compilers
    assert "2026" in row.source
