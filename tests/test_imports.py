"""Who may import whom, read from the sources; and what the command line must not import to print its help."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("knowledge_base", "evaluator", "prompts", "agent", "kernels_generated")
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


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything a file imports, wherever in it."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            if module in PACKAGES:  # `from agent import run` imports a module
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = []
    for path in sources(package):
        for line, name in imported(path):
            top = name.split(".")[0]
            if top not in PACKAGES or top == package or name == RUNTIME or name.startswith(RUNTIME + "."):
                continue
            if top == "kernels_generated" and name in ("kernels_generated",) and package != "agent":
                continue  # seen again, and judged, as kernels_generated.<name>
            if top not in MAY[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_kernels_generated_can_be_copied_into_another_project() -> None:
    standard = set(sys.stdlib_module_names)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("kernels_generated")
        for line, name in imported(path)
        if name.split(".")[0] not in standard | FOREIGN | {"kernels_generated"}
    ]
    assert wrong == []


def test_the_runtime_needs_the_standard_library_alone() -> None:
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in sources("kernels_generated/runtime")
        if path.name in ("expr.py", "plan.py")
        for line, name in imported(path)
        if name.split(".")[0] not in set(sys.stdlib_module_names) | {"kernels_generated"}
    ]
    assert wrong == []


def test_the_reader_of_imports_sees_relative_and_local_ones(tmp_path: Path) -> None:
    """The rule above is only as good as this reader."""
    found = {name for path in sources("agent") for _, name in imported(path)}
    assert "knowledge_base.store" in found  # imported inside functions alone
    assert "agent.console" in found  # imported relatively


SLOW = ("torch", "numpy", "cuda", "sqlmodel", "sqlalchemy", "alembic", "openai", "optuna", "matplotlib")


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["kb", "--help"]])
def test_help_imports_nothing_slow(command: list[str]) -> None:
    code = (
        "import sys; from agent.cli import invoke; code = invoke(sys.argv[1:]); "
        f"print('IMPORTED', *[m for m in {SLOW} if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1].strip() == "IMPORTED"
