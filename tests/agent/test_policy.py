"""What a model is asked: which moves, of which kernels, how many at once, and until when."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_runs import BROKEN, KERNEL, RIGHT, WRONG, Favour, Said, block, calls, go
from model_server import Answer, Asked, ModelServer, Say

from agent.loop import task_work
from agent.loop.assay import Assemblers
from agent.loop.context import RunContext
from agent.progress import Silent
from agent.proposers.access import Access
from agent.proposers.base import ProposalRequest, Workplace
from agent.proposers.language_model import model_proposer
from agent.proposers.language_model.budget import Allowance
from agent.proposers.language_model.model_proposer import LanguageModel
from agent.proposers.language_model.policy import (
    MENDED,
    PATIENCE,
    Experience,
    Headway,
    Standing,
    Step,
    experience,
    pays,
    plan,
)
from evaluator.trial import begin
from kernels_generated.runtime.plan import Launchable
from knowledge_base.chips import chip
from knowledge_base.records import Answered, Candidate, LlmCall, Measurement, Move, Stage, Status, Trial, Verdict
from knowledge_base.snf import everyday
from knowledge_base.snf.task import Task
from knowledge_base.store import Store

TASK, H200 = everyday("add"), chip("h200")
RIGHT_VERDICT = Verdict(status=Status.CORRECT, stage=Stage.DONE)


def trial(source: str, us: float | None, stage: Stage = Stage.COMPARE, parent: str = "", by: str = "openai") -> Trial:
    """Right and so fast, or wrong where ``us`` is None."""
    candidate = Candidate(source=source, task=TASK.identity, proposer=by, parent=parent)
    begun = begin(candidate, TASK, H200)
    if us is None:
        return begun.fuller(verdict=Verdict(status=Status.WRONG, stage=stage, message="m"))
    time = Measurement(kind="modelled", chip="h200", us=us, floor_us=1.0)
    return begun.fuller(verdict=RIGHT_VERDICT, measurements=(time,))


def digest(of: Trial) -> str:
    return of.candidate.digest


def call(move: Move, *about: str, question: int = 1) -> LlmCall:
    return LlmCall(
        run="r", task=TASK.identity, shape=TASK.sizes, number=question, question=question, model="m", endpoint="e",
        request={"messages": []}, status=Answered.ANSWERED, move=move, about=about,
    )  # fmt: skip


def standing(
    *answers: Trial, best: Trial | None = None, example: str = "", asked: tuple[LlmCall, ...] = ()
) -> Standing:
    right = min((t for t in (*answers, best) if t and t.general), key=lambda t: t.measurements[0].us, default=None)
    return Standing(answers, (right, right.measurements[0]) if right else None, example, asked, "modelled")


def planned(at: Standing, count: int = 2, chance: str = "1", **known: dict[Move, Experience]) -> list[Step]:
    return plan(at, known.get("now", {}), known.get("earlier", {}), count, chance)


# ---------------------------------------------------------------------------------------------------- what can be asked


def test_the_first_request_is_for_a_fresh_kernel() -> None:
    floor = trial("floor", 5.0, by="synthesizer")
    for chance in range(20):
        steps = planned(standing(best=floor), chance=str(chance))
        assert [step.question for step in steps] == [1, 2]
        assert (steps[0].move, steps[0].about, steps[0].another) == (Move.FRESH, (), False)
        assert steps[1].another == (steps[1].move is Move.FRESH)
        assert steps[1].move in (Move.FRESH, Move.IMPROVE)


def test_a_rejected_answer_is_mended_first_the_one_that_came_furthest() -> None:
    asked = (call(Move.FRESH), call(Move.FRESH, question=2))
    early, late, later = trial("a", None, Stage.STATIC), trial("b", None), trial("c", None)
    for chance in range(20):
        first, second = planned(standing(early, late, later, early, asked=asked), chance=str(chance))
        assert (first.question, first.move, first.about) == (3, Move.REPAIR, (digest(later),))
        assert second.move is Move.FRESH  # the same of the same is not asked twice in a round
    mended = trial("d", None, parent=digest(later))
    assert standing(early, late, later, mended).to_mend() == digest(mended)
    assert standing(late, trial("e", 3.0, parent=digest(late))).to_mend() == ""


def test_a_line_of_answers_that_mend_one_another_in_vain_is_left() -> None:
    line = [trial("0", None)]
    for number in range(1, MENDED + 1):
        assert standing(*line).to_mend() == digest(line[-1])
        line.append(trial(str(number), None, parent=digest(line[-1])))
    assert standing(*line).to_mend() == ""
    other = trial("other", None, Stage.STATIC)
    assert standing(*line, other).to_mend() == digest(other)


def test_kernels_that_two_runs_made_from_each_other_end_no_plan() -> None:
    one, two = Candidate(source="1", task="t"), Candidate(source="2", task="t")
    first = trial("1", None, parent=two.digest)
    second = trial("2", None, parent=one.digest)
    assert standing(first, second).to_mend() == ""


def test_the_fastest_is_improved_and_the_two_fastest_are_crossed_once() -> None:
    floor = trial("floor", 5.0, by="synthesizer")
    slow, fast = trial("slow", 4.0), trial("fast", 3.0)
    moves = standing(slow, fast, trial("w", None), best=floor, example="x").moves()
    assert moves[Move.IMPROVE] == (digest(fast),)
    assert moves[Move.CROSSOVER] == (digest(fast), digest(slow))
    assert moves[Move.TRANSFER] == ("x",)
    assert set(moves) == set(Move) - {Move.REFLECT}  # which asks for no kernel
    asked = (call(Move.CROSSOVER, digest(slow), digest(fast)), call(Move.TRANSFER, "x"))
    left = standing(slow, fast, best=floor, example="x", asked=asked).moves()
    assert set(left) == {Move.FRESH, Move.IMPROVE}
    alone = standing(slow, best=trial("floor", 2.0, by="synthesizer")).moves()
    assert alone[Move.CROSSOVER] == (digest(floor), digest(slow))
    assert Move.CROSSOVER not in standing(best=floor).moves()  # nothing of the model's to cross


def test_what_pays() -> None:
    before = (trial("floor", 2.0), trial("floor", 2.0).measurements[0])
    assert pays(Move.FRESH, trial("a", 1.9), before)
    assert not pays(Move.FRESH, trial("a", 1.99), before)  # within the noise of nothing
    assert not pays(Move.IMPROVE, trial("a", 2.5), before)
    assert not pays(Move.IMPROVE, trial("a", None), before)
    assert pays(Move.REPAIR, trial("a", 2.5), before)
    assert not pays(Move.REPAIR, trial("a", None), before)
    assert not pays(Move.REPAIR, trial("a", 1.0).fuller(infeasible=({"M": 3},)), before)
    assert pays(Move.FRESH, trial("a", 9.0), None)


def test_a_task_asks_for_as_long_as_rounds_bring_something() -> None:
    def best(us: float, kind: Any = "modelled") -> tuple[Trial, Measurement]:
        found = trial("best", us)
        return found, found.measurements[0].model_copy(update={"kind": kind})

    at = Headway.begun(best(5.0), [])
    assert (at.over(best(5.0)), at.over(None)) == ("", "")
    for us, idle in ((4.97, 1), (4.8, 0), (4.8, 1), (4.8, 2)):
        at = at.after(best(us), [])
        assert (at.idle, at.over(best(us))) == (idle, "")
    assert at.after(best(4.8), []).over(best(4.8)) == f"{PATIENCE} rounds brought nothing faster"
    assert at.after(best(4.8), [trial("slow", 9.0)]).idle == 0  # the model's first right answer
    assert Headway.begun(best(5.0), [trial("slow", 9.0)]).after(best(5.0), [trial("slow", 9.0)]).idle == 1
    assert Headway.begun(None, []).after(best(5.0), []).idle == 0
    near = Headway.begun(best(1.05), [])
    assert near.over(best(1.05)) == ""
    assert near.over(best(1.05, "measured")) == "1.05 times the speed of light (measured)"
    assert near.after(best(1.05), []).over(best(1.05)) == "1.05 times the speed of light (modelled)"


# ---------------------------------------------------------------------------------------------------- what pays


def drawn(at: Standing, **known: dict[Move, Experience]) -> Counter[Move]:
    return Counter(planned(at, 1, str(chance), **known)[0].move for chance in range(400))


def test_the_budget_goes_to_what_pays_and_something_is_left_for_the_others() -> None:
    at = standing(trial("a", 3.0), trial("b", 4.0), example="x", asked=(call(Move.FRESH),))
    at_first = drawn(at)
    assert set(at_first) == {Move.FRESH, Move.IMPROVE, Move.CROSSOVER, Move.TRANSFER}
    now = {Move.CROSSOVER: Experience(8, 2, 100_000), Move.IMPROVE: Experience(1, 9, 100_000)}
    assert drawn(at, now=now)[Move.CROSSOVER] > 300 > 2 * at_first[Move.CROSSOVER]
    assert drawn(at, now=now)[Move.IMPROVE] < at_first[Move.IMPROVE]
    # Of two moves that pay as often the cheaper one is asked for more.
    dear = {Move.CROSSOVER: Experience(5, 5, 400_000), Move.IMPROVE: Experience(5, 5, 100_000)}
    assert drawn(at, now=dear)[Move.IMPROVE] > 1.5 * drawn(at, now=dear)[Move.CROSSOVER]


def test_what_earlier_runs_say_is_outweighed_by_this_one() -> None:
    at = standing(trial("a", 3.0), trial("b", 4.0), asked=(call(Move.FRESH),))
    earlier = {Move.IMPROVE: Experience(900, 100, 1e7)}
    assert drawn(at, earlier=earlier)[Move.IMPROVE] > 300
    now = {Move.IMPROVE: Experience(0, 30, 3e5), Move.FRESH: Experience(10, 10, 2e5)}
    assert drawn(at, earlier=earlier, now=now)[Move.IMPROVE] < 100


def test_a_plan_can_be_repeated() -> None:
    at = standing(trial("a", 3.0), trial("b", 4.0), asked=(call(Move.FRESH),))
    assert [planned(at, chance=str(c)) for c in range(9)] == [planned(at, chance=str(c)) for c in range(9)]
    assert len({planned(at, chance=str(c))[0].move for c in range(20)}) > 1


def test_experience_is_added_up() -> None:
    found = experience([(Move.FRESH, True, 10), (Move.FRESH, False, 30), (Move.REPAIR, True, 5)])
    assert found == {Move.FRESH: Experience(1, 1, 40), Move.REPAIR: Experience(1, 0, 5)}
    assert Experience(30, 10, 400).at_most(10) == Experience(7.5, 2.5, 100)
    assert Experience().at_most(10) == Experience()


# ---------------------------------------------------------------------------------------------------- runs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_proposer, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(task_work, "LIMIT", 2)  # configurations: none of them is what is tested here


def test_two_are_asked_at_once_and_what_was_asked_is_kept(tmp_path: Path) -> None:
    sources = [WRONG, BROKEN, RIGHT, KERNEL.format(tile=128, op="+")]
    both = threading.Barrier(2)

    def answer(asked: Asked) -> Answer:
        both.wait(30)  # a request that came alone would wait in vain
        return block(sources[min(asked.number, 4) - 1])

    with ModelServer(answer) as server:
        summary = go(tmp_path, server.url, rounds=2)
    assert summary.tasks[0].over == "2 rounds over"
    made = sorted(calls(tmp_path), key=lambda call: call.question)
    assert [call.question for call in made] == [1, 2, 3, 4]
    assert (made[0].move, made[2].move) == (Move.FRESH, Move.REPAIR)
    wrong = {call.candidate for call in made[:2] if not call.paid}
    assert len(wrong) == 2
    assert set(made[2].about) < wrong
    assert made[2].paid
    with Store.open(str(tmp_path / "kb.db")) as store:
        mended = next(t for t in store.best(summary.tasks[0].task.identity, "h200", limit=9)
                      if t.candidate.digest == made[2].candidate)  # fmt: skip
    assert (mended.candidate.parent, mended.candidate.note) == (
        made[2].about[0],
        f"a-model, call {made[2].number} (repair)",
    )
    prompts = {call.question: "\n".join(m["content"] for m in call.request["messages"]) for call in made}
    assert "Mend answer" in prompts[3]


class Faster(Favour):
    """Each of the model's kernels is faster than the ones before, to a limit."""

    def __init__(self, *times: float) -> None:
        self.times, self.seen = list(times), {}  # type: ignore[var-annotated]

    def time(self, trial: Trial, task: Task, plan: Launchable) -> Measurement:
        us = 2.0
        if trial.candidate.proposer == "openai":
            us = self.seen.setdefault(trial.candidate.digest, self.times[min(len(self.seen), len(self.times) - 1)])
        return Measurement(kind="measured", chip=trial.chip, us=us, floor_us=0.5)


def another(asked: Asked) -> Answer:
    """A right kernel that is new."""
    return block(RIGHT + f"# {asked.number}\n")


def test_a_task_is_asked_for_as_long_as_something_becomes_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_proposer, "IN_A_ROUND", 1)
    with ModelServer(another) as server:
        summary = go(tmp_path, server.url, rounds=20, timer=Faster(1.9, 1.5, 1.5, 1.2, 1.2, 1.19, 1.2))
    assert summary.tasks[0].over == f"{PATIENCE} rounds brought nothing faster"
    assert len(server.asked) == 4 + PATIENCE
    assert [call.paid for call in calls(tmp_path)] == [True, True, False, True] + [False] * PATIENCE
    report = (Path(summary.folder) / "report.md").read_text()
    assert f"Asked no more: {PATIENCE} rounds brought nothing faster." in report


def test_at_the_speed_of_light_nothing_more_is_asked(tmp_path: Path) -> None:
    with ModelServer(another) as server:
        said = Said()
        summary = go(tmp_path, server.url, rounds=20, timer=Faster(0.54), said=said)
        assert summary.tasks[0].over == "1.08 times the speed of light (measured)"
        assert len(server.asked) == model_proposer.IN_A_ROUND
        assert "add: asked no more: 1.08 times the speed of light (measured)" in said.lines
        # Measured, it is known in the next run before anything is asked; a modelled time would not be believed.
        again = go(tmp_path, server.url, name="second", rounds=20, timer=Faster(0.54))
        assert again.tasks[0].over == "1.08 times the speed of light (measured)"
    assert len(server.asked) == model_proposer.IN_A_ROUND


FIVE = """\
M, N = 256, 512
a: bf16[M, N]
b: bf16[M, N]
p = a + b
q = a - b
r = a * b
s = a + b * b
t = a * b * b
outputs = p, q, r, s, t
"""
OPS = {"add": "p + q", "sub": "p - q", "mul": "p * q", "square_add": "p * p + q", "mul_440a28": "p * q * q"}
WHOLE = KERNEL.replace("(p {op} q)", "({op})")


def op_of(asked: Asked) -> str:
    return asked.task if asked.task in OPS else asked.task.rsplit("_", 1)[0]


def five(asked: Asked) -> Answer:
    """Two tasks right at once, two mended once their fault was told, one hopeless."""
    task = op_of(asked)
    right = WHOLE.format(tile=256, op=OPS[task])
    if task == "mul" and "Mend answer" not in asked.prompt:
        return block(right.replace("p * q", "p + q"))
    if task == "square_add" and "not a power of two" not in asked.prompt:
        return block(right.replace("256", "80"))
    if task == "mul_440a28":
        return Say("I am sorry, this is beyond me.")
    time.sleep(0.05)
    return block(right)


def test_five_tasks_of_which_one_is_hopeless_all_end_with_right_kernels(tmp_path: Path) -> None:
    with ModelServer(five) as server:
        summary = go(tmp_path, server.url, rounds=2, text=FIVE, jobs=2)
    assert summary.status == "done"
    by: dict[str, Any] = dict.fromkeys(OPS)
    for task in summary.tasks:
        assert task.correct
        assert task.trial is not None
        by[next(op for op in sorted(OPS, key=len, reverse=True) if task.label.startswith(op))] = task
    winners = {op: task.trial.candidate.proposer for op, task in by.items()}
    assert winners == dict.fromkeys(OPS, "openai") | {"mul_440a28": "synthesizer"}
    assert by["mul_440a28"].over == "2 rounds over"
    assert Counter(call.problem for call in calls(tmp_path))["Your last answer holds no Python file."] == 4
    moves = {call.move for call in calls(tmp_path) if call.paid}
    assert Move.REPAIR in moves


def test_eight_requests_are_under_way_at_once(tmp_path: Path) -> None:
    """All tasks ask, though one core computes."""
    eight = threading.Barrier(model_proposer.AT_ONCE)

    def answer(asked: Asked) -> Answer:
        if asked.number <= model_proposer.AT_ONCE:
            eight.wait(60)
        return five(asked)

    with ModelServer(answer) as server:
        summary = go(tmp_path, server.url, rounds=1, text=FIVE, jobs=1, tokens=1_000_000)
    assert (summary.status, server.most) == ("done", model_proposer.AT_ONCE)
    assert len(server.asked) == 10


def test_a_task_leaves_the_others_their_part_of_the_budget(tmp_path: Path) -> None:
    with ModelServer(lambda asked: Say("no", usage=(50_000, 10_000, 0))) as server, Store.open(":memory:") as store:
        place = Workplace("r", store, tmp_path, print, lambda: False, lambda: 99.0)
        model = LanguageModel(Access(server.url, "none", "m"), place, Allowance(400_000))
        store.record_tasks([TASK, everyday("linear")])
        first, second = (ProposalRequest(task, H200, part=0.25) for task in (TASK, everyday("linear")))
        assert model.propose(first).over == ""  # two requests: 120,000 tokens
        assert model.propose(first).over.startswith("its part of the budget is spent (120,000 of 400,000 tokens")
        assert model.propose(second).over == ""
        assert model.propose(replace(first, part=0.5)).over == ""  # others have ended: it may go on
    assert len(server.asked) == 6


def test_parts_are_by_share_of_the_floor_and_grow_as_tasks_end(tmp_path: Path) -> None:
    context = RunContext(
        *[None] * 10,
        seed=1,
        rounds=1,
        cores=1,
        assemblers=Assemblers(1),
        elsewhere=None,
        search_seconds=1.0,
        progress=Silent(),
    )  # type: ignore[arg-type, misc]
    context.unfinished.update({"large": 0.9, "small": 0.1})
    assert (context.part("large"), context.part("small")) == (0.9, 0.1)
    del context.unfinished["large"]
    assert context.part("small") == 1.0


def test_what_paid_in_earlier_runs_is_known(tmp_path: Path) -> None:
    with ModelServer(another) as server:
        go(tmp_path, server.url, rounds=1, timer=Faster(1.0, 1.0))
        with Store.open(str(tmp_path / "kb.db")) as store:
            made = store.moves("a-model", but=("other",))
            assert [paid for _, paid, _ in made].count(True) >= 1
            assert {tokens for _, _, tokens in made} == {1200}
            assert store.moves("a-model", but=("first",)) == []
            assert store.moves("another-model", but=("other",)) == []
