"""The front end as the tracer has it: the bytecode of cuTile's own export, though it keeps IR between kernels."""

from __future__ import annotations

import io
from typing import Any

import cuda.tile as ct
import pytest
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    ConstantConstraint,
    KernelSignature,
    export_kernel,
)

from evaluator.trace import Request, Traced, export, trace
from knowledge_base.chips import chip
from knowledge_base.landscapes import landscape_sources
from knowledge_base.snf.everyday import everyday

LINEAR_GELU = "82b38655"


@ct.kernel
def halves(x, y, T: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (T,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (ct.bid(0),), tile * 0.5)


def signature(size: int) -> KernelSignature:
    array = ArrayConstraint(
        ct.float32, 1, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(), may_alias_internally=False
    )
    return KernelSignature([array, array, ConstantConstraint(size)], CallingConvention.cutile_python_v2())


def by_cutile(kernel: Any, size: int) -> bytes:
    out = io.BytesIO()
    export_kernel(
        kernel, [signature(size)], out, gpu_code=export.TARGET, output_format="tileir_bytecode",
        bytecode_version=export.BYTECODE_VERSION,
    )  # fmt: skip
    return out.getvalue()


def test_bytecode_is_that_of_cutiles_own_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "KEPT", 2)
    made: list[int] = []
    keeper = export._keeper
    monkeypatch.setattr(export, "_keeper", lambda *of: made.append(1) or keeper(*of))
    front_end = export.FrontEnd(__file__)
    hints: tuple[dict[str, Any], ...] = ({}, {"occupancy": 4}, {"num_ctas": 2}, {"num_worker_warps": 8, "occupancy": 2})
    for size in (64, 128, 256, 64):
        for one in hints:
            kernel = halves.replace_hints(**one) if one else halves
            assert front_end.export(kernel, signature(size), size) == by_cutile(kernel, size)
    assert len(made) == 4  # once for each size, and again for the first, which two others took the place of


def test_a_configuration_is_the_same_in_a_child_with_others() -> None:
    source, task = landscape_sources()[LINEAR_GELU], everyday("linear_gelu", M=8192, N=3072, K=768)
    requests = [
        Request(task.sizes, {"PERSISTENT": persistent, "occupancy": occupancy, "num_worker_warps": warps}, "sample")
        for persistent, occupancy, warps in ((1, 1, 4), (1, 2, 4), (0, 1, 8), (1, 1, 8), (0, 2, 4))
    ]
    together = trace(source, task, requests, chip("h200"))
    for request, one in zip(requests, together, strict=True):
        (alone,) = trace(source, task, [request], chip("h200"))
        assert isinstance(one, Traced)
        assert isinstance(alone, Traced)
        assert one.digest == alone.digest
        assert one.kernels == alone.kernels
    assert len({frozenset(one.kernels) for one in together if isinstance(one, Traced)}) == len(requests)
