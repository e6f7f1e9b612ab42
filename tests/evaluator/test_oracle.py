"""The oracle: the right numbers, from a process of its own, which may die."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest
import torch

from evaluator.judging.oracle import Oracle, OracleDefect, Question, pack, question, unpack
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.graph import Graph, Node, Tensor

SIZES = {"M": 9, "N": 33, "K": 65}


def test_the_reference_is_float64_arithmetic_on_the_stored_inputs(oracle: Oracle) -> None:
    expected = oracle.expect(everyday("linear"), SIZES, "normal", 7)
    x, w, b = (expected.inputs[name] for name in ("x", "w", "b"))
    assert x.dtype == torch.bfloat16
    assert expected.reference[0].dtype == torch.float64
    torch.testing.assert_close(expected.reference[0], x.double() @ w.double().T + b.double(), rtol=1e-13, atol=1e-13)


def test_the_yardstick_is_eager_pytorch_in_the_stored_dtype(oracle: Oracle) -> None:
    expected = oracle.expect(everyday("linear"), SIZES, "normal", 7)
    eager = torch.nn.functional.linear(*(expected.inputs[name] for name in ("x", "w", "b")))
    assert expected.eager[0].dtype == torch.bfloat16
    error = (expected.eager[0].double() - expected.reference[0]).abs().max()
    assert 0 < error <= 2 * (eager.double() - expected.reference[0]).abs().max()


def test_answers_come_in_the_order_of_the_questions_and_leaving_early_does_no_harm(oracle: Oracle) -> None:
    task = everyday("gelu")
    questions = [question(task, {"M": m, "N": 3}, "normal", 1) for m in range(1, 9)]
    assert [a.reference[0].shape[0] for a in oracle.expect_all(questions)] == list(range(1, 9))
    for answer in oracle.expect_all(questions):
        assert answer.reference[0].shape[0] == 1
        break
    assert oracle.expect(task, {"M": 5, "N": 2}, "normal", 1).reference[0].shape == (5, 2)


def test_a_dead_process_is_started_again_and_the_question_asked_again(oracle: Oracle) -> None:
    task = everyday("gelu")
    before = oracle.expect(task, {"M": 5, "N": 2}, "normal", 1)
    assert oracle._python is not None
    oracle._python.process.kill()
    after = oracle.expect(task, {"M": 5, "N": 2}, "normal", 1)
    assert torch.equal(before.inputs["x"], after.inputs["x"])
    assert torch.equal(before.reference[0], after.reference[0])


def test_a_process_that_dies_twice_is_the_environments_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with Oracle() as broken, pytest.raises(EnvironmentLacks, match="died twice"):
        broken.expect(everyday("gelu"), {"M": 5, "N": 2}, "normal", 1)


def test_a_line_to_anothers_process_that_ended_says_so() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with Oracle(ours) as oracle, pytest.raises(OracleDefect, match="ended"):
        oracle.expect(everyday("gelu"), {"M": 5, "N": 2}, "normal", 1)


def test_a_reference_that_fails_is_our_defect_with_its_place(oracle: Oracle) -> None:
    node = Node("y", "no_such_op", ("x",), (), (3,), "f32")
    graph = Graph((), (Tensor("x", "f32", (3,)),), (node,), ("y",))
    with pytest.raises(OracleDefect, match=r"the reference failed: KeyError: 'no_such_op' \(\w+\.py:\d+\)"):
        list(oracle.expect_all([Question(graph, (), "normal", 1, graph.precision)]))
    assert oracle.expect(everyday("gelu"), {"M": 2, "N": 2}, "normal", 1).reference[0].shape == (2, 2)


def test_the_process_ends_when_its_line_is_closed() -> None:
    started = Oracle()
    assert started._python is not None
    started._python.line.close()
    assert started._python.process.wait(timeout=30) is not None
    started.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3)])
def test_packing_a_tensor_keeps_every_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    back = unpack(pack(tensor))
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)
