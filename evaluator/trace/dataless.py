"""Arrays without data: shape, strides and offset as PyTorch computes them, on plain or symbolic sizes.

A :class:`Dataless` is what a candidate's ``launch`` receives in place of a tensor.  It can say what it is and be
viewed; reading, writing or computing is refused.  The rules (which views exist, which strides they have) are those of
PyTorch (ATen's ``computeStride`` for ``view``), and are property-tested against it.  Where the answer depends on a
size, the size language decides or a guard is recorded; the formulas are chosen so that contiguous arrays need none.
"""

from __future__ import annotations

from typing import Any

from kernels_generated.runtime.expr import holds

from .refusal import Refusal
from .symbolic import Number, SymbolicSize, int_like, value_of

MAX_RANK = 16
MAX_VIEWS = 4096  # of one unbind, chunk or split


class Shape(tuple[Any, ...]):
    """torch.Size."""

    __slots__ = ()

    def numel(self) -> Number:
        return product(self)

    def __getitem__(self, key: Any) -> Any:
        out = tuple.__getitem__(self, key)
        return Shape(out) if isinstance(key, slice) else out


def product(sizes: Any) -> Number:
    out: Number = 1
    for size in sizes:
        out = out * size
    return out


def test(comparison: str, a: Number, b: Number) -> bool:
    """The comparison at the sample, guarded where it is not decided."""
    context = a.context if type(a) is SymbolicSize else b.context if type(b) is SymbolicSize else None
    return holds(comparison, a, b) if context is None else context.test(comparison, a, b)


def known(comparison: str, a: Number, b: Number) -> bool:
    """Whether it follows for all sizes inside the guards; no guard."""
    context = a.context if type(a) is SymbolicSize else b.context if type(b) is SymbolicSize else None
    return holds(comparison, a, b) if context is None else context.known(comparison, a, b) is True


def _exact(a: Number, b: Number) -> bool:
    """Whether ``b`` is known to divide ``a`` with a quotient >= 1."""
    if type(a) is int and type(b) is int:
        return b > 0 and a % b == 0 and a >= b
    if not known(">=", b, 1) or not known(">=", a, 1):
        return False
    context = a.context if type(a) is SymbolicSize else b.context
    return context.divided(a, b)


def contiguous_strides(shape: Any) -> tuple[Number, ...]:
    """Row-major strides; an empty dimension counts as one, as PyTorch has it."""
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step = step * (1 if type(size) is int and size == 0 else size)
    return tuple(reversed(strides))


class Dataless:
    """A window on the buffer called ``buffer``: ``offset`` and ``strides`` count elements of ``dtype``."""

    def __init__(self, tracer: Any, buffer: str, dtype: Any, offset: Number, shape: Any, strides: Any) -> None:
        self._tracer = tracer
        self._buffer = buffer
        self.dtype = dtype
        self._offset = offset
        self.shape = Shape(shape)
        self._strides = tuple(strides)

    def _with(self, shape: Any, strides: Any, offset: Number | None = None) -> Dataless:
        if len(shape) > MAX_RANK:
            raise Refusal("bad-view", f"a view of rank {len(shape)}")
        return type(self)(
            self._tracer, self._buffer, self.dtype, self._offset if offset is None else offset, shape, strides
        )

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    ndimension = dim

    def size(self, dim: Any = None) -> Any:
        return self.shape if dim is None else self.shape[self._axis(dim)]

    def stride(self, dim: Any = None) -> Any:
        return self._strides if dim is None else self._strides[self._axis(dim)]

    def storage_offset(self) -> Number:
        return self._offset

    def numel(self) -> Number:
        return product(self.shape)

    nelement = numel

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        first = self.shape[0]
        return first.__index__() if type(first) is SymbolicSize else first

    def is_contiguous(self, **_: Any) -> bool:
        if any(type(s) is int and s == 0 for s in self.shape):
            return True
        expected: Number = 1
        for size, stride in zip(reversed(self.shape), reversed(self._strides), strict=True):
            if known("==", size, 1):
                continue
            if not known("==", stride, expected) and test("!=", size, 1) and not test("==", stride, expected):
                return False
            expected = expected * size
        return True

    # ------------------------------------------------------------------------------------------ axes

    def _axis(self, dim: Any, rank: int | None = None) -> int:
        rank = self.ndim if rank is None else rank
        if not int_like(dim):
            raise TypeError(f"an axis is an int, not {type(dim).__name__}")
        axis = dim.__index__()
        limit = max(rank, 1)
        if not -limit <= axis < limit:
            raise IndexError(f"axis {axis} of an array of rank {rank}")
        return axis % limit

    def permute(self, *dims: Any) -> Dataless:
        axes = [self._axis(d) for d in _unpack(dims)]
        if sorted(axes) != list(range(self.ndim)):
            raise RuntimeError(f"permute{tuple(axes)} is no permutation of {self.ndim} axes")
        return self._with([self.shape[a] for a in axes], [self._strides[a] for a in axes])

    def transpose(self, dim0: Any, dim1: Any) -> Dataless:
        a, b = self._axis(dim0), self._axis(dim1)
        axes = list(range(self.ndim))
        if axes:
            axes[a], axes[b] = axes[b], axes[a]
        return self.permute(axes)

    swapaxes = swapdims = transpose

    def t(self) -> Dataless:
        if self.ndim > 2:
            raise RuntimeError(f"t() wants at most 2 axes, this array has {self.ndim}")
        return self if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> Dataless:
        return self.permute(list(reversed(range(self.ndim))))

    @property
    def mT(self) -> Dataless:
        if self.ndim == 1:
            raise RuntimeError("mT wants at least 2 axes")
        return self.transpose(-2, -1) if self.ndim else self

    def movedim(self, source: Any, destination: Any) -> Dataless:
        axes = list(range(self.ndim))
        a, b = self._axis(source), self._axis(destination)
        if axes:
            axes.insert(b, axes.pop(a))
        return self.permute(axes)

    moveaxis = movedim

    def unsqueeze(self, dim: Any) -> Dataless:
        axis = self._axis(dim, self.ndim + 1)
        shape, strides = list(self.shape), list(self._strides)
        strides.insert(axis, shape[axis] * strides[axis] if axis < len(shape) else 1)
        shape.insert(axis, 1)
        return self._with(shape, strides)

    def squeeze(self, dim: Any = None) -> Dataless:
        if dim is None:
            chosen = set(range(self.ndim))
        elif isinstance(dim, tuple | list):
            chosen = {self._axis(d) for d in dim}
        else:
            chosen = {self._axis(dim)}
        kept = [i for i in range(self.ndim) if i not in chosen or not test("==", self.shape[i], 1)]
        return self._with([self.shape[i] for i in kept], [self._strides[i] for i in kept])

    # ------------------------------------------------------------------------------------------ windows

    def select(self, dim: Any, index: Any) -> Dataless:
        if not self.shape:
            raise IndexError("select() cannot be applied to a 0-dim tensor")
        axis = self._axis(dim)
        size = self.shape[axis]
        if test("<", index, 0):
            index = index + size
        if test("<", index, 0) or test(">=", index, size):
            raise IndexError(f"index out of range along axis {axis}")
        shape, strides = list(self.shape), list(self._strides)
        del shape[axis], strides[axis]
        return self._with(shape, strides, self._offset + index * self._strides[axis])

    def _slice(self, axis: int, start: Any, stop: Any, step: Any) -> Dataless:
        size = self.shape[axis]
        step = 1 if step is None else step
        if not test(">", step, 0):
            raise ValueError("slice step must be positive")
        start = 0 if start is None else start
        stop = size if stop is None else stop
        if test("<", start, 0):
            start = start + size
        if test("<", stop, 0):
            stop = stop + size
        if test("<", start, 0):
            start = 0
        elif test(">", start, size):
            start = size
        if test("<", stop, start):
            stop = start
        elif test(">", stop, size):
            stop = size
        shape, strides = list(self.shape), list(self._strides)
        shape[axis] = -((start - stop) // step)
        strides[axis] = strides[axis] * step
        return self._with(shape, strides, self._offset + start * self._strides[axis])

    def narrow(self, dim: Any, start: Any, length: Any) -> Dataless:
        if not self.shape:
            raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
        axis = self._axis(dim)
        size = self.shape[axis]
        if test("<", length, 0):
            raise RuntimeError("narrow(): length must be non-negative")
        if test("<", start, 0):
            start = start + size
        if test("<", start, 0) or test(">", start + length, size):
            raise RuntimeError(f"narrow(): start and length exceed axis {axis}")
        return self._slice(axis, start, start + length, 1)

    def __getitem__(self, key: Any) -> Dataless:
        items = list(key) if isinstance(key, tuple) else [key]
        used = sum(1 for i in items if i is not None and i is not Ellipsis)
        if items.count(Ellipsis) > 1:
            raise IndexError("an index can only have a single ellipsis")
        if used > self.ndim:
            raise IndexError(f"too many indices for an array of rank {self.ndim}")
        if Ellipsis not in items:
            items.append(Ellipsis)
        out, axis = self, 0
        for item in items:
            if item is Ellipsis:
                axis += self.ndim - used
            elif item is None:
                out, axis = out.unsqueeze(axis), axis + 1
            elif isinstance(item, slice):
                out, axis = out._slice(axis, item.start, item.stop, item.step), axis + 1
            elif int_like(item):
                out = out.select(axis, item)
            else:
                raise Refusal("torch-compute", f"indexing with {type(item).__name__} gathers data: only a kernel can")
        return out

    def unbind(self, dim: Any = 0) -> tuple[Dataless, ...]:
        size = self.shape[self._axis(dim)]
        return tuple(self.select(dim, i) for i in range(_bounded(size, "unbind")))

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def split(self, size: Any, dim: Any = 0) -> tuple[Dataless, ...]:
        axis = self._axis(dim)
        total = self.shape[axis]
        if isinstance(size, tuple | list):
            if not test("==", sum(size), total):
                raise RuntimeError("split sizes do not add up to the axis")
            lengths = list(size)
        else:
            if not test(">", size, 0):
                raise RuntimeError("split expects a positive size")
            count = max(1, _bounded(-(-total // size), "split"))
            lengths = [size] * (count - 1) + [total - size * (count - 1)]
        out, start = [], 0
        for length in lengths:
            out.append(self.narrow(axis, start, length))
            start = start + length
        return tuple(out)

    def chunk(self, chunks: Any, dim: Any = 0) -> tuple[Dataless, ...]:
        size = self.shape[self._axis(dim)]
        if type(size) is int and size == 0:
            return tuple(self.narrow(dim, 0, 0) for _ in range(_bounded(chunks, "chunk")))
        return self.split(-(-size // chunks), dim)

    def expand(self, *wanted_sizes: Any) -> Dataless:
        sizes = _unpack(wanted_sizes)
        extra = len(sizes) - self.ndim
        if extra < 0:
            raise RuntimeError(f"expand to {len(sizes)} axes from {self.ndim}")
        shape: list[Number] = []
        strides: list[Number] = []
        for i in range(len(sizes) - 1, -1, -1):
            wanted, new = sizes[i], i < extra
            if not int_like(wanted):
                raise TypeError(f"expand wants ints, not {type(wanted).__name__}")
            # A new leading axis starts as one of size 1 with the stride it would have if it ran on.
            own = 1 if new else self.shape[i - extra]
            stride = (shape[0] * strides[0] if shape else 1) if new else self._strides[i - extra]
            stride = stride if self.shape else 0
            if type(wanted) is int and wanted == -1:
                if new:
                    raise RuntimeError("expand: -1 is not allowed for a new leading axis")
                wanted = own
            elif not known("==", own, wanted) and not test("==", own, wanted):
                if not test("==", own, 1) or test("<", wanted, 0):
                    raise RuntimeError(f"expand: axis {i} has a size that is neither 1 nor the wanted one")
                stride = 0
            shape.insert(0, wanted)
            strides.insert(0, stride)
        return self._with(shape, strides)

    def expand_as(self, other: Dataless) -> Dataless:
        return self.expand(*other.shape)

    # ------------------------------------------------------------------------------------------ other shapes

    def view(self, *sizes: Any) -> Dataless:
        if len(sizes) == 1 and hasattr(sizes[0], "itemsize"):
            return self._retyped(sizes[0])
        strides = self._view_strides(shape := self._inferred(_unpack(sizes)))
        if strides is None:
            raise RuntimeError("view size is not compatible with the array's size and stride")
        return self._with(shape, strides)

    def view_as(self, other: Dataless) -> Dataless:
        return self.view(*other.shape)

    def _retyped(self, dtype: Any) -> Dataless:
        if dtype.itemsize != self.dtype.itemsize:
            raise Refusal("bad-view", "view(dtype) wants a dtype of the same size")
        out = self._with(self.shape, self._strides)
        out.dtype = dtype
        return out

    def reshape(self, *sizes: Any) -> Dataless:
        strides = self._view_strides(shape := self._inferred(_unpack(sizes)))
        if strides is None:
            raise Refusal(
                "torch-compute", "reshape would copy this array: take a view that exists, or copy in a kernel"
            )
        return self._with(shape, strides)

    def reshape_as(self, other: Dataless) -> Dataless:
        return self.reshape(*other.shape)

    def flatten(self, start_dim: Any = 0, end_dim: Any = -1) -> Dataless:
        a, b = self._axis(start_dim), self._axis(end_dim)
        if a > b:
            raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
        if not self.shape:
            return self.reshape(1)
        if a == b:
            return self._with(self.shape, self._strides)
        return self.reshape(*self.shape[:a], product(self.shape[a : b + 1]), *self.shape[b + 1 :])

    def ravel(self) -> Dataless:
        return self.flatten()

    def unflatten(self, dim: Any, sizes: Any) -> Dataless:
        axis = self._axis(dim)
        sizes = list(sizes)
        if not sizes:
            raise RuntimeError("unflatten: sizes must be non-empty")
        if sum(1 for s in sizes if type(s) is int and s == -1) == 1:
            rest = product(s for s in sizes if not (type(s) is int and s == -1))
            if not test("!=", rest, 0) or not test("==", self.shape[axis] % rest, 0):
                raise RuntimeError("unflatten: the sizes do not multiply up to the axis")
            sizes = [self.shape[axis] // rest if type(s) is int and s == -1 else s for s in sizes]
        if not test("==", product(sizes), self.shape[axis]):
            raise RuntimeError("unflatten: the sizes do not multiply up to the axis")
        return self.view(*self.shape[:axis], *sizes, *self.shape[axis + 1 :])

    def contiguous(self, **_: Any) -> Dataless:
        if self.is_contiguous():
            return self
        raise Refusal("torch-compute", "contiguous() would copy this array: use its strides, or copy in a kernel")

    def _inferred(self, shape: list[Any]) -> list[Number]:
        """``shape`` with its -1 worked out; refuses another number of elements, as PyTorch does."""
        for size in shape:
            if not int_like(size):
                raise TypeError(f"a shape holds ints, not {type(size).__name__}")
        total = self.numel()
        wild = [i for i, s in enumerate(shape) if type(s) is int and s == -1]
        if len(wild) > 1:
            raise RuntimeError("only one dimension can be inferred")
        if any(test("<", s, 0) for i, s in enumerate(shape) if i not in wild):
            raise RuntimeError("invalid shape dimension")
        if wild:
            rest = product(s for i, s in enumerate(shape) if i != wild[0])
            if not test("!=", rest, 0) or not test("==", total % rest, 0):
                raise RuntimeError(f"shape {_text(shape)} is invalid for this array")
            return [total // rest if i == wild[0] else s for i, s in enumerate(shape)]
        if not test("==", product(shape), total):
            raise RuntimeError(f"shape {_text(shape)} is invalid for this array")
        return list(shape)

    def _view_strides(self, shape: list[Number]) -> list[Number] | None:
        """Strides of the view of this array in ``shape`` (same number of elements); None where only a copy would do.

        Old axes that run on in memory form chunks, from the last; the new axes must fill each chunk exactly.
        """
        if not self.shape:
            return [1] * len(shape)
        if any(type(s) is int and s == 0 for s in self.shape):
            same = tuple(value_of(s) for s in shape) == tuple(value_of(s) for s in self.shape)
            return list(self._strides) if same else list(contiguous_strides(shape))
        strides: list[Number] = [0] * len(shape)
        new = len(shape) - 1
        base = self._strides[-1]
        room: Number = 1  # elements of the chunk; ``filled`` of them are taken by new axes
        for old in range(self.ndim - 1, -1, -1):
            room = room * self.shape[old]
            if old > 0 and not self._breaks(old, room * base):
                continue
            filled: Number = 1
            while new >= 0 and _takes(filled, shape[new], room):
                strides[new] = filled * base
                filled = filled * shape[new]
                new -= 1
            if not known("==", filled, room) and not test("==", filled, room):
                return None
            if old > 0:
                base, room = self._strides[old - 1], 1
        return strides if new == -1 else None

    def _breaks(self, old: int, run: Number) -> bool:
        """Whether axis ``old - 1`` does not run on where the axes from ``old`` end."""
        if known("==", self._strides[old - 1], run) or known("==", self.shape[old - 1], 1):
            return False
        return test("!=", self.shape[old - 1], 1) and test("!=", self._strides[old - 1], run)


def _takes(filled: Number, size: Number, room: Number) -> bool:
    """Whether a new axis of ``size`` belongs to a chunk of ``room`` elements, ``filled`` of them taken already."""
    if known("==", filled, room):
        return known("==", size, 1)
    if known("==", size, 1) or _exact(room, filled * size):
        return True
    return test("<", filled, room) or test("==", size, 1)


def _unpack(args: Any) -> list[Any]:
    return list(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else list(args)


def _bounded(count: Number, what: str) -> int:
    number = int(count)
    if number > MAX_VIEWS:
        raise Refusal("too-many-views", f"{what} would make {number} views")
    return number


def _text(shape: list[Any]) -> str:
    return str([value_of(s) for s in shape])
