"""LaunchPlan: what a candidate's ``launch`` would do, as data.

A plan is versioned JSON made by the tracer (in a confined child) and checked here before anybody believes a word of
it.  It names its arguments, the views taken of them, and the ordered fills and kernel launches; sizes, strides, grid
entries and integer scalars are expressions (:mod:`.expr`) over the task's dimensions and ``num_sms``.  ``guards`` are
comparisons that must all hold for the plan to apply; they are evaluated in order, stopping at the first that is false.

Its first ``packing`` steps prepare weights: they read weights alone and fill arguments of the role *packed*, which the
steps after them only read.  Whoever calls the plan again with the same weights may leave them out.

The kernels themselves travel beside the plan as Tile IR bytecode (or cubins), keyed by their SHA-256.
Standard library only, so that the folder can be copied into another project.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .expr import COMPARISONS, Dims, Expr, ExprError, evaluate, from_json, holds, show, symbols, to_json

VERSION = 1
LARGEST_FILL = sys.float_info.max  # JSON has no infinities, and a larger integer is no float
# Blocks on each axis of a grid: Tile IR counts to 2^24 - 1; CUDA to 65,535 on the second and the third (CUDA C++
# Programming Guide, table of technical specifications).
MAX_GRID = (2**24 - 1, 2**16 - 1, 2**16 - 1)
ROLES = ("input", "weight", "packed", "output", "workspace")

# Bits an element takes in memory.  bool is one byte; tf32 exists in registers only, so it is not here.
DTYPE_BITS: dict[str, int] = {
    "bool": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f8e4m3": 8, "f8e5m2": 8,
}  # fmt: skip
SCALAR_DTYPES = ("bool", "i32", "i64", "f32", "f64")
# What PyTorch calls them, as attributes of torch.
TORCH_NAMES: dict[str, str] = {
    "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip


class PlanError(ValueError):
    """A plan that breaks the schema or this module's limits; the message names the place."""


@dataclass(frozen=True)
class Guard:
    """One condition on the dimensions: ``left <comparison> right``."""

    comparison: str
    left: Expr
    right: Expr

    def holds(self, dims: Dims) -> bool:
        return holds(self.comparison, evaluate(self.left, dims), evaluate(self.right, dims))

    def __str__(self) -> str:
        return f"{show(self.left)} {self.comparison} {show(self.right)}"


@dataclass(frozen=True)
class Argument:
    """A buffer the plan reads or writes: contiguous, row-major, ``shape`` in elements of ``dtype``."""

    name: str
    role: str
    dtype: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class View:
    """A strided window on an argument; ``offset`` and ``strides`` count elements of ``dtype``."""

    argument: str
    dtype: str
    offset: Expr
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class ArrayParameter:
    """An array argument of a kernel: a pointer, then its sizes, then its strides, each of ``index`` type.

    constant_strides: the axes whose strides, besides those that are 1, are part of the compiled kernel.
    """

    view: int
    index: str = "i32"
    constant_strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScalarParameter:
    """A scalar argument of a kernel.  i32 and i64 take an expression, f32 and f64 a float, bool a bool."""

    dtype: str
    value: Expr | float | bool


Parameter = ArrayParameter | ScalarParameter


@dataclass(frozen=True)
class Fill:
    """Set every element of a workspace to ``value`` (``torch.zeros``: 0)."""

    argument: str
    value: float | int


@dataclass(frozen=True)
class Launch:
    """One kernel launch: ``kernel`` is the SHA-256 of its bytecode; the grid has three entries, x fastest."""

    kernel: str
    symbol: str
    grid: tuple[Expr, Expr, Expr]
    parameters: tuple[Parameter, ...]


Step = Fill | Launch


@dataclass(frozen=True)
class LaunchPlan:
    """See the module's text.  ``policy`` says which assumptions its kernels were compiled under.

    general: only what follows from the guards; sample: also each divisibility that the sample sizes had (and guards).
    ``task`` is the identity of the task the plan computes; ``dims`` are the names its expressions may use.
    ``packing``: how many of the steps, from the first one on, prepare weights.
    """

    task: str
    policy: str
    dims: tuple[str, ...]
    arguments: tuple[Argument, ...]
    views: tuple[View, ...]
    steps: tuple[Step, ...]
    guards: tuple[Guard, ...]
    packing: int = 0

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The hashes of the kernels it launches, in order of first use."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches))

    @property
    def used(self) -> frozenset[str]:
        """Of ``dims`` those that arguments, launches or guards depend on."""
        sizes = [e for a in self.arguments for e in a.shape] + [e for g in self.guards for e in (g.left, g.right)]
        return frozenset().union(*map(symbols, sizes), *(_symbols(self, step) for step in self.steps))

    def failing_guard(self, dims: Dims) -> Guard | None:
        """The first guard that is false at ``dims``; None where the plan applies."""
        return next((g for g in self.guards if not g.holds(dims)), None)

    def applies(self, dims: Dims) -> bool:
        try:
            return self.failing_guard(dims) is None
        except ExprError:
            return False

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "task": self.task,
            "policy": self.policy,
            "dims": list(self.dims),
            "arguments": [
                {"name": a.name, "role": a.role, "dtype": a.dtype, "shape": [to_json(s) for s in a.shape]}
                for a in self.arguments
            ],
            "views": [
                {
                    "argument": v.argument,
                    "dtype": v.dtype,
                    "offset": to_json(v.offset),
                    "shape": [to_json(s) for s in v.shape],
                    "strides": [to_json(s) for s in v.strides],
                }
                for v in self.views
            ],
            "steps": [_step_json(s) for s in self.steps],
            "guards": [[g.comparison, to_json(g.left), to_json(g.right)] for g in self.guards],
            **({"packing": self.packing} if self.packing else {}),
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of :meth:`dumps`: the plan's name on disk and in the knowledge base."""
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    def dumps(self) -> str:
        """Canonical text: equal plans give equal text, so its hash names the plan."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Launchable:
    """A plan with the Tile IR bytecode of its kernels by SHA-256: what can be run, compiled, timed and stored."""

    plan: LaunchPlan
    kernels: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """The plan's name."""
        return self.plan.digest

    def document(self) -> dict[str, Any]:
        """What is said of the plan outside: its name, the conditions under which it holds, its kernels."""
        guards = [str(guard) for guard in self.plan.guards]
        return {
            "digest": self.digest,
            "policy": self.plan.policy,
            "guards": guards,
            "kernels": list(self.plan.kernels),
        }

    @property
    def artifacts(self) -> dict[str, bytes]:
        """The plan's text and the bytecode, each by the SHA-256 of its bytes: the form in which it is kept."""
        return {self.digest: self.plan.dumps().encode(), **self.kernels}


def _step_json(step: Step) -> dict[str, Any]:
    if isinstance(step, Fill):
        return {"fill": step.argument, "value": step.value}
    parameters: list[dict[str, Any]] = []
    for p in step.parameters:
        if isinstance(p, ArrayParameter):
            constant = {"constant_strides": list(p.constant_strides)} if p.constant_strides else {}
            parameters.append({"view": p.view, "index": p.index, **constant})
        else:
            value: Any = p.value
            if p.dtype in ("f32", "f64"):
                value = _float_json(value)
            elif p.dtype != "bool":
                value = to_json(value)
            parameters.append({"scalar": value, "dtype": p.dtype})
    return {
        "launch": step.kernel,
        "symbol": step.symbol,
        "grid": [to_json(g) for g in step.grid],
        "parameters": parameters,
    }


def _float_json(value: Any) -> float | str:
    # JSON has no infinities: they travel as Python's own spelling.
    return float(value) if math.isfinite(float(value)) else repr(float(value))


# ---------------------------------------------------------------------------------------------------- reading


def loads(text: str) -> LaunchPlan:
    """Parses and checks a plan's text.  Raises PlanError."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"plan: not JSON: {error}") from None
    return from_data(data)


def from_data(data: object) -> LaunchPlan:
    """Checks untrusted, already parsed JSON and returns the plan.  Raises PlanError naming the place."""
    keys = {"version", "task", "policy", "dims", "arguments", "views", "steps", "guards", "packing"}
    top = _record({"packing": 0, **data} if isinstance(data, dict) else data, "plan", keys)
    if top["version"] != VERSION:
        raise PlanError(f"plan.version: {top['version']!r}, this reader knows {VERSION}")
    if top["policy"] not in ("general", "sample"):
        raise PlanError(f"plan.policy: {top['policy']!r} is neither general nor sample")
    dims = tuple(_name(d, f"plan.dims[{i}]") for i, d in enumerate(_list(top["dims"], "plan.dims", 64)))
    known = frozenset(dims)

    def expr(value: object, place: str) -> Expr:
        try:
            e = from_json(value)
        except ExprError as error:
            raise PlanError(f"{place}: {error}") from None
        unknown = symbols(e) - known
        if unknown:
            raise PlanError(f"{place}: unknown dimension {sorted(unknown)[0]!r}")
        return e

    def exprs(value: object, place: str, limit: int = 16) -> tuple[Expr, ...]:
        return tuple(expr(v, f"{place}[{i}]") for i, v in enumerate(_list(value, place, limit)))

    arguments = []
    for i, raw in enumerate(_list(top["arguments"], "plan.arguments", 256)):
        place = f"plan.arguments[{i}]"
        a = _record(raw, place, {"name", "role", "dtype", "shape"})
        if a["role"] not in ROLES:
            raise PlanError(f"{place}.role: {a['role']!r} is none of {', '.join(ROLES)}")
        arguments.append(
            Argument(_name(a["name"], place), a["role"], _dtype(a["dtype"], place), exprs(a["shape"], f"{place}.shape"))
        )
    by_name = {a.name: a for a in arguments}
    if len(by_name) != len(arguments):
        raise PlanError("plan.arguments: a name occurs twice")

    views = []
    for i, raw in enumerate(_list(top["views"], "plan.views", 4096)):
        place = f"plan.views[{i}]"
        v = _record(raw, place, {"argument", "dtype", "offset", "shape", "strides"})
        if v["argument"] not in by_name:
            raise PlanError(f"{place}.argument: no argument {str(v['argument'])[:40]!r}")
        shape, strides = exprs(v["shape"], f"{place}.shape"), exprs(v["strides"], f"{place}.strides")
        if len(shape) != len(strides):
            raise PlanError(f"{place}: {len(shape)} sizes but {len(strides)} strides")
        views.append(
            View(v["argument"], _dtype(v["dtype"], place), expr(v["offset"], f"{place}.offset"), shape, strides)
        )

    steps = tuple(
        _read_step(raw, f"plan.steps[{i}]", by_name, views, expr)
        for i, raw in enumerate(_list(top["steps"], "plan.steps", 4096))
    )
    guards = []
    for i, raw in enumerate(_list(top["guards"], "plan.guards", 1024)):
        place = f"plan.guards[{i}]"
        parts = _list(raw, place, 3)
        if len(parts) != 3 or parts[0] not in COMPARISONS:
            raise PlanError(f"{place}: not [comparison, left, right]")
        guards.append(Guard(parts[0], expr(parts[1], place), expr(parts[2], place)))
    if not isinstance(top["task"], str):
        raise PlanError("plan.task: not a string")
    plan = LaunchPlan(
        top["task"], top["policy"], dims, tuple(arguments), tuple(views), steps, tuple(guards), top["packing"]
    )
    _check_packing(plan)
    return plan


def _check_packing(plan: LaunchPlan) -> None:
    """Raises PlanError where what prepares weights is not apart from what is done with them."""
    place, count = "plan.packing", plan.packing
    if type(count) is not int or not 0 <= count <= len(plan.steps):
        raise PlanError(f"{place}: not a number of the plan's steps")
    by_name = {a.name: a for a in plan.arguments}
    first, rest = plan.steps[:count], plan.steps[count:]
    if any(a.role == "packed" for a in plan.arguments) != any(isinstance(step, Launch) for step in first):
        raise PlanError(f"{place}: packed arguments are made by launches, and launches make some")
    reached = {name for step in first for name in reached_by(plan, step)}
    for name in sorted(reached):
        if by_name[name].role not in ("weight", "packed", "workspace"):
            raise PlanError(f"{place}: {by_name[name].role} {name} is used")
        if by_name[name].role == "workspace" and any(name in reached_by(plan, step) for step in rest):
            raise PlanError(f"{place}: workspace {name} is used after it, too")
    known = {"num_sms", *(size for a in plan.arguments if a.role == "weight" for size in a.shape)}
    made = [a for a in plan.arguments if a.role == "packed" or (a.role == "workspace" and a.name in reached)]
    sizes = {s for a in made for size in a.shape for s in symbols(size)}
    unknown = sizes.union(*(_symbols(plan, step) for step in first)) - known
    if unknown:
        raise PlanError(f"{place}: depends on {min(unknown)}, which is no axis of a weight")


def reached_by(plan: LaunchPlan, step: Step) -> set[str]:
    """The names of the arguments that a step reaches."""
    if isinstance(step, Fill):
        return {step.argument}
    return {plan.views[p.view].argument for p in step.parameters if isinstance(p, ArrayParameter)}


def _symbols(plan: LaunchPlan, step: Step) -> set[str]:
    """The dimensions that a step depends on."""
    if isinstance(step, Fill):
        return set()
    views = [plan.views[p.view] for p in step.parameters if isinstance(p, ArrayParameter)]
    numbers = [p.value for p in step.parameters if isinstance(p, ScalarParameter)]
    found: list[Any] = [*step.grid, *(e for v in views for e in (v.offset, *v.shape, *v.strides)), *numbers]
    return {s for e in found if not isinstance(e, float | bool) for s in symbols(e)}


def _read_step(raw: object, place: str, arguments: Mapping[str, Argument], views: Sequence[View], expr: Any) -> Step:
    if isinstance(raw, dict) and "fill" in raw:
        f = _record(raw, place, {"fill", "value"})
        if f["fill"] not in arguments or arguments[f["fill"]].role != "workspace":
            raise PlanError(f"{place}: only a workspace can be filled")
        if isinstance(f["value"], bool) or not isinstance(f["value"], int | float):
            raise PlanError(f"{place}.value: not a number")
        if not abs(f["value"]) <= LARGEST_FILL:  # false for a NaN, too
            raise PlanError(f"{place}.value: not a finite number")
        return Fill(f["fill"], f["value"])
    d = _record(raw, place, {"launch", "symbol", "grid", "parameters"})
    digest = d["launch"]
    if not (isinstance(digest, str) and len(digest) == 64 and all(c in "0123456789abcdef" for c in digest)):
        raise PlanError(f"{place}.launch: not a SHA-256")
    grid = [expr(g, f"{place}.grid[{i}]") for i, g in enumerate(_list(d["grid"], f"{place}.grid", 3))]
    if len(grid) != 3:
        raise PlanError(f"{place}.grid: {len(grid)} entries, not 3")
    parameters: list[Parameter] = []
    for i, p in enumerate(_list(d["parameters"], f"{place}.parameters", 256)):
        where = f"{place}.parameters[{i}]"
        if isinstance(p, dict) and "view" in p:
            a = _record({"constant_strides": [], **p}, where, {"view", "index", "constant_strides"})
            if not isinstance(a["view"], int) or isinstance(a["view"], bool) or not 0 <= a["view"] < len(views):
                raise PlanError(f"{where}.view: no such view")
            if a["index"] not in ("i32", "i64"):
                raise PlanError(f"{where}.index: neither i32 nor i64")
            axes = _list(a["constant_strides"], f"{where}.constant_strides", 16)
            if any(type(axis) is not int or not 0 <= axis < len(views[a["view"]].strides) for axis in axes):
                raise PlanError(f"{where}.constant_strides: not axes of the view")
            parameters.append(ArrayParameter(a["view"], a["index"], tuple(axes)))
        else:
            parameters.append(_read_scalar(_record(p, where, {"scalar", "dtype"}), where, expr))
    return Launch(digest, _name(d["symbol"], f"{place}.symbol"), (grid[0], grid[1], grid[2]), tuple(parameters))


def _read_scalar(s: dict[str, Any], where: str, expr: Any) -> ScalarParameter:
    dtype, value = s["dtype"], s["scalar"]
    if dtype not in SCALAR_DTYPES:
        raise PlanError(f"{where}.dtype: none of {', '.join(SCALAR_DTYPES)}")
    if dtype == "bool":
        if not isinstance(value, bool):
            raise PlanError(f"{where}: not a bool")
        return ScalarParameter(dtype, value)
    if dtype in ("i32", "i64"):
        return ScalarParameter(dtype, expr(value, where))
    if value in ("inf", "-inf", "nan"):
        return ScalarParameter(dtype, float(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{where}: not a number")
    return ScalarParameter(dtype, float(value))


def _record(value: object, place: str, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise PlanError(f"{place}: wants exactly the keys {', '.join(sorted(keys))}")
    return value


def _list(value: object, place: str, limit: int) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > limit:
        raise PlanError(f"{place}: wants a list of at most {limit}")
    return list(value)


def _name(value: object, place: str) -> str:
    if not isinstance(value, str) or not value.isidentifier() or len(value) > 64:
        raise PlanError(f"{place}: not a name: {str(value)[:40]!r}")
    return value


def _dtype(value: object, place: str) -> str:
    if value not in DTYPE_BITS:
        raise PlanError(f"{place}.dtype: {str(value)[:40]!r} is none of {', '.join(DTYPE_BITS)}")
    return str(value)
