"""Tile IR's matrix multiply-accumulate operations: ``fn(op, a, b, c[, scales]) -> c + a·b``.

Tiles are (lane, [batch,] M, K), (lane, [batch,] K, N) and (lane, [batch,] M, N). Products of all input types are exact
in float32 (float64 for f64), sums accumulate there in the order the BLAS library likes, and the result rounds once into
the accumulator's type. Tensor cores sum in other orders and with fewer guard bits, so bits may differ from a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from . import dtypes
from .ir import Op, TileType

Function = Callable[..., Tensor]

# float32 holds integers exactly up to here; a dot product of 8-bit integers below it needs no float64.
_EXACT_F32: Final = 1 << 24


def _elem(kind: object) -> str:
    assert isinstance(kind, TileType)
    return str(kind.elem)


def _multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """c + a·b over lanes, where the lane axis of any of them may be 1 (uniform) and is then not copied."""
    lanes = max(a.shape[0], b.shape[0], c.shape[0])
    if a.dim() == 4:
        batch = a.shape[1]
        if lanes == 1:
            return torch.baddbmm(c[0], a[0], b[0])[None]
        product = torch.matmul(a, b)
        assert product.shape[1] == batch
        return c + product
    if lanes > 1 and b.shape[0] == 1:  # one right-hand side for all lanes: a single tall matrix product
        (n, m, k), columns = a.shape, b.shape[-1]
        if n == lanes and c.shape[0] == lanes and c.is_contiguous():
            rows = c.reshape(n * m, columns)
            return torch.addmm(rows, a.reshape(n * m, k), b[0]).view(n, m, columns)
        return c + torch.matmul(a, b[0])
    if c.shape[0] == lanes:
        return torch.baddbmm(c, a.expand(lanes, -1, -1), b.expand(lanes, -1, -1))
    return c + torch.matmul(a, b)


def mmaf(op: Op, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Floating-point c + a·b; ``fast_acc`` permits less accuracy and changes nothing here."""
    left, right, accumulator = (_elem(kind) for kind in op.operand_types)
    result = _multiply_add(dtypes.decode(a, left), dtypes.decode(b, right), dtypes.decode(c, accumulator))
    return dtypes.encode(result, accumulator)


def _signed_values(x: Tensor, signedness: str, dtype: torch.dtype) -> Tensor:
    return (x.view(torch.uint8) if signedness == "unsigned" else x).to(dtype)


def mmai(op: Op, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """i32 c + a·b of i8 operands with a signedness each; wraps around."""
    dtype = torch.float32 if a.shape[-1] * 255 * 255 < _EXACT_F32 else torch.float64
    left = _signed_values(a, op.attrs["lhs_signedness"], dtype)
    right = _signed_values(b, op.attrs["rhs_signedness"], dtype)
    zero = torch.zeros((), dtype=dtype).expand(1, *left.shape[1:-1], right.shape[-1])
    product = _multiply_add(left, right, zero).to(torch.int64)
    return (c.to(torch.int64) + product).to(torch.int32)


def mmaf_scaled(op: Op, a: Tensor, b: Tensor, c: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """c + (a·scale_a)·(b·scale_b): scales stand for blocks of K, (M, K/V) on the left and (K/V, N) on the right.

    In float64: element times scale may leave float32's range although the sum of products does not.
    """
    kinds = [_elem(kind) for kind in op.operand_types]
    left, right, accumulator, left_scale, right_scale = (
        dtypes.decode(x, kind).to(torch.float64) for x, kind in zip((a, b, c, scale_a, scale_b), kinds, strict=True)
    )
    left = left * left_scale.repeat_interleave(left.shape[-1] // left_scale.shape[-1], dim=-1)
    right = right * right_scale.repeat_interleave(right.shape[-2] // right_scale.shape[-2], dim=-2)
    return dtypes.encode(_multiply_add(left, right, accumulator), kinds[2])


MMA_OPS: Final[dict[str, Function]] = {"mmaf": mmaf, "mmai": mmai, "mmaf_scaled": mmaf_scaled}
