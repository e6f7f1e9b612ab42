"""What the code of a module's forward may read beside its input, parameters and settings: nothing that may change."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

# Packages whose functions give the same for the same arguments, or are part of what is traced.
_CONSTANT = ("torch", "math", "operator", "_operator", "typing", "builtins")
_ASKED_FIRST = ("__getattr__", "__getattribute__")  # wherever a forward reads an attribute


class ReadsVariable(Exception):
    """The forward reads what somebody may set later; the message says what."""


def members(kind: type[nn.Module]) -> dict[str, Any]:
    """What of the class its forward may call on the way, by name: methods, static ones, properties.

    Follows the code of each, and of functions of other modules that it calls, down to PyTorch's.  Raises ReadsVariable
    for a global or enclosing variable, an object or a module that it reads there.
    """
    walk = _Walk(kind)
    walk.function(kind.forward)
    for name in _ASKED_FIRST:
        walk.member(name)
    return walk.found


class _Walk:
    def __init__(self, kind: type[nn.Module]) -> None:
        self.kinds = [one for one in kind.__mro__ if not _is_constant(one)]
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()

    def function(self, function: Any) -> None:
        if _is_constant(function) or id(function) in self._seen:
            return
        self._seen.add(id(function))
        if not isinstance(function, FunctionType):
            raise ReadsVariable(f"it calls a {type(function).__name__}")
        for cell_name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cell(cell_name, cell)
        for code in _codes(function.__code__):
            for instruction in dis.get_instructions(code):
                if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    self._global(instruction.argval, function.__globals__)
                elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                    raise ReadsVariable(f"it sets the global variable {instruction.argval}")
            for name in code.co_names:
                self.member(name)

    def member(self, name: str) -> None:
        """Follows what classes have under a name, the first of which the forward finds."""
        for kind in self.kinds:
            value = vars(kind).get(name)
            if isinstance(value, FunctionType | staticmethod | classmethod | property) and name not in self.found:
                self.found[name] = getattr(self.kinds[0], name)
            if isinstance(value, property):
                for part in (value.fget, value.fset):
                    if part is not None:
                        self.function(part)
            elif isinstance(value, staticmethod | classmethod):
                self.function(value.__func__)
            elif isinstance(value, FunctionType):
                self.function(value)

    def _cell(self, name: str, cell: CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # empty
            return
        if name == "__class__":  # for super()
            return
        if not isinstance(value, FunctionType):
            raise ReadsVariable(f"it reads the enclosing variable {name}")
        self.function(value)

    def _global(self, name: str, names: dict[str, Any]) -> None:
        if name not in names:
            return  # one of Python's own, or nothing
        value = names[name]
        if isinstance(value, FunctionType):
            self.function(value)
        elif not (isinstance(value, type | BuiltinFunctionType | ModuleType) and _is_constant(value)):
            raise ReadsVariable(f"it reads the global variable {name}")


def _is_constant(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (name or builtins.__name__).partition(".")[0] in _CONSTANT


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
