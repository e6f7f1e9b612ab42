"""The tables of the knowledge base, and nothing else: no queries, no connection.

The primary key of every row that another person's base could also hold (task, candidate, trial, artifact, fact, rule)
is ``key``, a hash of its content, so that recording a thing twice, or merging two bases, changes nothing.
Times are UTC in ISO 8601, durations µs or seconds as the column's name says.
The index of words on SQLite (:mod:`knowledge_base.text_index`) is none of them.
Slow to import (SQLAlchemy); only the store, the seed, :mod:`knowledge_base.browse` and
:mod:`knowledge_base.sharing` use it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, Index, LargeBinary, MetaData, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

# Names for constraints, so that a later migration can address them on every database.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def now() -> str:
    """UTC in ISO 8601 with microseconds: rows that were stored one after another sort in that order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Table(SQLModel):
    """What all tables share: this module's metadata."""

    metadata = METADATA


def _json(default: Any = dict) -> Any:
    return Field(default_factory=default, sa_type=JSON)


def _text(default: str = "") -> Any:
    return Field(default=default, sa_type=Text)


def _key() -> Any:
    return Field(max_length=64, primary_key=True)


def _key_of(table: str, **options: Any) -> Any:
    return Field(max_length=64, foreign_key=f"{table}.key", **options)


def _index(*columns: str, table: str) -> Index:
    return Index(f"ix_{table}_{'_'.join(columns)}", *columns)


class Meta(Table, table=True):
    """Single values about the base itself: the hash of the seed it was last filled from."""

    __tablename__: ClassVar[str] = "meta"
    name: str = Field(primary_key=True, max_length=64)
    value: str = _text()


class RunRow(Table, table=True):
    """One ``agent run``.  status: running | done | incomplete | interrupted | failed."""

    __tablename__: ClassVar[str] = "runs"
    id: str = Field(primary_key=True, max_length=96)
    target: str = _text()
    chip: str = Field(max_length=64)
    device: str = Field(max_length=16)
    proposer: str = Field(max_length=32)
    status: str = Field(max_length=16, index=True)
    started_at: str = Field(max_length=32, index=True)
    ended_at: str = Field(default="", max_length=32)
    host: str = Field(default="", max_length=255)
    pid: int = 0
    exit_code: int | None = None
    options: dict[str, Any] = _json()
    versions: dict[str, Any] = _json()
    summary: dict[str, Any] = _json()


class TaskRow(Table, table=True):
    """A task by identity.  ``ops`` are its ops' names between commas (",linear,gelu,"), ``snf`` its canonical text."""

    __tablename__: ClassVar[str] = "tasks"
    key: str = _key()  # the task's identity
    name: str = Field(max_length=128, index=True)
    ops: str = Field(default="", max_length=512)
    dtype: str = Field(default="", max_length=16)
    precision: str = Field(default="ieee", max_length=16)
    snf: str = _text()
    created_at: str = Field(max_length=32)


class CandidateRow(Table, table=True):
    """A candidate file for a task.  ``digest`` is SHA-256 of the source; one source may be tried on several tasks."""

    __tablename__: ClassVar[str] = "candidates"
    key: str = _key()
    digest: str = Field(max_length=64, index=True)
    task: str = _key_of("tasks", index=True)
    source: str = _text()
    parent: str = Field(default="", max_length=64, index=True)  # digest
    proposer: str = Field(default="", max_length=32)
    prompt: str = Field(default="", max_length=64)  # hash of the prompt it answers
    note: str = _text()
    run_id: str = Field(default="", max_length=96)  # the run that saw it first; empty: a command
    created_at: str = Field(max_length=32)


class TrialRow(Table, table=True):
    """A :class:`knowledge_base.records.Trial`: its key, the record without its candidate, and what is searched by.

    status and standing are the trial's (what was imported is ``foreign``), shape the canonical JSON of its dimensions;
    kind and us are those of the time that counts (empty and NULL where there is none).  ``seal`` is that of what the
    judge wrote (:mod:`knowledge_base.seal`).
    """

    __tablename__: ClassVar[str] = "trials"
    __table_args__ = (
        _index("task", "chip", "status", "kind", "us", table="trials"),
        _index("task", "chip", "shape", "standing", "kind", "us", table="trials"),
        _index("task", "created_at", table="trials"),
        _index("candidate", "chip", "evaluator", table="trials"),
        _index("status", "created_at", table="trials"),
        _index("chip", "created_at", table="trials"),
        _index("created_at", table="trials"),
    )
    key: str = _key()
    task: str = _key_of("tasks")
    candidate: str = _key_of("candidates")
    chip: str = Field(max_length=64)
    shape: str = _text()
    evaluator: str = Field(max_length=64)
    status: str = Field(max_length=16)
    standing: str = Field(max_length=16)
    kind: str = Field(default="", max_length=16)
    us: float | None = None
    run_id: str = Field(default="", max_length=96)  # the run that looked first; empty: a command
    created_at: str = Field(max_length=32)
    record: dict[str, Any] = _json()
    seal: str = Field(default="", max_length=64)


class TallyRow(Table, table=True):
    """How many trials of a task there are at a shape on a chip, by evaluator, status and standing.

    Counting a million trials takes longer than anyone waits for a table: the store keeps count as it writes them.
    """

    __tablename__: ClassVar[str] = "tallies"
    __table_args__ = (_index("task", table="tallies"),)
    key: str = _key()
    task: str = _key_of("tasks")
    chip: str = Field(max_length=64)
    shape: str = _text()
    evaluator: str = Field(max_length=64)
    status: str = Field(max_length=16)
    standing: str = Field(max_length=16)
    trials: int = 0


class ArtifactRow(Table, table=True):
    """Bytes named by their SHA-256: the launch plans of correct trials, and the Tile IR bytecode that those launch."""

    __tablename__: ClassVar[str] = "artifacts"
    key: str = _key()
    content: bytes = Field(sa_type=LargeBinary)


class AttemptRow(Table, table=True):
    """What a run tried, in order.

    ``move``: known, foreign, search, check, compose, or a proposal's (:class:`.records.Move`).

    Attempts are a run's story; trials are what is known.  A trial reused by ten runs has ten attempts.
    """

    __tablename__: ClassVar[str] = "attempts"
    __table_args__ = (
        UniqueConstraint("run_id", "trial", "move"),
        _index("run_id", "id", table="attempts"),
        _index("trial", table="attempts"),
    )
    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(max_length=96)
    trial: str = _key_of("trials")
    move: str = Field(max_length=16)
    reused: bool = False
    created_at: str = Field(max_length=32)


class WinnerRow(Table, table=True):
    """A run's best trial of a task; beside the general one there may be a faster one that refuses some sizes.

    Key: run, task, chip, shape, and whether it is the general one.  ``folder`` lies under the run's folder.
    """

    __tablename__: ClassVar[str] = "winners"
    __table_args__ = (_index("run_id", table="winners"), _index("trial", table="winners"))
    key: str = _key()
    run_id: str = Field(max_length=96)
    trial: str = _key_of("trials")
    folder: str = Field(default="", max_length=255)
    promoted_at: str = Field(default="", max_length=32)
    created_at: str = Field(max_length=32)


class FactRow(Table, table=True):
    """A figure or finding with its source.  ``subject`` is a chip, an op or a topic."""

    __tablename__: ClassVar[str] = "facts"
    key: str = _key()
    subject: str = Field(max_length=64, index=True)
    name: str = _text()
    value: str = _text()
    unit: str = Field(default="", max_length=32)
    op: str = Field(default="", max_length=128, index=True)
    chip: str = Field(default="", max_length=64, index=True)
    source: str = _text()
    origin: str = Field(default="seed", max_length=16)  # seed | user | run | import
    created_at: str = Field(max_length=32)


class RuleRow(Table, table=True):
    """A belief that evidence can change.  status: hypothesised | supported | refuted | superseded.

    ``form`` is the checkable form (scope, when, against, effect); ``claimed`` what its author says the effect is;
    ``effect`` and its interval what evidence says (log-ratio of times, best against best; negative is faster), None
    before there is any; ``paired`` the median of pairs (value, low, high), and how many there are.  ``history``: each
    change of status (was, status, why, at).
    """

    __tablename__: ClassVar[str] = "rules"
    key: str = _key()
    statement: str = _text()
    status: str = Field(max_length=16, index=True)
    op: str = Field(default="", max_length=128, index=True)
    chip: str = Field(default="", max_length=64, index=True)
    form: dict[str, Any] = _json()
    claimed: dict[str, Any] = _json()
    effect: float | None = None
    effect_low: float | None = None
    effect_high: float | None = None
    paired: dict[str, Any] = _json()
    history: list[dict[str, Any]] = _json(list)
    source: str = _text()
    origin: str = Field(default="seed", max_length=16)  # seed | mined | llm | user | import
    superseded_by: str = Field(default="", max_length=64)
    created_at: str = Field(max_length=32)
    updated_at: str = Field(max_length=32)


class RuleEvidenceRow(Table, table=True):
    """One piece of evidence about a rule: two trials that differ in what it speaks of alone, or all those of a shape.

    place: that shape (task, sizes, chip, dtype) and the sessions in which it was timed; log_ratio is then best against
    best, ``paired`` the median of ``pairs`` pairs.  What another base found is ``claimed``, and its place has that
    ``base``; one without a task is what it makes of the rule as a whole.
    """

    __tablename__: ClassVar[str] = "rule_evidence"
    key: str = _key()
    rule: str = _key_of("rules", index=True)
    kind: str = Field(max_length=16)  # measured | modelled | compiled | claimed
    with_trial: str | None = _key_of("trials", default=None)
    without_trial: str | None = _key_of("trials", default=None)
    log_ratio: float | None = None
    paired: float | None = None
    pairs: int = 0
    place: dict[str, Any] = _json()
    note: str = _text()
    created_at: str = Field(max_length=32)


class LlmCallRow(Table, table=True):
    """A :class:`knowledge_base.records.LlmCall`: its key, the record, and what is listed and added up.

    candidate: a digest.  tokens and cost are NULL where they are not known, ``paid`` before the answer was judged.
    """

    __tablename__: ClassVar[str] = "llm_calls"
    __table_args__ = (_index("run_id", "created_at", table="llm_calls"), _index("created_at", table="llm_calls"))
    key: str = _key()
    run_id: str = Field(max_length=96)
    task: str = _key_of("tasks")
    number: int
    model: str = Field(max_length=255, index=True)
    move: str = Field(max_length=16)
    prompt: str = Field(max_length=64, index=True)
    candidate: str = Field(default="", max_length=64, index=True)
    status: str = Field(max_length=32)
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    paid: bool | None = None
    created_at: str = Field(max_length=32)
    record: dict[str, Any] = _json()


class BaseRow(Table, table=True):
    """This base itself (``own``), and each one of which an export was imported: its file, how much of what was new."""

    __tablename__: ClassVar[str] = "bases"
    key: str = _key()  # at random, when the base was made
    own: bool = False
    file: str = Field(default="", max_length=255)
    exported_at: str = Field(default="", max_length=32)
    imported_at: str = Field(default="", max_length=32)
    took: dict[str, Any] = _json()


RUNS, TASKS, CANDIDATES, TRIALS, TALLIES, ARTIFACTS, ATTEMPTS, WINNERS, FACTS, RULES, EVIDENCE, CALLS, META, BASES = (
    METADATA.tables[name]
    for name in (
        "runs", "tasks", "candidates", "trials", "tallies", "artifacts", "attempts", "winners", "facts", "rules",
        "rule_evidence", "llm_calls", "meta", "bases",
    )
)  # fmt: skip
