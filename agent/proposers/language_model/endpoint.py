"""One request to an endpoint, and what came back, whatever it was: an answer or a failure, never an exception.

Answers are streamed, so that a run can be stopped inside one, and a silent connection is noticed.  Endpoints differ in
what they know of the protocol; where one refuses an option of ours by name, it is left out or spelled in the other way
from then on.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import openai

from agent.proposers.access import OPENAI, Access
from knowledge_base.records import Answered

from .reply import Reply

CONNECT_S = 15.0
SILENCE_S = 300.0  # between two parts of an answer; a model that thinks before it writes says nothing for minutes
LONGEST_S = 1800.0  # for a whole answer
LONGEST_ANSWER = 1_000_000  # characters; what goes on longer is no kernel


@dataclass
class _Gathered:
    """An answer so far."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    refusal: str = ""
    finish: str = ""
    usage: Any = None

    def add(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        text = delta.get("content")
        if isinstance(text, str):
            self.parts.append(text)
            self.length += len(text)
        refusal = delta.get("refusal")
        self.refusal += refusal if isinstance(refusal, str) else ""
        finish = choice.get("finish_reason")
        self.finish = finish if isinstance(finish, str) else self.finish


class Endpoint:
    """A model behind an address.  Threads may share one."""

    def __init__(self, access: Access) -> None:
        self.access = access
        timeout = openai.Timeout(SILENCE_S, connect=CONNECT_S)
        # Retries are the caller's: each one is recorded, and counts against the budget.
        self._client = openai.OpenAI(api_key=access.key, base_url=access.base_url, max_retries=0, timeout=timeout)
        self._lock = threading.Lock()
        self._limit = "max_completion_tokens" if access.address == OPENAI else "max_tokens"
        self._left_out: set[str] = set()

    def ask(
        self, body: Mapping[str, Any], stop: Callable[[], bool] = lambda: False, seconds: float = float("inf")
    ) -> Reply:
        """Sends ``body`` (model, messages, max_tokens) and returns the reply.

        stop: true ends it between two parts of the answer.  seconds: it may take at most.
        """
        end = time.monotonic() + min(seconds, LONGEST_S)
        while True:
            sent = self._spelled(body)
            try:
                return self._clean(self._asked(sent, stop, end))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._adapted(error, sent):
                    return self._clean(_failure(error))
            except openai.OpenAIError as error:
                return self._clean(_failure(error))
            except httpx2.HTTPError as error:  # inside an answer that came in one piece
                said = f"the connection ended inside the answer: {_cause(error)}"
                return self._clean(Reply(Answered.CUT, said=said))
            except (ValueError, TypeError, AttributeError, LookupError) as error:  # not what the protocol says
                said = f"the endpoint's answer can't be read: {type(error).__name__}: {error}"
                return self._clean(Reply(Answered.NO_ENDPOINT, said=said))

    # ------------------------------------------------------------------------------------------------ requests

    def _spelled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request as this endpoint takes it."""
        with self._lock:
            sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
            sent[self._limit] = sent.pop("max_tokens")
            return {name: value for name, value in sent.items() if name not in self._left_out}

    def _adapted(self, error: openai.APIStatusError, sent: Mapping[str, Any]) -> bool:
        """Whether the endpoint refused an option of ours by its name, which is now spelled differently or left out."""
        said = f"{error.param or ''} {_told(error)}"
        with self._lock:
            for name in ("max_completion_tokens", "max_tokens", "stream_options"):
                refused = re.search(rf"(?<!\w){name}(?!\w)", said) and re.search(
                    "unsupported|not supported|unknown|unrecogni[sz]ed|not permitted|extra|unexpected|invalid",
                    said,
                    re.I,
                )
                if not refused or name not in sent or name in self._left_out:
                    continue
                if name == self._limit:
                    other = "max_tokens" if name == "max_completion_tokens" else "max_completion_tokens"
                    if other in self._left_out:
                        return False  # an answer without a limit may cost anything
                    self._limit = other
                self._left_out.add(name)
                return True
        return False

    def _asked(self, sent: Mapping[str, Any], stop: Callable[[], bool], end: float) -> Reply:
        silence = min(SILENCE_S, max(1.0, end - time.monotonic()))
        timeout = openai.Timeout(silence, connect=min(CONNECT_S, silence))
        gathered = _Gathered()
        with self._client.chat.completions.create(**sent, timeout=timeout) as stream:
            kind = stream.response.headers.get("content-type", "")
            if "json" in kind:  # an endpoint that does not stream
                _whole(json.loads(stream.response.read()), gathered)
            else:
                try:
                    ended = self._streamed(stream, stop, end, gathered)
                    if ended is not None:
                        return ended
                except openai.APITimeoutError as error:
                    return _reply(
                        Answered.TIMEOUT, gathered, f"no part of the answer for {silence:g} s: {error.message}"
                    )
                except openai.APIConnectionError as error:
                    return _reply(Answered.CUT, gathered, f"the connection ended inside the answer: {_cause(error)}")
                if not gathered.finish:
                    if not gathered.parts and "event-stream" not in kind:
                        said = f"what answers there sends {kind or 'something'}, not an answer of a model"
                        return Reply(Answered.NO_ENDPOINT, said=said)
                    return _reply(Answered.CUT, gathered, "the connection ended before the answer did")
        return _finished(gathered)

    @staticmethod
    def _streamed(stream: Any, stop: Callable[[], bool], end: float, gathered: _Gathered) -> Reply | None:
        """Reads a stream into ``gathered``; the reply where it was ended from our side."""
        for chunk in stream:
            if stop():
                return _reply(Answered.CUT, gathered, "the run was stopped")
            if time.monotonic() > end:
                return _reply(Answered.TIMEOUT, gathered, "the answer took longer than it may")
            if gathered.length > LONGEST_ANSWER:
                return _reply(Answered.TRUNCATED, gathered, f"an answer of more than {LONGEST_ANSWER} characters")
            part = chunk.model_dump(warnings=False)
            for choice in (part.get("choices") or [])[:1]:
                gathered.add(choice, choice.get("delta") or {})
            gathered.usage = part.get("usage") or gathered.usage
        return None

    def _clean(self, reply: Reply) -> Reply:
        """Without the key, wherever an endpoint repeated it, and without what is no text (lone surrogates, NUL)."""

        def clean(text: str) -> str:
            text = self.access.scrubbed(text).replace("\0", "")
            return text.encode("utf-8", "replace").decode("utf-8")

        text, finish, said = clean(reply.text), clean(reply.finish)[:64], clean(reply.said)
        return replace(reply, text=text, finish=finish, said=said)


# ---------------------------------------------------------------------------------------------------- answers


def _whole(document: Mapping[str, Any], gathered: _Gathered) -> None:
    """An answer that came in one piece."""
    if error := document.get("error"):
        raise ValueError(error.get("message", error) if isinstance(error, dict) else error)
    choice = document["choices"][0]
    gathered.add(choice, choice["message"])
    gathered.finish = gathered.finish or "stop"
    gathered.usage = document.get("usage")


def _finished(gathered: _Gathered) -> Reply:
    if gathered.refusal or gathered.finish == "content_filter":
        return _reply(Answered.REFUSED, gathered, gathered.refusal or "an answer was held back by a filter")
    if gathered.finish == "length":
        return _reply(Answered.TRUNCATED, gathered)
    if not "".join(gathered.parts).strip():
        return _reply(Answered.EMPTY, gathered)
    return _reply(Answered.ANSWERED, gathered)


def _reply(status: Answered, gathered: _Gathered, said: str = "") -> Reply:
    usage = gathered.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    given, made, total = (_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    if given is not None and made is not None and total is not None:
        made = max(made, total - given)  # some count a model's thoughts in the total alone
    return Reply(
        status,
        text="".join(gathered.parts),
        finish=gathered.finish,
        said=said,
        tokens_in=given,
        tokens_out=made,
        tokens_cached=_count(details.get("cached_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


# ---------------------------------------------------------------------------------------------------- failures

_CONTEXT = re.compile(
    "context.?length|maximum context|context window|context size|n_ctx|too many tokens|(prompt|input) is too long",
    re.I,
)


def _failure(error: openai.OpenAIError) -> Reply:
    """An exception of the SDK as a reply."""
    if isinstance(error, openai.APIConnectionError) and isinstance(
        error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout
    ):
        return Reply(Answered.UNREACHABLE, said=_cause(error))
    if isinstance(error, openai.APITimeoutError):
        return Reply(Answered.TIMEOUT, said="the endpoint did not answer in time")
    if isinstance(error, openai.APIConnectionError):  # the request was sent, so that a model may have worked
        return Reply(Answered.CUT, said=f"the connection ended before an answer: {_cause(error)}")
    if isinstance(error, openai.APIStatusError):
        return Reply(_status(error), said=_told(error), again_s=_again(error.response.headers))
    if isinstance(error, openai.APIError):  # an error event inside a stream
        status = Answered.TOO_LONG if _CONTEXT.search(error.message) else Answered.SERVER_ERROR
        return Reply(status, said=error.message)
    return Reply(Answered.NO_ENDPOINT, said=str(error))


def _status(error: openai.APIStatusError) -> Answered:
    code, said = error.status_code, f"{error.code or ''} {_told(error)}"
    if code == 401:
        return Answered.WRONG_KEY
    if code == 402 or error.code == "insufficient_quota":
        return Answered.NO_QUOTA
    if code == 403:
        return Answered.NOT_ALLOWED
    if code == 404:
        return Answered.UNKNOWN_MODEL
    if code == 413 or (code in (400, 422, 500) and _CONTEXT.search(said)):
        return Answered.TOO_LONG
    if code == 408:
        return Answered.TIMEOUT
    if code == 429:
        return Answered.RATE_LIMITED
    return Answered.SERVER_ERROR if code >= 500 or code == 409 else Answered.BAD_REQUEST


def _told(error: openai.APIStatusError) -> str:
    """The endpoint's words for an error, without the page around them that some send."""
    body = error.body
    if isinstance(body, dict):
        said = body.get("message") or body.get("detail") or body
        return f"HTTP {error.status_code}: {said}"
    text = " ".join(re.sub(r"<[^>]*>", " ", str(body or "")).split())
    return f"HTTP {error.status_code}: {text[:300]}".rstrip(": ")


def _again(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``retry-after-ms`` or ``Retry-After`` (a number, or a date)."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", said):
            return float(said) * unit
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _cause(error: BaseException) -> str:
    """What the connection died of: the innermost reason is the one that says something."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(error) or type(error).__name__
