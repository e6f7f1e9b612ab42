"""The spelling of types: ``tile<4x16xf32>``, ``tensor_view<?xf32, strides=[1]>``, ``partition_view<tile=(64), …>``."""

from __future__ import annotations

import functools
import re

from . import ir
from .errors import InvalidTileIR, Unsupported

ELEMENTS = frozenset(
    [
        "i1",
        "i4",
        "i8",
        "i16",
        "i32",
        "i64",
        "f16",
        "bf16",
        "f32",
        "tf32",
        "f64",
        "f8E4M3FN",
        "f8E5M2",
        "f8E8M0FNU",
        "f4E2M1FN",
    ]
)  # every element type of Tile IR 13.4
_TILE = re.compile(r"tile<((?:\d+x)*)(?:ptr<(\w+)>|(\w+))>")
_TENSOR = re.compile(r"tensor_view<((?:(?:\d+|\?)x)*)(\w+)(?:, strides=\[([\d?,]*)\])?>")
_VIEW = re.compile(
    r"(partition|strided|gather_scatter)_view<tile=\(([\dx]*)\)"
    r"(?:, traversal_strides=\[([\d, ]*)\])?"
    r"(?:, padding_value = (zero|neg_zero|nan|pos_inf|neg_inf))?"
    r", (tensor_view<.*>)(?:, dim_map=\[([\d, ]*)\])?(?:, sparse_dim=(\d+))?>"
)


def _elem(name: str) -> str:
    if name not in ELEMENTS:
        raise Unsupported(f"unknown element type {name!r}")
    return name


def ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(t) for t in re.findall(r"\d+", text or ""))


def _sizes(text: str | None) -> tuple[int | None, ...]:
    return tuple(None if t == "?" else int(t) for t in re.findall(r"\d+|\?", text or ""))


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> ir.Type:
    """One type.  Raises Unsupported."""
    if text == "token":
        return ir.TokenType()
    if m := _TILE.fullmatch(text):
        dims, pointee, elem = m.groups()
        shape = tuple(int(d) for d in dims.split("x")[:-1])
        return ir.TileType(shape, ir.PtrElem(_elem(pointee)) if pointee else _elem(elem))
    if m := _TENSOR.fullmatch(text):
        shape_text, elem, strides = m.groups()
        view = ir.TensorViewType(_elem(elem), _sizes(shape_text), _sizes(strides))
        if len(view.shape) != len(view.strides):
            raise InvalidTileIR(f"sizes and strides of different number in {text!r}")
        return view
    if m := _VIEW.fullmatch(text):
        kind, tile, traversal, padding, tensor_text, dim_map, sparse = m.groups()
        tensor = parse_type(tensor_text)
        assert isinstance(tensor, ir.TensorViewType)
        shape = ints(tile)
        return ir.TileViewType(
            kind, shape, tensor, padding, ints(dim_map) or tuple(range(len(shape))), ints(traversal),
            int(sparse) if sparse else None,
        )  # fmt: skip
    raise Unsupported(f"unknown type {text[:80]!r}")


@functools.lru_cache(maxsize=4096)
def parse_types(text: str) -> tuple[ir.Type, ...]:
    """A comma-separated list of types, parenthesised or not."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<([":
            depth += 1
        elif c in ">)]":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return tuple(parse_type(p.strip()) for p in parts if p.strip())
