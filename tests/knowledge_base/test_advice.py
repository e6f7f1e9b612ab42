"""What is told about a task: what holds for it alone, the most useful first, and nothing of a stranger's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knowledge_base.advice import Belief, Fact, Item, Mistake, advice
from knowledge_base.chips import chip
from knowledge_base.content import content_key
from knowledge_base.records import COMPOSITION, Candidate, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.snf.task import Task
from knowledge_base.store import Store
from knowledge_base.tables import EVIDENCE, FACTS, RULES, TRIALS, now

pytestmark = pytest.mark.usefixtures("copied_bases")

H200, B200 = chip("h200"), chip("b200")
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A base that holds what ships."""
    with Store.open(str(tmp_path / "kb.db")) as made:
        yield made


@pytest.fixture
def empty(store: Store) -> Store:
    """A base without rules and facts."""
    with store.database.write() as connection:
        connection.execute(EVIDENCE.delete())
        connection.execute(RULES.delete())
        connection.execute(FACTS.delete())
    return store


def plant(store: Store, *rules: dict[str, Any]) -> None:
    with store.database.write() as connection:
        for rule in rules:
            connection.execute(RULES.insert().values(**rule))


def rule(
    statement: str, effect: float | None, width: float = 0.01, when: Any = None, claimed: Any = None, **scope: str
) -> dict[str, Any]:
    """A rule; effect: log-ratio, width: of its interval to either side."""
    tested = (
        {"effect": effect, "effect_low": effect - width, "effect_high": effect + width} if effect is not None else {}
    )
    form = {"scope": {"op": "linear"} | scope, "when": when or {"axis": statement, "value": 1}}
    return {
        "key": content_key("rule", statement), "statement": statement, "op": "linear", "chip": scope.get("chip", ""),
        "status": "supported" if tested else "hypothesised", "form": form | {"against": "other", "effect": "log_ratio"},
        "claimed": claimed or {}, "paired": {}, "history": [], "source": "s", "origin": "user", "superseded_by": "",
        "created_at": now(), "updated_at": now(), **tested,
    }  # fmt: skip


def told(store: Store, name: str = "linear", gpu: str = "h200", **sizes: int) -> list[Item]:
    return list(advice(store, everyday(name, **sizes), chip(gpu)).items)


def statements(items: list[Item]) -> list[str]:
    return [item.what.statement for item in items if isinstance(item.what, Belief)]


def answer(task: str, source: str, verdict: Verdict | None, **more: Any) -> Trial:
    candidate = Candidate(source=source, task=everyday(task).identity, proposer="openai", prompt="p")
    fields = {"candidate": candidate, "configuration": {}, "chip": "h200", "shape": everyday(task).sizes}
    return Trial(**fields | {"evaluator": "v", "verdict": verdict} | more)


def rejected(error_class: str, message: str = "m") -> Verdict:
    return Verdict(status=Status.BUILD_ERROR, stage=Stage.TRACE, error_class=error_class, message=message, hint="h")


def record(store: Store, *trials: Trial) -> None:
    for trial in trials:  # one after another, so that one is the latest
        names = [name for name in ("linear", "linear_gelu", "layernorm") if everyday(name).identity == trial.task]
        store.record_tasks([everyday(name) for name in names])
        store.record([trial])


# ---------------------------------------------------------------------------------------------------- rules, facts


def test_rules_are_those_that_hold_at_the_tasks_sizes(store: Store) -> None:
    wide, narrow = (statements(told(store, M=8192, N=n, K=768)) for n in (3072, 2304))
    recipe = "is faster at TM=128, TN=256, num_worker_warps=8"
    assert [s for s in wide if recipe in s]
    assert not [s for s in narrow if recipe in s]


def test_rules_of_another_gpu_are_told_where_none_of_this_one_has_evidence(store: Store) -> None:
    here, there = told(store), told(store, gpu="b200")
    assert all(item.what.where in ("", "h200") for item in here if isinstance(item.what, Belief))
    foreign = [item for item in there if isinstance(item.what, Belief) and item.what.where == "h200"]
    assert foreign
    assert all("but on another GPU (h200)" in item.because and item.match <= 0.4 for item in foreign)
    plant(store, rule("of its own", -0.1, chip="b200"))
    assert "of its own" in statements(told(store, gpu="b200"))
    assert not [s for s in statements(told(store, gpu="b200")) if "h200" in s]


def test_what_is_worth_more_comes_first(empty: Store) -> None:
    plant(
        empty,
        rule("of the gpu", -0.1, chip="h200", dtype="bf16"),
        rule("at the size", -0.1, chip="h200", dtype="bf16", shape="M >= 2"),
        rule("anywhere", -0.1),
        rule("larger", -0.2, chip="h200", dtype="bf16"),
        rule("unsure", -0.2, width=0.3, chip="h200", dtype="bf16"),
        rule("a warning", +0.2, chip="h200", dtype="bf16"),
        rule("claimed", None, claimed={"ratio": 1.3}),
        rule("elsewhere", -0.9, chip="h200", shape="M <= 2"),
        rule("of another dtype", -0.9, dtype="f16"),
        rule("superseded", -0.9) | {"status": "superseded"},
    )
    items = told(empty, M=4096)
    order = ["larger", "at the size", "of the gpu", "anywhere", "a warning", "claimed", "unsure"]
    assert statements(items)[:4] == order[:4]
    assert sorted(statements(items)[4:]) == sorted(order[4:])
    assert [item.worth for item in items] == sorted((item.worth for item in items), reverse=True)
    (larger,) = (item for item in items if isinstance(item.what, Belief) and item.what.statement == "larger")
    assert larger.effect == pytest.approx(0.19)  # the end of the interval that is nearer to none


def test_a_rule_that_says_what_others_said_counts_less(empty: Store) -> None:
    tile, warps = {"axis": "TM", "value": 128}, {"axis": "num_worker_warps", "value": 8}
    plant(
        empty,
        rule("both", -0.10, when={"all": [tile, warps]}),
        rule("tile", -0.09, when=tile),
        rule("new", -0.05),
    )
    items = told(empty)
    assert statements(items) == ["both", "new", "tile"]
    assert [item.new for item in items if isinstance(item.what, Belief)] == [1.0, 1.0, 0.25]


def test_facts_of_the_task_come_before_those_of_its_ops_and_of_anything(store: Store) -> None:
    facts = [
        (item.match, item.because) for item in told(store, "linear_gelu") if isinstance(item.what, Fact) and item.key
    ]
    assert facts == sorted(facts, key=lambda fact: -fact[0])
    assert {because for _, because in facts} == {
        "this task, on this GPU", "linear is in it, on this GPU", "gelu is in it, on this GPU",
        "any task, on this GPU", "any task, on sm_90",
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- mistakes


def mistakes(store: Store, name: str = "linear_gelu", but: tuple[str, ...] = ()) -> list[tuple[Mistake, Item]]:
    items = advice(store, everyday(name), H200, but).items
    return [(item.what, item) for item in items if isinstance(item.what, Mistake)]


def test_mistakes_are_counted_by_answers_that_never_became_right(empty: Store) -> None:
    record(
        empty,
        answer("linear", "a", rejected("mma-dtypes", "of linear")),
        answer("linear_gelu", "b", rejected("mma-dtypes", "older")),
        answer("linear_gelu", "c", rejected("mma-dtypes", "latest of this task")),
        answer("linear", "d", rejected("mma-dtypes", "of linear, the latest of all")),
        answer("linear_gelu", "e", rejected("tile-rank"), configuration={"TM": 64}),
        answer("linear_gelu", "e", RIGHT, configuration={"TM": 128}),  # right in another configuration
        answer("linear_gelu", "f", Verdict(status=Status.WRONG, stage=Stage.COMPARE, message="w")),
        answer("linear_gelu", "g", Verdict(status=Status.INFEASIBLE, stage=Stage.TRACE, message="no such size")),
        answer("linear_gelu", "h", None),  # not judged
        answer("layernorm", "i", rejected("mma-shapes")),  # has no op in common
    )
    (most, item), (other, _) = mistakes(empty)
    assert (most.name, most.answers, most.of, most.task) == ("mma-dtypes", 4, 6, "linear_gelu")
    assert (most.message, most.hint) == ("latest of this task", "h")
    assert item.because == "answers, 2 of this task"
    assert (other.name, other.answers) == ("wrong", 1)
    (near, _), *_ = mistakes(empty, "linear")
    assert near.message == "of linear, the latest of all"


def test_an_answer_that_is_shown_whole_is_no_mistake_of_others(empty: Store) -> None:
    mine = answer("linear_gelu", "a", rejected("mma-dtypes"))
    record(empty, mine)
    assert mistakes(empty)
    assert not mistakes(empty, but=(mine.candidate.digest,))


def test_files_that_answer_no_prompt_and_verdicts_of_strangers_are_no_mistakes(empty: Store) -> None:
    ours, checked = (answer("linear_gelu", source, rejected("mma-dtypes")) for source in "ab")
    checked = checked.fuller(candidate=checked.candidate.model_copy(update={"prompt": ""}))
    record(empty, ours, checked)
    ((told_of, _),) = mistakes(empty)
    assert told_of.of == 1
    with empty.database.write() as connection:
        connection.execute(TRIALS.update().values(seal="another user's"))
    assert not mistakes(empty)


# ---------------------------------------------------------------------------------------------------- example


def test_the_example_is_of_the_nearest_task_and_serves_every_size(empty: Store) -> None:
    def timed(task: str, source: str, us: float, **more: Any) -> Trial:
        time = Measurement(kind="modelled", chip="h200", us=us, floor_us=1.0)
        return answer(task, source, RIGHT, measurements=(time,), **more)

    assert advice(empty, everyday("linear_gelu"), H200).example is None
    record(
        empty,
        timed("layernorm", "far", 1.0),
        timed("linear", "slow", 9.0),
        timed("linear", "best", 5.0),
        timed("linear", "refuses", 2.0, infeasible=({"M": 7},)),
        timed("linear_gelu", "itself", 1.0),
    )
    whole = Task("a_target", "w", (graph := everyday("linear_gelu").graph), graph.precision)
    plan = Candidate(source="{}", task="w", proposer=COMPOSITION)  # of the same ops, and no kernel that can be shown
    empty.record_tasks([whole])
    empty.record([timed("linear_gelu", "", 1.0, candidate=plan)])
    example = advice(empty, everyday("linear_gelu"), H200).example
    assert example is not None
    assert (example.task, example.trial.candidate.source, example.common) == ("linear", "best", 0.5)
    assert advice(empty, everyday("linear_gelu"), B200).example is None  # times of another chip
