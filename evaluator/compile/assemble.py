"""One run of tileiras: a bytecode in, a cubin with evidence or a Verdict out, under process limits.

tileiras is trusted, its input is not: it runs in :mod:`evaluator.confinement` with a cleared environment and its own
folder.  Without line information a cubin does not depend on where its source lay, so
the same kernel gives the same cubin wherever it is assembled.
"""

from __future__ import annotations

import math

from evaluator.confinement import Limits, run
from evaluator.toolchain import Tool, first_error
from kernels_generated.runtime.assembler import OPTIMISED
from knowledge_base.hints import classify
from knowledge_base.records import CompileEvidence, Stage, Status, Verdict

from . import cubin as cubins
from .cache import Compiled
from .remarks import scalar_mma, summary

OPTIONS = (OPTIMISED, "--remarks=all", "--remark-format=yaml")  # remarks change nothing of the cubin
MAX_BYTECODE = 16 << 20  # honest bytecodes are a few KiB

# An honest kernel takes 0.2 to 7 s of a processor and 120 to 200 MB; beyond a minute its tiles are far too large.
SECONDS = 60.0
WALL_FACTOR = 4  # wall time allowed per second of processor time: other work may hold the processors


def limits(seconds: float) -> Limits:
    """What one assembly may use: address space is above 2 GiB for any kernel, resident memory below 200 MB."""
    return Limits(wall_s=WALL_FACTOR * seconds, cpu_s=math.ceil(seconds), memory_bytes=4 << 30, output_bytes=1 << 20)


def assemble(kernel: str, bytecode: bytes, arch: str, tool: Tool, seconds: float = SECONDS) -> Compiled | Verdict:
    """Assembles ``bytecode`` (SHA-256 ``kernel``) for ``arch``.  A refusal, crash or timeout is a Verdict."""
    if len(bytecode) > MAX_BYTECODE:
        return _rejected(Status.COMPILE_ERROR, f"a bytecode of {len(bytecode)} bytes: the limit is {MAX_BYTECODE}")
    done = run(
        [str(tool.path), f"--gpu-name={arch}", *OPTIONS, "--remarks-output-file=k.yaml", "-o", "k.cubin", "k.tileir"],
        limits=limits(seconds),
        files={"k.tileir": bytecode},
        collect=("k.cubin", "k.yaml"),
    )
    if done.breach == "time":
        message = f"the assembler ran longer than {seconds:g} s for {arch}: too large a tile, or too much unrolled"
        return _rejected(Status.TIMEOUT, message, error_class="compile-timeout")
    message, line = first_error(done.stderr_tail.decode(errors="replace"))
    if done.breach:
        ended = f"signal {-done.returncode}" if done.breach == "signal" else f"its limit of {done.breach}"
        said = f": {message}" if message else ""
        return _rejected(
            Status.COMPILE_ERROR, f"tileiras ended with {ended} for {arch}{said}", line, error_class="assembler-crash"
        )
    if done.returncode:
        message = message or f"tileiras ended with return code {done.returncode} for {arch}"
        return _rejected(Status.COMPILE_ERROR, message, line)
    binary = done.files.get("k.cubin", b"")
    try:
        facts = cubins.read(binary)
    except cubins.CubinError as error:
        message = f"tileiras ended without a usable cubin for {arch}: {error}"
        return _rejected(Status.COMPILE_ERROR, message, error_class="assembler-crash")
    remarks = summary(done.files.get("k.yaml", b"").decode(errors="replace"))
    return Compiled(binary, evidence(kernel, arch, facts, len(binary), done.seconds, remarks))


def evidence(
    kernel: str, arch: str, facts: cubins.CubinFacts, size: int, seconds: float, remarks: tuple[str, ...]
) -> CompileEvidence:
    """The evidence record.  Spills: the frame, where the code loads or stores local memory."""
    instructions = dict(facts.mma)
    mma = max(instructions, key=lambda name: instructions[name], default="fma" if scalar_mma(remarks) else "")
    return CompileEvidence(
        arch=arch,
        kernel=kernel,
        symbol=facts.symbol,
        registers=facts.registers,
        stack_bytes=facts.stack_bytes,
        spill_bytes=facts.stack_bytes if facts.local_instructions else 0,
        shared_bytes=facts.shared_bytes,
        mma=mma,
        tma=facts.tma,
        threads=facts.threads,
        ctas=facts.ctas,
        local_instructions=facts.local_instructions,
        serialised_wgmma=facts.serialised_wgmma,
        wgmma_in_flight=facts.wgmma_in_flight,
        loop_local_instructions=facts.loop_local_instructions,
        cubin_bytes=size,
        seconds=round(seconds, 3),
        remarks=remarks,
    )


def _rejected(status: Status, message: str, line: int | None = None, error_class: str = "") -> Verdict:
    error_class, hint = classify(status.value, message, error_class)
    return Verdict(status=status, stage=Stage.COMPILE, error_class=error_class, message=message, hint=hint, line=line)
