"""The records everyone shares: Candidate, Trial, and what a trial gathers: CompileEvidence, Measurement, Verdict.

LlmCall is what a language model was asked and what it answered.

Frozen pydantic models: they cross process and database borders as JSON.  A Task is in :mod:`knowledge_base.snf.task`, a
LaunchPlan in :mod:`kernels_generated.runtime.plan`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from knowledge_base.content import content_key, plain

if TYPE_CHECKING:
    from kernels_generated.runtime.plan import Launchable

MAX_TEXT = 2000  # characters of a message


def clean(text: str) -> str:
    """``text`` on one line, as a terminal, a log and a database can hold it.

    What is not printable (control and escape characters, lone surrogates, marks that turn the direction) becomes a
    blank, and what is longer than MAX_TEXT is cut off.
    """
    text = text[:MAX_TEXT]
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


Said = Annotated[str, AfterValidator(clean)]  # text that holds what a candidate, or a program that read one, said


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


class Level(StrEnum):
    """What held a candidate's process while its Python ran, the most first; docs/judging.md says what each promises."""

    FULL = "full"  # filtered, and in namespaces of its own
    FILTERED = "filtered"  # limited, and the kernel refuses calls (seccomp) and files (Landlock) that it does not need
    LIMITED = "limited"  # limits on time, memory, processes, files and output alone

    def reaches(self, wanted: Level) -> bool:
        """Whether this is ``wanted`` or more."""
        return list(Level).index(self) <= list(Level).index(wanted)


class Finding(Record):
    """One thing the sanitizer saw."""

    kind: str  # out-of-bounds | race | undetermined-padding | uninitialised | aliasing | not-written | …
    message: Said
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
    wgmma_in_flight: int = 0  # groups that its most patient wait leaves running
    loop_local_instructions: int = 0  # of the local ones, those in the innermost loop around the tensor cores
    cubin_bytes: int = 0
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()


class Verdict(Record):
    """The evaluator's answer about one candidate in one configuration for one task."""

    status: Status
    stage: Stage
    error_class: str = ""  # a key of the error table; empty when correct
    message: Said = ""  # one or two sentences for a person
    hint: Said = ""  # the error table's deterministic advice
    line: int | None = None  # of the candidate
    source: Said = ""  # that line's text
    numbers: dict[str, Any] = Field(default_factory=dict)  # errors against the yardstick, per distribution and size
    findings: tuple[Finding, ...] = ()
    contained: Level | None = None  # None: the candidate's Python did not run, or an older version judged

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT

    @property
    def error(self) -> float | None:
        """RMS error over PyTorch's own on normal inputs, the worst output's; None where PyTorch is exact."""
        figures = self.numbers.get("normal", {})
        ratios = [f.get("rms_ratio") for f in figures.values() if isinstance(f, dict)] if self.correct else []
        return max((ratio for ratio in ratios if isinstance(ratio, int | float)), default=None)


class Candidate(Record):
    """A candidate file: its source and where it came from."""

    source: str
    task: str  # identity of the task it claims to compute
    proposer: str = ""
    parent: str = ""  # digest of the candidate it was made from
    note: str = ""  # one line: what it tries
    prompt: str = ""  # hash of the messages that it answers (:attr:`LlmCall.prompt`)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


TOO_FAST = 0.9  # of the floor: nothing is that fast, so something is wrong with the time
Kind = Literal["measured", "modelled"]  # of a time: by a GPU's clock, or by a model


class Incomparable(ValueError):
    """Two times of different kinds, or of different chips, were to be compared or added."""


PACKING = "packing"  # the term of a measurement that is beside its time


class Measurement(Record):
    """A time in µs.  ``kind`` says whether a GPU measured it or a model computed it; the two are never mixed.

    Times of one kind on one chip are ordered, divided and added; anything else raises :class:`Incomparable`.  That they
    are of the same work (a task at one shape) is for the caller to know.
    """

    kind: Kind
    chip: str
    us: float
    floor_us: float  # speed of light: flops and compulsory reads
    terms: dict[str, float] = Field(default_factory=dict)  # of the model, or percentiles and interval of samples
    samples: tuple[float, ...] = ()
    # stable | unstable | quarantined | undetermined.  The last two are not believed, and nothing compares by them: what
    # is below TOO_FAST × the floor, and a modelled time of work that the model can't count, which takes longer.
    status: str = "stable"

    @property
    def believed(self) -> bool:
        return self.status not in ("quarantined", "undetermined")

    @property
    def doubt(self) -> str:
        """Why it is not believed; empty if it is."""
        match self.status:
            case "quarantined":
                return f"{self.us:g} µs ({self.kind}) is faster than anything can be: the floor is {self.floor_us:g}"
            case "undetermined":
                return "how much it does depends on data or on the block, so that no time can be modelled"
        return ""

    @property
    def processes(self) -> int:
        """How many processes a measured time has samples of; 0 of a modelled one."""
        return int(self.terms.get("processes", 1)) if self.kind == "measured" else 0

    @property
    def packing_us(self) -> float | None:
        """The µs that preparing the weights takes, once and beside ``us``; None where they are taken as they are."""
        return self.terms.get(PACKING)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of a measured time that has one, in µs."""
        return (self.terms["low"], self.terms["high"]) if {"low", "high"} <= set(self.terms) else None

    def over(self, other: Measurement) -> float:
        """This time ÷ the other one: below 1 where this one is faster."""
        self._like(other)
        if other.us == 0:
            return 1.0 if self.us == 0 else math.inf
        return self.us / other.us

    def __lt__(self, other: Measurement) -> bool:
        self._like(other)
        return self.us < other.us

    def _like(self, other: Measurement) -> None:
        if (self.kind, self.chip) != (other.kind, other.chip):
            both = f"a {self.kind} time on {self.chip} and a {other.kind} one on {other.chip}"
            raise Incomparable(f"{both} do not compare")


def in_sequence(times: Iterable[tuple[Measurement, int]]) -> Measurement:
    """The time of calls one after another, each given with how often it is made.  Raises ValueError for no calls."""
    calls = list(times)
    if not calls:
        raise ValueError("no calls, no time")
    first = calls[0][0]
    for time, _ in calls:
        first._like(time)
    return Measurement(
        kind=first.kind,
        chip=first.chip,
        us=round(sum(time.us * count for time, count in calls), 3),
        floor_us=round(sum(time.floor_us * count for time, count in calls), 3),
    )


# What can become of a configuration that is searched, best first (:attr:`Trial.standing`).
STANDINGS = ("ranked", "spills", "untimed", "does-not-fit", "pruned", "infeasible", "failed", "foreign")
COMPILED, PRUNED = "compiled", "pruned"  # status of a trial that nobody has judged
COMPOSITION = "composition"  # proposer of what is no file: which kernels a whole target was made of
FOREIGN = "foreign"  # status, and standing, of a trial that another base has made
UNSURE = (Status.TIMEOUT, Status.CRASH)  # the machine's load may explain these: such a trial may be judged again


class Trial(Record):
    """A candidate tried in one configuration: the record that search, timer, judge and store hand on, each time fuller.

    The first five fields say what was tried, with which version of the evaluator; :attr:`key` is their hash.

    One with an ``origin`` was imported from the base of that id: its verdict and its times are that base's word, which
    stands beside what is found here and is never taken for it.
    """

    candidate: Candidate
    configuration: dict[str, Any]  # the value of each axis
    chip: str
    shape: dict[str, int]  # the task's dimensions, at which it is timed
    evaluator: str
    # From the tracer: SHA-256 of the launch plans' texts.  The first one serves ``shape``: it is the one that is timed.
    plans: tuple[str, ...] = ()
    # From the search: why it was not compiled.  Empty where it was, or where no search has looked at it.  And the price
    # for which that was, if it was the price: µs that the model gives it with an ideal cubin (docs/model.md).
    pruned: str = ""
    price_us: float | None = None
    # From the assembler, once for each kernel: those of the first plan, and once it is correct the others.
    evidence: tuple[CompileEvidence, ...] = ()
    evidence_elsewhere: tuple[CompileEvidence, ...] = ()
    # From timers.
    measurements: tuple[Measurement, ...] = ()
    # From the judge: its answer, the sizes that rests on, and the sizes at which launch raised ValueError.
    verdict: Verdict | None = None
    judged: tuple[dict[str, int], ...] = ()
    infeasible: tuple[dict[str, int], ...] = ()
    seed: int = 0  # of the hidden inputs
    seconds: float = 0.0  # that judging took
    origin: str = ""

    @property
    def task(self) -> str:
        """The identity of the task."""
        return self.candidate.task

    @property
    def key(self) -> str:
        """Candidate × configuration × chip × shape × evaluator: one hash, the same on every machine.

        Of a foreign trial also × the base that it is from.
        """
        return trial_key(self.candidate.digest, self)

    @property
    def status(self) -> str:
        """The verdict's status; ``compiled`` before there is one, or ``pruned``; ``foreign`` whatever it is."""
        if self.origin:
            return FOREIGN
        if self.verdict is not None:
            return self.verdict.status.value
        return PRUNED if self.pruned else COMPILED

    @property
    def correct(self) -> bool:
        return not self.origin and self.verdict is not None and self.verdict.correct

    @property
    def general(self) -> bool:
        """Correct at every judged size."""
        return self.correct and not self.infeasible

    @property
    def spills(self) -> bool:
        """Whether a kernel that is timed spills registers."""
        return any(e.spill_bytes > 0 for e in self.evidence)

    @property
    def standing(self) -> str:
        """What became of the configuration in a search, one of STANDINGS.

        ranked: compiled and timed; spills: that too, but with spilled registers; untimed: compiled, but none of its
        times is believed; does-not-fit: compiled, but no block fits an SM; pruned: not compiled; infeasible: launch
        raised ValueError; failed: refused, or judged wrong; foreign: another base's, whatever it was there.
        """
        if self.origin:
            return FOREIGN
        if self.verdict is not None and not self.correct:
            return "infeasible" if self.verdict.status is Status.INFEASIBLE else "failed"
        if self.time is not None:
            return "spills" if self.spills else "ranked"
        if self.pruned:
            return "pruned"
        return "untimed" if self.measurements else "does-not-fit"

    @property
    def reason(self) -> str:
        """Why the configuration is not simply ranked; empty if it is."""
        match self.standing:
            case "spills":
                return f"{max(e.spill_bytes for e in self.evidence)} bytes of registers a thread are spilled"
            case "untimed":
                return self.measurements[-1].doubt
            case "does-not-fit":
                return "an SM cannot hold one block of it"
            case "infeasible" | "failed":
                return self.verdict.message if self.verdict else ""
            case "foreign":
                there = self.fuller(origin="")
                return f"in base {self.origin[:8]} it is {there.status}{': ' * bool(there.reason)}{there.reason}"
        return self.pruned

    def timed(self, kind: Kind) -> Measurement | None:
        """The trial's time of one kind, if it has one that is believed: what trials compare by.

        Of several the one of most processes, which says most; of equally many the fastest.
        """
        times = [m for m in self.measurements if m.kind == kind and m.believed]
        most = max((m.processes for m in times), default=0)
        return min((m for m in times if m.processes == most), default=None)

    @property
    def time(self) -> Measurement | None:
        """The time to show: the measured one, without any the modelled one."""
        return self.timed("measured") or self.timed("modelled")

    @property
    def packs(self) -> bool:
        """Whether it wants its weights prepared: who calls it has to."""
        return self.time is not None and self.time.packing_us is not None

    def brief(self) -> dict[str, Any]:
        """What lists say of the trial, in the words that everything outside uses for it; JSON-ready.

        kernel: SHA-256 of the source.  kind, us, floor_us, interval_us, packing_us, processes, stability: of
        :attr:`time`.
        error: :attr:`Verdict.error`.  message: the verdict's, or :attr:`reason`.  origin: the base that it was
        imported from.
        """
        verdict, time = self.verdict, self.time
        said = {
            "trial": self.key,
            "kernel": self.candidate.digest,
            "proposer": self.candidate.proposer,
            "note": self.candidate.note,
            "configuration": self.configuration,
            "chip": self.chip,
            "shape": self.shape,
            "status": self.status,
            "general": self.general,
            "kind": time.kind if time else None,
            "us": time.us if time else None,
            "floor_us": time.floor_us if time else None,
            "interval_us": time.interval if time else None,
            "packing_us": time.packing_us if time else None,
            "processes": time.processes if time else 0,
            "stability": time.status if time else "",
            "error": verdict.error if verdict else None,
            "stage": verdict.stage if verdict else "",
            "error_class": verdict.error_class if verdict else "",
            "message": verdict.message if verdict and not self.origin else self.reason,
            "origin": self.origin,
        }
        return dict(plain(said))

    def document(self, plans: Sequence[Launchable] = ()) -> dict[str, Any]:
        """Everything but the source, in the same words; JSON-ready.  ``plans``: the trial's, where they are at hand."""
        fields = self.model_dump(exclude={"candidate", "plans"})
        known = [plan.document() for plan in plans] or [{"digest": digest} for digest in self.plans]
        more = {"identity": self.task, "parent": self.candidate.parent, "correct": self.correct, "plans": known}
        return self.brief() | dict(plain(more | fields))

    def fuller(self, **fields: Any) -> Trial:
        """The same trial, fuller."""
        return self.model_copy(update=fields)

    def merged(self, later: Trial) -> Trial:
        """What this stored trial and a later look at the same thing say together.

        A verdict replaces none, a definite one an unsure one, and a GPU's the emulator's; nothing else undoes a
        verdict.  A model
        gives one time (its version is part of the evaluator's), the first; measured times all stay.  Times of a launch
        plan that is not the one which was judged are not mixed in.
        """
        whole = later if _certainty(later) > _certainty(self) else self
        other = self if whole is later else later
        if whole.plans and other.plans and whole.plans[0] != other.plans[0]:
            return whole
        modelled = any(m.kind == "modelled" for m in self.measurements)
        new = (m for m in later.measurements if m not in self.measurements)
        times = self.measurements + tuple(m for m in new if m.kind == "measured" or not modelled)
        evidence = whole.evidence or other.evidence
        pruned, price = ("", None) if evidence or whole.verdict else (whole.pruned, whole.price_us)
        plans = whole.plans or other.plans
        return whole.fuller(measurements=times, evidence=evidence, plans=plans, pruned=pruned, price_us=price)


def trial_key(digest: str, trial: Trial) -> str:
    """:attr:`Trial.key` of a trial whose candidate is not at hand but for the digest of its source."""
    what = (trial.task, digest, trial.configuration, trial.chip, trial.shape, trial.evaluator)
    # The first schema's word, so that keys of older bases stay.
    return content_key("evaluation", *what, *([trial.origin] if trial.origin else []))


def _certainty(trial: Trial) -> int:
    """A verdict that a GPU confirmed replaces the emulator's alone, and what a GPU refuted replaces both."""
    if trial.verdict is None:
        return 0
    if trial.verdict.stage is Stage.REPLAY:
        return 3 if trial.verdict.correct else 4
    return 1 if trial.verdict.status in UNSURE else 2


class Answered(StrEnum):
    """What became of a request to a language model."""

    SENT = "sent"  # no answer is known: it is under way, or its process was killed
    ANSWERED = "answered"
    TRUNCATED = "truncated"  # the answer ended at the limit on its length
    REFUSED = "refused"  # by the model, or by a filter of the endpoint
    EMPTY = "empty"
    RATE_LIMITED = "rate-limited"
    SERVER_ERROR = "server-error"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    CUT = "cut"  # the connection ended inside the answer
    TOO_LONG = "too-long"  # the prompt does not fit the model's context
    BAD_REQUEST = "bad-request"
    WRONG_KEY = "wrong-key"  # from here on: the endpoint will refuse every request
    NOT_ALLOWED = "not-allowed"
    NO_QUOTA = "no-quota"
    UNKNOWN_MODEL = "unknown-model"
    NO_ENDPOINT = "no-endpoint"  # what answers there does not speak the protocol

    @property
    def readable(self) -> bool:
        """The model had its say, if only by an empty text."""
        return self in (Answered.ANSWERED, Answered.TRUNCATED, Answered.REFUSED, Answered.EMPTY)

    @property
    def passes(self) -> bool:
        """The same request may succeed later."""
        return self in (
            Answered.RATE_LIMITED, Answered.SERVER_ERROR, Answered.TIMEOUT, Answered.UNREACHABLE, Answered.CUT
        )  # fmt: skip

    @property
    def turned_away(self) -> bool:
        """The endpoint said no, or was not there, before a model worked: there is nothing to charge."""
        return not self.broken_off and not self.readable

    @property
    def broken_off(self) -> bool:
        """Nobody knows how much a model wrote: counts that came before are not the last ones."""
        return self in (Answered.SENT, Answered.TIMEOUT, Answered.CUT)


class Move(StrEnum):
    """What is asked for: a kernel from nothing, one that goes on from earlier ones, or what they taught."""

    FRESH = "fresh"
    REPAIR = "repair"  # mends one that was rejected
    IMPROVE = "improve"  # makes one that is right faster
    CROSSOVER = "crossover"  # makes one of two that are right
    TRANSFER = "transfer"  # does as another task's kernel does
    REFLECT = "reflect"  # says what is faster and what slower, as rules


def place_of(task: str, shape: Mapping[str, int]) -> str:
    """Names a task at its sizes; ``task``: its identity."""
    return content_key("place", task, shape)


class LlmCall(Record):
    """One request to a language model, whole, and what came back.

    number: within run, task and shape, from 1; a request that is sent again after a failure is another call.
    question: numbers what was asked, likewise from 1; a request keeps it when it is sent again after a failure.  0 of
    what asks for no kernel.
    move, about: what was asked for, and of which candidates (digests).
    request: the body that was sent, its ``messages`` among it.  text: the answer.  said: the endpoint's error.
    Tokens are the endpoint's own count, None where it gave none (``tokens_cached``: of those in, read from its cache).
    cost_usd: by the price list at that time; None where the model has no price there.
    candidate: digest of the candidate that the answer holds; empty where it holds none, and ``problem`` says why.
    paid: whether it brought what was asked for: a right kernel for a rejected one, else a new fastest one; None before
    that is known.
    recorded_for: in a replay, hash of the prompt that the answer was recorded with, empty if there was none; None where
    an endpoint was asked.
    """

    run: str
    task: str  # identity
    shape: dict[str, int]  # the task's dimensions in this run
    number: int
    model: str
    endpoint: str  # its address, without anything secret
    request: dict[str, Any]
    status: Answered = Answered.SENT
    text: str = ""
    finish: str = ""  # the endpoint's word for why the answer ended
    said: Said = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    candidate: str = ""
    problem: Said = ""
    question: int = 0
    move: Move = Move.FRESH
    about: tuple[str, ...] = ()
    paid: bool | None = None
    recorded_for: str | None = None

    @property
    def key(self) -> str:
        """Names the call in the knowledge base: a run's tasks number their calls."""
        return content_key("llm-call", self.run, self.task, self.shape, self.number)

    @property
    def place(self) -> str:
        """The task at its sizes: within it calls are numbered."""
        return place_of(self.task, self.shape)

    @property
    def prompt(self) -> str:
        """Hash of the request's messages."""
        return content_key("prompt", self.request["messages"])

    def fuller(self, **fields: Any) -> LlmCall:
        """The same call, fuller."""
        return self.model_copy(update=fields)
