"""What a candidate file must look like, checked on its text alone: nothing is run.

The contract: ``import cuda.tile as ct`` (plus a short list of modules), optionally ``AXES``, a literal dictionary from
a name to its possible values, and ``launch(stream, <inputs>, <outputs>, <sizes>, *, <axes>, num_sms=None)``; sizes are
those that no array tells.  The parent checks it before a child is started; the child takes its list of modules from
here.  Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_generated.runtime.syntax import parse

FILENAME = "candidate.py"  # bytecode holds the file's name, so it must be the same everywhere
MAX_SOURCE_BYTES = 512 * 1024
MAX_AXES = 16
MAX_CHOICES = 64
MAX_WORD = 64  # characters of a choice that is text

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
class Contract:
    """What the text says: the axes with their values, and whether launch takes ``num_sms``."""

    axes: Mapping[str, list[Any]]
    takes_num_sms: bool
    launch_line: int


def read(source: str, arguments: Sequence[str] | None = None) -> Contract | Breach:
    """Reads and checks ``source``.  ``arguments``: what launch takes after its stream, as text; None: not checked."""
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
    for name in ("PACKED", "pack"):
        line = _defines(tree, name)
        if line is not None:
            return Breach("pack-unsupported", f"{name}: weights prepared ahead of launch are not supported yet", line)
    return _signature(launches[-1], axes, arguments)


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


def _defines(tree: ast.Module, name: str) -> int | None:
    for node in tree.body:
        if _assigned(node, name) is not None or (isinstance(node, ast.FunctionDef) and node.name == name):
            return node.lineno
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


def _signature(
    launch: ast.FunctionDef, axes: dict[str, list[Any]], arguments: Sequence[str] | None
) -> Contract | Breach:
    args = launch.args
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    keywords = [a.arg for a in args.kwonlyargs]
    line = launch.lineno
    if args.vararg is not None or args.kwarg is not None:
        return Breach("bad-launch", "launch names its parameters: no *args, no **kwargs", line)
    if not positional or positional[0] != "stream":
        return Breach("bad-launch", "launch's first parameter is stream", line)
    # A file may take its axes as ordinary parameters with a default; the arrays are what stands before those.
    plain = len(positional) - len(args.defaults)
    required, keywords = positional[1:plain], positional[plain:] + keywords
    if arguments is not None and len(required) != len(arguments):
        return Breach(
            "bad-launch",
            f"launch takes {len(required)} parameters after stream ({', '.join(required) or 'none'}), "
            f"this task has {len(arguments)}: {', '.join(arguments)}",
            line,
        )
    missing = [name for name in axes if name not in keywords]
    if missing:
        return Breach("bad-launch", f"launch has no keyword parameter {missing[0]}, which AXES names", line)
    defaults = {a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    defaults |= set(positional[plain:])
    loose = [k for k in keywords if k not in axes and k not in defaults and k != "num_sms"]
    if loose:
        return Breach("bad-launch", f"launch's parameter {loose[0]} is no axis and has no default", line)
    return Contract(axes, "num_sms" in keywords, line)
