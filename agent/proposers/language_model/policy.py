"""What a language model is asked next: which move, and of which kernels; and until when.

A task's first request is for a fresh kernel.  As long as the model has no right answer, the first request of each
later round mends one.  All others are given to the moves that pay: Thompson sampling of Beta-Bernoulli bandits (W. R.
Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, NeurIPS 2011), where a move pays that brings a new fastest kernel,
or a right one for one that was rejected, and what is drawn is divided by the tokens that the move takes.  What the same
model's calls of earlier runs paid counts, too, but never more than a few calls of this run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from knowledge_base.records import Kind, LlmCall, Measurement, Move, Stage, Trial
from prompts import CLOSE

# What is believed of a move before anything is known of a model: calls that paid, calls that did not.  It comes from
# one model's answers to six tasks, timed on an H200: of eighteen first answers twelve were right, of four rejected ones
# three were right after repairs, of twelve improvements of right kernels one was faster.  A few calls outweigh it.
BELIEVED = {
    Move.FRESH: (1.0, 3.0),
    Move.REPAIR: (2.0, 1.0),
    Move.IMPROVE: (1.0, 4.0),
    Move.CROSSOVER: (1.0, 4.0),
    Move.TRANSFER: (1.0, 3.0),
}
REMEMBERED = 10.0  # all calls of earlier runs count at most like so many of this run's
MENDED = 3  # answers in a row that mended one another in vain, after which the line is left
GAIN = 0.99  # a kernel is faster if its time is below this share of the fastest before it

PATIENCE = 3  # rounds in a row that brought nothing, after which a task asks no more

STAGES = list(Stage)


@dataclass(frozen=True)
class Headway:
    """How far a task came.  rounds: that were asked, ``idle`` of them last in a row without bringing anything.

    us: of the fastest kernel, infinite before there is one.  right: whether the model has a right answer.
    """

    rounds: int = 0
    idle: int = 0
    us: float = math.inf
    right: bool = False

    @classmethod
    def begun(cls, best: tuple[Trial, Measurement] | None, answers: Sequence[Trial]) -> Headway:
        """Before the first round."""
        return cls(us=best[1].us if best is not None else math.inf, right=any(trial.general for trial in answers))

    def after(self, best: tuple[Trial, Measurement] | None, answers: Sequence[Trial]) -> Headway:
        """After another round."""
        now = Headway.begun(best, answers)
        brought = now.us < GAIN * self.us or (now.right and not self.right)
        return replace(now, rounds=self.rounds + 1, idle=0 if brought else self.idle + 1)

    def over(self, best: tuple[Trial, Measurement] | None) -> str:
        """Why a task need not ask again; a modelled time is believed to be near the speed of light after one round."""
        if best is not None and best[1].us <= CLOSE * best[1].floor_us and (self.rounds or best[1].kind == "measured"):
            return f"{best[1].us / best[1].floor_us:.2f} times the speed of light ({best[1].kind})"
        return f"{PATIENCE} rounds brought nothing faster" if self.idle >= PATIENCE else ""


@dataclass(frozen=True)
class Step:
    """A request to make.  about: digests of the kernels that it goes on from.  another: beside a fresh one."""

    question: int
    move: Move
    about: tuple[str, ...] = ()
    another: bool = False


@dataclass(frozen=True)
class Experience:
    """What a move brought: calls that paid, calls that did not, tokens of all of them."""

    paid: float = 0.0
    unpaid: float = 0.0
    tokens: float = 0.0

    @property
    def calls(self) -> float:
        return self.paid + self.unpaid

    def __add__(self, other: Experience) -> Experience:
        return Experience(self.paid + other.paid, self.unpaid + other.unpaid, self.tokens + other.tokens)

    def at_most(self, calls: float) -> Experience:
        """The same, as if of fewer calls."""
        share = min(1.0, calls / self.calls) if self.calls else 1.0
        return Experience(self.paid * share, self.unpaid * share, self.tokens * share)


def experience(calls: Iterable[tuple[Move, bool, int]]) -> dict[Move, Experience]:
    """By move, of calls whose answers were judged: (move, whether it paid, tokens)."""
    found: dict[Move, Experience] = {}
    for move, paid, tokens in calls:
        found[move] = found.get(move, Experience()) + Experience(float(paid), float(not paid), float(tokens))
    return found


@dataclass(frozen=True)
class Standing:
    """How a task stands.

    answers: the model's, oldest first, each as it was heard of last.  best: the fastest kernel, from wherever.
    example: digest of the kernel of the nearest other task; empty if there is none.  calls: what was asked for the task
    before, in this run.  kind: of the times that count.
    """

    answers: Sequence[Trial]
    best: tuple[Trial, Measurement] | None
    example: str
    calls: Sequence[LlmCall]
    kind: Kind

    def to_mend(self) -> str:
        """The rejected answer that came furthest, the latest of those; empty where none is worth mending."""
        parents = {trial.candidate.digest: trial.candidate.parent for trial in self.answers}
        wrong = {trial.candidate.digest: trial for trial in self.answers if not trial.general}

        def in_vain(digest: str) -> bool:
            """Whether too many in a row were rejected, to this one."""
            line: set[str] = set()
            while digest in wrong and digest not in line:  # another run may have made them from each other
                line.add(digest)
                digest = parents[digest]
            return len(line) > MENDED

        taken = set(parents.values())  # was mended already: what came of it is the one to mend
        left = [digest for digest in wrong if digest not in taken and not in_vain(digest)]
        return max(reversed(left), key=lambda digest: _stage(wrong[digest]), default="")

    def pair(self) -> tuple[str, ...]:
        """The two fastest right kernels, one of them at least the model's; empty if they were crossed already."""
        timed = [(trial.timed(self.kind), trial.candidate.digest) for trial in self.answers if trial.general]
        right = sorted((time.us, digest) for time, digest in timed if time is not None)
        found = [digest for _, digest in right]
        if self.best is not None and self.best[0].candidate.digest not in found:
            found.insert(0, self.best[0].candidate.digest)
        pair = tuple(found[:2])
        crossed = {frozenset(call.about) for call in self.calls if call.move is Move.CROSSOVER}
        return pair if len(pair) == 2 and right and frozenset(pair) not in crossed else ()

    def moves(self) -> dict[Move, tuple[str, ...]]:
        """What can be asked now, of which kernels."""
        found: dict[Move, tuple[str, ...]] = {Move.FRESH: ()}
        if mend := self.to_mend():
            found[Move.REPAIR] = (mend,)
        if self.best is not None:
            found[Move.IMPROVE] = (self.best[0].candidate.digest,)
        if pair := self.pair():
            found[Move.CROSSOVER] = pair
        if self.example and not any(call.move is Move.TRANSFER for call in self.calls):
            found[Move.TRANSFER] = (self.example,)
        return found


def plan(
    standing: Standing,
    now: Mapping[Move, Experience],
    earlier: Mapping[Move, Experience],
    count: int,
    chance: str,
) -> list[Step]:
    """The ``count`` requests of a task's next round.

    now: what moves brought in this run, for all its tasks; earlier: in others.  chance: seeds what is drawn, so that a
    run can be repeated.
    """
    question = max((call.question for call in standing.calls), default=0)
    moves = standing.moves()
    right = any(trial.general for trial in standing.answers)
    believed = {move: _believed(move, now, earlier) for move in moves}
    steps: list[Step] = []
    for number in range(question + 1, question + 1 + count):
        if not standing.calls and not steps:
            move = Move.FRESH
        elif not right and not steps and Move.REPAIR in moves:
            move = Move.REPAIR
        else:
            asked = {step.move for step in steps} - {Move.FRESH}  # the same of the same brings the same
            drawn = random.Random(f"{chance} {number}")
            left = [move for move in moves if move not in asked]
            move = max(left, key=lambda m: drawn.betavariate(believed[m].paid, believed[m].unpaid) / _cost(m, believed))
        another = move is Move.FRESH and any(step.move is Move.FRESH for step in steps)
        steps.append(Step(number, move, moves[move], another))
    return steps


def pays(move: Move, trial: Trial, before: tuple[Trial, Measurement] | None) -> bool:
    """Whether an answer brought what was asked for; ``before``: the fastest kernel when it was asked for."""
    if not trial.general:
        return False
    time = trial.timed(before[1].kind) if before is not None else trial.time
    faster = time is not None and (before is None or time.over(before[1]) < GAIN)
    return faster or move is Move.REPAIR


# ---------------------------------------------------------------------------------------------------- parts


def _stage(trial: Trial) -> int:
    return STAGES.index(trial.verdict.stage) if trial.verdict is not None else 0


def _believed(move: Move, now: Mapping[Move, Experience], earlier: Mapping[Move, Experience]) -> Experience:
    paid, unpaid = BELIEVED[move]
    seen = now.get(move, Experience()) + earlier.get(move, Experience()).at_most(REMEMBERED)
    return Experience(seen.paid + paid, seen.unpaid + unpaid, seen.tokens)


def _cost(move: Move, believed: Mapping[Move, Experience]) -> float:
    """Tokens of a call of the move, in those of an average one; 1 before anything is known."""
    seen = {m: e.calls - sum(BELIEVED[m]) for m, e in believed.items()}
    calls, tokens = sum(seen.values()), sum(e.tokens for e in believed.values())
    if not tokens:
        return 1.0
    average = tokens / calls
    return (believed[move].tokens + average) / (seen[move] + 1) / average
