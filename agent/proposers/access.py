"""Where a language model is asked, and with which key.  The key is here and in the requests' headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from knowledge_base.errors import UserError

OPENAI = "https://api.openai.com/v1"
NO_KEY = "none"  # what is sent to an endpoint of one's own that wants no key
SHORTEST_SECRET = 8  # characters; what is shorter is a word that an endpoint of one's own takes for a key


@dataclass(frozen=True)
class Access:
    """A model at an endpoint that speaks OpenAI's protocol.  ``base_url`` may hold something secret, too."""

    base_url: str = field(repr=False)
    key: str = field(repr=False)
    model: str

    @property
    def address(self) -> str:
        """The endpoint for people and records: scheme, host, port and path."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"

    def scrubbed(self, text: str) -> str:
        """``text`` without the key and without what the address leaves out."""
        parts = urlsplit(self.base_url)
        for secret in (self.key, parts.password, parts.query):
            if secret and len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def access(model: str | None, environment: Mapping[str, str]) -> Access | str:
    """The access that OPENAI_API_KEY, OPENAI_BASE_URL and ``model`` or OPENAI_MODEL give, or why there is none.

    Raises UserError for an address that is none.
    """
    key, url = environment.get("OPENAI_API_KEY", "").strip(), environment.get("OPENAI_BASE_URL", "").strip()
    named = (model or environment.get("OPENAI_MODEL", "")).strip()
    if not key and not url:
        return "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set"
    if url:
        _check(url)
    if not named:
        there = "OPENAI_API_KEY" if key else "OPENAI_BASE_URL"
        return f"{there} is set, but neither --model nor OPENAI_MODEL names a model"
    if not key.isascii() or not key.isprintable():
        raise UserError("OPENAI_API_KEY holds characters that no key has", "Set it anew, without blanks and quotes.")
    return Access(url or OPENAI, key or NO_KEY, named)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise UserError("OPENAI_BASE_URL is no address of an endpoint", "For example http://localhost:8000/v1.")
