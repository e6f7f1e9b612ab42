"""The recorder: what ``ct.launch`` and workspace allocation do while a plan is traced.

One :class:`Recorder` is one call of the candidate's ``launch``.  It hands out the arguments, takes every launch,
exports the kernel, and comes to a plan as JSON data (the schema of :mod:`kernels_generated.runtime.plan`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from cuda.tile import kernel as Kernel

from kernels_generated.runtime.expr import evaluate, from_json, normalise, to_json
from kernels_generated.runtime.plan import MAX_GRID

from .contract import size_of
from .dataless import Shape, contiguous_strides, product
from .export import FrontEnd, FrontEndError, forget, sha256
from .fake_torch import BY_CODE, Dtype, Stream, Tensor
from .refusal import Refusal
from .signature import Described, describe
from .symbolic import SHADOWS, STALE, Context, Number, Ratio, SymbolicSize, expr_of, int_like, value_of

MAX_LAUNCHES = 256  # an honest task needs a handful
MAX_WORKSPACES = 64
MAX_WORKSPACE_BYTES = 8 * 2**30
FEW_BLOCKS = 2**16  # always allowed; above it a grid may have one block per element of the plan's buffers

NUM_SMS = "num_sms"


class Exporter:
    """Bytecode by kernel, hints and signature; shared by the requests of one child."""

    def __init__(self, filename: str) -> None:
        self._front_end = FrontEnd(filename)
        self._globals = ""
        self._made: dict[tuple[Any, ...], bytes] = {}
        self._kept: list[Any] = []  # function objects in a key must outlive it

    def __call__(self, kernel: Any, signature: Any) -> bytes:
        function = kernel._annotated_function.pyfunc
        state = repr(_constants(function.__globals__, function.__globals__))
        if state != self._globals:  # cuTile keeps what a function means; launch may have changed a name it reads
            self._globals = state
            forget()
        like = (id(function), repr(_closure(function)), state, repr(signature))
        key = (*like, repr(kernel._compiler_options))
        if key not in self._made:
            self._kept.append(function)
            self._made[key] = self._front_end.export(kernel, signature, like)
        return self._made[key]


class Recorder:
    """See the module's text.  ``policy`` is general, sample or concrete (plain integers, no bytecode)."""

    def __init__(self, task: dict[str, Any], request: dict[str, Any], chip: dict[str, Any], exporter: Exporter) -> None:
        self.policy: str = request["policy"]
        self.names: dict[str, Any] = {}
        self.kernels: dict[str, bytes] = {}
        self.chip_facts: list[str] = []
        self.globals: dict[str, Any] = {}
        self._task = task
        self._chip = chip
        self._exporter = exporter
        self._dims: dict[str, int] = {NUM_SMS: int(chip["sm_count"]), **request["sizes"]}
        self.context = Context(self._dims)
        self._arguments: list[dict[str, Any]] = []
        self._views: dict[tuple[Any, ...], int] = {}
        self._steps: list[dict[str, Any]] = []
        self._arrays: dict[str, Tensor] = {}
        self._roles: dict[str, str] = {}
        self._in_pack = False
        self._packing = 0  # steps that prepare weights
        self._gone: set[str] = set()  # workspaces of pack
        self._shadowed: list[str] = []
        self._elements = 0

    # ------------------------------------------------------------------------------------------ arguments

    def number(self, data: Any) -> Number:
        """An expression in JSON as a plain int (concrete) or a SymbolicSize."""
        expr = normalise(from_json(data))
        value = evaluate(expr, self._dims)
        return value if self.policy == "concrete" or isinstance(expr, int) else SymbolicSize(self.context, expr, value)

    def arguments(self) -> tuple[list[Tensor], list[Tensor | Number]]:
        """Arrays without data: the task's inputs; its outputs, and after these the sizes that no array tells."""
        made = []
        for tensor in (*self._task["inputs"], *self._task["outputs"]):
            shape = Shape(self.number(s) for s in tensor["shape"])
            made.append(self._argument(tensor["name"], tensor["role"], BY_CODE[tensor["dtype"]], shape))
            self._arrays[tensor["name"]] = made[-1]
        inputs = len(self._task["inputs"])
        return made[:inputs], [*made[inputs:], *map(self.number, self._task["numbers"])]

    def packed(self, packing: dict[str, Any], axes: dict[str, Any]) -> dict[str, Tensor]:
        """What pack takes by name, after :meth:`arguments`: weights, and the arrays that it is to fill."""
        out = {name: self._arrays[name] for name in packing["arguments"] if name in self._arrays}
        first = next(iter(out.values()))
        weights = [t for t in self._task["inputs"] if t["role"] == "weight"]
        sizes = {s: self.number(s) for t in weights for s in t["shape"] if isinstance(s, str)}
        numbers = {name: value for name, value in axes.items() if type(value) is int}
        for one in packing["packed"]:
            shape = []
            for axis in one["shape"]:
                try:
                    shape.append(size_of(axis, {**sizes, **numbers}))
                except (ValueError, ZeroDivisionError) as error:
                    said = f"PACKED[{one['name']!r}]: {error} (sizes of weights, and axes)"
                    raise Refusal("bad-packing", said) from None
            dtype = BY_CODE[one["dtype"]] if one["dtype"] else first.dtype
            self._bounded(f"packed array {one['name']}", shape, dtype)
            out[one["name"]] = self._argument(one["name"], "packed", dtype, Shape(shape))
        return out

    @contextlib.contextmanager
    def packs(self) -> Iterator[None]:
        """While ``pack`` runs: it has weights alone, and workspaces that are not there any more after it."""
        self._in_pack = True
        try:
            yield
        finally:
            self._in_pack = False
        self._packing = len(self._steps)
        self._gone = {a["name"] for a in self._arguments if a["role"] == "workspace"}
        if not any("launch" in step for step in self._steps):
            raise Refusal("launches-nothing", "pack returned without launching a kernel")
        passed = {key[0] for key in self._views}
        for one in self._arguments:
            if one["role"] == "packed" and one["name"] not in passed:
                raise Refusal("output-unused", f"no kernel of pack receives {one['name']}")

    def _argument(self, name: str, role: str, dtype: Dtype, shape: Shape) -> Tensor:
        self._arguments.append(
            {"name": name, "role": role, "dtype": dtype.code, "shape": [self._own(s) for s in shape]}
        )
        self._roles[name] = role
        self._elements += value_of(product(shape))
        return Tensor(self, name, dtype, 0, shape, contiguous_strides(shape))

    # ---------------------------------------------------------------------------------------- the stand-in's questions

    def workspace(self, shape: Shape, dtype: Dtype, fill: int | None) -> Tensor:
        taken = {a["name"] for a in self._arguments}
        if sum(a["role"] == "workspace" for a in self._arguments) >= MAX_WORKSPACES:
            raise Refusal("too-many-workspaces", f"launch allocates more than {MAX_WORKSPACES} workspaces")
        self._bounded("workspace", shape, dtype)
        name = next(n for n in (f"ws{i}" for i in range(len(taken) + 1)) if n not in taken)
        out = self._argument(name, "workspace", dtype, shape)
        if fill is not None:
            self._step({"fill": name, "value": fill})
        return out

    def _bounded(self, what: str, shape: Iterable[Number], dtype: Dtype) -> None:
        """Refuses memory of no elements, and too much of it."""
        sizes = Shape(shape)
        for size in sizes:
            if not self.context.assume(">=", size, 1):
                raise Refusal("bad-workspace", f"a {what} of {value_of(size)} elements along one axis")
        nbytes = value_of(product(sizes)) * dtype.itemsize
        if nbytes > MAX_WORKSPACE_BYTES:
            raise Refusal("workspace-too-large", f"a {what} of {nbytes / 2**30:.1f} GiB")

    def num_sms(self) -> Number:
        return self.number(NUM_SMS)

    def chip(self, fact: str) -> Any:
        self.chip_facts.append(fact)
        return self._chip[fact]

    # ------------------------------------------------------------------------------------------ launches

    def launch(self, stream: Any, grid: Any, kernel: Any, args: Any, *others: Any, **options: Any) -> None:
        """Stands for ``ct.launch``."""
        if others:
            raise TypeError(
                f"ct.launch takes stream, grid, kernel and a tuple of arguments, not {4 + len(others)} things"
            )
        if any(options.values()):
            raise Refusal("launch-option", f"ct.launch({', '.join(options)}=…) has no place in a plan")
        if not isinstance(stream, Stream) and type(stream) is not int:
            raise TypeError(f"ct.launch: the first argument is a stream, not {type(stream).__name__}")
        if not isinstance(kernel, Kernel):
            raise TypeError(f"ct.launch: the third argument is a @ct.kernel function, not {type(kernel).__name__}")
        if type(args) is not tuple:
            raise TypeError(f"ct.launch: the kernel's arguments are a tuple, not {type(args).__name__}")
        for array in _arrays(args):
            if array._tracer is not self:
                raise Refusal("stale-array", "an array kept from an earlier call of launch is used in this one")
            if array._buffer in self._gone:
                raise Refusal("stale-array", "a workspace of pack is used in launch: PACKED names what launch is given")
            if self._in_pack and self._roles[array._buffer] not in ("weight", "packed", "workspace"):
                raise Refusal("stale-array", f"pack uses {array._buffer}, which is no weight")
        entries = self._grid(grid)
        function = kernel._annotated_function.pyfunc
        name = function.__code__.co_name
        symbol = name[:64] if name.isidentifier() and name.isascii() else "kernel"
        described = describe(self.context, self.policy == "sample", kernel, args, symbol)
        digest = self._kernel(kernel, function, symbol, described)
        self._step(
            {
                "launch": digest,
                "symbol": symbol,
                "grid": [self._own(g) for g in entries],
                "parameters": [self._parameter(p) for p in described.parameters],
            }
        )

    def _grid(self, grid: Any) -> list[Number]:
        if type(grid) is not tuple:
            raise Refusal("grid-rank", f"the grid is a tuple of 1 to 3 ints, not {type(grid).__name__}")
        if not 1 <= len(grid) <= 3:
            raise Refusal("grid-rank", f"a grid has 1 to 3 axes, this one has {len(grid)}: fold some into one")
        for axis, (entry, most) in enumerate(zip(grid, MAX_GRID, strict=False)):
            if not int_like(entry):
                raise Refusal("grid-rank", f"grid axis {axis} is a {entry.__class__.__name__}, not an int")
            if not (self.context.assume(">=", entry, 1) and self.context.assume("<=", entry, most)):
                raise Refusal("grid-range", f"grid axis {axis} is {value_of(entry)}, outside 1 … {most}")
        blocks = value_of(product(grid))
        if blocks > max(FEW_BLOCKS, self._elements):
            raise Refusal("too-many-blocks", f"{blocks} blocks for {self._elements} elements in all buffers together")
        return [*grid, *[1] * (3 - len(grid))]

    def _kernel(self, kernel: Any, function: Any, symbol: str, described: Described) -> str:
        options = kernel._compiler_options
        hints = {k: v if v is None or type(v) is int else repr(v) for k, v in vars(options).items()}
        self._settle(function)
        outside = [*_closure(function), *_constants(function.__globals__, function.__code__.co_names)]
        identity = [symbol, function.__code__.co_firstlineno, described.constants, hints, outside]
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        digest = key
        if self.policy != "concrete":
            with self._unshadowed():
                try:
                    bytecode = self._exporter(kernel, described.signature)
                except FrontEndError as error:
                    if error.line is None:
                        error.line = function.__code__.co_firstlineno
                    raise
            digest = sha256(bytecode)
            self.kernels[digest] = bytecode
        self.names[digest] = {
            "key": key,
            "function": symbol,
            "line": function.__code__.co_firstlineno,
            "hints": hints,
            "constants": [list(c) for c in described.constants],
            "arrays": described.arrays,
        }
        return digest

    def _settle(self, function: Any) -> None:
        """Sizes that the kernel reads from its closure or the module are constants of it: plain values, guarded."""
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                cell.cell_contents = _plain(self.context, cell.cell_contents)
        for name in function.__code__.co_names:
            if name in self.globals:
                self.globals[name] = _plain(self.context, self.globals[name])

    def _parameter(self, parameter: tuple[Any, ...]) -> dict[str, Any]:
        if parameter[0] == "array":
            _, x, index, constant = parameter
            key = (
                x._buffer,
                x.dtype.code,
                expr_of(x._offset),
                tuple(expr_of(s) for s in x.shape),
                tuple(expr_of(s) for s in x._strides),
            )
            view = self._views.setdefault(key, len(self._views))
            return {"view": view, "index": index, **({"constant_strides": constant} if constant else {})}
        _, dtype, value = parameter
        if dtype in ("i32", "i64"):
            value = self._own(value)
        elif dtype == "f32" and not math.isfinite(value):  # JSON has no infinities
            value = repr(value)
        return {"scalar": value, "dtype": dtype}

    def _own(self, number: Number) -> Any:
        """The number as JSON.  A size of an earlier trace, which a candidate may have kept, is refused."""
        if type(number) is SymbolicSize and number.context is not self.context:
            raise Refusal("stale-size", STALE)
        return to_json(expr_of(number))

    def _step(self, step: dict[str, Any]) -> None:
        if len(self._steps) >= MAX_LAUNCHES:
            raise Refusal("too-many-launches", f"launch makes more than {MAX_LAUNCHES} launches and fills")
        self._steps.append(step)

    # ------------------------------------------------------------------------------------------ the candidate's names

    @contextlib.contextmanager
    def shadowed(self, namespace: dict[str, Any]) -> Iterator[None]:
        """min, max, int and print of the candidate's module, for as long as its ``launch`` runs."""
        self.globals = namespace
        self._shadowed = [name for name in SHADOWS if name not in namespace]
        self._shadow(True)
        try:
            yield
        finally:
            self._shadow(False)

    @contextlib.contextmanager
    def _unshadowed(self) -> Iterator[None]:
        # A kernel looks its names up in the module while it is exported: it must find Python's own.
        self._shadow(False)
        try:
            yield
        finally:
            self._shadow(True)

    def _shadow(self, on: bool) -> None:
        for name in self._shadowed:
            if on:
                self.globals[name] = SHADOWS[name]
            else:
                self.globals.pop(name, None)

    # ------------------------------------------------------------------------------------------ the result

    def plan(self) -> dict[str, Any]:
        """The plan as JSON data.  Refusal where nothing was launched or an output was never passed to a kernel."""
        if not any("launch" in step for step in self._steps[self._packing :]):
            raise Refusal("launches-nothing", "launch returned without launching a kernel")
        passed = {key[0] for key in self._views}
        for output in self._task["outputs"]:
            if output["name"] not in passed:
                raise Refusal("output-unused", f"no kernel receives the output {output['name']}")
        return {
            "version": 1,
            "task": self._task["identity"],
            "policy": "sample" if self.policy == "sample" else "general",
            "dims": sorted(self._dims),
            "arguments": self._arguments,
            "views": [
                {
                    "argument": buffer,
                    "dtype": dtype,
                    "offset": to_json(offset),
                    "shape": [to_json(s) for s in shape],
                    "strides": [to_json(s) for s in strides],
                }
                for buffer, dtype, offset, shape, strides in self._views
            ],
            "steps": self._steps,
            "guards": [[g.comparison, to_json(g.left), to_json(g.right)] for g in self.context.needed_guards()],
            **({"packing": self._packing} if self._packing else {}),
        }


def _arrays(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)


def _plain(context: Context, value: Any) -> Any:
    if type(value) is SymbolicSize:
        return context.pin(value)
    if type(value) is Ratio:
        return float(value)
    if isinstance(value, tuple) and any(type(v) in (SymbolicSize, Ratio, tuple) for v in value):
        return tuple(_plain(context, v) for v in value)
    return value


def _constants(namespace: dict[str, Any], names: Any) -> list[list[str]]:
    """The plain values among the module's names that a kernel may read, as text."""
    found = [(name, namespace.get(name)) for name in names]
    return [
        [n, repr(v)] for n, v in found if isinstance(v, bool | int | float | str | tuple) and not n.startswith("__")
    ]


def _closure(function: Any) -> list[list[str]]:
    """What a kernel made by a factory depends on, as text; functions and modules count by their name."""
    out = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            value = cell.cell_contents
            simple = value is None or isinstance(value, bool | int | float | str | tuple)
            out.append([name, repr(value) if simple else getattr(value, "__name__", type(value).__name__)])
    return out
