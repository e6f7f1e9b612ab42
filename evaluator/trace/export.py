"""From a kernel and its signature to Tile IR bytecode, without a GPU and without the assembler.

The bytecode format is pinned (otherwise cuTile probes the installed assembler by running it), and so is the target:
bytecode differs between chips only where the kernel asks for it (``ct.ByTarget``), and there the hints of every target
are in it already.  Nor does it depend on where cuTile is installed, though debug locations name cuTile's own files.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import traceback
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import cuda.tile
from cuda.tile import _compile
from cuda.tile._exception import TileError
from cuda.tile._passes import ast2hir
from cuda.tile.compilation import KernelSignature

BYTECODE_VERSION = "13.4"
TARGET = "sm_100"  # of the chips served, the one whose front end accepts every dtype
KEPT = 16  # kernels whose IR is kept, the latest used: configurations that differ in hints come close together


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


class FrontEnd:
    """cuTile's front end.  It keeps the IR of the latest kernels: one that differs in its hints alone has the same.

    That IR is most of the work.  ``cuda.tile.compilation.export_kernel`` is what this does, without keeping anything.
    """

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def export(self, kernel: Any, signature: KernelSignature, like: Hashable) -> bytes:
        """The bytecode.  like: the same for kernels of the same function and signature, where the names that the
        function reads have the same values.  Raises FrontEndError, with the candidate's line.
        """
        try:
            keeper = self._kept.pop(like, None) or _keeper(kernel._annotated_function, signature)
            made = _compile._get_bytecode(keeper, kernel._compiler_options, anonymize_debug_info=False).bytecode
        except TileError as error:
            said = str(error.message) or _wordless(error)
            raise FrontEndError(type(error).__name__, said, _line(error.loc, self._filename)) from error
        except (MemoryError, TimeoutError):
            raise
        except Exception as error:
            # Not one of its own: a name that does not exist, a syntax it did not expect, too deep an expression …
            raise FrontEndError(type(error).__name__, f"{type(error).__name__}: {error}", None) from error
        self._kept[like] = keeper
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return bytes(made)


def _wordless(error: BaseException) -> str:
    """An assertion of the front end's own says where it stands, if nothing else."""
    inner = error.__cause__ or error.__context__ or error
    frames = traceback.extract_tb(inner.__traceback__)
    return f"{type(inner).__name__} in {frames[-1].name}, of cuTile's front end" if frames else type(inner).__name__


def _keeper(function: Any, signature: KernelSignature) -> Any:
    named = signature if signature.symbol else signature.with_mangled_symbol(function.pyfunc.__name__)
    return _compile._IrKeeper(
        ann_func=function,
        func_hir=_compile.get_function_hir(function.pyfunc, mode=_compile.HirMode.ENTRY_POINT),
        signatures=[named],
        bytecode_version=_compile.parse_bytecode_version(BYTECODE_VERSION),
        sm_arch=TARGET,
        log_cutile_ir=False,
        keep_all=True,
    )


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
