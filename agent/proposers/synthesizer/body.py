"""A kernel's text while it grows: nested blocks, names, parameters; what a tile is called and where it is valid."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, evaluate, show, substitute, symbols

from .arithmetic import HELPERS
from .index import Axis

INDENT = "    "
RESERVED = frozenset(
    (*keyword.kwlist, *dir(builtins), "ct", "math", "torch", "stream", "num_sms", "INF", "NAN", "AXES", "launch",
     "occupancy", "num_ctas", "num_worker_warps", "GROUP", "PERSISTENT", "TM", "TN", "TK", "TD", "TE", "ROWS", "CHUNK",
     "FACTOR", "grid", "blocks", "tiles", "count", "most", "row_tiles", "product", "alike", "how", "row",
     "skip", "stop", "i", "j", "j2", "j3", "j4",
     "batch", *(f"batch{n}" for n in range(8)), *HELPERS)
)  # fmt: skip
# Variables that contractions' bodies have for themselves.
OWN_VARIABLES = frozenset(
    ("tile", "place", "end1", "end2", "end3",
     "first", "height", "step", "column_tiles", "acc", "acc1", "acc2", "top", "total",
     "factor", "base", "p", "fade", "s", "qk", "out", "seen", "whole", "new_top", "valid")
)  # fmt: skip


@dataclass(frozen=True)
class Tile:
    """A value in the kernel's source.  ``axes`` are the tiled axes it extends along; depth is that of its loop.

    zero: the axes beyond whose end its elements are known to be 0.
    """

    text: str
    dtype: str
    axes: frozenset[Axis] = frozenset()
    depth: int = 0
    zero: frozenset[Axis] = frozenset()


Frame = tuple[Axis, ...]  # the tiled axes in the order in which tiles have them


@dataclass(frozen=True)
class Names:
    """What buffers and dimensions are called in the source (a task's own names may be taken)."""

    buffers: dict[str, str]
    dims: dict[str, str]

    def size(self, e: Expr) -> str:
        """A size as source text."""
        return show(substitute(e, dict(self.dims))).replace("cdiv(", "ct.cdiv(").replace("*", " * ")

    def factor(self, e: Expr) -> str:
        """A size that may stand as a factor or divisor."""
        text = self.size(e)
        return text if isinstance(e, int | str) and not text.startswith("-") else f"({text})"


@dataclass
class _Scope:
    indent: int
    lines: list[str] = field(default_factory=list)
    memo: dict[object, Tile] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    name: str
    buffer: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Place:
    """A tile access: ``text`` is array, index and shape as ``ct.load`` takes them."""

    text: str
    shape: tuple[str, ...]
    axes: frozenset[Axis]
    depth: int
    exact: bool
    array: str
    index: str
    order: tuple[int, ...]

    def tile_shape(self, frame: Frame) -> tuple[str, ...]:
        return tuple(str(a.tile) if a in self.axes else "1" for a in frame)


class Body:
    """The lines of one kernel under construction, its parameters, and names for its values.

    float_dtype: what scalars are computed in, f32 or f64.  approximate: whether the hardware's approximations will do.
    fixed: sizes of the sample that ``launch`` insists on.  latency: the hint for loads inside loops, where it is set.
    tma_stores: whether TMA may serve stores.
    """

    def __init__(self, name: str, float_dtype: str, names: Names, approximate: bool = False) -> None:
        self.name, self.float_dtype, self.names, self.approximate = name, float_dtype, names, approximate
        self.fixed: dict[str, int] = {}
        self.latency: int | None = None
        self.tma_stores = True
        self.parameters: dict[str, Parameter] = {}
        self.constants: list[str] = []
        self.flat: Expr | None = None  # the number of elements where all buffers are seen as one long row
        self.dims: dict[str, None] = {}
        self.helpers: dict[str, None] = {}
        self.scopes = [_Scope(1)]
        self.axis_depth: dict[Axis, int] = {}
        self._names: dict[object, str] = {}
        self._used: set[str] = set(RESERVED) | set(names.buffers.values()) | set(names.dims.values())

    def reserve(self) -> None:
        """Keeps the variables of a contraction's body free."""
        self._used |= OWN_VARIABLES

    def line(self, text: str = "", depth: int | None = None) -> None:
        scope = self.scopes[-1 if depth is None else depth]
        if not text and not scope.lines:
            return
        scope.lines.append(INDENT * scope.indent + text if text else "")

    def comment(self, text: str) -> None:
        self.line(f"# {text}")

    @contextmanager
    def block(self, header: str, *axes: Axis) -> Iterator[None]:
        """A nested block (``for …:``) in which ``axes`` have their index."""
        outer = self.scopes[-1]
        self.scopes.append(_Scope(outer.indent + 1))
        for axis in axes:
            self.axis_depth[axis] = len(self.scopes) - 1
        try:
            yield
        finally:
            inner = self.scopes.pop()
            self.line(header)
            outer.lines += inner.lines or [INDENT * inner.indent + "pass"]

    def constant(self, name: str) -> str:
        """``name`` as a compile-time parameter of the kernel (a literal stays one)."""
        if name.isidentifier() and name not in self.constants:
            self.constants.append(name)
        return name

    def fresh(self, hint: str, key: object = None) -> str:
        """A variable's name like ``hint``; always the same for the same key."""
        if key is not None and key in self._names:
            return self._names[key]
        base = "".join(c if c.isalnum() and c.isascii() else "_" for c in hint.rsplit(".", 1)[-1]).strip("_").lower()
        base = base if base and not base[0].isdigit() else f"v{base}"
        name, n = base, 1
        while name in self._used:
            n += 1
            name = f"{base}_{n}"
        self._used.add(name)
        if key is not None:
            self._names[key] = name
        return name

    def expr(self, e: Expr) -> str:
        """A size as source text of the kernel."""
        for symbol in sorted(symbols(e)):
            self.dims[symbol] = None
        return self.names.size(e)

    def factor(self, e: Expr) -> str:
        """A size that may stand as a factor or divisor."""
        self.expr(e)
        return self.names.factor(e)

    def known_size(self, e: Expr) -> int | None:
        """The value of a size where ``launch`` insists on it."""
        return evaluate(e, self.fixed) if symbols(e) <= self.fixed.keys() else None

    def define(self, key: object, tile: Tile) -> None:
        """Makes ``tile`` the value of ``key`` while the present block lasts."""
        self.scopes[-1].memo[key] = tile

    def known(self, key: object) -> Tile | None:
        return next((s.memo[key] for s in reversed(self.scopes) if key in s.memo), None)

    def assign(self, key: object, hint: str, text: str, tile: Tile) -> Tile:
        named = Tile(self.fresh(hint, key), tile.dtype, tile.axes, tile.depth, tile.zero)
        self.line(f"{named.text} = {text}", named.depth)
        self.scopes[named.depth].memo[key] = named
        return named

    def once(self, key: object, hint: str, text: str) -> str:
        """A line of the present block that is written once."""
        known = self.known(key)
        if known is None:
            known = self.assign(key, hint, text, Tile("", "bool", frozenset(), len(self.scopes) - 1))
        return known.text

    def helper(self, name: str) -> str:
        for needed in HELPERS[name][1]:
            self.helper(needed)
        self.helpers[name] = None
        return name

    def body(self) -> list[str]:
        return self.scopes[0].lines
