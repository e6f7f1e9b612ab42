"""The structure: who may import whom, where; what the rooms export; what has a name of its own."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from itertools import chain

import pytest
from house import MODULES, PACKAGES, ROOT, circles, exports, imports, is_package, loads, tree

RUNTIME = "kernels_generated.runtime"  # the size language and the launch plan: a leaf that anyone may import

# Package → the other packages of ours that it may import (besides RUNTIME).
MAY = {
    "knowledge_base": set(),
    "evaluator": {"knowledge_base"},
    "prompts": {"knowledge_base"},
    "agent": {"knowledge_base", "evaluator", "prompts", "kernels_generated"},
    "kernels_generated": set(),
}
# kernels_generated is copied into other projects: beside the standard library it has torch and cuda packages alone.
FOREIGN = {"torch", "cuda"}
OPTIONAL = {"safetensors", "tokenizers"}  # and these where weights and text in their formats are read, in that function
COMMANDS = "agent.commands"  # a module a command, and the command line imports those
# Rooms that are entered by their door: from outside one imports what their __init__ exports, and no module of theirs.
ROOMS = (
    "evaluator.confinement", "evaluator.compile", "evaluator.trace", "evaluator.tileir", "evaluator.judging",
    "evaluator.timing", "evaluator.replay", "evaluator.baselines", "agent.loop", "agent.comparison",
    "agent.experiments", "agent.verification", "agent.models", "agent.overview", "agent.proposers",
    "agent.proposers.synthesizer", COMMANDS,
    "prompts", "kernels_generated.ops", "kernels_generated.patching", "knowledge_base.rules", "knowledge_base.browse",
    "knowledge_base.sharing",
)  # fmt: skip
# Packages that take a tenth of a second to a second to import.
SLOW = {"torch", "numpy", "cuda", "sqlmodel", "sqlalchemy", "alembic", "openai", "matplotlib"}
# Stand-ins are called as what they stand in for.
STAND_INS = "evaluator.trace.fake_torch"


def room(module: str) -> str:
    """The innermost room that a module is in; a module outside of all is one of its own."""
    return max((r for r in ROOMS if module == r or module.startswith(r + ".")), key=len, default=module)


# ---------------------------------------------------------------------------------------------------- directions


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        i.place
        for module in MODULES
        if module.split(".")[0] == package
        for i in imports(module)
        for top in [i.target.split(".")[0]]
        if top in PACKAGES and top != package and top not in MAY[package] and room(i.target) != RUNTIME
        if not i.target.startswith(RUNTIME + ".")
    ]
    assert wrong == []


def test_kernels_generated_can_be_copied_into_another_project() -> None:
    allowed = set(sys.stdlib_module_names) | FOREIGN | {"kernels_generated"}
    found = _all("kernels_generated")
    local = [i for i in found if i.where == "local" and i.target.split(".")[0] in OPTIONAL]
    assert [i.place for i in found if i.target.split(".")[0] not in allowed and i not in local] == []


def test_the_runtime_needs_the_standard_library_alone() -> None:
    """But where it meets the GPU: the driver's package is loaded by who runs a plan there."""
    allowed = set(sys.stdlib_module_names) | {"kernels_generated"}
    others = [i for i in _all(RUNTIME) if i.target.split(".")[0] not in allowed]
    assert {(i.target, i.where) for i in others} == {("cuda.bindings", "local")}
    assert all(f"{RUNTIME}.driver".replace(".", "/") in i.place for i in others)


def test_only_the_command_line_knows_commands() -> None:
    users = {room(module) for module in MODULES for i in imports(module) if room(i.target) == COMMANDS}
    assert users == {COMMANDS, "agent.cli"}


def test_no_two_modules_import_each_other() -> None:
    """Not in a function either, and not for a type checker."""
    assert circles({module: {i.target for i in imports(module)} & set(MODULES) for module in MODULES}) == []


def test_no_two_rooms_import_each_other() -> None:
    """A package's __init__ stands for itself: what it exports is not needed by who needs one of its modules."""
    arrows: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        for i in imports(module):
            if i.target in MODULES and room(i.target) != room(module) and not is_package(module):
                arrows[room(module)].add(room(i.target))
    assert circles(arrows) == []


def test_rooms_are_entered_by_their_door() -> None:
    wrong = []
    for module in MODULES:
        for i in imports(module):
            inside = room(i.target) if i.target in MODULES else ""
            if inside not in ROOMS or inside == COMMANDS or f"{module}.".startswith(f"{inside}."):
                continue
            if i.target != inside and (i.said != inside or i.name not in exports(inside)):
                wrong.append(i.place)
    assert wrong == []


# ---------------------------------------------------------------------------------------------------- exports


LAZY = [m for m in MODULES if is_package(m) and any(i.name == "exports" for i in imports(m))]


@pytest.mark.parametrize("package", LAZY)
def test_what_a_package_exports_is_there(package: str) -> None:
    loaded = importlib.import_module(package)
    told = {name for name, home in exports(package).items() if home.startswith(f"{package}.")}
    told -= {"exports"} | {name for name in told if f"{package}.{name}" in MODULES}
    assert set(loaded.__all__) == told
    for name in told:
        home = importlib.import_module(exports(package)[name])
        assert getattr(loaded, name) is getattr(home, name)
        assert f"{package}.{name}" not in MODULES, "a module of that name would take its place once it is imported"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = loaded.nonsense


# ---------------------------------------------------------------------------------------------------- where


def test_what_is_imported_in_a_function_is_slow() -> None:
    """At the top, where one looks for it, stands all but what start-up time keeps away.

    Two things do: the command line loads a command when it is called, so that help takes a blink; and a module that
    needs no torch, no cuTile and no SQLAlchemy itself does not wait for one that does before it must.
    """
    needless = [
        i.place
        for module in MODULES
        if module != "agent.cli"
        for i in imports(module)
        if i.where == "local" and i.target in MODULES and not (loads(i.target) & SLOW) - loads(module)
    ]
    assert needless == []


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["kb", "--help"]])
def test_help_imports_nothing_slow(command: list[str]) -> None:
    assert _imported(f"from agent.cli import invoke; invoke({command})") == []


@pytest.mark.parametrize("module", ["agent.loop.target_work", "agent.commands.check", "agent.commands.run_command"])
def test_who_has_things_judged_needs_no_torch(module: str) -> None:
    """Judging is done by processes of their own."""
    assert set(_imported(f"import {module}")) & {"torch", "cuda"} == set()


def _imported(code: str) -> list[str]:
    code = f"import sys; {code}; print('IMPORTED', *[m for m in {sorted(SLOW)} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    said = done.stdout.splitlines()[-1].split()
    assert said[0] == "IMPORTED"
    return said[1:]


# ---------------------------------------------------------------------------------------------------- names


def test_a_module_has_a_name_of_its_own() -> None:
    """``errors`` are the exceptions of where they stand, ``base`` is what its neighbours have in common."""
    homes = defaultdict(list)
    for module in MODULES:
        name = module.split(".")[-1]
        if not name[0].isdigit() and name not in ("errors", "env", "__main__"):
            homes[name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_a_class_has_a_name_of_its_own() -> None:
    homes = defaultdict(list)
    for module in MODULES:
        if module == STAND_INS or ".versions." in module:
            continue
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


REFERENCE = re.compile(r":(mod|func|class|meth|data):`([\w.]+)`")


@pytest.mark.parametrize("package", PACKAGES)
def test_what_docstrings_refer_to_is_there(package: str) -> None:
    """References of a module's own names, without a dot, are left to readers."""
    lost = []
    for module in (m for m in MODULES if m.split(".")[0] == package):
        base = module.split(".") if is_package(module) else module.split(".")[:-1]
        for kind, said in REFERENCE.findall(MODULES[module].read_text(encoding="utf-8")):
            full = ".".join([*base, said[1:]]) if said.startswith(".") else said
            if full.split(".")[0] not in PACKAGES:
                continue
            parts = full.split(".")
            home = next(".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES)
            rest = full.removeprefix(home).split(".")[1:]
            if (kind == "mod") != (not rest) or (rest and rest[0] not in _names(home)):
                lost.append(f"{module}: {said}")
    assert lost == []


def _names(module: str) -> set[str]:
    nodes = list(ast.walk(tree(module)))
    return (
        {node.id for node in nodes if isinstance(node, ast.Name)}
        | {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        | {i.name for i in imports(module)}
    )


# ---------------------------------------------------------------------------------------------------- the reader


def test_the_reader_of_imports_sees_them_all() -> None:
    """The rules above are only as good as this reader."""
    found = {(i.name, i.target, i.where) for i in imports("agent.cli")}
    assert ("console", "agent.console", "local") in found  # relative, in a function
    assert ("errors", "knowledge_base.errors", "top") in found  # a module, of its package
    assert ("JudgeProcess", "evaluator.judging.judge_process", "top") in {
        (i.name, i.target, i.where) for i in imports("agent.loop.judges")
    }  # through a door
    assert any(i.where == "type" for module in MODULES for i in imports(module))
    assert "torch" in loads("evaluator.judging.judge_server")
    assert circles({"a": "b", "b": "c", "c": "b", "d": "a"}) == [["b", "c"]]


def _all(package: str):  # type: ignore[no-untyped-def]
    return chain.from_iterable(imports(m) for m in MODULES if m == package or m.startswith(package + "."))
