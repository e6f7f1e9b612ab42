"""What a candidate file must look like, checked on its text alone: nothing is run.

The contract: ``import cuda.tile as ct`` (plus a short list of modules), optionally ``AXES``, a literal dictionary from
a name to its possible values, and ``launch(stream, <inputs>, <outputs>, <sizes>, *, <axes>, num_sms=None)``; sizes are
those that no array tells.  Weights may be prepared once: ``PACKED``, a literal dictionary from a name to a shape, and
``pack(stream, <weights and packed by name>, *, <axes>, num_sms=None)``; ``launch`` then takes what is packed after the
inputs.  The parent checks it before a child is started; the child takes its list of modules from here.  Standard
library only.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.plan import TORCH_NAMES
from kernels_generated.runtime.syntax import parse

FILENAME = "candidate.py"  # bytecode holds the file's name, so it must be the same everywhere
MAX_SOURCE_BYTES = 512 * 1024
MAX_AXES = 16
MAX_CHOICES = 64
MAX_WORD = 64  # characters of a choice that is text
MAX_PACKED = 16
MAX_RANK = 8  # of a packed array
MAX_SIZE_TEXT = 200  # characters of an axis of a packed array

# What a candidate may import: cuTile, the stand-in for torch, and modules that only help writing Python.
MODULES = frozenset(
    {"cuda.tile", "math", "torch", "typing", "functools", "itertools", "dataclasses", "enum", "collections",
     "collections.abc", "operator", "__future__"}
)  # fmt: skip

ALLOWED = "a candidate imports cuda.tile, math and torch, and of the standard library typing, functools, itertools, \
dataclasses, enum, collections and operator"


@dataclass(frozen=True)
class Breach:
    """The contract is broken at ``line`` (None: nowhere in particular)."""

    error_class: str
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Packed:
    """An array that pack fills: its axes, and the plan's name of its dtype, empty for that of pack's first weight.

    An axis is a number or text, an expression of dimensions and axes: ``N``, ``cdiv(K, TK)``.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Packing:
    """``packed``: what is made.  arguments: the names of weights and packed arrays in the order in which pack takes
    them.  keywords: what it is given beside them, axes and num_sms."""

    packed: tuple[Packed, ...]
    arguments: tuple[str, ...]
    keywords: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """What the text says: the axes with their values, whether launch takes ``num_sms``, how weights are prepared."""

    axes: Mapping[str, list[Any]]
    takes_num_sms: bool
    launch_line: int
    packing: Packing | None = None


@dataclass(frozen=True)
class Takes:
    """What a task hands to a candidate.

    inputs, results: what launch gets before and after what is packed, as text (``x[M,K]``); sizes are among the
    results.  weights: the names of those inputs that pack may take.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    weights: tuple[str, ...]


def read(source: str, takes: Takes | None = None) -> Contract | Breach:
    """Reads and checks ``source``.  ``takes``: what the task has for it; None: not checked."""
    if len(source.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES:
        return Breach("source-too-large", f"the file has more than {MAX_SOURCE_BYTES // 1024} KiB")
    try:
        tree = parse(source, FILENAME)
    except SyntaxError as error:
        return Breach("syntax-error", f"not Python: {error.msg}", error.lineno)
    except (ValueError, RecursionError, MemoryError) as error:
        return Breach("syntax-error", f"not Python: {error or type(error).__name__}")
    forbidden = _imports(tree)
    if forbidden is not None:
        return forbidden
    axes = _axes(tree)
    if isinstance(axes, Breach):
        return axes
    launches = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "launch"]
    if not launches:
        return Breach("missing-launch", "the file defines no function launch(stream, …)")
    packing = _packing(tree, axes, takes)
    if isinstance(packing, Breach):
        return packing
    return _launch(launches[-1], axes, packing, takes)


def _imports(tree: ast.Module) -> Breach | None:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                return Breach("forbidden-import", f"a relative import: {ALLOWED}", node.lineno)
            module = node.module or ""
            # ``from cuda import tile`` names the module in two parts
            names = [f"cuda.{a.name}" for a in node.names] if module == "cuda" else [module]
        for name in names:
            if name not in MODULES:
                assert isinstance(node, ast.Import | ast.ImportFrom)
                return Breach("forbidden-import", f"import of {name}: {ALLOWED}", node.lineno)
    return None


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    """What the statement assigns to ``name``; None if it does not."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if any(isinstance(t, ast.Name) and t.id == name for t in targets):
        return getattr(node, "value", None)
    return None


def _axes(tree: ast.Module) -> dict[str, list[Any]] | Breach:
    found: ast.expr | None = None
    line = 0
    for node in tree.body:
        value = _assigned(node, "AXES")
        if value is not None:
            found, line = value, node.lineno
    if found is None:
        return {}
    try:
        axes = ast.literal_eval(found)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Breach("bad-axes", "AXES is a literal dictionary: its values are written out, not computed", line)
    if not isinstance(axes, dict) or len(axes) > MAX_AXES:
        return Breach("bad-axes", f"AXES is a dictionary of at most {MAX_AXES} names", line)
    for name, choices in axes.items():
        if not isinstance(name, str) or not name.isidentifier():
            return Breach("bad-axes", f"AXES: {name!r} is no parameter name", line)
        if not isinstance(choices, list | tuple) or not 0 < len(choices) <= MAX_CHOICES:
            return Breach("bad-axes", f"AXES[{name!r}] is a list of 1 to {MAX_CHOICES} values, default first", line)
        for choice in choices:
            if not (choice is None or isinstance(choice, bool | int | float | str)):
                return Breach(
                    "bad-axes", f"AXES[{name!r}] holds a {type(choice).__name__}: ints, floats and strings", line
                )
            if isinstance(choice, int) and choice.bit_length() > 63:
                return Breach("bad-axes", f"AXES[{name!r}] holds an integer beyond 64 bits", line)
            if isinstance(choice, str) and not (choice.isprintable() and len(choice) <= MAX_WORD):
                return Breach("bad-axes", f"AXES[{name!r}] holds text that is no short word: it names a choice", line)
    return {name: list(choices) for name, choices in axes.items()}


@dataclass(frozen=True)
class _Signature:
    """A function's parameters: those without a default after the stream, and all that may be given by keyword."""

    required: tuple[str, ...]
    keywords: tuple[str, ...]


def _signature(function: ast.FunctionDef, axes: Mapping[str, Any], error_class: str) -> _Signature | Breach:
    args, name, line = function.args, function.name, function.lineno
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    keywords = [a.arg for a in args.kwonlyargs]
    if args.vararg is not None or args.kwarg is not None:
        return Breach(error_class, f"{name} names its parameters: no *args, no **kwargs", line)
    if not positional or positional[0] != "stream":
        return Breach(error_class, f"{name}'s first parameter is stream", line)
    # A file may take its axes as ordinary parameters with a default; the arrays are what stands before those.
    plain = len(positional) - len(args.defaults)
    required, keywords = positional[1:plain], positional[plain:] + keywords
    defaults = {a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    defaults |= set(positional[plain:])
    loose = [k for k in keywords if k not in axes and k not in defaults and k != "num_sms"]
    if loose:
        return Breach(error_class, f"{name}'s parameter {loose[0]} is no axis and has no default", line)
    return _Signature(tuple(required), tuple(keywords))


def _launch(
    function: ast.FunctionDef, axes: dict[str, list[Any]], packing: Packing | None, takes: Takes | None
) -> Contract | Breach:
    found = _signature(function, axes, "bad-launch")
    if isinstance(found, Breach):
        return found
    line = function.lineno
    if takes is not None:
        packed = tuple(one.name for one in packing.packed) if packing is not None else ()
        wanted = (*takes.inputs, *packed, *takes.results)
        if len(found.required) != len(wanted):
            has = f"{len(found.required)} parameters after stream ({', '.join(found.required) or 'none'})"
            with_packed = " with what is packed" if packed else ""
            said = f"launch takes {has}, this task{with_packed} has {len(wanted)}: {', '.join(wanted)}"
            return Breach("bad-launch", said, line)
    missing = [name for name in axes if name not in found.keywords]
    if missing:
        return Breach("bad-launch", f"launch has no keyword parameter {missing[0]}, which AXES names", line)
    return Contract(axes, "num_sms" in found.keywords, line, packing)


# ------------------------------------------------------------------------------------------------------ packing


def _packing(tree: ast.Module, axes: Mapping[str, Any], takes: Takes | None) -> Packing | Breach | None:
    """How weights are prepared; None where they are not."""
    value, line = next(
        ((v, node.lineno) for node in reversed(tree.body) if (v := _assigned(node, "PACKED")) is not None), (None, 0)
    )
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "pack"]
    if value is None and not functions:
        return None
    if value is None:
        said = 'pack needs PACKED, the shapes of what it fills: PACKED = {"w_t": ("K", "N")}'
        return Breach("bad-packing", said, functions[-1].lineno)
    if not functions:
        return Breach("bad-packing", "PACKED needs a function pack(stream, …), which fills what it names", line)
    packed = _packed(value, line)
    if isinstance(packed, Breach):
        return packed
    function = functions[-1]
    found = _signature(function, axes, "bad-packing")
    if isinstance(found, Breach):
        return found
    names = {one.name for one in packed}
    left_out = next((one.name for one in packed if one.name not in found.required), None)
    if left_out is not None:
        return Breach("bad-packing", f"pack does not take {left_out}, which PACKED names", function.lineno)
    weights = [name for name in found.required if name not in names]
    if not weights:
        return Breach("bad-packing", "pack takes no weight", function.lineno)
    if takes is not None:
        for name in weights:
            if name not in takes.weights:
                known = ", ".join(takes.weights) or "it has none"
                return Breach(
                    "bad-packing", f"pack takes {name}, which is no weight of this task ({known})", function.lineno
                )
        taken = {text.partition("[")[0] for text in (*takes.inputs, *takes.results)}
        clash = next((one.name for one in packed if one.name in taken), None)
        if clash is not None:
            return Breach("bad-packing", f"PACKED names {clash}, which the task has already", line)
    keywords = tuple(name for name in found.keywords if name in axes or name == "num_sms")
    return Packing(packed, found.required, keywords)


def _packed(value: ast.expr, line: int) -> tuple[Packed, ...] | Breach:
    try:
        shapes = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Breach("bad-packing", "PACKED is a literal dictionary: its values are written out, not computed", line)
    if not isinstance(shapes, dict) or not 0 < len(shapes) <= MAX_PACKED:
        return Breach("bad-packing", f"PACKED is a dictionary of 1 to {MAX_PACKED} names", line)
    out = []
    dtypes = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
    for name, shape in shapes.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_WORD:
            return Breach("bad-packing", f"PACKED: {str(name)[:MAX_WORD]!r} is no parameter name", line)
        axes = list(shape) if isinstance(shape, list | tuple) else []
        dtype = dtypes[axes.pop()] if axes and isinstance(axes[-1], str) and axes[-1] in dtypes else ""
        if not 0 < len(axes) <= MAX_RANK or not all(map(_is_size, axes)):
            said = f"PACKED[{name!r}] is a tuple of 1 to {MAX_RANK} sizes, numbers or text, and may end with a dtype"
            return Breach("bad-packing", said, line)
        out.append(Packed(name, tuple(axes), dtype))
    return tuple(out)


def _is_size(axis: Any) -> bool:
    return (type(axis) is int and 0 < axis < 2**31) or (isinstance(axis, str) and len(axis) <= MAX_SIZE_TEXT)


Sizes = Mapping[str, Any]  # by name: an int, or what stands for one


def size_of(axis: int | str, names: Sizes) -> Any:
    """The value of an axis of a packed array: ``N``, ``2 * K``, ``cdiv(N, TN)``; of ``+ - * // %`` and cdiv.

    Raises ValueError for text that is anything else or names what is not in ``names``.
    """
    if isinstance(axis, int):
        return axis
    try:
        tree = ast.parse(axis.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{axis!r} is no expression") from None

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(number)) if type(number) is int:
                return number
            case ast.Name(id=name):
                if name not in names:
                    raise ValueError(f"{name!r} is none of {', '.join(names)}")
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id="cdiv"), args=[left, right], keywords=[]):
                return -(-value(left) // value(right))
        raise ValueError(f"{axis!r}: sizes are made of names, whole numbers, + - * // % and cdiv(…, …)")

    return value(tree)


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
