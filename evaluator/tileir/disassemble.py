"""Bytecode to text by NVIDIA's ``tileirdisasm``, which also verifies it, under process limits."""

from __future__ import annotations

from evaluator import confine
from evaluator.toolchain import find, first_error

from .errors import Unverified

SECONDS = 20.0
LIMITS = confine.Limits(wall_s=SECONDS, cpu_s=int(SECONDS), memory_bytes=4 << 30)


def disassemble(bytecode: bytes) -> str:
    """The module's text with locations.  Raises Unverified where the tool refuses it, EnvironmentLacks without it."""
    done = confine.run([str(find("tileirdisasm")), "-g", "k.tileir"], limits=LIMITS, files={"k.tileir": bytecode})
    if done.breach or done.returncode:
        said, line = first_error(done.stderr_tail.decode(errors="replace"))
        said = said or done.breach or f"exit code {done.returncode}"
        raise Unverified(f"the kernel's Tile IR failed to verify: {said}", line=line)
    return done.stdout.decode(errors="replace")
