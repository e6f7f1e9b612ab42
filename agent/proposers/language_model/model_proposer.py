"""What a language model is asked for a task, when again, and when no more.

A round of a task is a few requests at once (:mod:`.policy` says which).  Each is a prompt of its own, with all that the
model has to know: there is no conversation to go on with, so any process can ask the next question.  Every request is
paid for by the budget and recorded before it is sent, and recorded again when its answer is there.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.console import count
from agent.files import write_at_once
from agent.proposers.access import Access
from agent.proposers.base import Offer, Proposal, ProposalRequest, Workplace, snf_file
from agent.proposers.briefs import MAX_TOKENS, answers_of, brief, request_body
from knowledge_base.errors import UserError
from knowledge_base.records import Answered, Candidate, LlmCall, Measurement, Move, Trial, clean, place_of
from knowledge_base.rules import Claim, claim, read_claim
from knowledge_base.snf.task import Task
from prompts import CHARACTERS_A_TOKEN, LIMIT_TOKENS, MOST_RULES, Briefing, axes_seen, ops_of, outcome, write

from .answers import answered, is_python, rules_in, source_of
from .budget import LEAST_TOKENS, Allowance, Budget, Reservation
from .endpoint import Endpoint
from .policy import Headway, Standing, Step, experience, pays, plan
from .prices import Price
from .recording import Recording, Replay, difference, recorded_for
from .reply import Reply

IN_A_ROUND = 2  # requests of a task at once
ATTEMPTS = 5  # sendings of one request to an endpoint that fails
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 120.0
REFLECTS = True  # whether a model is asked what its answers taught
AT_ONCE = 8  # requests under way, of all tasks

PROBLEMS = {
    Answered.TRUNCATED: "Your last answer was cut off at its greatest length. Think and write less.",
    Answered.EMPTY: "Your last answer was empty.",
    Answered.REFUSED: "You declined to answer. It is an ordinary numerical kernel that is asked for.",
}
# What a user can change where an endpoint will refuse every request.
_ADDRESS = "OPENAI_BASE_URL, which for most endpoints ends in /v1"
SEE = {
    Answered.WRONG_KEY: "OPENAI_API_KEY",
    Answered.UNKNOWN_MODEL: f"--model or OPENAI_MODEL, and {_ADDRESS}",
    Answered.NO_ENDPOINT: _ADDRESS,
    Answered.UNREACHABLE: "OPENAI_BASE_URL",
}
NO_MORE = "the recording has no more answers for it"
REPEATED = "Your last answer is, to the letter, a file that is known already ({outcome}). Write another one."


# How an endpoint names the size of a context that was exceeded: "maximum context length is 8192 tokens", "n_ctx: 4096".
_CONTEXT = re.compile(r"(?:context (?:length|size|window)|n_ctx)\D{0,30}(\d[\d,]{2,})", re.IGNORECASE)


@dataclass(frozen=True)
class Room:
    """How long answers and prompts may be, in tokens; how many characters of a prompt the endpoint counts as one."""

    answer: int = MAX_TOKENS
    prompt: int = LIMIT_TOKENS
    characters_a_token: float = CHARACTERS_A_TOKEN

    def smaller(self, said: str) -> Room:
        """Less of both, as a model needs whose context was exceeded; by the size that it ``said``, if it said one."""
        found = _CONTEXT.search(said)
        context = int(found[1].replace(",", "")) if found else 0
        if 2 * LEAST_TOKENS <= context < self.answer + self.prompt:
            answer = min(self.answer, context // 3)
            return replace(self, answer=answer, prompt=min(self.prompt, int(0.95 * (context - answer))))
        return replace(self, answer=self.answer // 2, prompt=int(self.prompt * 0.7))

    def counted(self, call: LlmCall) -> Room:
        """Corrected by the endpoint's count of a call's prompt."""
        if not call.tokens_in:
            return self
        characters = sum(len(message["content"]) for message in call.request["messages"])
        return replace(self, characters_a_token=min(8.0, max(1.0, characters / call.tokens_in)))

    def allowed(self, most: int | None) -> Room:
        """With answers of at most so many tokens, where the endpoint named a limit."""
        return self if most is None else replace(self, answer=min(self.answer, most))


@dataclass
class _Place:
    """What was asked for a task.

    calls: by number.  before: by candidate, the fastest kernel when it was asked for.  problems: what was wrong with
    answers of the last round that held no file.
    """

    calls: dict[int, LlmCall] = field(default_factory=dict)
    before: dict[str, tuple[Trial, Measurement] | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    headway: Headway | None = None  # to the last round; None before the first one


class LanguageModel:
    """The proposer.  One for a run; its tasks ask from their threads.

    It ends itself, for all tasks, once the endpoint says that it will refuse whatever comes; what is there then stands.
    """

    name = "openai"
    learns = True

    def __init__(
        self,
        access: Access,
        place: Workplace,
        limits: Allowance,
        price: Price | None = None,
        recording: Recording | None = None,
    ) -> None:
        self.access, self.place, self.price = access, place, price
        self._replay = Replay(recording) if recording is not None else None
        self._ask = self._replay.ask if self._replay is not None else self._asker(Endpoint(access))
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._ended = ""  # why nothing is asked any more
        self._room = Room()
        self._places: dict[str, _Place] = {}
        made = place.store.calls(place.run)  # of a run that goes on
        for call in made:
            self._places.setdefault(call.place, _Place()).calls[call.number] = call
        self._budget = Budget(limits, price, made)
        # When the moves of a recorded run were drawn, it was not known yet what they would bring.
        runs = (place.run,) if recording is None else (place.run, recording.run)
        self._earlier = experience(place.store.moves(access.model, but=runs))

    def propose(self, request: ProposalRequest) -> Offer:
        """The files in the answers to a round's requests; over once the model gives none, or may not be asked."""
        at = self._at(request.task, request.task.sizes)
        answers = answers_of(request, self.name)
        at.headway = at.headway.after(request.best, answers) if at.headway else Headway.begun(request.best, answers)
        if over := self._over(request, at.headway):
            return Offer(over=over)
        told = replace(brief(request, self.place.store, self.name), problem=" ".join(dict.fromkeys(at.problems)))
        steps = self._plan(request, at, told, answers)
        if self._replay is not None:
            kernels = {trial.candidate.digest for trial in (*request.known, *request.tried)}
            steps = self._replay.steps(place_of(request.task.identity, request.task.sizes), steps, kernels)
            if not steps:
                return Offer(over=NO_MORE)
        with ThreadPoolExecutor(len(steps), thread_name_prefix="asking") as pool:
            ended = list(pool.map(lambda step: self._answer(request, step, told), steps))
        calls = [call for call, _ in ended if call is not None]
        if not calls:
            return Offer(over=ended[0][1])
        return self._offer(request, at, calls)

    def hear(self, task: Task, trial: Trial) -> None:
        """Notes whether the call paid; what became of the answer is said by the next request."""
        at = self._at(task, trial.shape)
        digest = trial.candidate.digest
        call = next((c for c in at.calls.values() if c.candidate == digest), None)
        if call is None or digest not in at.before or call.paid:
            return
        self._keep(at, call.fuller(paid=pays(call.move, trial, at.before[digest])))

    def reflect(self, request: ProposalRequest) -> None:
        """Asks once what the task's answers taught.  Rules that the model states enter the base as hypothesised."""
        task = request.task
        at, place = self._at(task, task.sizes), place_of(task.identity, task.sizes)
        said = any(call.move is Move.REFLECT and answered(call) for call in at.calls.values())
        if not REFLECTS or said or not answers_of(request, self.name) or not self._goes_on():
            return
        if self._replay is not None and not self._replay.reflects(place):
            return
        if self._budget.used_up(place, request.part):
            return
        told = brief(request, self.place.store, self.name)
        call, _ = self._answer(request, Step(0, Move.REFLECT), told)
        if call is None:
            return
        claims, problems = _claims(call.text, told)
        new = claim(self.place.store.database, claims, f"{call.model}, call {call.number} of run {call.run}")
        self._keep(at, call.fuller(problem="; ".join(problems)))
        known = f", {len(claims) - len(new)} known already" if len(claims) > len(new) else ""
        refused = f"; not kept: {'; '.join(problems)}" if problems else ""
        self.place.say(f"{request.label}: it claims {count(len(new), 'new rule')}{known}{refused}")

    # ------------------------------------------------------------------------------------------------ a round

    def _over(self, request: ProposalRequest, headway: Headway) -> str:
        """Why a task may ask no more."""
        if self._ended:
            return self._ended
        if not self._goes_on():
            return "the run's time is up"
        if self._budget.used_up(place_of(request.task.identity, request.task.sizes), request.part):
            return f"its part of the budget is spent ({self._budget.says} in all)"
        return headway.over(request.best)

    def _plan(self, request: ProposalRequest, at: _Place, told: Briefing, answers: list[Trial]) -> list[Step]:
        example = told.advice.example
        standing = Standing(
            answers=answers,
            best=told.best,
            example=example.trial.candidate.digest if example is not None else "",
            calls=tuple(at.calls.values()),
            kind=request.kind,
        )
        with self._lock:
            calls = [call for place in self._places.values() for call in place.calls.values()]
        heard = ((c.move, c.paid, (c.tokens_in or 0) + (c.tokens_out or 0)) for c in calls if c.paid is not None)
        chance = f"{self.place.seed} {request.task.identity} {sorted(request.task.sizes.items())}"
        return plan(standing, experience(heard), self._earlier, IN_A_ROUND, chance)

    def _offer(self, request: ProposalRequest, at: _Place, calls: Sequence[LlmCall]) -> Offer:
        """What the answers hold that is not known yet; the others are said to have failed, and why."""
        trials = (*request.known, *request.tried)
        known = {trial.candidate.source: outcome(trial) for trial in trials}
        sources = {trial.candidate.digest: trial.candidate.source for trial in trials}
        proposals: list[Proposal] = []
        at.problems = []
        for call in calls:
            parent = call.about[0] if call.about else ""
            source, problem = _read(call, sources.get(parent, ""))
            if source in known:
                source, problem = "", REPEATED.format(outcome=known[source])
            if not source:
                at.problems.append(problem)
                self._keep(at, call.fuller(problem=problem, paid=False))
                self.place.say(f"{request.label}: call {call.number} gave no candidate: {problem}")
                continue
            known[source] = "the same that another answer of yours holds"
            candidate = Candidate(
                source=source, task=call.task, proposer=self.name, parent=parent, prompt=call.prompt,
                note=f"{call.model}, call {call.number} ({call.move.value})",
            )  # fmt: skip
            at.before[candidate.digest] = request.best
            self._keep(at, call.fuller(candidate=candidate.digest))
            proposals.append(Proposal(candidate, call.move))
        return Offer(tuple(proposals))

    # ------------------------------------------------------------------------------------------------ asking

    def _answer(self, request: ProposalRequest, step: Step, told: Briefing) -> tuple[LlmCall | None, str]:
        """The call that was answered, if only by an empty text; None, and why, where the endpoint gave nothing."""
        told = replace(told, move=step.move, about=step.about, another=step.another)
        call: LlmCall | None = None
        for attempt in range(ATTEMPTS):
            with self._slots:
                if not self._goes_on():
                    return None, self._ended or "the run's time is up"
                room = self._room
                prompt = write(told, room.prompt, room.characters_a_token)
                kept = self._budget.reserve(request_body(self.access.model, prompt, room.answer), self._goes_on)
                if kept is None:
                    return None, f"too little of the budget is left for a request ({self._budget.says})"
                call, reply = self._call(request, step, kept)
            if answered(call):
                return call, ""
            if call.status is Answered.TOO_LONG:
                with self._lock:
                    self._room = min(self._room, room.smaller(call.said), key=lambda r: r.answer)
                if self._room.answer >= LEAST_TOKENS:
                    continue
            if not call.status.passes:
                break
            wait = reply.again_s
            if wait is None:
                wait = FIRST_WAIT_S * 2**attempt * random.uniform(0.75, 1.25)
            if wait > min(LONGEST_WAIT_S, self.place.left()):
                call = call.fuller(said=f"{call.said}; the next try would have been in {wait:,.0f} s")
                break
            if attempt + 1 == ATTEMPTS or not self._waited(wait):
                break
        assert call is not None, "there is at least one attempt"
        return None, self._failed(call)

    def _goes_on(self) -> bool:
        return not self._ended and not self.place.stop() and self.place.left() >= 0

    def _call(self, request: ProposalRequest, step: Step, kept: Reservation) -> tuple[LlmCall, Reply]:
        """Sends the request once; recorded before and after."""
        task = request.task
        at = self._at(task, task.sizes)
        with self._lock:
            call = LlmCall(
                run=self.place.run, task=task.identity, shape=task.sizes, number=1 + max(at.calls, default=0),
                model=self.access.model, endpoint=self.access.address, request=kept.request,
                question=step.question, move=step.move, about=step.about,
            )  # fmt: skip
            at.calls[call.number] = call
        self._keep(at, call)
        start = time.monotonic()
        reply = self._ask(call)
        then = reply.then
        call = call.fuller(
            status=reply.status, text=reply.text, finish=reply.finish, said=reply.said, tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out, tokens_cached=reply.tokens_cached, cost_usd=self._cost(reply),
            seconds=round(time.monotonic() - start, 3), recorded_for=recorded_for(then),
        )  # fmt: skip
        call = LlmCall.model_validate(call.model_dump())  # what the endpoint said is made one clean line
        self._keep(at, call)
        self._budget.settle(kept, call)
        with self._lock:
            self._room = self._room.counted(call).allowed(reply.most)
        self.place.say(f"{request.label}: call {call.number} ({step.move.value}), {_spent(call)}")
        if then is not None and (changes := difference(then, call)):
            name = f"{Path(snf_file(request.label)).stem}-call-{call.number}.diff"
            write_at_once(self.place.folder / name, changes)
        return call, reply

    def _asker(self, endpoint: Endpoint) -> Callable[[LlmCall], Reply]:
        return lambda call: endpoint.ask(call.request, self.place.stop, self.place.left())

    def _cost(self, reply: Reply) -> float | None:
        if reply.then is not None:
            return reply.then.cost_usd
        if self.price is None or reply.tokens_in is None or reply.tokens_out is None:
            return None
        return self.price.usd(reply.tokens_in, reply.tokens_out, reply.tokens_cached or 0)

    def _waited(self, seconds: float) -> bool:
        """Whether the run still goes on after so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.place.stop():
                return False
            time.sleep(min(0.1, left))
        return True

    def _failed(self, call: LlmCall) -> str:
        """Why there is no answer; nobody asks any more where the endpoint would refuse whatever came."""
        why = f"{call.status.value}: {call.said}" if call.said else call.status.value
        why += f"; see {SEE[call.status]}" if call.status in SEE else ""
        why = f"the model gave no answer ({why}); what is there stands"
        if not self.place.stop() and (not call.status.passes or call.status is Answered.UNREACHABLE):
            with self._lock:
                self._ended = self._ended or why
        return why

    # ------------------------------------------------------------------------------------------------ what was asked

    def _at(self, task: Task, sizes: dict[str, int]) -> _Place:
        with self._lock:
            return self._places.setdefault(place_of(task.identity, sizes), _Place())

    def _keep(self, at: _Place, call: LlmCall) -> None:
        """Stores the call as it is now."""
        with self._lock:
            at.calls[call.number] = call
        self.place.store.record_call(call)


# ---------------------------------------------------------------------------------------------------- parts


def _read(call: LlmCall, base: str) -> tuple[str, str]:
    """(source, "") of the file in an answer, or ("", what is wrong with it).  ``base``: the file that it was about."""
    source, problem = source_of(call.text, base)
    if call.status is Answered.TRUNCATED and not is_python(source):
        source = ""
    return source, "" if source else PROBLEMS.get(call.status, problem)


def _claims(text: str, told: Briefing) -> tuple[list[Claim], list[str]]:
    """The rules that an answer claims, and what is wrong with those that are none."""
    found, problem = rules_in(text)
    claims, problems = [], [problem] if problem else []
    ops, dtype, axes = ops_of(told.task), told.task.outputs[0].dtype, axes_seen(told)
    for said in found[:MOST_RULES]:
        try:
            claims.append(read_claim(said, ops, told.chip.name, dtype, axes))
        except UserError as error:
            problems.append(clean(error.what))
    return claims, problems


def _spent(call: LlmCall) -> str:
    """``answered in 8.1 s, 3,102 + 1,240 tokens, $0.0197``."""
    took = "as recorded" if call.recorded_for is not None else f"in {call.seconds:.1f} s"
    parts = [f"{call.status.value} {took}"]
    if call.tokens_in is not None and call.tokens_out is not None:
        parts.append(f"{call.tokens_in:,} + {call.tokens_out:,} tokens")
    if call.cost_usd is not None:
        parts.append(f"${call.cost_usd:.4f}")
    return ", ".join(parts)
