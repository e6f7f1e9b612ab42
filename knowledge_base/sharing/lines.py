"""What the lines of an export are, and that each one is what its key says.

Keys are recomputed from what a line holds, so that nothing can stand under the key of another thing.  That a verdict or
a time is true cannot be seen here; it is the word of the base that it is from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from knowledge_base.chips import CHIPS
from knowledge_base.content import content_key
from knowledge_base.errors import UserError
from knowledge_base.records import Candidate, Record, Said, Trial, clean, trial_key
from knowledge_base.rules import read_form
from knowledge_base.seed import STATUSES
from knowledge_base.snf import SnfError, Task, canonical, parse

DERIVED = "auto"  # a chip whose figures were asked of a driver


def _printable(value: Any) -> Any:
    if cleaned(value) != value:
        raise ValueError("it holds what is not printable, or is too long")
    return value


def cleaned(value: Any) -> Any:
    """A document with its texts, and the names in it, as a terminal can hold them."""
    if isinstance(value, dict):
        return {clean(name): cleaned(part) for name, part in value.items()}
    if isinstance(value, list):
        return [cleaned(part) for part in value]
    return clean(value) if isinstance(value, str) else value


Plain = Annotated[dict[str, Any], AfterValidator(_printable)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Text = Annotated[str, AfterValidator(_printable)]
Short = Annotated[Text, Field(max_length=96)]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$", max_length=32)]
MOST_CLAIMED = {"ratio": 1000.0, "saving": 1.0}  # what a rule's author may say: that, or less
_LOG = math.log(MOST_CLAIMED["ratio"])
LogRatio = Annotated[float, Field(allow_inf_nan=False, ge=-_LOG, le=_LOG)]
Count = Annotated[int, Field(ge=0, le=10**9)]


class Header(Record):
    """The first line.  op, gpu: of what was asked for alone; empty: all."""

    kind: str
    version: int
    base: Base
    made_at: Time
    op: Text = ""
    gpu: Text = ""


class TaskLine(Record):
    kind: Literal["task"] = "task"
    key: Hash
    snf: str

    @property
    def task(self) -> Task:
        """Raises ValueError where the text is no task, or another one."""
        try:
            found = canonical(parse(self.snf, "task"))
        except SnfError as error:
            raise ValueError(f"its text is no task: {error.what}") from None
        if found.identity != self.key:
            raise ValueError("its text is another task's than its key")
        return found


class CandidateLine(Record):
    kind: Literal["candidate"] = "candidate"
    task: Hash
    source: str
    proposer: Annotated[Text, Field(max_length=32)] = ""
    parent: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    note: Said = ""

    @property
    def candidate(self) -> Candidate:
        return Candidate.model_validate(self.model_dump(exclude={"kind"}))


class Won(Record):
    """A run whose winner the trial is."""

    run: Short
    at: Time


class TrialLine(Record):
    """candidate: the digest of its source.  record: the trial without its candidate.  run: that looked first."""

    kind: Literal["trial"] = "trial"
    key: Hash
    task: Hash
    candidate: Hash
    run: Short = ""
    at: Time
    record: dict[str, Any]
    won: tuple[Won, ...] = ()

    @property
    def trial(self) -> Trial:
        """The trial, with a candidate that lacks its source.  Raises ValueError where something is not as it can be."""
        stand_in = Candidate(source="", task=self.task)
        trial = Trial.model_validate({**cleaned(self.record), "candidate": stand_in})
        if trial.origin:
            raise ValueError("it is of a third base")
        if trial_key(self.candidate, trial) != self.key:
            raise ValueError("it is another trial than its key says")
        if trial.chip not in CHIPS and trial.chip != DERIVED:
            raise ValueError(f"there is no chip {trial.chip!r}")
        for time in trial.measurements:
            if not all(math.isfinite(us) and us >= 0 for us in (time.us, time.floor_us)):
                raise ValueError(f"a time of {time.us} µs (floor {time.floor_us})")
        try:
            trial.document()
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise ValueError(f"nobody could show it: {error}") from None
        return trial


class FactLine(Record):
    kind: Literal["fact"] = "fact"
    subject: Annotated[Text, Field(max_length=64)]
    name: Annotated[Text, Field(max_length=128)]
    value: Text
    unit: Annotated[Text, Field(max_length=32)] = ""
    op: Annotated[Text, Field(max_length=128)] = ""
    chip: Annotated[Text, Field(max_length=64)] = ""
    source: Text


def _status(status: str) -> str:
    if status not in STATUSES:
        raise ValueError(f"no rule is {status!r}")
    return status


def _claims(claimed: dict[str, Any]) -> dict[str, Any]:
    for name in ("ratio", "saving"):
        number = claimed.get(name, 0.5)
        if not isinstance(number, int | float) or not 0 < number < MOST_CLAIMED[name]:
            raise ValueError(f"a {name} of {number!r}")
    return dict(_printable(claimed))


Claimed = Annotated[dict[str, Any], AfterValidator(_claims)]


class PairedEffect(Record):
    value: LogRatio
    low: LogRatio
    high: LogRatio
    pairs: Count


def _paired(found: dict[str, Any]) -> dict[str, Any]:
    return PairedEffect.model_validate(found).model_dump() if found else found


Paired = Annotated[dict[str, Any], AfterValidator(_paired)]


class RuleLine(Record):
    kind: Literal["rule"] = "rule"
    key: Hash
    statement: Text
    form: Plain
    status: Annotated[str, AfterValidator(_status)]
    claimed: Claimed = Field(default_factory=dict)
    effect: LogRatio | None = None
    effect_low: LogRatio | None = None
    effect_high: LogRatio | None = None
    paired: Paired = Field(default_factory=dict)
    source: Text = ""

    def check(self) -> None:
        """Raises UserError for a form that names nothing, ValueError for a key of another rule."""
        read_form(self.form, f"rule {self.statement!r}")
        if content_key("rule", self.statement, self.form) != self.key:
            raise ValueError("it is another rule than its key says")


class EvidencePlace(Record):
    """Where evidence is from: a shape of a task, and the sessions (runs) in which it was timed."""

    task: Short = ""
    sizes: dict[Short, int] = Field(default_factory=dict)
    chip: Short = ""
    dtype: Short = ""
    sessions: tuple[Short, ...] = ()


class EvidenceLine(Record):
    """What was measured of a rule at a shape."""

    kind: Literal["evidence"] = "evidence"
    rule: Hash
    log_ratio: LogRatio | None = None
    paired: LogRatio | None = None
    pairs: Count = 0
    place: EvidencePlace = EvidencePlace()
    note: Text = ""


Line = TaskLine | CandidateLine | TrialLine | FactLine | RuleLine | EvidenceLine
_LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class LineCheck:
    """What the lines so far have brought, to which later ones may refer."""

    def __init__(self) -> None:
        self.tasks: set[bytes] = set()
        self.candidates: set[bytes] = set()
        self.trials: set[bytes] = set()
        self.rules: set[bytes] = set()

    def look_at(self, line: Line) -> None:
        """Notes a line.  Raises ValueError or UserError where it is not as it has to be."""
        match line:
            case TaskLine():
                _ = line.task
                self.tasks.add(bytes.fromhex(line.key))
            case CandidateLine():
                self._refers(self.tasks, line.task, "task")
                self.candidates.add(bytes.fromhex(line.task + line.candidate.digest))
            case TrialLine():
                self._refers(self.candidates, line.task + line.candidate, "candidate")
                _ = line.trial
                if (key := bytes.fromhex(line.key)) in self.trials:
                    raise ValueError("a line before it has the same trial")
                self.trials.add(key)
            case RuleLine():
                line.check()
                self.rules.add(bytes.fromhex(line.key))
            case EvidenceLine():
                self._refers(self.rules, line.rule, "rule")

    @staticmethod
    def _refers(known: set[bytes], key: str, what: str) -> None:
        if bytes.fromhex(key) not in known:
            raise ValueError(f"it is of a {what} that no line before it has")


def read_header(document: Mapping[str, Any], where: str) -> Header:
    """The first line.  Raises UserError where it is none, saying ``where``."""
    try:
        return Header.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{where}: {_said(error)}", "It was not written by `agent kb export`.") from None


def read_line(document: Mapping[str, Any], where: str, check: LineCheck | None = None) -> Line:
    """The line that a document is.  Raises UserError where it is none, or not what it says, saying ``where``."""
    try:
        line = _LINES.validate_python(document)
        if check is not None:
            check.look_at(line)
        return line
    except ValidationError as error:
        raise UserError(f"{where}: {_said(error)}", "It was not written by `agent kb export`.") from None
    except UserError as error:
        raise UserError(f"{where}: {error.what}", error.mend) from None
    except ValueError as error:
        raise UserError(f"{where}: {error}", "It was not written by `agent kb export`.") from None


def _said(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return clean(f"{place}: {first['msg']}" if place else first["msg"])
