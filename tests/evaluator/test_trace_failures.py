"""What the tracer's child may say: a closed list, in which every refusal of its code stands, and no success."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from evaluator.trace import refusal
from evaluator.trace.refusal import FAILURES
from knowledge_base.records import Status, clean

FOLDER = Path(refusal.__file__).parent


def test_every_refusal_in_the_tracer_is_of_a_class_that_the_parent_knows_and_each_class_is_used() -> None:
    said = set()
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}"
                said.add(node.args[0].value)
    child = (FOLDER / "child.py").read_text()
    others = {name for name in FAILURES if f'"{name}"' in child}
    assert said | others == set(FAILURES)


def test_no_failure_is_a_success() -> None:
    assert set(FAILURES.values()) <= set(Status) - {Status.CORRECT, Status.DISAGREES, Status.UNSUPPORTED}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("plain: x[3] ≤ 5 ✓", "plain: x[3] ≤ 5 ✓"),
        ("two\nlines\r\n", "two lines  "),
        ("\033[2J\007", " [2J "),
        ("\u202eright to left\u200b", " right to left "),
        ("\ud800lone", " lone"),
        (3000 * "x", 2000 * "x"),
    ],
)
def test_text_is_cleaned(said: str, kept: str) -> None:
    assert clean(said) == kept
    kept.encode()
