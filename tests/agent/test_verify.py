"""`agent kb verify`: the paired experiment that could refute a rule, what it measures, and what becomes of the rule."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from card_runs import emulated
from device_double import DOUBLE

from agent.cli import invoke
from agent.commands import verify_command
from agent.proposers.synthesizer import synthesize
from agent.verification import Experiment, Outcome, planned, verified
from agent.verification.pairing import MOST_PAIRS, PAIRS, Pairing, pairing
from agent.verification.places import places
from evaluator.plans import Plans
from evaluator.replay import Runner
from evaluator.timing import Timer
from evaluator.trial import begin
from kernels_generated.runtime.plan import Launchable
from knowledge_base import browse
from knowledge_base.chips import CHIPS
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.rules import (
    Claim,
    Condition,
    Direction,
    RuleForm,
    Space,
    Timed,
    claim,
    features,
    in_spaces,
    judged,
    learn,
    own,
    read_form,
    to_refute,
)
from knowledge_base.snf import canonical, everyday, parse
from knowledge_base.snf.task import Task
from knowledge_base.store import RunRecord, Store

CHIP = CHIPS["h200"]
GELU = everyday("gelu")
Axes = Mapping[str, Any]


def form(when: Mapping[str, Any], op: str = "gelu", dtype: str = "bf16", shape: str = "") -> RuleForm:
    scope = {"op": op, "chip": "h200", "dtype": dtype, "shape": shape}
    said = {"scope": {k: v for k, v in scope.items() if v}, "when": when, "against": "other values"}
    return read_form(said | {"effect": "log_ratio"}, "a test")


AT_1024 = form({"axis": "CHUNK", "value": 1024})


def file(axes: Mapping[str, Sequence[int]], check: str = "", note: str = "") -> Candidate:
    source = f"""{note}
import cuda.tile as ct
AXES = { ({name: list(values) for name, values in axes.items()})!r}
@ct.kernel
def kernel(x, y):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (4,){check}){check})
def launch(stream, x, y, *, {", ".join(f"{name}={values[0]}" for name, values in axes.items())}):
    ct.launch(stream, (1, 1, 1), kernel, (x, y))
"""
    return Candidate(source=source, task=GELU.identity)


def paired(
    *files: Candidate, when: Sequence[tuple[str, Any]] = (("A", 1),), known: Mapping[str, frozenset[str]] | None = None,
    promise: Callable[[Axes], float] = lambda axes: 0.0,
) -> Pairing | None:  # fmt: skip
    conditions = [Condition(feature=name, value=value) for name, value in when]
    return pairing(files, conditions, lambda made: [promise(one) for one in made], known or {}, 0)


# ------------------------------------------------------------------------------------------------ what is compared


def test_the_configurations_of_a_group_differ_in_the_conditions_alone() -> None:
    many = file({"A": [1, 2, 3], "B": range(40), "C": [1, 2]})
    found = paired(many)
    assert found is not None
    assert (found.pairs, found.configurations) == (MOST_PAIRS, 3 * MOST_PAIRS // 2)
    for first, *others in found.groups:
        assert (first.having, first.axes["A"]) == (True, 1)
        assert [one.axes["A"] for one in others] == [2, 3] or [one.axes["A"] for one in others] == [3, 2]
        assert {(one.axes["B"], one.axes["C"]) for one in others} == {(first.axes["B"], first.axes["C"])}
    batches = list(found.batches)
    assert [group for batch in batches for group in batch] == list(found.groups)
    assert all(sum(len(group) - 1 for group in batch) == PAIRS for batch in batches)


def test_what_promises_most_is_compared_first() -> None:
    """Of groups, and of a group's other values where there are more than are looked at."""
    found = paired(file({"A": [1, 2, 3, 4, 5], "B": range(40)}), promise=lambda axes: axes["B"] + axes["A"] / 10)
    assert found is not None
    assert [group[0].axes["B"] for group in found.groups] == list(range(MOST_PAIRS // 2))
    assert {tuple(one.axes["A"] for one in group) for group in found.groups} == {(1, 2, 3)}


def test_where_groups_are_few_more_of_each_are_compared() -> None:
    found = paired(file({"A": range(1, 41), "B": [1, 2, 3, 4]}))
    assert found is not None
    assert [len(group) for group in found.groups] == [1 + PAIRS // 4] * 4


def test_where_there_are_few_altogether_all_are_compared() -> None:
    found = paired(file({"A": [1, 2, 3, 4, 5, 6], "B": [1, 2, 3, 4]}))
    assert found is not None
    assert [len(group) for group in found.groups] == [6] * 4


def test_several_conditions_stand_against_whatever_is_not_all_of_them() -> None:
    found = paired(file({"A": [1, 2], "B": [1, 2], "C": range(20)}), when=[("A", 1), ("B", 2)])
    assert found is not None
    for first, *others in found.groups:
        assert (first.axes["A"], first.axes["B"]) == (1, 2)
        assert all((one.axes["A"], one.axes["B"]) != (1, 2) for one in others)
        assert {one.axes["C"] for one in others} == {first.axes["C"]}


def test_a_file_that_has_enough_comes_before_one_that_has_more() -> None:
    few, enough, more = (file({"A": [1, 2], "B": range(n)}) for n in (9, 16, 40))
    for files, first in (((few, enough, more), enough), ((more, enough), more), ((few,), few)):
        found = paired(*files)
        assert found is not None
        assert found.files == (first,)


def test_two_files_are_compared_that_differ_in_how_they_are_made_alone() -> None:
    axes = {"B": range(20)}
    checks, none = file(axes), file(axes, check=", check_bounds=False")
    found = paired(checks, none, when=[("bounds checks", True)])
    assert found is not None
    assert set(found.files) == {checks, none}
    for first, other in found.groups:
        assert (first.candidate, other.candidate) == (checks, none)
        assert first.axes == other.axes
    rows = [Timed("gelu", ("gelu",), {"M": 1}, "bf16", "h200", "s", one.axes, one.candidate.source, 2.0 - one.having)
            for group in found.groups for one in group]  # fmt: skip
    said = judged(in_spaces(rows), form({"structure": "bounds checks"}), "slower")
    assert said is not None
    assert (said.direction, said.pairs) == ("faster", len(found.groups))  # they are one space


@pytest.mark.parametrize(
    ("files", "when"),
    [
        ([file({"A": [1, 2], "B": range(7)})], [("A", 1)]),  # 7 pairs
        ([file({"A": [1, 2], "B": range(20)})], [("A", 3)]),
        ([file({"A": [1], "B": range(20)})], [("A", 1)]),
        ([file({"B": range(20)})], [("A", 1)]),
        ([file({"A": [1, 2]}), Candidate(source="nothing", task=GELU.identity)], [("A", 1)]),
        ([file({"A": [1], "B": range(9)}), file({"A": [2], "C": range(9)})], [("A", 1)]),
        ([file({"A": [1, 2], "B": range(4)}), file({"A": [1, 2], "B": range(4)}, note="# alike")], [("A", 1)]),
        ([], [("A", 1)]),
    ],
)
def test_nothing_is_compared_where_too_few_configurations_differ(
    files: list[Candidate], when: list[tuple[str, Any]]
) -> None:
    assert paired(*files, when=when) is None


def test_what_was_measured_is_not_compared_again() -> None:
    from agent.loop import in_file

    some = file({"A": [1, 2], "B": range(20)})
    known = frozenset(in_file({"A": 1, "B": b}) for b in range(8))
    found = paired(some, known={some.digest: known})
    assert found is not None
    assert {group[0].axes["B"] for group in found.groups} == set(range(8, 20))
    alone = frozenset(in_file({"A": 2, "B": b}) for b in range(8))  # the others have no counterpart then
    found = paired(some, known={some.digest: alone})
    assert found is not None
    assert [len(group) for group in found.groups] == [2] * 12
    everything = frozenset(in_file({"A": 1, "B": b}) for b in range(20))
    assert paired(some, known={some.digest: everything}) is None


# ------------------------------------------------------------------------------------------------ where


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "kb.db")) as opened:
        yield opened


def space(task: Task, us: Callable[[Axes], float], session: str = "before", **sizes: int) -> list[Timed]:
    """A session's times of all configurations of the synthesizer's first file."""
    sized = task.at(**sizes)
    return [
        Timed(task.name, ("gelu",), sized.sizes, "bf16", "h200", session, {"CHUNK": c, "occupancy": o},
              synthesize(task, CHIP)[0].source, us({"CHUNK": c, "occupancy": o}))
        for c, o in product((512, 1024, 2048, 4096), (1, 2, 4, 8))
    ]  # fmt: skip


def gains(gain: float) -> Callable[[Axes], float]:
    """What a chunk of 1024 gains, beside something that depends on the other axis."""
    return lambda axes: (10 + axes["occupancy"] / 4) * (gain if axes["CHUNK"] == 1024 else 1 + axes["CHUNK"] / 1e6)


def test_places_are_new_ones_first_then_near_sizes(store: Store) -> None:
    found = [(p.task.name, p.task.sizes["M"], p.new) for p in places(store, AT_1024, CHIP, (), 0)]
    assert found[:3] == [("gelu", 8192, True), ("gelu", 16384, True), ("gelu", 4096, True)]
    known = in_spaces([*space(GELU, gains(0.9)), *space(GELU, gains(0.9), M=16384)])
    found = [(p.task.name, p.task.sizes["M"], p.new) for p in places(store, AT_1024, CHIP, known, 0)]
    assert found == [("gelu", m, m not in (8192, 16384)) for m in (4096, 32768, 2048, 8192, 16384)]


def test_places_lie_in_the_scope_of_the_rule(store: Store) -> None:
    small = form({"axis": "CHUNK", "value": 1024}, shape="M*N <= 3145728")
    assert [p.task.sizes["M"] for p in places(store, small, CHIP, (), 0)] == [4096, 2048]
    halves = places(store, form({"axis": "CHUNK", "value": 1024}, dtype="f16"), CHIP, (), 0)
    assert {place.task.outputs[0].dtype for place in halves} == {"f16"}
    attention = form({"axis": "TM", "value": 64}, op="attention")
    names = {p.task.name for p in places(store, attention, CHIP, (), 0)}
    assert {"attention", "attention_qkv", "matmul_div_add_softmax_2821c9"} <= names
    assert "linear" not in names
    assert list(places(store, form({"axis": "T", "value": 64}), CHIP, (), 0)) == []  # no kernel has it
    for rule, chip in ((AT_1024, "b200"), (form({"axis": "CHUNK", "value": 1024}, shape="M >= 4194304"), "h200")):
        with pytest.raises(UserError, match="no task that is known lies in the rule's scope") as caught:
            list(places(store, rule, CHIPS[chip], (), 0))
        assert "op gelu, chip h200, dtype bf16" in str(caught.value.mend)


def test_the_base_s_own_tasks_and_files_are_places_too(store: Store) -> None:
    """A task that nobody ships, with a file that has an axis of its own."""
    task = canonical(parse("M = 512\nN = 256\nx: f32[M, N]\ny = SiLU(x) + 2.5 * x", "mine"))
    mine = Candidate(source=file({"MINE": [1, 2], "B": range(20)}).source, task=task.identity)
    only = form({"axis": "MINE", "value": 1}, op="silu", dtype="f32")
    with pytest.raises(UserError, match="no task that is known"):
        list(places(store, only, CHIP, (), 0))
    store.record_tasks([task])
    assert list(places(store, only, CHIP, (), 0)) == []  # a task, and no file for it that has the axis
    right = Verdict(status=Status.CORRECT, stage=Stage.DONE)
    timed = Measurement(kind="modelled", chip="h200", us=2.0, floor_us=1.0)
    found = begin(mine, task, CHIP).fuller(configuration={"MINE": 1, "B": 0}, verdict=right, measurements=(timed,))
    store.record([found])
    (first, *_) = places(store, only, CHIP, (), 0)
    assert (first.task.identity, first.task.sizes, first.pairing.files) == (task.identity, task.sizes, (mine,))


def test_a_place_that_is_named_has_to_lie_in_the_scope(store: Store) -> None:
    plan = planned(store, AT_1024, "faster", CHIP, (), task=GELU.at(M=24))
    assert [place.task.sizes["M"] for place in plan.places] == [24]
    with pytest.raises(UserError, match="does not speak of softmax in bf16 at M=8192, N=768"):
        planned(store, AT_1024, "faster", CHIP, (), task=everyday("softmax"))
    with pytest.raises(UserError, match="differ in TN alone"):
        planned(store, form({"axis": "TN", "value": 64}), "faster", CHIP, (), task=GELU)
    with pytest.raises(UserError, match="differ in T, persistent alone"):
        planned(store, form({"all": [{"axis": "T", "value": 64}, {"structure": "persistent"}]}), "slower", CHIP, ())


# ------------------------------------------------------------------------------------------------ how many places


@pytest.mark.parametrize(
    ("gain", "shapes", "claimed", "needed"),
    [
        (1.0, 0, "faster", 0),
        (0.9, 1, "faster", 1), (0.9, 4, "faster", 2), (0.9, 9, "faster", 3),
        (1.1, 4, "slower", 2), (1.0, 9, "free", 3),
        (1.1, 9, "faster", 0),  # it is refuted already
    ],
)  # fmt: skip
def test_as_many_places_as_it_takes_to_outweigh_what_is_known(
    gain: float, shapes: int, claimed: Direction, needed: int
) -> None:
    """Four fifths of the shapes have to agree; with so many more of the contrary they do not, with fewer they do."""

    def known(number: int, gain: float, start: int = 0) -> list[Space]:
        us = gains(gain) if gain != 1.0 else lambda axes: 10.0 + axes["occupancy"] / 4
        return in_spaces(t for i in range(number) for t in space(GELU, us, M=64 * (1 + start + i)))

    before = known(shapes, gain)
    assert to_refute(before, AT_1024, claimed) == needed
    contrary = 0.9 if claimed == "slower" else 1.1
    after = [judged([*before, *known(n, contrary, 100)], AT_1024, claimed) for n in range(needed + 1)]
    holds = [one is not None and one.settled and one.direction == claimed for one in after]
    assert holds == [True] * needed + [False]


# ------------------------------------------------------------------------------------------------ what is measured


class Clock:
    """A GPU's clock that knows what every configuration takes."""

    kind: Any = "measured"

    def __init__(self, us: Callable[[Axes], float | None], noise: float = 0.0005) -> None:
        self.us, self.noise, self.asked = us, noise, [Trial][:0]

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement:
        self.asked.append(trial)
        us = self.us(trial.configuration)
        wobble = 1 + self.noise * math.sin(7 * len(self.asked))
        return Measurement(
            kind="measured", chip=trial.chip, us=(us or 1.0) * wobble, floor_us=0.1, terms={"processes": 1.0},
            status="stable" if us else "unstable",
        )  # fmt: skip


class Table:
    """An assay that compiles nothing: what it times is the clock's alone."""

    def __init__(
        self, candidate: Candidate, task: Task, chip: Any, assemblers: Any, cache: Any, timer: Timer, plans: Plans
    ) -> None:
        self.candidate, self.task, self.chip, self.timer = candidate, task, chip, timer

    def traced(self, some: Sequence[Axes]) -> list[Trial]:
        return [begin(self.candidate, self.task, self.chip).fuller(configuration=dict(one)) for one in some]

    def compile(self, trials: Sequence[Trial]) -> None:
        pass

    def timed(self, trial: Trial) -> Trial:
        found = self.timer.time(trial, self.task, None)  # type: ignore[arg-type]
        return trial if found is None else trial.fuller(measurements=(found,))


def carried_out(
    store: Store, plan: Experiment, us: Callable[[Axes], float | None], run: str = "r", seconds: float = 600.0
) -> tuple[list[Outcome], Clock]:
    clock = Clock(us)
    store.start_run(RunRecord(run, "rule", "h200", "cuda", "verify", "running"))
    return list(verified(plan, store, run, clock, 2, time.monotonic() + seconds, lambda line: None)), clock


def hypothesis(store: Store, direction: Any = "faster", said: RuleForm = AT_1024) -> str:
    (change,) = claim(store.database, [Claim(form=said, direction=direction)], "a test")
    return change.key


def status(store: Store, key: str) -> Any:
    return browse.show(store.database, key)["status"]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.verification.verifying.Assay", Table)
    monkeypatch.setattr("knowledge_base.rules.rows.shipped", lambda: iter(()))


@pytest.mark.parametrize(
    ("gain", "claimed", "says", "becomes"),
    [
        (0.9, "faster", "faster", "supported"), (1.1, "faster", "slower", "refuted"),
        (1.1, "slower", "slower", "supported"), (1.0, "faster", "free", "refuted"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("table")
def test_one_place_decides_about_a_rule_without_evidence(
    store: Store, gain: float, claimed: Direction, says: Direction, becomes: str
) -> None:
    key = hypothesis(store, claimed)
    plan = planned(store, AT_1024, claimed, CHIP, ())
    assert (len(plan.places), plan.enough) == (1, True)
    us = gains(gain) if gain != 1.0 else lambda axes: 10 + axes["occupancy"] / 4
    ((outcome,), clock) = carried_out(store, plan, us)
    assert outcome.says == says
    assert outcome.found is not None
    assert outcome.found.pairs >= 8
    assert (outcome.timed, outcome.failed) == (len(clock.asked), 0)
    having, without = outcome.fastest
    assert having is not None
    assert without is not None
    assert having / without == pytest.approx(gain, rel=0.01)
    learn(store.database)
    assert status(store, key) == becomes
    rows = list(own(store.database))
    assert len(rows) == outcome.timed
    assert {(t.task, t.session, t.sizes["M"]) for t in rows} == {("gelu", "r", 8192)}


@pytest.mark.usefixtures("table")
def test_both_sides_of_a_pair_are_timed_one_after_the_other_each_first_in_turn(store: Store) -> None:
    """So that what drifts meets both."""
    _, clock = carried_out(store, planned(store, AT_1024, "faster", CHIP, ()), gains(0.9))
    groups: dict[Any, list[tuple[int, bool]]] = {}
    for place, trial in enumerate(clock.asked):
        axes = features(trial.configuration, trial.candidate.source)
        rest = tuple(sorted((k, v) for k, v in axes.items() if k != "CHUNK"))
        groups.setdefault(rest, []).append((place, axes["CHUNK"] == 1024))
    assert len(groups) >= 4
    for of in groups.values():
        assert [place for place, _ in of] == list(range(of[0][0], of[0][0] + len(of)))
    assert [[having for _, having in of].index(True) == 0 for of in groups.values()][:4] in (
        [False, True, False, True], [True, False, True, False],
    )  # fmt: skip


@pytest.mark.usefixtures("table")
def test_what_speaks_for_a_rule_is_outweighed_by_several_places_and_then_it_is_open(store: Store) -> None:
    known = in_spaces(t for i in range(9) for t in space(GELU, gains(0.9), M=64 * (1 + i)))
    plan = planned(store, AT_1024, "faster", CHIP, known)
    assert (len(plan.places), plan.enough) == (3, True)
    outcomes, _ = carried_out(store, plan, gains(1.1))
    assert [outcome.says for outcome in outcomes] == ["slower"] * 3
    assert len({outcome.place.task.place for outcome in outcomes}) == 3


def test_a_plan_says_whether_it_is_enough(store: Store) -> None:
    """Of three places that it takes one is named, or two there are."""
    known = in_spaces(t for i in range(9) for t in space(GELU, gains(0.9), M=64 * (1 + i)))
    assert planned(store, AT_1024, "faster", CHIP, known, task=GELU).enough is False
    small = form({"axis": "CHUNK", "value": 1024}, shape="M*N <= 3145728")
    plan = planned(store, small, "faster", CHIP, known)
    assert (len(plan.places), plan.enough) == (2, False)
    assert planned(store, small, "faster", CHIP, (), task=GELU.at(M=32)).enough is True


@pytest.mark.usefixtures("table")
def test_what_is_refused_before_it_is_compiled_has_failed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Table):
        def traced(self, some: Sequence[Axes]) -> list[Trial]:
            return [
                t.fuller(pruned="too large") if t.configuration["CHUNK"] == 4096 else t for t in super().traced(some)
            ]

    monkeypatch.setattr("agent.verification.verifying.Assay", Refusing)
    ((outcome,), clock) = carried_out(store, planned(store, AT_1024, "faster", CHIP, ()), gains(0.9))
    assert (outcome.says, outcome.failed, outcome.timed) == ("faster", 4, 12)
    assert all(trial.configuration["CHUNK"] != 4096 for trial in clock.asked)


@pytest.mark.usefixtures("table")
def test_it_ends_where_the_rule_can_not_be_refuted_any_more(store: Store) -> None:
    known = in_spaces(t for i in range(9) for t in space(GELU, gains(0.9), M=64 * (1 + i)))
    plan = planned(store, AT_1024, "faster", CHIP, known)
    outcomes, _ = carried_out(store, plan, gains(0.9))
    assert [outcome.says for outcome in outcomes] == ["faster"]


@pytest.mark.usefixtures("table")
def test_it_takes_no_more_pairs_than_it_needs_and_more_where_they_say_nothing(store: Store) -> None:
    when = form({"axis": "TM", "value": 128}, op="linear")
    plan = planned(store, when, "faster", CHIP, ())
    ((clear,), _) = carried_out(store, plan, lambda axes: 10.0 if axes["TM"] == 128 else 11.0)
    assert (clear.says, clear.timed) == ("faster", 4 * PAIRS)

    def unclear(axes: Axes) -> float:
        """Which side is faster depends on what else there is, at random."""
        random = hash((axes["TM"], axes["TN"], axes["TK"], axes["GROUP"], axes["occupancy"], axes["PERSISTENT"]))
        return 10.0 + (random % 1000) / 1000

    plan = planned(store, when, "faster", CHIP, (), task=everyday("linear_nobias", M=16384))
    ((undecided,), _) = carried_out(store, plan, unclear, "s")
    assert undecided.timed == 2 * MOST_PAIRS
    assert undecided.says is None
    assert undecided.found is not None
    assert undecided.found.settled is False


@pytest.mark.usefixtures("table")
def test_configurations_without_a_steady_time_are_counted_and_their_pairs_with_them(store: Store) -> None:
    plan = planned(store, AT_1024, "faster", CHIP, ())
    ((nothing,), _) = carried_out(store, plan, lambda axes: None if axes["CHUNK"] == 1024 else 10.0)
    assert (nothing.found, nothing.says, nothing.fastest[0]) == (None, None, None)
    assert nothing.failed == 4
    assert nothing.timed > 0


@pytest.mark.usefixtures("table")
def test_once_the_time_is_over_nothing_but_the_first_pairs_is_begun(store: Store) -> None:
    known = in_spaces(t for i in range(9) for t in space(GELU, gains(0.9), M=64 * (1 + i)))
    plan = planned(store, AT_1024, "faster", CHIP, known)
    ((outcome,), _) = carried_out(store, plan, gains(1.1), seconds=-1.0)
    (first, *_) = outcome.place.pairing.batches
    assert outcome.timed == sum(map(len, first))


@pytest.mark.usefixtures("table")
def test_the_next_experiment_is_at_another_place(store: Store) -> None:
    seen = set()
    for run in "abc":
        known = in_spaces(own(store.database))
        plan = planned(store, AT_1024, "faster", CHIP, known)
        outcomes, _ = carried_out(store, plan, gains(0.9), run)
        seen |= {outcome.place.task.place for outcome in outcomes}
        assert all(outcome.place.new for outcome in outcomes)
    assert len(seen) == 3
    (first,) = {t.source for t in own(store.database) if t.sizes["M"] == 8192}
    again = planned(store, AT_1024, "faster", CHIP, (), task=GELU).places[0].pairing
    assert first not in {one.source for one in again.files}  # all of its configurations were timed there


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A GPU that is none, and a base with a hypothesis about gelu; its key."""
    monkeypatch.chdir(tmp_path)
    emulated(monkeypatch)
    monkeypatch.setattr("agent.loop.target_work.shipped", lambda: iter(()))
    monkeypatch.setattr(verify_command, "device_for", lambda device, chip: "cuda")
    monkeypatch.setattr(verify_command, "runner_for", lambda chip: Runner(DOUBLE, {}, {"clock": (40.0, 0.0005)}))
    with Store.open() as store:
        return hypothesis(store)


SMALL = ("--task", "gelu", "--shape", "M=8,N=32")


def test_a_rule_is_tested_on_the_gpu_and_what_was_measured_is_recorded(
    card: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With real kernels, compiled, and right there; all take the same, so that the rule is wrong."""
    assert invoke(["kb", "verify", card[:8], *SMALL, "--jobs", "2", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    (place,) = document["places"]
    found = place["outcome"]
    assert (document["was"], document["status"], document["claimed"]) == ("hypothesised", "refuted", "faster")
    assert (place["task"], place["shape"], place["new"]) == ("gelu", {"M": 8, "N": 32}, True)
    assert (found["says"], found["failed"]) == ("free", 0)
    assert found["with_us"] == pytest.approx(40.0, rel=0.01)
    assert found["effect_low"] <= found["effect"] <= found["effect_high"]
    assert document["why"] == f"free in 1 of 1 shapes, {found['pairs']} pairs"
    assert [change["key"] for change in document["changes"]] == [card]
    assert invoke(["kb", "show", document["run"], "--json"]) == 0
    run = json.loads(capfd.readouterr().out)
    assert (run["status"], run["proposer"], run["device"], run["exit_code"]) == ("done", "verify", "cuda", 0)
    assert (run["summary"]["verified"], run["attempts"]) == (document, found["timed"])
    assert invoke(["kb", "show", card, "--json"]) == 0
    rule = json.loads(capfd.readouterr().out)
    assert [change["status"] for change in rule["history"]] == ["refuted"]
    assert [e["place"]["sessions"] for e in rule["evidence"]] == [[document["run"]]]
    for page in (["kb", "show", document["run"]], ["kb", "runs"], ["kb", "report"], ["kb", "rules"]):
        assert invoke(page) == 0


def test_what_it_says_fits_eighty_columns(card: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["kb", "verify", card, *SMALL, "--plan"]) == 0
    plan = capfd.readouterr().out
    assert invoke(["kb", "verify", card, *SMALL]) == 0
    said = capfd.readouterr().out
    assert max(len(line) for line in (plan + said).splitlines()) <= 80
    assert "What would say more of it (1 place):" in plan
    assert "gelu M=8 N=32" in plan
    assert "Now it is refuted: free in 1 of 1 shapes" in said
    assert "free" in said.split("gelu M=8 N=32")[1].splitlines()[0]
    assert invoke(["kb", "runs", "--json"]) == 0
    assert [run["proposer"] for run in json.loads(capfd.readouterr().out)] == ["verify"]  # a plan is no run


def test_times_of_other_bases_say_nothing_for_or_against_a_rule(
    card: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(verify_command.loop, "measured_spaces", lambda store, **more: asked.append(more) or ())
    assert invoke(["kb", "verify", card, *SMALL, "--plan"]) == 0
    assert asked == [{"foreign": False}]


def test_where_too_little_ran_the_rule_stays_as_it_was(
    card: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify_command, "runner_for", lambda chip: Runner(DOUBLE, {}, {"off": 0}))
    assert invoke(["kb", "verify", card, *SMALL]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "It stays hypothesised: too few pairs ran." in said
    assert "configurations did not run, or had no steady time." in said
    assert invoke(["kb", "attempts", "--status", "wrong", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)  # what is wrong on the GPU is known from now on


def test_what_was_measured_before_an_interruption_is_kept(
    card: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Clock):
        def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement:
            if len(self.asked) == 5:
                raise KeyboardInterrupt
            return super().time(trial, task, plan)

    monkeypatch.setattr(verify_command, "runner_for", lambda chip: nullcontext())
    monkeypatch.setattr(verify_command, "Measured", lambda runner, seed: Interrupted(gains(0.9)))
    assert invoke(["kb", "verify", card, *SMALL]) == 130
    assert invoke(["kb", "runs", "--json"]) == 0
    out = capfd.readouterr().out
    (run,) = json.loads(out[out.index("[") :])
    assert (run["status"], run["exit_code"]) == ("interrupted", 130)
    with Store.open() as store:
        assert len(list(own(store.database))) == 5
        assert status(store, card) == "hypothesised"


def test_without_the_gpu_there_is_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open() as store:
        key = hypothesis(store)
    assert invoke(["kb", "verify", key]) == 3
    assert "a GPU of the kind h200" in capfd.readouterr().err
    assert invoke(["kb", "verify", key, "--plan", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["run"], document["was"], document["enough"]) == ("", "hypothesised", True)
    assert [place["outcome"] for place in document["places"]] == [None]
    assert invoke(["kb", "runs", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "nothing has an id or a name that begins with 'nothing'"),
        (["h200"], "'h200' is a chip, no rule"),
        (["RULE", "--gpu", "b200"], "--gpu b200: the rule speaks of h200"),
        (["RULE", "--gpu", "h2000"], "h2000"),
        (["RULE", "--shape", "M=8"], "--shape: of which task?"),
        (["RULE", "--task", "gelo"], "there is no task 'gelo'"),
        (["RULE", "--task", "softmax"], "the rule does not speak of softmax"),
        (["PACKED"], "no configuration is evidence of rule"),
        (["RULE", "--db", "nowhere.db"], "there is no knowledge base at"),
    ],
)
def test_what_can_not_be_tested_is_said(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with Store.open() as store:
        packed = next(row["key"] for row in browse.rules(store.database) if "transposed copy" in row["statement"])
        named = {"RULE": hypothesis(store), "PACKED": packed}
    assert invoke(["kb", "verify", *(named.get(a, a) for a in arguments), "--plan"]) == 2
    assert says in " ".join(capfd.readouterr().err.split())
