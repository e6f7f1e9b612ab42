"""A run's calls in a file, and a model that answers from it: a run can be shown again where no model is.

A recording is a text of JSON lines: what was asked for, then each call whole, as the knowledge base has it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from knowledge_base.errors import UserError
from knowledge_base.records import LlmCall, Move, Record, Said, clean

from .answers import answered
from .policy import Step
from .reply import Reply

SHIPPED = Path(__file__).parents[2] / "recordings"
SCHEME = "replay"  # of the address of what answers from a recording: replay://RUN


class Recording(Record):
    """What a run was asked for, and its calls of a language model, oldest first.

    snf: the target's text.  chip, seed, rounds: as of the run (None: what is usual).  versions: of what it was made
    with.
    """

    recording: Literal[1] = 1  # of this format
    run: str = Field(pattern=r"^[\w.-]{1,96}$")
    target: Said
    snf: str
    chip: str
    seed: int = Field(ge=-(1 << 63), lt=1 << 63)
    rounds: int | None = Field(default=None, ge=1)
    versions: dict[str, Any] = Field(default_factory=dict)
    calls: tuple[LlmCall, ...] = ()

    @property
    def answers(self) -> dict[str, list[LlmCall]]:
        """By place, the calls for kernels in which the model had its say, by the number of their question."""
        found: dict[str, dict[int, LlmCall]] = {}
        for call in self.calls:
            if answered(call) and call.move is not Move.REFLECT:
                found.setdefault(call.place, {})[call.question] = call
        return {place: [calls[question] for question in sorted(calls)] for place, calls in found.items()}

    @property
    def reflections(self) -> dict[str, LlmCall]:
        """By place, the last call in which the model said what it had learned."""
        return {call.place: call for call in self.calls if answered(call) and call.move is Move.REFLECT}

    @property
    def model(self) -> str:
        return clean(self.calls[-1].model) if self.calls else ""

    @property
    def address(self) -> str:
        return f"{SCHEME}://{self.run}"

    def text(self) -> str:
        """The file: a line with all but the calls, then a line for each call."""
        head = self.model_dump_json(exclude={"calls"})
        return "".join(f"{line}\n" for line in (head, *(call.model_dump_json() for call in self.calls)))


def read_recording(text: str, name: str) -> Recording:
    """The recording in a file's text.  Raises UserError, with ``name``, where it is none or holds no answer."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[Any] = []
    for number, line in lines:
        try:
            rows.append(json.loads(line))
            json.dumps(rows[-1], ensure_ascii=False).encode()  # halves of characters are no text
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {number}: no JSON ({error})", _MEND) from None
    if not rows or not isinstance(rows[0], dict) or "recording" not in rows[0]:
        raise UserError(f"{name} is no recording of a run", _MEND)
    number = lines[0][0]
    try:
        found = Recording.model_validate({**rows[0], "calls": ()})
        calls = []
        for (number, _), row in zip(lines[1:], rows[1:], strict=True):  # noqa: B007 (an error names the line)
            calls.append(LlmCall.model_validate(row))
            _MESSAGES.validate_python(calls[-1].request.get("messages"))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{name}, line {number}: {field}: {first['msg']}", _MEND) from None
    found = found.model_copy(update={"calls": tuple(calls)})
    if not found.answers:
        raise UserError(f"{name} holds no answer of a language model", "Record a run that asked one.")
    return found


class _Message(Record):
    role: str
    content: str


_MESSAGES = TypeAdapter(list[_Message])
_MEND = "agent run --record FILE writes one."


def shipped_recordings() -> dict[str, Path]:
    """The files of the recordings that ship, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.jsonl"))}


class Replay:
    """Asks and answers as the recorded run did: for a task's n-th question its n-th answer.

    Requests that failed then are left out, so that each question here has an answer as long as there are any.
    """

    def __init__(self, recording: Recording) -> None:
        self._answers = recording.answers
        self._reflections = recording.reflections

    def reflects(self, place: str) -> bool:
        """Whether the model said what it had learned there."""
        return place in self._reflections

    def steps(self, place: str, planned: Sequence[Step], kernels: set[str]) -> list[Step]:
        """The steps of a task's round that there is an answer to, as they were recorded.

        kernels: digests of those that there are; a step that was about another one stays as it is planned now.
        """
        answers = self._answers.get(place, [])
        steps: list[Step] = []
        for step in planned:
            if step.question <= len(answers):
                then = answers[step.question - 1]
                if kernels.issuperset(then.about):
                    again = then.move is Move.FRESH and any(s.move is Move.FRESH for s in steps)
                    step = replace(step, move=then.move, about=then.about, another=again)
                steps.append(step)
        return steps

    def ask(self, call: LlmCall) -> Reply:
        """The answer to a question that there is one for, with its tokens as they were counted then."""
        reflects = call.move is Move.REFLECT
        then = self._reflections[call.place] if reflects else self._answers[call.place][call.question - 1]
        return Reply(
            then.status, then.text.replace("\0", ""), clean(then.finish), then.said, then.tokens_in, then.tokens_out,
            then.tokens_cached, then=then,
        )  # fmt: skip


def recorded_for(then: LlmCall | None) -> str | None:
    """Hash of the prompt that a recorded answer was given to; empty for an answer that was recorded without one."""
    if then is None:
        return None
    return then.prompt if then.request["messages"] else ""


def difference(then: LlmCall, now: LlmCall) -> str:
    """How a call's prompt differs from the recorded one, as a unified diff; empty if it does not, or there is none."""
    if not recorded_for(then):
        return ""
    before, after = (list(_lines(call)) for call in (then, now))
    return "".join(difflib.unified_diff(before, after, "the recorded prompt", "the prompt now"))


def _lines(call: LlmCall) -> Iterator[str]:
    for message in call.request["messages"]:
        yield f"[{message['role']}]\n"
        yield from (f"{line}\n" for line in message["content"].splitlines())
