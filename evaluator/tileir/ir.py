"""The vocabulary of parsed Tile IR: types, operations, regions, a module.  Frozen data, no behaviour.

What an operation *does* is in the ``ops_*`` modules; how text becomes this is in :mod:`.text`.  Values are numbered:
``Op.results`` and ``Op.operands`` are integers unique within a module (``Module.names`` has the text's spelling), so
nobody downstream needs to know about scopes.

Attributes (``Op.attrs``) by name; the parser fills in the defaults that the text omits, so a key is present wherever
its operation has the attribute:

    rounding        str   nearest_even zero negative_inf positive_inf nearest_away approx full nearest_int_to_zero
    flush_to_zero   bool  propagate_nan  bool  fast_acc  bool
    signedness      str   signed | unsigned; mmai has lhs_signedness and rhs_signedness instead
    overflow        str   none no_signed_wrap no_unsigned_wrap no_wrap
    predicate       str   equal not_equal less_than less_than_or_equal greater_than greater_than_or_equal
    ordering        str   cmpf only: ordered | unordered
    value           Dense constant only
    dim             int   cat, reduce, scan;  identities  tuple of Dense  reduce, scan;  reverse  bool  scan
    permutation     tuple of int
    shape, strides  tuple of int | None: static entries of make_tensor_view, None where an operand stands
    semantics       str   weak relaxed acquire release acq_rel: memory operations;  scope  str | None
    mode            str   atomic_rmw_tko, atomic_red_view_tko: and or xor add addf max min umax umin xchg
    saturating      bool  ftoi
    inbounds        tuple of bool, one per tensor dimension: load_view_tko and its like (empty: none)
    assume          Assumption;  format  str  print_tko;  message  str  assert;  unsigned  bool  for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .locations import Location, parse_location


@dataclass(frozen=True, slots=True)
class PtrElem:
    """The element type of a tile of pointers; ``pointee`` is an element type's name."""

    pointee: str


Elem = str | PtrElem  # "i1" "i4" "i8" … "f32" "tf32" "f8E4M3FN" …, or a pointer


@dataclass(frozen=True, slots=True)
class TileType:
    """A tile: static shape (``()`` is a scalar) and element type."""

    shape: tuple[int, ...]
    elem: Elem

    def __str__(self) -> str:
        elem = f"ptr<{self.elem.pointee}>" if isinstance(self.elem, PtrElem) else self.elem
        return f"tile<{''.join(f'{s}x' for s in self.shape)}{elem}>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """Orders memory operations inside a block; carries no data."""

    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True, slots=True)
class TensorViewType:
    """A strided array in memory; None stands for a size or stride that an operand gives.  Strides count elements."""

    elem: str
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    def __str__(self) -> str:
        dims = "".join(f"{'?' if s is None else s}x" for s in self.shape)
        if not self.shape:
            return f"tensor_view<{self.elem}>"
        strides = ",".join("?" if s is None else str(s) for s in self.strides)
        return f"tensor_view<{dims}{self.elem}, strides=[{strides}]>"


@dataclass(frozen=True, slots=True)
class TileViewType:
    """A way to cut tiles out of a tensor view.

    ``kind`` is partition, strided or gather_scatter.  ``tile`` is the tile's shape in tile order; tile dimension k runs
    along tensor dimension ``dim_map[k]``.  ``traversal`` (strided only) are the steps of the index space in elements.
    ``sparse_dim`` (gather_scatter only) is the dimension indexed by a tile of element rows.  ``padding`` is zero,
    neg_zero, nan, pos_inf, neg_inf or None: elements outside the tensor are then undetermined.
    """

    kind: str
    tile: tuple[int, ...]
    tensor: TensorViewType
    padding: str | None = None
    dim_map: tuple[int, ...] = ()
    traversal: tuple[int, ...] = ()
    sparse_dim: int | None = None


Type = TileType | TokenType | TensorViewType | TileViewType


@dataclass(frozen=True, slots=True)
class Dense:
    """A constant's literal.

    ``values`` is a single number (a splat) or the flat row-major tuple of all elements: int, bool or float, NaN and Inf
    written as bit patterns already decoded *to bits* (see ``bits``).  ``raw`` holds little-endian element bytes instead
    when the text had a hexadecimal string.  ``bits`` says that ``values`` are bit patterns of the element type.
    """

    values: int | float | bool | tuple[int | float | bool, ...] = ()
    raw: bytes | None = None
    bits: bool = False


@dataclass(frozen=True, slots=True)
class Assumption:
    """``assume``'s predicate: div_by (divisor), bounded (low, high; None is open) or same_elements."""

    kind: str
    divisor: int = 1
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A single block of operations; ``arguments`` are the values it defines on entry."""

    arguments: tuple[int, ...]
    argument_types: tuple[Type, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.  ``operand_types`` has one type per operand, ``result_types`` one per result.

    ``loc`` is a key of the module's location table (None: unknown); use ``Module.location(op)``.
    """

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    attrs: Mapping[str, Any]
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    regions: tuple[Region, ...] = ()
    loc: str | None = None


@dataclass(frozen=True, slots=True)
class Global:
    """A module-level buffer with initial contents."""

    name: str
    type: TileType
    value: Dense


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel.  ``body.arguments`` are its parameters; ``names[v]`` is value v's spelling in the text."""

    entry: str
    body: Region
    globals: tuple[Global, ...] = ()
    hints: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    locations: Mapping[str, str] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Type, ...]:
        """The types of the kernel's parameters."""
        return self.body.argument_types

    def location(self, op: Op) -> Location | None:
        """Where in the Python source ``op`` comes from: the outermost line outside the cuda.tile package."""
        return parse_location(op.loc, self.locations)
