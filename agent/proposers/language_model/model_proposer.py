"""What a language model is asked for a task, when again, and when no more.

Each request is a prompt of its own, with all that the model has to know: there is no conversation to go on with, so any
process can ask the next question.  Every request is recorded before it is sent and again when its answer is there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from typing import Any

from agent.proposers.access import Access
from agent.proposers.base import ProposalRequest, Workplace
from evaluator.judging import LARGEST_FACTOR, RMS_FACTOR
from evaluator.timing import floor_us
from knowledge_base.chips import DEFAULT, chip
from knowledge_base.records import Answered, Candidate, LlmCall, Measurement, Trial
from prompts import Briefing, Prompt, write

from .answers import source_of
from .endpoint import Endpoint, Reply
from .prices import cost_usd

NAME = "openai"
MAX_TOKENS = 32_000  # of an answer, thoughts included; files have one to three thousand
LEAST_TOKENS = 2_000  # below it no file fits into an answer
UNUSABLE = 3  # answers in a row without a file before a task is left to what is there
ATTEMPTS = 5  # sendings of one request to an endpoint that fails
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 120.0
AT_ONCE = 8  # requests under way

READABLE = (Answered.ANSWERED, Answered.TRUNCATED, Answered.EMPTY, Answered.REFUSED)
AGAIN = (Answered.RATE_LIMITED, Answered.SERVER_ERROR, Answered.TIMEOUT, Answered.UNREACHABLE, Answered.CUT)
PROBLEMS = {
    Answered.TRUNCATED: "Your last answer was cut off at its greatest length. Think and write less.",
    Answered.EMPTY: "Your last answer was empty.",
    Answered.REFUSED: "You declined to answer. It is an ordinary numerical kernel that is asked for.",
}
REPEATED = "Your last answer is, to the letter, a file whose outcome is known already. Write another one."


def brief(request: ProposalRequest, problem: str = "") -> Briefing:
    """What the model is told for a request of the loop.  ``problem``: why its last answer could not be read."""
    task, hardware = request.task, request.chip or chip(DEFAULT)
    here = [t for t in (*request.known, *request.tried) if t.chip == hardware.name and t.shape == task.sizes]
    return Briefing(
        task=task,
        chip=hardware,
        floor_us=floor_us(task, task.sizes, hardware),
        rms_factor=RMS_FACTOR,
        largest_factor=LARGEST_FACTOR,
        best=_best((trial, trial.timed(request.kind)) for trial in here if trial.general),
        answers=tuple(_own(request)),
        problem=problem,
    )


def request_body(model: str, prompt: Prompt, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """The request that is sent, but for what depends on the endpoint (streaming, the spelling of the limit)."""
    return {"model": model, "messages": prompt.messages, "max_tokens": max_tokens}


class LanguageModel:
    """The proposer.  One for a run; its tasks ask from their threads.

    It ends itself, for all tasks, once the endpoint says that it will refuse whatever comes; what is there then stands.
    """

    name = NAME
    learns = True

    def __init__(self, access: Access, place: Workplace) -> None:
        self.access, self.place = access, place
        self._endpoint = Endpoint(access)
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._ended = ""  # why nothing is asked any more
        self._max_tokens = MAX_TOKENS
        self._numbers: dict[str, int] = {}  # the last call of each task
        for call in place.store.calls(place.run):  # of a run that goes on
            self._numbers[call.task] = max(call.number, self._numbers.get(call.task, 0))

    def propose(self, request: ProposalRequest) -> list[Candidate]:
        """One candidate, or none where the model gave none and is not worth asking again."""
        known = {trial.candidate.source for trial in (*request.known, *request.tried)}
        parent = next((trial.candidate.digest for trial in reversed(_own(request))), "")
        problem = ""
        for _ in range(UNUSABLE):
            prompt = write(brief(request, problem))
            call = self._answer(request, prompt)
            if call is None:
                return []
            source, problem = _read(call)
            if source in known:
                source, problem = "", REPEATED
            candidate = Candidate(
                source=source, task=call.task, proposer=self.name, parent=parent, prompt=call.prompt,
                note=f"{call.model}, call {call.number}",
            )  # fmt: skip
            self.place.store.record_call(call.fuller(candidate=candidate.digest if source else "", problem=problem))
            if source:
                return [candidate]
            self.place.say(f"{request.label}: call {call.number} gave no candidate: {problem}")
        return []

    # ------------------------------------------------------------------------------------------------ asking

    def _answer(self, request: ProposalRequest, prompt: Prompt) -> LlmCall | None:
        """The call that was answered, if only by an empty text; None where the endpoint gave nothing."""
        call: LlmCall | None = None
        for attempt in range(ATTEMPTS):
            with self._slots:
                if self._ended or self.place.stop() or self.place.left() < 0:
                    return None
                call, reply = self._call(request, prompt)
            if call.status in READABLE:
                return call
            if call.status is Answered.TOO_LONG and self._shorter(call):
                continue
            if call.status not in AGAIN:
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

    def _call(self, request: ProposalRequest, prompt: Prompt) -> tuple[LlmCall, Reply]:
        """Sends the request once; recorded before and after."""
        with self._lock:
            number = self._numbers[request.task.identity] = self._numbers.get(request.task.identity, 0) + 1
            body = request_body(self.access.model, prompt, self._max_tokens)
        call = LlmCall(
            run=self.place.run, task=request.task.identity, number=number, model=self.access.model,
            endpoint=self.access.address, request=body,
        )  # fmt: skip
        self.place.store.record_call(call)
        start = time.monotonic()
        reply = self._endpoint.ask(body, self.place.stop, self.place.left())
        call = call.fuller(
            status=reply.status, text=reply.text, finish=reply.finish, said=reply.said, tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out, tokens_cached=reply.tokens_cached, cost_usd=self._cost(reply),
            seconds=round(time.monotonic() - start, 3),
        )  # fmt: skip
        call = LlmCall.model_validate(call.model_dump())  # what the endpoint said is made one clean line
        self.place.store.record_call(call)
        self.place.say(f"{request.label}: call {number}, {_spent(call)}")
        return call, reply

    def _cost(self, reply: Reply) -> float | None:
        if reply.tokens_in is None or reply.tokens_out is None:
            return None
        return cost_usd(
            self.access.model, self.access.address, reply.tokens_in, reply.tokens_out, reply.tokens_cached or 0
        )

    def _shorter(self, call: LlmCall) -> bool:
        """Halves the room for an answer, which a model of a small context lacks; false where there is none to give."""
        with self._lock:
            tried = int(call.request["max_tokens"])
            self._max_tokens = min(self._max_tokens, tried // 2)
            return self._max_tokens >= LEAST_TOKENS

    def _waited(self, seconds: float) -> bool:
        """Whether the run still goes on after so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.place.stop():
                return False
            time.sleep(min(0.1, left))
        return True

    def _failed(self, request: ProposalRequest, call: LlmCall) -> None:
        """Says why there is no answer, and whether others need not ask."""
        why = f"{call.status.value}: {call.said}" if call.said else call.status.value
        if call.status in AGAIN and call.status is not Answered.UNREACHABLE:
            self.place.say(f"{request.label}: the model gave no answer ({why}); what is there stands")
            return
        with self._lock:
            first, self._ended = not self._ended, why
        if first:
            self.place.say(f"the model is not asked any more ({why}); the kernels that are there stand")


# ---------------------------------------------------------------------------------------------------- parts


def _own(request: ProposalRequest) -> list[Trial]:
    """The model's answers in this run, oldest first, each as it was heard of last."""
    last: dict[str, Trial] = {}
    for trial in request.tried:
        if trial.candidate.proposer == NAME:
            last[trial.candidate.digest] = trial
    return list(last.values())


def _best(timed: Iterable[tuple[Trial, Measurement | None]]) -> tuple[Trial, Measurement] | None:
    found = [(trial, time) for trial, time in timed if time is not None]
    return min(found, key=lambda pair: pair[1].us, default=None)


def _read(call: LlmCall) -> tuple[str, str]:
    source, problem = source_of(call.text)
    return source, "" if source else PROBLEMS.get(call.status, problem)


def _spent(call: LlmCall) -> str:
    """``answered in 8.1 s, 3,102 + 1,240 tokens, $0.0197``."""
    parts = [f"{call.status.value} in {call.seconds:.1f} s"]
    if call.tokens_in is not None and call.tokens_out is not None:
        parts.append(f"{call.tokens_in:,} + {call.tokens_out:,} tokens")
    if call.cost_usd is not None:
        parts.append(f"${call.cost_usd:.4f}")
    return ", ".join(parts)
