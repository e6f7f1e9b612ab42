"""One request to an endpoint, and what came back, whatever it was: an answer or a failure, never an exception.

Answers are streamed, so that a run can be stopped inside one, and a silent connection is noticed.  Endpoints differ in
what they know of the protocol: :mod:`.dialect`.  The SDK sends a request, but what comes is read here, part by part:
the SDK's own reader stops for nobody while keep-alives come, and holds a document of any length.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import openai

from agent.proposers.access import OPENAI, Access
from knowledge_base.records import Answered

from .dialect import Dialect
from .reply import Reply

CONNECT_S = 15.0
SILENCE_S = 300.0  # between two parts of an answer; a model that thinks before it writes says nothing for minutes
LONGEST_S = 1800.0  # for a whole answer
LONGEST_ANSWER = 1_000_000  # characters; what goes on longer is no kernel
EVENT_FIELDS = ("data", "event", "id", "retry", "")  # of server-sent events; a line that begins with : is a comment
LONGEST_LINE = 8 * LONGEST_ANSWER  # bytes of an answer in one piece, or of one part of another: JSON may escape them


class _Ended(Exception):
    """An answer that is not read to its end, for a reason of ours."""

    def __init__(self, status: Answered, said: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said


@dataclass
class _Gathered:
    """An answer so far.  begun: the model has written something, if only thoughts."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    refusal: str = ""
    finish: str = ""
    usage: Any = None
    begun: bool = False

    def add(self, document: Mapping[str, Any], message: str) -> None:
        """A part of the answer (``message``: delta), or all of it (message)."""
        for choice in (document.get("choices") or [])[:1]:
            said = choice.get(message) or {}
            text = _text(said.get("content"))
            self.parts.append(text)
            self.length += len(text)
            refusal, finish = said.get("refusal"), choice.get("finish_reason")
            self.refusal += refusal if isinstance(refusal, str) else ""
            self.finish = finish if isinstance(finish, str) else self.finish
            self.begun = self.begun or any(value for name, value in said.items() if name != "role")
        self.usage = document.get("usage") or self.usage


def _text(content: Any) -> str:
    """What a message says, without the thoughts that some endpoints put beside it."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class Endpoint:
    """A model behind an address.  Threads may share one."""

    def __init__(self, access: Access) -> None:
        self.access = access
        timeout = openai.Timeout(SILENCE_S, connect=CONNECT_S)
        # Retries are the caller's: each one is recorded, and counts against the budget.
        self._client = openai.OpenAI(api_key=access.key, base_url=access.base_url, max_retries=0, timeout=timeout)
        self._dialect = Dialect("max_completion_tokens" if access.address == OPENAI else "max_tokens")

    def ask(
        self, body: Mapping[str, Any], stop: Callable[[], bool] = lambda: False, seconds: float = float("inf")
    ) -> Reply:
        """Sends ``body`` (model, messages, max_tokens) and returns the reply.

        stop: true ends it between two parts of the answer.  seconds: it may take at most.
        """
        end = time.monotonic() + min(seconds, LONGEST_S)
        while True:
            sent = self._dialect.spelled(body)
            try:
                return self._clean(self._asked(sent, stop, end))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                failure = _failure(error)
                said = f"{error.param or ''} {failure.said}"
                if failure.status is not Answered.BAD_REQUEST or not self._dialect.learnt(body, sent, said):
                    return self._clean(failure)
            except openai.OpenAIError as error:
                return self._clean(_failure(error))

    def _asked(self, sent: Mapping[str, Any], stop: Callable[[], bool], end: float) -> Reply:
        silence = min(SILENCE_S, max(1.0, end - time.monotonic()))
        timeout = openai.Timeout(silence, connect=min(CONNECT_S, silence))
        gathered = _Gathered()
        completions = self._client.chat.completions.with_streaming_response
        with completions.create(**sent, timeout=timeout) as response:
            try:
                _read(_lines(response.iter_bytes(), stop, end), gathered)
            except _Ended as ended:
                return _reply(ended.status, gathered, ended.said)
            except httpx2.TimeoutException as error:
                said = f"no part of the answer for {silence:g} s: {_cause(error)}"
                return _reply(Answered.TIMEOUT, gathered, said)
            except httpx2.HTTPError as error:
                return _reply(Answered.CUT, gathered, f"the connection ended inside the answer: {_cause(error)}")
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
                said = f"the endpoint's answer can't be read: {type(error).__name__}: {error}"
                return _reply(Answered.CUT if gathered.begun else Answered.NO_ENDPOINT, gathered, said)
        return _finished(gathered)

    def _clean(self, reply: Reply) -> Reply:
        """Without the key, wherever an endpoint repeated it, and without what is no text (lone surrogates, NUL).

        With the limit on answers, where the endpoint has named one.
        """

        def clean(text: str) -> str:
            text = self.access.scrubbed(text).replace("\0", "")
            return text.encode("utf-8", "replace").decode("utf-8")

        text, finish, said = clean(reply.text), clean(reply.finish)[:64], clean(reply.said)
        return replace(reply, text=text, finish=finish, said=said, most=self._dialect.most)


# ---------------------------------------------------------------------------------------------------- reading


def _lines(parts: Iterator[bytes], stop: Callable[[], bool], end: float) -> Iterator[str]:
    """The lines of what comes; at its end what is left.  Raises _Ended, looked for at every sign of life."""
    kept: list[bytes] = []  # of a line that goes on
    length = 0
    for part in parts:
        if stop():
            raise _Ended(Answered.CUT, "the run was stopped")
        if time.monotonic() > end:
            raise _Ended(Answered.TIMEOUT, "the answer took longer than it may")
        *whole, rest = part.split(b"\n")
        for line in whole:
            yield b"".join((*kept, line)).decode("utf-8", "replace").rstrip("\r")
            kept, length = [], 0
        kept.append(rest)
        length += len(rest)
        if length > LONGEST_LINE:
            raise _Ended(Answered.TRUNCATED, f"a line of more than {LONGEST_LINE:,} bytes")
    yield b"".join(kept).decode("utf-8", "replace")


def _read(lines: Iterator[str], gathered: _Gathered) -> None:
    """Reads server-sent events, or one document (from an endpoint that does not stream), into ``gathered``.

    Raises _Ended, and what Python raises of what is not as the protocol has it.
    """
    others: list[str] = []  # what is no event
    size = 0
    for line in lines:
        name, colon, data = line.partition(":")
        if others or (line.strip() and not (colon and name in EVENT_FIELDS)):
            others.append(line)
            size += len(line)
            if size > LONGEST_LINE:
                raise _Ended(Answered.TRUNCATED, f"an answer of more than {LONGEST_LINE:,} characters")
            continue
        data = data.strip()
        if name != "data" or not data:
            continue
        if data == "[DONE]":
            gathered.finish = gathered.finish or "stop"
            return
        _event(json.loads(data), gathered)
        if gathered.length > LONGEST_ANSWER:
            raise _Ended(Answered.TRUNCATED, f"an answer of more than {LONGEST_ANSWER:,} characters")
    if others and not gathered.begun:
        _whole("\n".join(others), gathered)
    elif not gathered.finish:
        raise _Ended(Answered.CUT, "the connection ended before the answer did")


def _event(document: Mapping[str, Any], gathered: _Gathered) -> None:
    """One part of a streamed answer.  Raises _Ended where it is an error."""
    gathered.add(document, "delta")
    if error := document.get("error"):
        said = str(error.get("message") or error) if isinstance(error, dict) else str(error)
        if gathered.begun:
            raise _Ended(Answered.CUT, f"an error inside the answer: {said}")
        raise _Ended(Answered.TOO_LONG if _CONTEXT.search(said) else Answered.SERVER_ERROR, said)


def _whole(text: str, gathered: _Gathered) -> None:
    """An answer that came in one piece."""
    try:
        document = json.loads(text)
    except ValueError:
        if text.lstrip()[:1] == "{":  # it began as one
            raise _Ended(Answered.CUT, "the connection ended inside the answer") from None
        raise _Ended(Answered.NO_ENDPOINT, f"not an answer of a model: {_plain(text)}") from None
    if error := document.get("error"):
        raise ValueError(error.get("message", error) if isinstance(error, dict) else error)
    if "message" not in document["choices"][0]:
        raise LookupError("it holds no message")
    gathered.add(document, "message")
    gathered.finish = gathered.finish or "stop"


# ---------------------------------------------------------------------------------------------------- answers


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
    if not given or (not made and gathered.begun):  # counts that cannot be are none
        given = made = None
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

_FILTER = re.compile("content.?filter|content management policy|content policy|safety (system|filter)", re.I)


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
        status = _status(error)
        counted = 0 if status is Answered.REFUSED else None  # no model has worked
        again_s = _again(error.response.headers)
        return Reply(status, said=_told(error), again_s=again_s, tokens_in=counted, tokens_out=counted)
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
    if code in (405, 501):  # POST is not known there, or became GET by a redirect (301, 302: RFC 9110, 15.4)
        return Answered.NO_ENDPOINT
    if code == 413 or (code in (400, 422, 500) and _CONTEXT.search(said)):
        return Answered.TOO_LONG
    if code == 408:
        return Answered.TIMEOUT
    if code == 429:
        return Answered.RATE_LIMITED
    if code == 400 and _FILTER.search(said):
        return Answered.REFUSED
    return Answered.SERVER_ERROR if code >= 500 or code == 409 else Answered.BAD_REQUEST


def _told(error: openai.APIStatusError) -> str:
    """The endpoint's words for an error, without the page around them that some send."""
    body = error.body
    said = (body.get("message") or body.get("detail") or body) if isinstance(body, dict) else _plain(str(body or ""))
    where = f" from {error.response.url}, where it was sent on to" if error.response.history else ""
    return f"HTTP {error.status_code}{where}: {said}".rstrip(": ")


def _plain(page: str) -> str:
    """What a page says, in short."""
    text = re.sub(r"<(style|script|head)\b.*?</\1>", " ", page[:20_000], flags=re.I | re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())[:300]


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
