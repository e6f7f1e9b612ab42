"""A kernel's bytecode is read in one place: once, under limits, and a refusal is a verdict with class and hint."""

from __future__ import annotations

from pathlib import Path

import house
import pytest

from evaluator.compile import Compiled
from evaluator.confinement import confine
from evaluator.kernel import Kernel, refusal
from evaluator.tileir import InvalidTileIR, TileIRError, Unsupported
from evaluator.tileir.errors import TooLarge, Unverified
from evaluator.trace import Request, Traced, trace
from knowledge_base.chips import chip
from knowledge_base.snf.everyday import everyday


@pytest.fixture(scope="module")
def bytecode() -> bytes:
    task = everyday("gelu", M=100, N=70)
    source = (Path(__file__).parent / "kernels" / "gelu.py").read_text()
    (traced,) = trace(source, task, [Request(task.sizes)], chip("rtx5070"))
    assert isinstance(traced, Traced)
    return traced.kernels[traced.plan.kernels[0]]


def test_equal_bytes_are_one_kernel_and_are_disassembled_once(bytecode: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel.of.cache_clear()
    runs: list[str] = []
    run = confine.run
    monkeypatch.setattr(
        "evaluator.tileir.disassembly.run", lambda argv, **options: runs.append(argv[0]) or run(argv, **options)
    )
    kernel = Kernel.of(bytecode)
    assert kernel.program.module is kernel.module is kernel.counts.module
    assert Kernel.of(bytes(bytearray(bytecode))) is kernel
    assert Kernel.of(bytecode).module is kernel.module
    assert [Path(tool).name for tool in runs] == ["tileirdisasm"]


def test_a_kernel_is_compiled_for_any_chip(bytecode: bytes) -> None:
    kernel = Kernel.of(bytecode)
    for arch in ("sm_90", "sm_100"):
        compiled = kernel.compiled(arch)
        assert isinstance(compiled, Compiled)
        assert (compiled.evidence.arch, compiled.evidence.kernel) == (arch, kernel.digest)


def test_bytes_that_are_no_kernel_are_refused_with_a_class_and_a_hint(bytecode: bytes) -> None:
    for damaged in (b"", b"not bytecode", bytecode[: len(bytecode) // 2]):
        with pytest.raises(Unverified) as caught:
            Kernel.of(damaged).module  # noqa: B018
        verdict = refusal(caught.value)
        assert verdict.status == "compile-error"
        assert verdict.error_class
        assert verdict.hint


def test_a_disassembler_that_does_not_end_is_a_refusal(bytecode: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluator.tileir import disassembly as module

    monkeypatch.setattr(module, "LIMITS", confine.Limits(wall_s=0.0, cpu_s=1))
    with pytest.raises(TooLarge, match="takes the disassembler more than 20 s"):
        Kernel(bytecode).module  # noqa: B018


@pytest.mark.parametrize(
    ("error", "status", "error_class"),
    [
        (Unsupported("operation 'alloca' is not emulated", op="alloca"), "unsupported", "emulator-lacks-op"),
        (InvalidTileIR("the text ends inside a region"), "compile-error", "ir-verification"),
    ],
)
def test_each_refusal_has_its_class(error: TileIRError, status: str, error_class: str) -> None:
    verdict = refusal(error)
    assert (verdict.status, verdict.error_class) == (status, error_class)
    assert verdict.hint


def test_nothing_else_disassembles_or_parses() -> None:
    users = {
        i.importer
        for module in house.MODULES
        if not module.startswith("evaluator.tileir")
        for i in house.imports(module)
        if i.target in ("evaluator.tileir.disassembly", "evaluator.tileir.text")
    }
    assert users == {"evaluator.kernel"}
