"""Thousands of answers and plans that a candidate could have forged: each ends in a plan or a typed verdict.

Forged from honest ones by a seeded generator, so that most get past the first look.  What an honest candidate's plan
may do is forged too: the judge's emulator runs it.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import trace as tracing
from evaluator.confinement.confine import Finished
from evaluator.judging.cover import dims
from evaluator.judging.executable import Executable
from evaluator.judging.inputs import draw
from evaluator.judging.rejection import Rejected
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.expr import ExprError
from kernels_generated.runtime.plan import PlanError, from_data
from knowledge_base.chips import chip
from knowledge_base.records import MAX_TEXT, Status, Verdict
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

CANDIDATES = Path(__file__).parent.parent / "candidates"
CHIP = chip("rtx5070")
NONCE = "5" * 32
HONEST = {  # by file: its task at sizes of which all are small, to be emulated in milliseconds
    "gelu_tiles": everyday("gelu", M=20, N=70),
    "linear_split_k": everyday("linear", M=9, N=17, K=70),  # a workspace, two launches
    "softmax_chunked": everyday("softmax", M=5, N=70),
    "embedding_rows": everyday("embedding", B=1, T=5, V=11, P=7, C=40),
}
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**70), 10**400, 0.5, float("nan"), float("inf"), "", "x", "M",
    "num_sms", "\ud800", "\x1b[2J", "a" * 5000, [], {}, [[]], ["*", "M", "M"], ["//", "M", 0], ["%", 1, 0],
    ["-", 0, "M"], ["nothing", 1, 2], {"scalar": 1, "dtype": "i32"}, {"view": 0, "index": "i64"}, "correct", "output",
    "workspace", "weight", "f32", "i8", "bf16", "i64",
)  # fmt: skip


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that is in a JSON document, leaves and containers."""
    if at:
        yield at
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*at, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from places(value, (*at, number))


def forged(document: Any, rng: random.Random) -> Any:
    """A copy with one to three changes: values replaced, shifted, removed, doubled, or taken from elsewhere in it."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(places(document))
        if not found:
            return document
        *way, last = rng.choice(found)
        parent = document
        for step in way:
            parent = parent[step]
        value, what = parent[last], rng.randrange(6)
        if what == 0:
            parent[last] = copy.deepcopy(rng.choice(JUNK))
        elif what == 1 and isinstance(value, int) and not isinstance(value, bool):
            parent[last] = value + rng.choice((-1, 1, 16, -(2**20), 2**20))
        elif what == 2:
            del parent[last]
        elif what == 3 and isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
        elif what == 4 and isinstance(value, list):
            rng.shuffle(value)
        else:
            other = document
            for step in rng.choice(found):
                other = other[step]
            parent[last] = copy.deepcopy(other)
    return document


def garbled(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut, doubled: what JSON no longer is."""
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[: rng.randrange(200)] + data[at:]
        case 3:
            return data[:at] + rng.choice((b"\n", b"\0", b"\xff", b"[" * 20_000, b"9" * 6000)) + data[at:]
        case _:
            lines = data.split(b"\n")
            rng.shuffle(lines)
            return b"\n".join(lines)


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[str, Task, bytes]]:
    """By file: its text, its task, and all that its tracing child wrote."""
    found: dict[str, tuple[str, Task, bytes]] = {}
    child = tracing.python_child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda _: NONCE)
        for name, task in HONEST.items():
            source = (CANDIDATES / f"{name}.py").read_text()
            said: list[bytes] = []

            def listening(*call: Any, said: list[bytes] = said, **more: Any) -> Finished:
                finished = child(*call, **more)
                said.append(finished.stdout)
                return finished

            patch.setattr(tracing, "python_child", listening)
            assert all(isinstance(a, Traced) for a in trace(source, task, requests(task), CHIP))
            found[name] = source, task, said[0]
    return found


def requests(task: Task) -> list[Request]:
    return [Request(task.sizes), Request(task.sizes, policy="concrete")]


def is_typed(verdict: Verdict) -> bool:
    return (
        not verdict.correct
        and bool(verdict.message)
        and verdict.message.isprintable()
        and len(verdict.message) <= MAX_TEXT
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_forged_answer_is_a_plan_or_a_verdict(
    seed: int, answers: dict[str, tuple[str, Task, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr("secrets.token_hex", lambda _: NONCE)
    kinds: Counter[str] = Counter()
    for _ in range(250):
        source, task, honest = answers[rng.choice(list(answers))]
        if rng.random() < 0.3:
            stdout = garbled(honest, rng)
        else:
            lines = []
            for line in honest.split(b"\n"):
                if line.startswith(NONCE.encode()) and rng.random() < 0.6:
                    message = forged(json.loads(line[len(NONCE) + 1 :]), rng)
                    line = NONCE.encode() + b" " + json.dumps(message).encode()
                lines.append(line)
            stdout = b"\n".join(lines)
        code, breach = rng.choice(((0, ""), (0, ""), (1, ""), (-9, "signal"), (-9, "time")))
        forgery = Finished(code, stdout, b"", breach, 0.1)
        monkeypatch.setattr(tracing, "python_child", lambda *_, forgery=forgery, **__: forgery)
        if b'{"ready":true}\n' not in stdout and (code, breach) == (1, ""):
            continue  # a child that fails before it looked at the candidate: that is our installation
        for answer in trace(source, task, requests(task), CHIP):
            assert isinstance(answer, Traced) or is_typed(answer), answer
            kinds["plan" if isinstance(answer, Traced) else answer.status.value] += 1
    assert kinds["plan"] > 50
    assert kinds[Status.INVALID.value] > 50


@pytest.mark.parametrize("seed", range(4))
def test_a_forged_plan_that_is_read_runs_or_is_rejected(seed: int, answers: dict[str, tuple[str, Task, bytes]]) -> None:
    rng = random.Random(seed)
    kinds: Counter[str] = Counter()
    honest: dict[str, tuple[Task, Traced, Any]] = {}
    for name, (source, task, _) in answers.items():
        (traced,) = trace(source, task, [Request(task.sizes)], CHIP)
        assert isinstance(traced, Traced)
        honest[name] = task, traced, draw(task.graph, task.sizes, "normal", 1)
    for _ in range(250):
        forgery = None
        while forgery is None:
            task, traced, inputs = honest[rng.choice(list(honest))]
            forgery = read(forged(traced.plan.to_json(), rng), task, traced)
        start = time.monotonic()
        executable = Executable.of_task(task, [forgery], CHIP, start + 2.0)
        verdict: Verdict | None = None
        try:
            made = executable.run(inputs, dict(task.sizes))
        except Rejected as rejected:
            verdict = rejected.verdict
        assert time.monotonic() - start < 5
        if verdict is None:
            assert {t.name for t in task.outputs} == set(made)
        else:
            assert is_typed(verdict), verdict
        kinds["ran" if verdict is None else verdict.error_class] += 1
    assert kinds["ran"] > 50
    assert len(kinds) > 4


def read(document: Any, task: Task, honest: Traced) -> Traced | None:
    """What the tracer's parent makes of a plan that is not the honest one; None where it does not believe it."""
    try:
        plan = from_data(document)
        tracing._check_plan(plan, task, dims(task.sizes, CHIP))
        tracing._check_names(plan, honest.names)
    except (PlanError, ExprError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None  # as _Answers.read has it
    return None if plan == honest.plan else replace(honest, plan=plan)
