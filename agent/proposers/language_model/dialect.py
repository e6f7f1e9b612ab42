"""How an endpoint wants a request to be spelled, learnt from what it refuses.

All speak OpenAI's protocol, and each leaves something of it out: an option, a role, an answer as long as ours may be.
What one refuses by name is left out, or spelled in the other way, from then on.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

LIMITS = ("max_completion_tokens", "max_tokens")  # two names of the greatest length of an answer
LEAST_LIMIT = 256  # tokens; a smaller number in an endpoint's words is no limit on an answer

_UNKNOWN = re.compile(
    r"unsupported|not supported?|does(?: not|n't) support|unknown|unrecogni[sz]ed|not permitted|extra|unexpected"
    r"|not allowed|verified|invalid (?:parameter|param|field|argument|option)",
    re.I,
)
_TOO_LARGE = re.compile(
    r"too large|at most|less than|greater than|exceed|range|maximum|must be|<=?|>=?|\bup to\b|limit", re.I
)
_OF_AN_ANSWER = re.compile(r"max_\w*tokens|(?:completion|output) tokens", re.I)
_ROLE = re.compile(r"system\W{0,3}(?:\w+ ){0,3}(?:role|message|instruction|prompt)|role\b.{0,60}system", re.I | re.S)
# Whole numbers, "8,192" too, but no part of a name or of a version ("gpt-4.1", "v2").
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?![\w.]*\d)")


class Dialect:
    """Of one endpoint.  Threads may share it."""

    def __init__(self, limit: str) -> None:
        """``limit``: which of LIMITS is tried first."""
        self._lock = threading.Lock()
        self._limit = limit
        self._left_out: set[str] = set()
        self._one_role = False
        self.most: int | None = None  # tokens that an answer may have, if the endpoint said so

    def spelled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request ``body`` (model, messages, max_tokens) as this endpoint takes it."""
        with self._lock:
            return self._spelled(body)

    def learnt(self, body: Mapping[str, Any], sent: Mapping[str, Any], said: str) -> bool:
        """Whether the request that was ``sent`` for ``body`` and refused with ``said`` would be another one now."""
        with self._lock:
            # Another request of the same moment may have been refused for the same reason before.
            if self._spelled(body) == sent:
                self._learn(sent, said)
            return self._spelled(body) != sent

    def _spelled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
        most = sent.pop("max_tokens")
        sent[self._limit] = most if self.most is None else min(most, self.most)
        if self._one_role:
            sent["messages"] = _in_one(sent["messages"])
        return {name: value for name, value in sent.items() if name not in self._left_out}

    def _learn(self, sent: Mapping[str, Any], said: str) -> None:
        if _OF_AN_ANSWER.search(said) and _TOO_LARGE.search(said):
            numbers = [int(number.replace(",", "")) for number in _NUMBER.findall(said)]
            smaller = [number for number in numbers if LEAST_LIMIT <= number < sent[self._limit]]
            if smaller:
                self.most = max(smaller) - ("exclusive" in said)
                return
        if not _UNKNOWN.search(said):
            return
        if _ROLE.search(said):
            self._one_role = True
            return
        for name in (*LIMITS, "stream_options", "stream"):
            if name not in sent or not re.search(rf"(?<!\w){name}(?!\w)", said):
                continue
            if name in LIMITS:
                other = LIMITS[1 - LIMITS.index(name)]
                if other in self._left_out:
                    return  # an answer without a limit may cost anything
                self._limit = other
            self._left_out |= {name, "stream_options"} if name == "stream" else {name}
            return


def _in_one(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the role "system": what it says stands before what the user says."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    first = {**others[0], "content": "\n\n".join([*system, others[0]["content"]])}
    return [first, *others[1:]]
