"""The compile cache: what tileiras made of a bytecode, kept by content, verified on every load.

A key is the SHA-256 of (format, bytecode hash, architecture, tileiras version, options); an entry is one file: a JSON
line (evidence or verdict, seal of all) and the cubin.  Entries appear by rename, so two runs at once never see half a
file and at worst both do the same work.  An entry whose seal does not fit is deleted and made anew.  When the folder
grows beyond its limit, the entries used longest ago go first.  cuTile's own cache is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from knowledge_base.records import CompileEvidence, Verdict
from knowledge_base.seal import folder as own_folder
from knowledge_base.seal import seal

# Raise it when an entry's meaning changes: the evidence's definitions, the limits of what is cached, how the words of
# tileiras are read.
FORMAT = 4
LIMIT_BYTES = 1 << 30  # about ten thousand cubins
_PRUNE_TO = 0.8  # of the limit, so that not every write prunes


@dataclass(frozen=True)
class Compiled:
    """A cubin and what it tells."""

    cubin: bytes
    evidence: CompileEvidence

    @property
    def digest(self) -> str:
        """SHA-256 of the cubin."""
        return hashlib.sha256(self.cubin).hexdigest()


def key(kernel: str, arch: str, version: str, options: tuple[str, ...]) -> str:
    """The name of the entry for a bytecode (by hash) assembled by a tileiras version with options."""
    text = json.dumps([FORMAT, kernel, arch, version, list(options)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A folder of entries.  Every failure of the file system is a miss, never an error: a cache is a convenience."""

    def __init__(self, folder: Path | str | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = (Path(folder) if folder is not None else own_folder()) / "cubins"
        self.limit_bytes = limit_bytes

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def get(self, name: str) -> Compiled | Verdict | None:
        """The entry called ``name``, or None; a damaged entry is deleted."""
        path = self.path(name)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        found = _decode(name, data)
        with contextlib.suppress(OSError):
            os.utime(path) if found is not None else path.unlink()
        return found

    def put(self, name: str, value: Compiled | Verdict) -> None:
        """Stores an entry under ``name``; now and then, on average of 64 times once, the folder is pruned."""
        path = self.path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(name, value))
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if int(name[:2], 16) < 4:  # looking at every entry takes long; names are as good as drawn
            self.prune()

    def prune(self) -> int:
        """Deletes the entries used longest ago until the folder is well below its limit; returns how many went."""
        entries = []
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return 0
        gone = 0
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes * _PRUNE_TO:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                gone += 1
            total -= size
        return gone


def _encode(name: str, value: Compiled | Verdict) -> bytes:
    cubin = value.cubin if isinstance(value, Compiled) else b""
    record = value.evidence if isinstance(value, Compiled) else value
    kind = "evidence" if isinstance(value, Compiled) else "verdict"
    body = record.model_dump_json()
    return json.dumps({kind: body, "seal": _seal(kind, name, body, cubin)}).encode() + b"\n" + cubin


def _decode(name: str, data: bytes) -> Compiled | Verdict | None:
    head, _, cubin = data.partition(b"\n")
    try:
        entry = json.loads(head)
        kind = "evidence" if "evidence" in entry else "verdict"
        body = entry[kind]
        if not hmac.compare_digest(entry["seal"], _seal(kind, name, body, cubin)):
            return None
        if kind == "evidence":
            return Compiled(cubin, CompileEvidence.model_validate_json(body))
        return Verdict.model_validate_json(body)
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None


def _seal(kind: str, name: str, body: str, cubin: bytes) -> str:
    return seal(kind, name, body, hashlib.sha256(cubin).hexdigest())
