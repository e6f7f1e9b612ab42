"""Bytecode to text by NVIDIA's ``tileirdisasm``, which also verifies it, under process limits."""

from __future__ import annotations

from evaluator.confinement import Limits, run
from evaluator.toolchain import find, first_error

from .errors import TooLarge, Unverified

SECONDS = 20.0
MAX_TEXT = 8 << 20  # bytes; honest kernels have some ten thousand, and reading so many takes a second
LIMITS = Limits(wall_s=SECONDS, cpu_s=int(SECONDS), memory_bytes=4 << 30, output_bytes=MAX_TEXT)


def disassemble(bytecode: bytes) -> str:
    """The module's text with locations.

    Raises Unverified where the tool refuses it, TooLarge for too long a text or one that takes the tool too long,
    EnvironmentLacks without the tool.
    """
    done = run([str(find("tileirdisasm")), "-g", "k.tileir"], limits=LIMITS, files={"k.tileir": bytecode})
    if done.breach == "output":
        raise TooLarge(f"the kernel has more than {MAX_TEXT >> 20} MiB of Tile IR: at most so much is read")
    if done.breach in ("time", "memory"):
        what = f"{SECONDS:.0f} s" if done.breach == "time" else f"{LIMITS.memory_bytes >> 30} GiB"
        raise TooLarge(f"the kernel's Tile IR takes the disassembler more than {what}")
    if done.breach or done.returncode:
        said, line = first_error(done.stderr_tail.decode(errors="replace"))
        said = said or done.breach or f"exit code {done.returncode}"
        raise Unverified(f"the kernel's Tile IR failed to verify: {said}", line=line)
    return done.stdout.decode(errors="replace")
