"""Content hashes: equal content gives equal text gives an equal key, on every machine.

JSON has no infinities or NaN; they become Python's own spelling (``"nan"``), so that every database can hold them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def readable(text: str) -> str:
    """``text`` as every output and database takes it: a file name's bytes that are no UTF-8 are spelled ``\\xe9``."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def plain(value: Any) -> Any:
    """``value`` with mappings, sequences, strings and finite numbers only: what JSON can hold."""
    if isinstance(value, Mapping):
        return {readable(str(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return readable(str(value))


def canonical(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no blanks."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_key(*parts: Any) -> str:
    """SHA-256 (hex) of the parts' canonical text."""
    return hashlib.sha256(canonical(list(parts)).encode()).hexdigest()
