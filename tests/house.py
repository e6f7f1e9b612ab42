"""The structure of our own code, read from its sources: modules, what they import and where, what packages export."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("knowledge_base", "evaluator", "prompts", "agent", "kernels_generated")


@dataclass(frozen=True)
class Import:
    """One name that ``importer`` imports.

    target: the module of ours that has it, or another package's dotted name; for a name that a package exports the
    module that it is exported from.  said: the module as it is spelled there.
    where: ``top`` (when the module is imported), ``local`` (in a function), or ``type`` (for type checkers alone).
    """

    importer: str
    line: int
    said: str
    name: str
    target: str
    where: str

    @property
    def place(self) -> str:
        return f"{MODULES[self.importer].relative_to(ROOT)}:{self.line} imports {self.name} of {self.said}"


def _modules() -> Mapping[str, Path]:
    """Folders of winners are no part of the house: what lies there was generated."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if (path.parent / "manifest.json").exists():
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


@functools.cache
def exports(package: str) -> Mapping[str, str]:
    """What a package's ``__init__`` hands on or defines: by name, the module of ours that it comes from."""
    handed = {i.name: i.target for i in _plain(package) if i.target in MODULES and i.where != "local"}
    return handed | {name: package for node in tree(package).body for name in _defined(node)}


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    """Everything a module imports, wherever in it."""
    out = []
    for found in _plain(module):
        home = found.target
        while home in MODULES and is_package(home) and home != module:
            further = exports(home).get(found.name, home)
            if further == home:
                break
            home = further
        out.append(Import(found.importer, found.line, found.said, found.name, home, found.where))
    return tuple(out)


def _plain(module: str) -> Iterator[Import]:
    """The imports as they are written: of a name that a package exports the package is the target."""
    package = module.split(".") if is_package(module) else module.split(".")[:-1]
    for node, where in _statements(tree(module), "top"):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name, alias.name, alias.name, where)
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        said = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            whole = f"{said}.{alias.name}"
            yield Import(module, node.lineno, said, alias.name, whole if whole in MODULES else said, where)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []


def _statements(node: ast.AST, where: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = "local"
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            inside = "type"
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, where
        yield from _statements(child, inside)


@functools.cache
def loads(module: str) -> frozenset[str]:
    """The other packages' top-level names that importing ``module`` of ours imports, directly or through ours."""
    found: set[str] = set()
    seen, ahead = {module}, [module]
    while ahead:
        for one in imports(ahead.pop()):
            if one.where != "top":
                continue
            if one.target not in MODULES:
                found.add(one.target.split(".")[0])
            elif one.target not in seen:
                seen.add(one.target)
                ahead.append(one.target)
    return frozenset(found)


def circles(arrows: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The sets of two or more that reach each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(one: str) -> None:
        number[one] = lowest[one] = len(number)
        stack.append(one)
        for other in arrows.get(one, ()):
            if other not in number:
                visit(other)
                lowest[one] = min(lowest[one], lowest[other])
            elif other in stack:
                lowest[one] = min(lowest[one], number[other])
        if lowest[one] == number[one]:
            ring = stack[stack.index(one) :]
            del stack[stack.index(one) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for one in arrows:
        if one not in number:
            visit(one)
    return found
