"""From a kernel and its signature to Tile IR bytecode, without a GPU and without the assembler.

The bytecode format is pinned (otherwise cuTile probes the installed assembler by running it), and so is the target:
bytecode differs between chips only where the kernel asks for it (``ct.ByTarget``), and there the hints of every target
are in it already.  Nor does it depend on where cuTile is installed, though debug locations name cuTile's own files.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import os
from typing import Any

import cuda.tile
from cuda.tile._exception import TileError
from cuda.tile._passes import ast2hir
from cuda.tile.compilation import KernelSignature, export_kernel

BYTECODE_VERSION = "13.4"
TARGET = "sm_100"  # of the chips served, the one whose front end accepts every dtype


class _Inspect:
    """``inspect`` as the front end sees it: functions of cuTile itself say ``cuda/tile/…`` for their file."""

    _installed = os.path.dirname(cuda.tile.__file__)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getfile(self, thing: Any) -> str:
        path = inspect.getfile(thing)
        return "cuda/tile" + path[len(self._installed) :] if path.startswith(self._installed) else path


ast2hir.inspect = _Inspect()  # type: ignore[attr-defined]


class FrontEndError(Exception):
    """cuTile's front end refused the kernel.  ``line`` is the candidate's, None where the front end names none."""

    def __init__(self, kind: str, message: str, line: int | None) -> None:
        super().__init__(message)
        self.kind, self.message, self.line = kind, message, line


def export(kernel: Any, signature: KernelSignature, filename: str) -> bytes:
    """The bytecode.  Raises FrontEndError; ``filename`` is the candidate's, for the line of the message."""
    out = io.BytesIO()
    try:
        export_kernel(
            kernel,
            [signature],
            out,
            gpu_code=TARGET,
            output_format="tileir_bytecode",
            bytecode_version=BYTECODE_VERSION,
        )
    except TileError as error:
        raise FrontEndError(type(error).__name__, str(error.message), _line(error.loc, filename)) from error
    except (MemoryError, TimeoutError):
        raise
    except Exception as error:
        # Not one of its own: a name that does not exist, a syntax it did not expect, too deep an expression …
        raise FrontEndError(type(error).__name__, f"{type(error).__name__}: {error}", None) from error
    return out.getvalue()


def forget() -> None:
    """Makes the front end read every function afresh: it keeps the values of the names that a function reads."""
    ast2hir.get_function_hir.cache_clear()


def _line(location: Any, filename: str) -> int | None:
    """The candidate's line nearest to the error: helpers of cuTile itself may lie between."""
    while location is not None:
        if location.filename == filename and location.line:
            return int(location.line)
        location = location.call_site
    return None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
