"""Bytecode to text by NVIDIA's ``tileirdisasm``, which also verifies it."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from evaluator.toolchain import find

from .errors import InvalidTileIR

TIMEOUT_S = 30.0


def disassemble(bytecode: bytes) -> str:
    """The module's text with locations.  Raises InvalidTileIR where the tool refuses it, EnvironmentLacks without it.

    Sets no resource limits.
    """
    with tempfile.TemporaryDirectory(prefix="tileir-") as folder:
        path = Path(folder) / "module.tileirbc"
        path.write_bytes(bytecode)
        try:
            done = subprocess.run(
                [str(find("tileirdisasm")), "-g", str(path)], capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidTileIR(f"the disassembler did not end within {TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").replace(str(path), "module").strip()
        raise InvalidTileIR(f"the disassembler refuses the module: {message[:2000]}")
    return done.stdout.decode("utf-8", "replace")
