"""Bytecode to text by NVIDIA's ``tileirdisasm``, which also verifies it."""

from __future__ import annotations

import functools
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from .errors import InvalidTileIR

TIMEOUT_S = 30.0


class MissingDisassembler(RuntimeError):
    """``tileirdisasm`` is not installed."""


@functools.cache
def disassembler() -> str:
    """The path of ``tileirdisasm``: in the toolchain wheel (nvidia-cuda-tileiras) or under CUDA_HOME."""
    roots = [
        Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13",
        Path(sysconfig.get_path("platlib")) / "nvidia/cu13",
    ]
    roots += [Path(os.environ[v]) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    for root in roots:
        path = root / "bin" / "tileirdisasm"
        if path.is_file():
            return str(path)
    raise MissingDisassembler("tileirdisasm is not installed: pip install nvidia-cuda-tileiras==13.4.92")


def disassemble(bytecode: bytes) -> str:
    """The module's text with locations.  Raises InvalidTileIR where the tool refuses it.  Sets no resource limits."""
    with tempfile.TemporaryDirectory(prefix="tileir-") as folder:
        path = Path(folder) / "module.tileirbc"
        path.write_bytes(bytecode)
        try:
            done = subprocess.run(
                [disassembler(), "-g", str(path)], capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidTileIR(f"the disassembler did not end within {TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").replace(str(path), "module").strip()
        raise InvalidTileIR(f"the disassembler refuses the module: {message[:2000]}")
    return done.stdout.decode("utf-8", "replace")
