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
from knowledge_base.snf import decompose, parse
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

KERNELS = Path(__file__).parent / "kernels"
TEXT, SUMS = (KERNELS / "layernorm_prefetch.py").read_text(), (KERNELS / "row_sums.py").read_text()
TASK = everyday("layernorm", M=8192, N=768)
(ROW_SUMS,) = decompose(parse("M, N = 64, 64\nx: bf16[M, N]\ny = Sum(x)\n", "sums.snf"), "v2").tasks
CHIP = chip("h200")
LINE = "        n0 = ct.load(x, index=(nxt, 0), shape=(TM, P), padding_mode=zero_pad, latency=LAT)"


def found(
    text: str, arch: str = "sm_90", task: Task = TASK, policy: str = "general", axes: dict[str, int] | None = None
) -> tuple[Finding, ...]:
    (traced,) = trace(text, task, [Request(task.sizes, axes or {}, policy)], CHIP)
    assert isinstance(traced, Traced), traced
    answers = compile_kernels(traced.kernels, [arch])
    return suspects(traced.kernels, [a.evidence for a in answers.values() if isinstance(a, Compiled)])


def test_a_tile_that_a_loop_carries_is_named_with_its_line_and_the_way_around() -> None:
    (finding,) = found(TEXT, axes={"TM": 8})
    assert finding.kind == "compiler-fault"
    assert finding.line is not None
    assert TEXT.splitlines()[finding.line - 1] == LINE
    assert "allow_tma=False" in finding.message


def test_the_way_around_is_not_named() -> None:
    without_tma = TEXT.replace("latency=LAT)", "latency=LAT, allow_tma=False)")
    assert without_tma != TEXT
    assert found(without_tma, axes={"TM": 8}) == ()


def test_another_chip_is_not_named() -> None:
    assert found(TEXT, "sm_100", axes={"TM": 8}) == ()


def test_a_store_that_may_end_within_a_unit_of_tma_is_named() -> None:
    (finding,) = found(SUMS, task=ROW_SUMS)
    assert finding.line is not None
    assert SUMS.splitlines()[finding.line - 1].strip().startswith("ct.store(y")
    assert "behind the array's end" in finding.message


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        (SUMS, "sample"),  # 64 rows in bf16 are whole units
        (SUMS.replace("y.dtype))", "y.dtype), allow_tma=False)"), "general"),
    ],
)
def test_other_stores_are_not_named(text: str, policy: str) -> None:
    assert found(text, task=ROW_SUMS, policy=policy) == ()


@pytest.mark.parametrize("row", compiler_faults(), ids=lambda row: row.name)
def test_a_row_has_its_pattern_its_chips_and_its_evidence(row) -> None:
    assert row.name in PATTERNS
    assert set(row.archs) <= set(ARCHS)
    assert row.compilers
    assert "2026" in row.source
