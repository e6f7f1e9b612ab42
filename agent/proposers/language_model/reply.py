"""What came back from an endpoint, or from a recording, which needs no SDK for that: it takes half a second to load."""

from __future__ import annotations

from dataclasses import dataclass

from knowledge_base.records import Answered, LlmCall


@dataclass(frozen=True)
class Reply:
    """What came back.

    again_s: how long the endpoint wants to be left alone, None if it did not say.  then: the call that was answered so,
    where it is a recorded answer.  most: tokens that an answer may have, if the endpoint has ever said so.
    """

    status: Answered
    text: str = ""
    finish: str = ""
    said: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    again_s: float | None = None
    then: LlmCall | None = None
    most: int | None = None
