"""Rules: mined from times, held to evidence, kept with their history."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from knowledge_base import browse, seed
from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, Measurement, Stage, Status, Trial, Verdict
from knowledge_base.rules import (
    Change,
    Claim,
    Mined,
    Scope,
    Timed,
    claim,
    in_spaces,
    insert,
    judged,
    key_of,
    known_as,
    mine,
    own,
    read_form,
    review,
)
from knowledge_base.rules.structure import features
from knowledge_base.rules.wording import statement
from knowledge_base.snf.everyday import everyday
from knowledge_base.store import RunRecord, Store

AXES = {"TM": (64, 128), "TN": (64, 128, 256), "GROUP": (4, 8, 16), "PERSISTENT": (0, 1), "occupancy": (1, 2)}
Axes = Mapping[str, Any]


def times(
    us: Callable[[Axes], float], *, task: str = "linear", session: str = "one",
    axes: Mapping[str, Sequence[Any]] = AXES, keep: Callable[[Axes], bool] = lambda axes: True, source: str = "",
    noise: float = 0.001, **sizes: int,
) -> list[Timed]:  # fmt: skip
    """A session's times of all configurations that are kept, with noise."""
    rng = random.Random(f"{session} {sizes} {task}")
    rows = []
    for values in itertools.product(*axes.values()):
        found = dict(zip(axes, values, strict=True))
        took = us(found) * math.exp(rng.gauss(0, noise))
        if keep(found):
            rows.append(Timed(task, (task,), sizes, "bf16", "h200", session, found, source, took))
    return rows


def mined(rows: Iterable[Timed]) -> dict[str, Mined]:
    """What is found, by its statement without the scope's chip and dtype."""
    rules = mine(in_spaces(rows))
    return {statement(r.form, r.direction).replace(" in bf16 on h200", ""): r for r in rules}


def spread(axes: Axes) -> float:
    """Something that depends on the other axes, so that configurations differ."""
    return 100.0 * (1 + 0.002 * (axes["GROUP"] == 16)) * (1.3 if axes["TM"] == 64 else 1.0)


SHAPES = ({"M": 8192, "N": 768}, {"M": 8192, "N": 3072}, {"M": 1024, "N": 3072}, {"M": 1024, "N": 768})


# ------------------------------------------------------------------------------------------------ what is found


def test_an_effect_that_is_there_is_found_with_its_size() -> None:
    rows = [t for sizes in SHAPES for t in times(lambda a: spread(a) * (0.9 if a["occupancy"] == 1 else 1.0), **sizes)]
    rule = mined(rows)["linear is faster at occupancy=1"]
    assert math.exp(rule.best.value) == pytest.approx(0.9, abs=0.005)
    assert math.exp(rule.paired.value) == pytest.approx(0.9, abs=0.002)
    assert rule.best.low < rule.best.value < rule.best.high
    assert (len(rule.evidence), rule.agreeing, rule.pairs) == (4, 4, 4 * 36)


def test_nothing_is_found_where_there_is_noise_alone() -> None:
    """Of some seventy candidates; those kept may be wrong once in twenty."""
    found = [
        rule
        for number in range(5)
        for rule in mined(
            t
            for sizes in SHAPES
            for session in ("one", "two")
            for t in times(lambda a: 100.0, session=f"{number} {session}", noise=0.01, **sizes)
        )
    ]
    assert len(found) <= 1, found


def test_best_against_best_and_pairs_may_say_opposite_things() -> None:
    """Most persistent configurations spill; the fastest one is persistent."""

    def us(a: Axes) -> float:
        spills = a["PERSISTENT"] and (a["occupancy"] == 2 or a["TN"] == 256)
        return spread(a) * (1.5 if spills else 0.9 if a["PERSISTENT"] else 1.0)

    rule = mined(t for sizes in SHAPES for t in times(us, **sizes))["linear is faster persistent"]
    assert math.exp(rule.best.value) == pytest.approx(0.9, abs=0.01)
    assert math.exp(rule.paired.value) == pytest.approx(1.5, abs=0.01)


def test_a_size_parts_where_it_is_faster_from_where_it_is_slower() -> None:
    def us(sizes: Mapping[str, int]) -> Callable[[Axes], float]:
        gain = 0.92 if sizes["M"] * sizes["N"] > 4_000_000 else 1.08
        return lambda a: spread(a) * (gain if a["PERSISTENT"] else 1.0)

    shapes = [{"M": m, "N": n} for m, n in itertools.product((512, 1024, 4096, 8192), (768, 2304, 6144))]
    found = mined(t for sizes in shapes for t in times(us(sizes), **sizes))
    assert "linear is faster persistent" not in found
    faster, slower = (
        next(r for r in found.values() if r.direction == d and [c.feature for c in r.form.when or ()] == ["persistent"])
        for d in ("faster", "slower")
    )
    assert faster.form.scope.shape == "M*N >= 6291456"
    assert slower.form.scope.shape == "M*N <= 3145728"
    assert faster.agreeing == len(faster.evidence)


def test_values_that_only_together_are_fast_are_one_rule() -> None:
    """256 columns want 8 warps: with 4 they spill, and 8 warps alone are slow."""
    axes = AXES | {"num_worker_warps": (4, 8)}

    def us(a: Axes) -> float:
        wide, warps = a["TN"] == 256, a["num_worker_warps"] == 8
        return spread(a) * (2.0 if wide and not warps else 0.9 if wide else 1.05 if warps else 1.0)

    found = mined(t for sizes in SHAPES for t in times(us, axes=axes, **sizes))
    rule = found["linear is faster at TM=128, TN=256, num_worker_warps=8"]
    assert math.exp(rule.best.value) == pytest.approx(0.9, abs=0.01)


def test_a_side_that_was_searched_longer_is_not_faster_for_that() -> None:
    """Of occupancy 2 a search saw every configuration, of 1 every fifth: the same times, but more of them."""
    rng = random.Random(5)
    value = {
        key: math.exp(rng.gauss(0, 0.1))
        for key in itertools.product(*(AXES[n] for n in ("TM", "TN", "GROUP", "PERSISTENT")))
    }

    def us(a: Axes) -> float:
        return 100 * value[a["TM"], a["TN"], a["GROUP"], a["PERSISTENT"]]

    def keep(a: Axes) -> bool:
        return a["occupancy"] == 2 or hash((a["TM"], a["TN"], a["GROUP"], a["PERSISTENT"])) % 5 == 0

    found = mined(t for sizes in SHAPES for t in times(us, keep=keep, **sizes))
    assert not [said for said in found if "occupancy" in said]


def test_what_a_wider_rule_says_is_not_said_again() -> None:
    rows = [
        t
        for task in ("linear", "linear_gelu")
        for sizes in SHAPES
        for t in times(lambda a: spread(a) * (0.9 if a["occupancy"] == 1 else 1.0), task=task, **sizes)
    ]
    rows = [Timed(**{**vars(row), "ops": ("linear",)}) for row in rows]
    said = [s for s in mined(rows) if s.endswith(NEWS)]
    assert said == ["linear is faster at occupancy=1"]


def test_times_of_two_sessions_are_never_compared() -> None:
    """The second session's clock is slow, and it tried occupancy 2 alone."""
    first = [t for sizes in SHAPES for t in times(spread, keep=lambda a: a["occupancy"] == 1, **sizes)]
    second = [
        t
        for sizes in SHAPES
        for t in times(lambda a: 2 * spread(a), session="two", keep=lambda a: a["occupancy"] == 2, **sizes)
    ]
    assert not [said for said in mined([*first, *second]) if "occupancy" in said]


def test_files_that_differ_in_structure_are_compared_where_all_else_is_the_same() -> None:
    checked = "import cuda.tile as ct\ndef f(x): return ct.load(x, (0,), (4,))\n"
    unchecked = checked.replace("(4,))", "(4,), check_bounds=False)")
    rows = [
        t
        for sizes in SHAPES
        for source, more in ((checked, 1.1), (unchecked, 1.0))
        for t in times(lambda a, more=more: spread(a) * more, source=source, **sizes)  # type: ignore[misc]
    ]
    rule = mined(rows)["linear is slower with bounds checks"]
    assert math.exp(rule.best.value) == pytest.approx(1.1, abs=0.01)


@pytest.mark.parametrize("us", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_is_left_out(us: float) -> None:
    rows = times(spread, M=1, N=1)
    rows[3] = Timed(**{**vars(rows[3]), "us": us})
    (space,) = in_spaces(rows)
    assert len(space.us) == len(rows) - 1
    assert not space.whole


def test_an_axis_may_have_any_literal_for_a_value() -> None:
    axes = AXES | {"SPLIT": ([1, 2], [2, 1]), "MODE": ("a", None)}
    found = mined(t for sizes in SHAPES for t in times(lambda a: spread(a) * a["SPLIT"][0] ** 0.1, axes=axes, **sizes))
    assert "linear is faster at SPLIT=[1, 2]" in found


def test_nothing_comes_of_nothing() -> None:
    assert mine([]) == []
    assert in_spaces(times(spread, axes={n: v[:1] for n, v in AXES.items()}, M=1)) == []


# ------------------------------------------------------------------------------------------------ what ships


def test_what_ships_is_what_mining_finds_in_the_landscapes() -> None:
    """As ``python -m knowledge_base.rules`` writes it."""
    from knowledge_base.rules import shipped

    assert mine(in_spaces(shipped())) == seed.mined()


def said(op: str, *conditions: tuple[str, Any]) -> list[Mined]:
    """The rules that ship about an op and exactly these features' values."""
    return [
        rule
        for rule in seed.mined()
        if rule.form.scope.op == op and {(c.feature, c.value) for c in rule.form.when or ()} == set(conditions)
    ]


def test_what_was_known_by_hand_is_found_by_itself() -> None:
    """Of large products, of wide ones, of attention at B=8, T=1024 (measured by hand on the same kind of card)."""
    large, small = sorted(said("linear", ("persistent", True)), key=lambda rule: rule.direction)
    assert (large.direction, small.direction) == ("faster", "slower")
    assert large.paired.value > 0  # in the median it loses
    at = {(e.task, e.sizes["N"], e.sizes["K"]) for e in large.evidence if e.agrees and e.sizes["M"] == 8192}
    linears = {
        ("linear", 2304, 768),
        ("linear_gelu", 3072, 768),
        ("linear_residual", 768, 768),
        ("linear_residual", 768, 3072),
    }
    assert at == linears
    wide, narrow = sorted(
        said("linear", ("TM", 128), ("TN", 256), ("num_worker_warps", 8)), key=lambda rule: rule.direction
    )
    assert (wide.direction, narrow.direction) == ("faster", "slower")
    assert wide.form.scope.holds({"linear"}, "h200", "bf16", {"M": 8192, "N": 3072, "K": 768})
    assert wide.form.scope.holds({"linear"}, "h200", "bf16", {"M": 4096, "N": 14336, "K": 4096})
    assert narrow.form.scope.holds({"linear"}, "h200", "bf16", {"M": 8192, "N": 2304, "K": 768})
    (alone,) = said("linear", ("occupancy", 1))
    assert alone.direction == "faster"
    assert all(e.best <= 0.003 for e in alone.evidence if e.sizes["M"] == 8192)
    (longest_first,) = said("attention", ("ORDER", "longest rows of all heads first"))
    assert longest_first.direction == "faster"
    at_1024 = {"B": 8, "T": 1024, "H": 12, "D": 64}
    four = said("attention", ("TM", 64), ("TN", 64), ("occupancy", 4))
    (fast,) = [rule for rule in four if rule.form.scope.holds({"attention"}, "h200", "bf16", at_1024)]
    assert fast.direction == "faster"
    (bounds,) = said("linear", ("bounds checks", True))
    assert bounds.direction == "free"
    assert abs(bounds.best.value) < 0.005


# ------------------------------------------------------------------------------------------------ structure, forms


GUARDED = """
import cuda.tile as ct
AXES = {"PERSISTENT": [0, 1]}
@ct.kernel
def k(x, tiles, PERSISTENT: ct.Constant[int]):
    if PERSISTENT:
        for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):
            ct.store(x, (tile,), ct.load(x, (tile,), (4,)))
    else:
        ct.store(x, (ct.bid(0),), ct.load(x, (ct.bid(0),), (4,)))
"""


def test_how_a_kernel_is_made_is_read_off_its_file() -> None:
    assert features({"PERSISTENT": 1, "TM": 4}, GUARDED)["persistent"] is True
    assert features({"PERSISTENT": 0, "TM": 4}, GUARDED)["persistent"] is False
    looping = GUARDED.replace("if PERSISTENT:", "if 1:")
    assert features({"TM": 4}, looping)["persistent"] is True
    assert features({"PERSISTENT": 0}, looping)["persistent"] is False  # as many blocks as tiles, then
    assert "PERSISTENT" not in features({"PERSISTENT": 0, "TM": 4}, GUARDED)
    assert features({}, GUARDED)["bounds checks"] is True
    assert features({}, GUARDED.replace("(4,))", "(4,), check_bounds=False)"))["bounds checks"] is True  # its stores do
    whole = GUARDED.replace("(4,)))", "(4,), check_bounds=False), check_bounds=False)")
    assert features({}, whole)["bounds checks"] is False
    assert features({}, GUARDED.replace("(4,))", "(4,), allow_tma=False)"))["no TMA"] is True
    assert features({}, "import cuda.tile as ct\nct.exp(1, rounding_mode=ct.RoundingMode.APPROX)")["approximate math"]


def test_without_a_file_axes_tell() -> None:
    assert features({"PERSISTENT": 1}) == {"persistent": True}
    made = features({"STRUCTURE": "paired_rows", "TM": 64, "ORDER": 2, "TMA_STORE": 0})
    assert made == {
        "TM": 64, "persistent": False, "paired rows": True, "next scores early": False, "TMA stores": False,
        "ORDER": "head by head, shortest first",
    }  # fmt: skip


@pytest.mark.parametrize("source", ["def (", "\0", "(" * 500])
def test_a_file_that_is_no_python_has_no_structure(source: str) -> None:
    assert features({"TM": 64}, source) == {"TM": 64}


FORM: dict[str, Any] = {
    "scope": {"op": "linear", "chip": "h200", "dtype": "bf16", "shape": "M*N >= 6291456"},
    "when": {"all": [{"structure": "persistent"}, {"axis": "TM", "value": 128}]},
    "against": "other values",
    "effect": "log_ratio",
}


def test_a_form_is_read_as_it_is_written() -> None:
    form = read_form(FORM, "here")
    assert form.document() == FORM
    assert statement(form, "faster") == "linear in bf16 on h200 where M·N ≥ 6,291,456 is faster persistent at TM=128"
    assert read_form(FORM | {"when": {"precision": "tf32"}}, "here").when is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"when": None}, "a condition"),
        ({"when": {"all": []}}, "a condition"),
        ({"when": {"axis": "TN"}}, "axis and value"),
        ({"scope": {"chip": "h2000"}}, "no chip 'h2000'"),
        ({"scope": {"dtype": "bfloat16"}}, "no dtype 'bfloat16'"),
        ({"scope": {"shape": "M > 4096"}}, "M >= 4096"),
        ({"scope": {"shape": "M >= 4096; drop"}}, "M >= 4096"),
        ({"scope": {"where": "here"}}, "a scope has op, chip, dtype, shape"),
        ({"scope": {"op": 3}}, "texts"),
        ({"scope": ["linear"]}, "a scope has"),
        ({"effect": "difference"}, "log_ratio"),
        ({"more": 1}, "exactly scope, when, against and effect"),
    ],
)
def test_a_form_that_names_nothing_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_form(FORM | change, "line 7")
    assert "line 7" in str(caught.value)


def test_a_scope_holds_where_it_says() -> None:
    scope = Scope(op="attention", chip="h200", shape="B*T <= 1024")
    ops = known_as("some_task", ("matmul", "softmax"))
    assert scope.holds(ops, "h200", "bf16", {"B": 8, "T": 128})
    assert not scope.holds(ops, "h200", "bf16", {"B": 8, "T": 129})
    assert not scope.holds(ops, "h200", "bf16", {"T": 1})  # it has no B
    assert not scope.holds(ops, "rtx5070", "bf16", {"B": 8, "T": 128})
    assert not scope.holds({"matmul"}, "h200", "bf16", {"B": 8, "T": 128})
    assert Scope().holds((), "rtx5070", "f32", {})


# ------------------------------------------------------------------------------------------------ in the base


@pytest.fixture
def base(tmp_path: Path) -> Iterable[Database]:
    with Store.open(str(tmp_path / "kb.db")) as store:
        yield store.database


def status(base: Database, key: str) -> str:
    return next(row["status"] for row in browse.rules(base) if row["key"] == key)


NEWS = " is faster at occupancy=1"


def changed(base: Database, rows: Iterable[Timed], ends: str = "") -> list[Change]:
    """What a review of these times changes."""
    return [change for change in review(base, in_spaces(rows), "a test") if change.statement.endswith(ends)]


def faster(gain: float, *shapes: Mapping[str, int], session: str = "one") -> list[Timed]:
    return [
        t
        for sizes in shapes
        for t in times(lambda a: spread(a) * (gain if a["occupancy"] == 1 else 1.0), session=session, **sizes)
    ]


def test_a_rule_is_kept_with_its_evidence_and_again_is_nothing_new(base: Database) -> None:
    spaces = in_spaces(faster(0.9, *SHAPES))
    (new,) = [c for c in review(base, spaces, "a test") if c.statement.endswith(NEWS)]
    assert (new.was, new.status) == ("", "supported")
    row = browse.show(base, new.key)
    assert (row["origin"], row["source"], row["op"], row["chip"]) == ("mined", "a test", "linear", "h200")
    assert math.exp(row["effect"]) == pytest.approx(0.9, abs=0.005)
    assert row["effect_low"] < row["effect"] < row["effect_high"]
    assert row["paired"]["pairs"] == 4 * 36
    assert [change["status"] for change in row["history"]] == ["supported"]
    assert [e["place"]["sizes"] for e in row["evidence"]] == [dict(s) for s in SHAPES]
    assert all(e["kind"] == "measured" and e["pairs"] == 36 for e in row["evidence"])
    assert review(base, spaces, "a test") == []
    assert browse.show(base, new.key) == row


def test_evidence_to_the_contrary_refutes_and_the_history_says_so(base: Database) -> None:
    (new,) = changed(base, faster(0.9, *SHAPES), NEWS)
    changes = changed(base, faster(1.1, *SHAPES, session="two"))
    (refuted,) = [c for c in changes if c.key == new.key]
    assert (refuted.was, refuted.status) == ("supported", "refuted")
    row = browse.show(base, new.key)
    assert row["effect"] > 0
    assert [(h["was"], h["status"]) for h in row["history"]] == [
        ("hypothesised", "supported"),
        ("supported", "refuted"),
    ]
    assert all("pairs" in h["why"] for h in row["history"])


def test_where_evidence_contradicts_itself_a_rule_is_hypothesised_again(base: Database) -> None:
    """Two shapes say faster, two slower, as no size could part them; what decides later decides again."""
    (new,) = changed(base, faster(0.9, *SHAPES[:2]), NEWS)
    both = [*faster(0.9, *SHAPES[:2]), *faster(1.1, *SHAPES[2:])]
    apart = [Timed(**{**vars(t), "sizes": {"M": 64, "L": t.sizes["M"] + t.sizes["N"]}}) for t in both[::-1]]
    (open_,) = [c for c in changed(base, both + apart) if c.key == new.key]
    assert (open_.was, open_.status) == ("supported", "hypothesised")
    assert open_.why.startswith("open: ")
    row = browse.show(base, new.key)
    assert (row["status"], row["superseded_by"]) == ("hypothesised", "")
    assert {e["note"] for e in row["evidence"]} == {"", "says the contrary"}
    assert row["effect_low"] < 0 < row["effect_high"]
    assert changed(base, both + apart) == []  # nothing is new
    (again,) = [c for c in changed(base, faster(0.9, *SHAPES)) if c.key == new.key]
    assert (again.was, again.status) == ("hypothesised", "supported")
    assert [h["status"] for h in browse.show(base, new.key)["history"]] == ["supported", "hypothesised", "supported"]


def test_how_exact_times_are_is_known_from_other_spaces_too() -> None:
    """Where two sessions of other work differ by 3% an effect of 2% is none that is sure."""
    said, form = in_spaces(faster(0.98, SHAPES[0])), read_form(OCCUPANCY, "here")
    others = in_spaces(t for s in "ab" for t in times(spread, session=s, noise=0.03, M=64, N=64))
    alone, beside = judged(said, form, "faster"), judged(said, form, "faster", clock=others)
    assert alone is not None
    assert beside is not None
    assert (alone.settled, alone.direction, beside.settled) == (True, "faster", False)
    assert alone.best.value == beside.best.value


def test_what_was_open_is_noted_and_changes_no_hypothesis(base: Database) -> None:
    """A rule of which the shapes say nothing keeps its status; its figures say how little is known."""
    key = claim(base, [Claim(form=read_form(OCCUPANCY, "here"), direction="faster")], "a test")[0].key
    rows = times(lambda a: 100.0, noise=0.05, keep=lambda a: a["GROUP"] != 8 or a["TM"] == 64, **SHAPES[0])
    assert [c for c in changed(base, rows) if c.key == key] == []
    row = browse.show(base, key)
    assert row["status"] == "hypothesised"
    assert row["effect_low"] < 0 < row["effect_high"]
    assert len(row["evidence"]) == 1
    assert row["history"] == []


OCCUPANCY = {
    "scope": {"op": "linear", "chip": "h200"}, "when": {"axis": "occupancy", "value": 1}, "against": "other values",
    "effect": "log_ratio",
}  # fmt: skip


def test_a_rule_that_says_the_same_of_more_supersedes(base: Database) -> None:
    (narrow,) = changed(base, faster(0.9, SHAPES[0]), NEWS)
    wider = [Timed(**{**vars(t), "ops": ("linear", "matmul")}) for t in faster(0.9, *SHAPES)]
    others = [Timed(**{**vars(t), "task": "other", "ops": ("matmul",)}) for t in faster(0.9, *SHAPES)]
    changes = {c.key: c for c in changed(base, [*wider, *others])}
    assert changes[narrow.key].status == "superseded"
    row = browse.show(base, narrow.key)
    assert browse.show(base, row["superseded_by"])["op"] == "matmul"


def test_what_somebody_believes_is_decided_by_evidence(base: Database) -> None:
    """A hypothesis of an axis that was measured; one of what no configuration tells stays as it is."""
    from knowledge_base.tables import RULES, RuleRow, now

    believed = {"op": "linear", "chip": "h200", "claimed": {"direction": "faster"}, "source": "me", "origin": "user"}
    form = {
        "scope": {"op": "linear", "chip": "h200"},
        "when": {"axis": "occupancy", "value": 2},
        "against": 1,
        "effect": "log_ratio",
    }
    stamp = {"status": "hypothesised", "created_at": now(), "updated_at": now()}
    with base.write() as connection:
        for key, of in (("b1", form), ("b2", form | {"when": {"structure": "packed", "what": "weights"}}), ("b3", {})):
            row = RuleRow(key=key, statement=key, form=of, **believed, **stamp)
            connection.execute(RULES.insert().values(**row.model_dump()))
    changed(base, faster(0.9, *SHAPES))
    assert [status(base, key) for key in ("b1", "b2", "b3")] == ["refuted", "hypothesised", "hypothesised"]


def test_a_rule_that_left_the_seed_goes_unless_more_was_found_out_about_it(tmp_path: Path) -> None:
    path = str(tmp_path / "kb.db")
    rules = [
        r.model_copy(update={"form": r.form.model_copy(update={"scope": Scope(op=op, chip="h200")})})
        for r in seed.mined()[:1]
        for op in ("a", "b")
    ]
    with Store.open(path) as store, store.database.write() as connection:
        insert(connection, {key_of(rule.form, rule.direction): rule for rule in rules}, seed.SHIPPED)
        connection.exec_driver_sql("""UPDATE rules SET history = '[{"a": 1}, {"b": 2}]' WHERE op = 'b'""")
        connection.exec_driver_sql("UPDATE meta SET value = 'an older seed' WHERE name = 'seed'")
    with Store.open(path) as store:
        left = {row["op"] for row in browse.rules(store.database)} & {"a", "b"}
    assert left == {"b"}


def test_own_times_are_those_that_were_taken_side_by_side(tmp_path: Path) -> None:
    """A winner's times of fresh processes stand beside that of its search, which is the one that compares."""
    task = everyday("gelu", M=64, N=64)
    candidate = Candidate(source="import cuda.tile as ct\n", task=task.identity)
    right, wrong = (Verdict(status=found, stage=Stage.DONE) for found in (Status.CORRECT, Status.WRONG))

    def trial(
        tile: int, *timed: tuple[float, int], kind: Literal["measured", "modelled"] = "measured", **more: Any
    ) -> Trial:
        made = tuple(
            Measurement(kind=kind, chip="h200", us=us, floor_us=1.0, terms={"processes": n}) for us, n in timed
        )
        return Trial(
            candidate=candidate,
            configuration={"TILE": tile},
            chip="h200",
            shape=dict(task.sizes),
            evaluator="v",
            measurements=made,
            **more,
        )

    with Store.open(str(tmp_path / "kb.db")) as store:
        store.start_run(RunRecord("r", "gelu", "h200", "cuda", "synthesizer", "running"))
        store.record_tasks([task])
        store.record([
            trial(1, (10.0, 1), (11.0, 3), kind="measured", verdict=right), trial(2, (20.0, 1), kind="measured"),
            trial(4, (30.0, 1), kind="modelled"),
            trial(8, (40.0, 1), kind="measured", verdict=wrong),
        ], run="r", move="search")  # fmt: skip
        found = list(own(store.database))
        assert list(own(store.database, newest=9)) == found
        assert list(own(store.database, newest=1)) == found[-1:]
    assert {(t.axes["TILE"], t.us) for t in found} == {(1, 10.0), (2, 20.0)}
    assert {(t.task, t.chip, t.dtype, t.session, t.ops) for t in found} == {("gelu", "h200", "bf16", "r", ("gelu",))}


def test_what_else_is_mined_changes_no_figure_of_a_rule() -> None:
    """Each bootstrap has random numbers of its own, so that a base's rules stay as they are where others come."""
    from knowledge_base.rules import shipped

    rows = [row for row in shipped() if row.session == "h200_product"]
    others = [
        Timed("add", ("add",), {"N": n}, "bf16", "h200", "mine", {"TM": tm, "occupancy": o}, "", 10.0 + tm / 64 + o * n)
        for n in (1, 2) for tm in (64, 128, 256) for o in (1, 2, 4)
    ]  # fmt: skip
    alone, beside = mined(rows), mined([*others, *rows])
    assert any(statement.startswith("add is") for statement in beside)
    common = alone.keys() & beside.keys()
    assert len(common) > 0.8 * len(alone) > 8
    assert all(alone[key] == beside[key] for key in common)
