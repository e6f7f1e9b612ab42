"""The file that carries rows from base to base: JSON Lines, one thing a line, with a checksum at the end.

The first line says which base it is from, the last one how many lines stand between them and the SHA-256 of all bytes
before it.  A name that ends with .gz makes it gzip; what is read is known by its first bytes.
What a line may hold is :mod:`knowledge_base.sharing.lines`' business.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from knowledge_base.content import canonical
from knowledge_base.errors import EnvironmentLacks, UserError

KIND = "tilewright knowledge"
VERSION = 1
MOST = 1 << 24  # bytes of a line: a candidate's source is far below
_GZIP = b"\x1f\x8b"
_AGAIN = "Export it again, or copy it again from where it came."


def write(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Writes (or replaces) the file as a whole: whoever looks meanwhile sees the old one.

    Raises EnvironmentLacks where it can't be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    _write(packed, header, lines)
            else:
                _write(file, header, lines)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = ""
    except OSError as error:
        raise EnvironmentLacks(f"{path} can't be written: {error.strerror}", "Name another file.") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _write(out: Any, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    said, count = hashlib.sha256(), 0

    def put(line: Mapping[str, Any]) -> None:
        text = canonical(line).encode() + b"\n"
        said.update(text)
        out.write(text)

    put({"kind": KIND, "version": VERSION, **header})
    for line in lines:
        put(line)
        count += 1
    put({"kind": "end", "lines": count, "sha256": said.hexdigest()})


def _umask() -> int:
    was = os.umask(0)
    os.umask(was)
    return was


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, line) of the first line and those between it and the last one.

    Raises UserError, sooner or later, for a file that is not what was written: use nothing of it before the end.
    """
    said, number, last = hashlib.sha256(), 0, None
    for number, text in _lines(path):
        if last is not None:
            raise UserError(f"{path}, line {number}: something follows the last line", _AGAIN)
        line = _document(path, number, text)
        if number == 1:
            _check_first(path, line)
        if line.get("kind") == "end":
            last = {"kind": "end", "lines": number - 2, "sha256": said.hexdigest()}
            if line != last:
                raise UserError(f"{path} was changed, or damaged: its checksum is another one", _AGAIN)
            continue
        said.update(text)
        yield number, line
    if last is None:
        what = f"it ends with line {number}, which is not the last one" if number else "it is empty"
        raise UserError(f"{path} is not whole: {what}", _AGAIN)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _opened(path) as file:
            while text := file.readline(MOST):
                number += 1
                if not text.endswith(b"\n"):
                    wrong = f"longer than {MOST >> 20} MiB" if len(text) == MOST else "cut off"
                    raise UserError(f"{path}, line {number} is {wrong}", _AGAIN)
                yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged after line {number}: {error}", _AGAIN) from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}", "`agent kb export FILE` writes one.") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        if file.peek(2)[:2] != _GZIP:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed:
            yield packed


def _document(path: Path, number: int, text: bytes) -> dict[str, Any]:
    def no(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        found = json.loads(text, parse_constant=no)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number} is no JSON: {error}", _AGAIN) from None
    if not isinstance(found, dict):
        raise UserError(f"{path}, line {number} is not an object", _AGAIN)
    return found


def _check_first(path: Path, line: Mapping[str, Any]) -> None:
    if line.get("kind") != KIND:
        raise UserError(f"{path} is no export of a knowledge base", "`agent kb export FILE` writes one.")
    if line.get("version") != VERSION:
        raise UserError(
            f"{path} was written by another tilewright (its form is {line.get('version')!r}, this one reads {VERSION})",
            "Use the same version here and there.",
        )
