"""What this user keeps on this machine, apart from any project: a folder, and in it the key that seals results.

A verdict or a cubin that was stored is reused only if this user's own evaluator stored it: it carries a seal, which
takes the key to make.  Candidates cannot read the key where the kernel keeps their files apart (docs/judging.md, levels
``full`` and ``filtered``).  What is sealed by somebody else, or was changed since, is made anew, never an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from knowledge_base.content import canonical

KEY_BYTES = 32


def folder() -> Path:
    """$TILEWRIGHT_CACHE, or tilewright under $XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("TILEWRIGHT_CACHE"):
        return Path(os.environ["TILEWRIGHT_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tilewright"


def seal(kind: str, *parts: object) -> str:
    """The seal (64 hex digits) of what JSON can hold of ``parts``; ``kind`` keeps the seals of different things apart.

    HMAC-SHA-256.  Where no key can be kept it holds for this process alone.
    """
    return hmac.new(_key(folder()), canonical([kind, *parts]).encode(), hashlib.sha256).hexdigest()


@functools.cache
def _key(at: Path) -> bytes:
    """The key in a folder, made if there is none; of two that make one at once the first wins.

    Where a file system has no hard links the last one wins, and what the other process seals is made anew some day.
    """
    path = at / "key"
    with contextlib.suppress(OSError):
        at.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            handle, temporary = tempfile.mkstemp(dir=at, prefix=".new-")  # readable for its owner alone
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    pass
                except OSError:
                    os.replace(temporary, path)
            finally:
                Path(temporary).unlink(missing_ok=True)
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    return secrets.token_bytes(KEY_BYTES)
