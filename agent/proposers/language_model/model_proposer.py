"""What a language model is asked for a task, when again, and when no more.

Each request is a prompt of its own, with all that the model has to know: there is no conversation to go on with, so any
process can ask the next question.  Every request is recorded before it is sent and again when its answer is there.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace

from agent.proposers.access import Access
from agent.proposers.base import ProposalRequest, Workplace
from agent.proposers.briefs import MAX_TOKENS, answers_of, brief, request_body
from knowledge_base.records import Answered, Candidate, LlmCall, Trial
from knowledge_base.snf.task import Task
from prompts import CHARACTERS_A_TOKEN, LIMIT_TOKENS, Briefing, outcome, write

from .answers import is_python, source_of
from .budget import LEAST_TOKENS, Allowance, Budget, Reservation
from .endpoint import Endpoint, Reply
from .prices import Price

UNUSABLE = 3  # answers in a row without a file before a task is left to what is there
ATTEMPTS = 5  # sendings of one request to an endpoint that fails
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 120.0
AT_ONCE = 8  # requests under way

PROBLEMS = {
    Answered.TRUNCATED: "Your last answer was cut off at its greatest length. Think and write less.",
    Answered.EMPTY: "Your last answer was empty.",
    Answered.REFUSED: "You declined to answer. It is an ordinary numerical kernel that is asked for.",
}
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


class LanguageModel:
    """The proposer.  One for a run; its tasks ask from their threads.

    It ends itself, for all tasks, once the endpoint says that it will refuse whatever comes; what is there then stands.
    """

    name = "openai"
    learns = True

    def __init__(
        self, access: Access, place: Workplace, limits: Allowance | None = None, price: Price | None = None
    ) -> None:
        self.access, self.place, self.price = access, place, price
        self._endpoint = Endpoint(access)
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._ended = ""  # why nothing is asked any more
        self._room = Room()
        made = place.store.calls(place.run)  # of a run that goes on
        self._budget = Budget(limits or Allowance(), price, made)
        self._numbers = Counter(call.place for call in made)  # the last call of each task at its sizes

    def propose(self, request: ProposalRequest) -> list[Candidate]:
        """One candidate, or none where the model gave none and is not worth asking again."""
        known = {trial.candidate.source: trial for trial in (*request.known, *request.tried)}
        parent = next((trial.candidate.digest for trial in reversed(answers_of(request, self.name))), "")
        problem = ""
        for _ in range(UNUSABLE):
            call = self._answer(request, brief(request, self.place.store, self.name, problem))
            if call is None:
                return []
            source, problem = _read(call)
            if source in known:
                source, problem = "", REPEATED.format(outcome=outcome(known[source]))
            candidate = Candidate(
                source=source, task=call.task, proposer=self.name, parent=parent, prompt=call.prompt,
                note=f"{call.model}, call {call.number}",
            )  # fmt: skip
            self.place.store.record_call(call.fuller(candidate=candidate.digest if source else "", problem=problem))
            if source:
                return [candidate]
            self.place.say(f"{request.label}: call {call.number} gave no candidate: {problem}")
        return []

    def hear(self, task: Task, trial: Trial) -> None:
        """The next request says it."""

    # ------------------------------------------------------------------------------------------------ asking

    def _answer(self, request: ProposalRequest, briefing: Briefing) -> LlmCall | None:
        """The call that was answered, if only by an empty text; None where the endpoint gave nothing."""
        call: LlmCall | None = None
        for attempt in range(ATTEMPTS):
            with self._slots:
                if not self._goes_on():
                    return None
                room = self._room
                prompt = write(briefing, room.prompt, room.characters_a_token)
                kept = self._budget.reserve(request_body(self.access.model, prompt, room.answer), self._goes_on)
                if kept is None:
                    self._too_dear(request)
                    return None
                call, reply = self._call(request, kept)
            if call.status.readable:
                return call
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
            if attempt + 1 == ATTEMPTS or wait > min(LONGEST_WAIT_S, self.place.left()) or not self._waited(wait):
                break
        assert call is not None, "there is at least one attempt"
        if not self.place.stop():
            self._failed(request, call)
        return None

    def _goes_on(self) -> bool:
        return not self._ended and not self.place.stop() and self.place.left() >= 0

    def _call(self, request: ProposalRequest, kept: Reservation) -> tuple[LlmCall, Reply]:
        """Sends the request once; recorded before and after."""
        call = LlmCall(
            run=self.place.run, task=request.task.identity, shape=request.task.sizes, number=1, model=self.access.model,
            endpoint=self.access.address, request=kept.request,
        )  # fmt: skip
        with self._lock:
            self._numbers[call.place] += 1
            call = call.fuller(number=self._numbers[call.place])
        self.place.store.record_call(call)
        start = time.monotonic()
        reply = self._endpoint.ask(kept.request, self.place.stop, self.place.left())
        call = call.fuller(
            status=reply.status, text=reply.text, finish=reply.finish, said=reply.said, tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out, tokens_cached=reply.tokens_cached, cost_usd=self._cost(reply),
            seconds=round(time.monotonic() - start, 3),
        )  # fmt: skip
        call = LlmCall.model_validate(call.model_dump())  # what the endpoint said is made one clean line
        self.place.store.record_call(call)
        self._budget.settle(kept, call)
        with self._lock:
            self._room = self._room.counted(call)
        self.place.say(f"{request.label}: call {call.number}, {_spent(call)}")
        return call, reply

    def _cost(self, reply: Reply) -> float | None:
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

    def _too_dear(self, request: ProposalRequest) -> None:
        """Says that the budget ends it; other tasks may have a shorter prompt."""
        if self._goes_on():
            self.place.say(f"{request.label}: too little is left for another call ({self._budget.says})")

    def _failed(self, request: ProposalRequest, call: LlmCall) -> None:
        """Says why there is no answer, and whether others need not ask."""
        why = f"{call.status.value}: {call.said}" if call.said else call.status.value
        if call.status.passes and call.status is not Answered.UNREACHABLE:
            self.place.say(f"{request.label}: the model gave no answer ({why}); what is there stands")
            return
        with self._lock:
            first, self._ended = not self._ended, why
        if first:
            self.place.say(f"the model is not asked any more ({why}); the kernels that are there stand")


# ---------------------------------------------------------------------------------------------------- parts


def _read(call: LlmCall) -> tuple[str, str]:
    """(source, "") of the file in an answer, or ("", what is wrong with the answer)."""
    source, problem = source_of(call.text)
    if call.status is Answered.TRUNCATED and not is_python(source):
        source = ""
    return source, "" if source else PROBLEMS.get(call.status, problem)


def _spent(call: LlmCall) -> str:
    """``answered in 8.1 s, 3,102 + 1,240 tokens, $0.0197``."""
    parts = [f"{call.status.value} in {call.seconds:.1f} s"]
    if call.tokens_in is not None and call.tokens_out is not None:
        parts.append(f"{call.tokens_in:,} + {call.tokens_out:,} tokens")
    if call.cost_usd is not None:
        parts.append(f"${call.cost_usd:.4f}")
    return ", ".join(parts)
