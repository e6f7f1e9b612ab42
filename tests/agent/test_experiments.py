"""Whether knowledge compounds: the experiment's own arithmetic, on spaces that are made up, and the command."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent.cli import invoke
from agent.commands import experiment_command
from agent.experiments import Landscape, compounding, landscapes
from agent.experiments.protocols import Pair, Search, summary
from knowledge_base.rules import Timed


def made(us: Sequence[float]) -> Landscape:
    sizes = {"M": 64, "N": 64, "K": 64}
    return Landscape([
        Timed("linear_gelu", ("linear", "gelu"), sizes, "bf16", "h200", "s", {"T": n}, "", one)
        for n, one in enumerate(us)
    ])  # fmt: skip


def test_what_a_search_is_measured_by() -> None:
    work = made([4.0, 2.0, 1.04, 1.0, 1.01])
    found = Search(work, work.rows, 3).measures
    assert found["tries_to_95%"] == 3
    assert found["tries_to_98%"] == 4
    assert found["final"] == 1 / 1.04
    assert found["area"] == pytest.approx((1 / 4 + 1 / 2 + 1 / 1.04) / 3)
    longer = Search(work, work.rows, 10).measures  # there are no more: the best stays
    assert longer["area"] == pytest.approx((1 / 4 + 1 / 2 + 1 / 1.04 + 7) / 10)


def test_figures_of_pairs() -> None:
    pairs = [[Pair({"tries": 4.0}, {"tries": 1.0})], [Pair({"tries": 8.0}, {"tries": 2.0})]]
    found = summary(pairs)
    assert found["searches"] == 2
    assert found["tries"] == {
        "cold": 6.0, "cold_median": 6.0, "cold_95": [4.0, 8.0],
        "warm": 1.5, "warm_median": 1.5, "warm_95": [1.0, 2.0],
        "ratio": 0.25, "ratio_95": [0.25, 0.25],
    }  # fmt: skip


def test_what_is_alike_is_drawn_together() -> None:
    pairs = [Pair({"tries": 4.0}, {"tries": cost}) for cost in (1.0, 1.0, 1.0, 9.0)]
    apart, together = (summary(units)["tries"] for units in ([[pair] for pair in pairs], [pairs[:3], pairs[3:]]))
    assert apart["ratio"] == together["ratio"] == 0.75
    assert apart["ratio_95"] == [0.25, pytest.approx(1.75, abs=0.3)]
    assert together["ratio_95"] == [0.25, 2.25]
    assert summary([pairs])["tries"]["ratio_95"] is None


def test_what_landscapes_are_of() -> None:
    found = landscapes()
    assert {one.model for one in found} == {"GPT-2", "Llama"}
    assert {one.family for one in found} == {"contraction", "attention", "row", "movement", "elementwise"}
    by_op = {one.op: one for one in found}
    assert {"linear_residual", "linear_silu_mul", "attention", "rmsnorm", "rope", "gelu"} <= by_op.keys()
    assert not any(op.endswith(("_4adc6a", "_c0ad0d")) for op in by_op)
    assert (by_op["linear_silu_mul"].model, by_op["gelu"].family) == ("Llama", "elementwise")
    assert len({one.shape for one in found}) < len(found)


@functools.cache
def experiment() -> tuple[dict[str, Any], list[str]]:
    """A short one, and what was said while it went on."""
    said: list[str] = []
    return compounding(tries=40, orders=1, seeds=1, say=said.append), said


def test_the_experiment_finds_what_a_base_is_worth() -> None:
    document, said = experiment()
    assert json.loads(json.dumps(document)) == document
    assert list(document["sequence"]) == ["1", "2 to 4", "5 to 8", "9 to 16"]
    first, *_, last = document["sequence"].values()
    assert first["searches"] == 1
    assert last["tries_to_95%"]["ratio"] < 0.9
    left = document["left_out"]
    assert left["the same ops at these sizes"]["tries_to_98%"]["ratio"] < 0.4
    assert left["the same ops at these sizes"]["tries_to_98%"]["warm_median"] <= 4
    assert left["the same ops"]["tries_to_98%"]["ratio"] < 0.5
    assert left["all ops of the kind"]["area"]["ratio"] == pytest.approx(1, abs=0.02)
    for wrong in document["poisoned"].values():
        assert wrong["tries_to_98%"]["ratio"] < 1.4
        assert wrong["final"]["ratio"] > 0.97
    rules = document["planted_rules"]
    assert rules["planted"] == rules["refuted"] + rules["left"]
    assert rules["refuted"] > rules["planted"] / 2
    assert "sequence 1 of 1" in said
    assert len(set(said)) == len(said)


def test_the_command_prints_it_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_command, "tried", lambda tries, orders, seeds, say: experiment()[0])
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke(["experiment", "compounding"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    for part in ("in sequence, by place", "the same ops at these", "planted rules", " → "):
        assert part in out
    assert invoke(["experiment", "compounding", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == experiment()[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compunding"], "No such command 'compunding'. Did you mean 'compounding'?"),
        (["compounding", "--tries", "0"], "Invalid value for '--tries'"),
        ([], "Missing command"),
    ],
)
def test_wrong_spellings(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["experiment", *arguments]) == 2
    assert said in capsys.readouterr().err
