"""The records everyone shares: Verdict, Finding, CompileEvidence, Candidate, Measurement.

Frozen pydantic models: they cross process and database borders as JSON.  A Task is in :mod:`knowledge_base.snf.task`, a
LaunchPlan in :mod:`kernels_generated.runtime.plan`.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A frozen record; unknown fields are an error, so that a stale reader notices."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Status(StrEnum):
    """What the evaluator says of a candidate."""

    CORRECT = "correct"
    WRONG = "wrong"  # numbers differ from the reference
    UNSAFE = "unsafe"  # out of bounds, race, undefined data, aliasing
    INVALID = "invalid"  # breaks the candidate file's contract
    BUILD_ERROR = "build-error"  # cuTile's front end refused it
    COMPILE_ERROR = "compile-error"  # tileiras refused it
    INFEASIBLE = "infeasible"  # launch raised ValueError: not for this configuration or size
    UNSUPPORTED = "unsupported"  # the emulator lacks an op
    DISAGREES = "disagrees"  # GPU and emulator differ beyond rounding: a defect of ours
    TIMEOUT = "timeout"
    CRASH = "crash"


class Stage(StrEnum):
    """Where a verdict was reached."""

    STATIC = "static"
    IMPORT = "import"
    TRACE = "trace"
    COMPILE = "compile"
    EMULATE = "emulate"
    COMPARE = "compare"
    REPLAY = "replay"
    DONE = "done"


class Finding(Record):
    """One thing the sanitizer saw."""

    kind: str  # out-of-bounds | race | undetermined-padding | uninitialised | aliasing | not-written | …
    message: str
    launch: int | None = None  # index among the plan's launches
    block: tuple[int, int, int] | None = None
    op: str = ""
    line: int | None = None  # of the candidate
    element: int | None = None  # linear index in the buffer
    buffer: str = ""


class CompileEvidence(Record):
    """What one cubin tells without running; sizes in bytes per thread (stack, spills) or per block (shared)."""

    arch: str  # sm_90 …
    kernel: str  # SHA-256 of the bytecode
    symbol: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int  # with the 1 KiB that the system reserves
    mma: str = ""  # wgmma, tcgen05, mma.sync, fma (a contraction on scalar units) …; empty: none
    tma: bool = False
    threads: int = 0  # per block
    ctas: int = 1  # blocks per cluster
    local_instructions: int = 0  # loads and stores of local memory in the code
    serialised_wgmma: bool = False  # the code waits after every wgmma group
    cubin_bytes: int = 0
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()


class Verdict(Record):
    """The evaluator's answer about one candidate in one configuration for one task."""

    status: Status
    stage: Stage
    error_class: str = ""  # a key of the error table; empty when correct
    message: str = ""  # one or two sentences for a person
    hint: str = ""  # the error table's deterministic advice
    line: int | None = None  # of the candidate
    source: str = ""  # that line's text
    numbers: dict[str, Any] = Field(default_factory=dict)  # errors against the yardstick, per distribution and size
    findings: tuple[Finding, ...] = ()
    evidence: tuple[CompileEvidence, ...] = ()

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT


class Candidate(Record):
    """A candidate file: its source and where it came from."""

    source: str
    task: str  # identity of the task it claims to compute
    proposer: str = ""
    parent: str = ""  # digest of the candidate it was made from
    note: str = ""  # one line: what it tries

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


class Measurement(Record):
    """A time in µs.  ``kind`` says whether a GPU measured it or a model computed it; the two are never mixed."""

    kind: str  # measured | modelled
    chip: str
    us: float
    floor_us: float  # speed of light: flops and compulsory reads
    terms: dict[str, float] = Field(default_factory=dict)  # of the model, or percentiles and interval of samples
    samples: tuple[float, ...] = ()
    status: str = "stable"  # stable | unstable | quarantined
