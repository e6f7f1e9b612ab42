"""Which dimension of a task is a batch."""

from __future__ import annotations

import pytest
import torch

from knowledge_base.snf import decompose, parse
from knowledge_base.snf.batch import batch
from knowledge_base.snf.everyday import NAMES, everyday
from knowledge_base.snf.reference import run
from knowledge_base.snf.task import Task

HEAD = "M, N, K = 3, 4, 5\nx: f32[M, N]\nw: f32[N, K]\nv: f32[K, N]\n"
MADE = {
    "y = x + Range(N)": "M",
    "y = x @ w": "M",
    "y = Softmax(x)": "M",
    "y = Max(x, axis=-1)": "M",
    "y = Concat(x, x)": "M",
    "y = x / M": "",  # the number of rows is used
    "y = Sum(x, axis=-2)": "",  # rows are added up
    "y = x - Max(x, axis=-2, keepdims=True)": "",
    "y = x + Mask_Causal(x)": "",  # which row it is says what is masked
    "y = Sum(x) + Range(M)": "",
    "y = w.T @ x.T": "",
    "y = Permute(x, 1, 0)": "",
    "y = x @ Permute(v, 1, 0)": "M",
    "y = Softmax(x @ x.T)": "",
    "outputs = x * 2.0, Sum(x, axis=-2)": "",
}


def whole(text: str) -> Task:
    return decompose(parse(text), "v2").whole


@pytest.mark.parametrize("line", MADE)
def test_of_a_graph(line: str) -> None:
    assert batch(whole(HEAD + line)) == MADE[line]


@pytest.mark.parametrize("name", NAMES)
def test_everyday_tasks_are_computed_position_by_position(name: str) -> None:
    """As their values say: what one position gives is what it gives among others."""
    small = {"M": 3, "N": 16, "K": 8, "B": 3, "T": 5, "H": 2, "D": 16, "V": 7, "P": 6, "C": 8, "S": 4}
    task = everyday(name, "f32")
    task = task.at(**{dim: small[dim] for dim in task.sizes})
    dim = batch(task)
    assert dim == ("B" if "B" in task.sizes else "M")
    given = {
        t.name: torch.randn([n if isinstance(n, int) else task.sizes[str(n)] for n in t.shape])
        if t.dtype == "f32"
        else torch.randint(7, [n if isinstance(n, int) else task.sizes[str(n)] for n in t.shape])
        for t in task.inputs
    }
    (name,) = task.graph.outputs
    together = run(task.graph, given)[name]
    for at in range(task.sizes[dim]):
        one = {t.name: given[t.name][at : at + 1] if t.shape[0] == dim else given[t.name] for t in task.inputs}
        torch.testing.assert_close(run(task.at(**{dim: 1}).graph, one)[name], together[at : at + 1])
