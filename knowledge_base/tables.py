"""The tables of the knowledge base, and nothing else: no queries, no connection.

Every row that another person's base could also hold (task, candidate, evaluation, measurement, fact, rule) has a
``key`` that is a hash of its content, so that recording a thing twice, or merging two bases, changes nothing.
Integer ids are local.  Times are UTC in ISO 8601, durations µs or seconds as the column's name says.
Slow to import (SQLAlchemy); only :mod:`knowledge_base.store` and :mod:`knowledge_base.browse` use it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, Column, Index, MetaData, Text
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


class Table(SQLModel):
    """What all tables share: this module's metadata."""

    metadata = METADATA


def _json(default: Any = dict) -> Any:
    return Field(default_factory=default, sa_type=JSON)


def _text(default: str = "") -> Any:
    return Field(default=default, sa_type=Text)


def _key() -> Any:
    return Field(max_length=64, unique=True)


def _index(*columns: str, table: str) -> Index:
    return Index(f"ix_{table}_{'_'.join(columns)}", *columns)


class Meta(Table, table=True):
    """Single values about the base itself: the hash of the seed it was last filled from."""

    __tablename__: ClassVar[str] = "meta"
    name: str = Field(primary_key=True, max_length=64)
    value: str = _text()


class Run(Table, table=True):
    """One ``agent run``.  status: running | done | incomplete | interrupted | failed."""

    __tablename__: ClassVar[str] = "runs"
    id: str = Field(primary_key=True, max_length=96)
    target: str = Field(max_length=255)
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
    id: int | None = Field(default=None, primary_key=True)
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
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    digest: str = Field(max_length=64, index=True)
    task_id: int = Field(foreign_key="tasks.id", index=True)
    source: str = _text()
    parent: str = Field(default="", max_length=64, index=True)  # digest
    proposer: str = Field(default="", max_length=32)
    prompt: str = Field(default="", max_length=64)  # hash of the prompt it answers
    note: str = _text()
    run_id: str = Field(default="", max_length=96)  # the run that saw it first; empty: a command
    created_at: str = Field(max_length=32)


class EvaluationRow(Table, table=True):
    """Candidate × configuration × chip × shape × evaluator version, counted once: ``key`` is the hash of the five.

    status: a Verdict's status, or ``compiled`` where the configuration was compiled and modelled but not judged.
    """

    __tablename__: ClassVar[str] = "evaluations"
    __table_args__ = (
        _index("task_id", "chip", "status", table="evaluations"),
        _index("task_id", "id", table="evaluations"),
        _index("candidate_id", table="evaluations"),
        _index("status", "id", table="evaluations"),
        _index("chip", "id", table="evaluations"),
        _index("run_id", table="evaluations"),
    )
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    task_id: int = Field(foreign_key="tasks.id")
    candidate_id: int = Field(foreign_key="candidates.id")
    configuration: dict[str, Any] = _json()
    chip: str = Field(max_length=64)
    shape: dict[str, Any] = _json()
    evaluator: str = Field(max_length=64)
    status: str = Field(max_length=16)
    stage: str = Field(default="", max_length=16)
    error_class: str = Field(default="", max_length=64)
    message: str = _text()
    verdict: dict[str, Any] | None = Field(default=None, sa_column=Column("verdict", JSON(none_as_null=True)))
    evidence: list[Any] = _json(list)
    seed: int = 0
    seconds: float = 0.0
    run_id: str = Field(default="", max_length=96)
    created_at: str = Field(max_length=32)


class MeasurementRow(Table, table=True):
    """A time.  kind: measured | modelled, never mixed; ``samples`` are raw; ``context`` says how it came about."""

    __tablename__: ClassVar[str] = "measurements"
    __table_args__ = (
        _index("evaluation_id", "kind", table="measurements"),
        _index("chip", "kind", "us", table="measurements"),
    )
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    evaluation_id: int = Field(foreign_key="evaluations.id")
    kind: str = Field(max_length=16)
    chip: str = Field(max_length=64)
    us: float
    floor_us: float
    status: str = Field(default="stable", max_length=16)
    terms: dict[str, Any] = _json()
    samples: list[Any] = _json(list)
    context: dict[str, Any] = _json()
    run_id: str = Field(default="", max_length=96)
    created_at: str = Field(max_length=32)


class AttemptRow(Table, table=True):
    """What a run tried, in order.  ``move``: known | fresh | repair | improve | transfer | search | check | compose.

    Attempts are a run's story; evaluations are what is known.  An evaluation reused by ten runs has ten attempts.
    """

    __tablename__: ClassVar[str] = "attempts"
    __table_args__ = (
        _index("run_id", "id", table="attempts"),
        _index("task_id", "id", table="attempts"),
        _index("evaluation_id", table="attempts"),
    )
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    run_id: str = Field(max_length=96)
    task_id: int = Field(foreign_key="tasks.id")
    evaluation_id: int = Field(foreign_key="evaluations.id")
    move: str = Field(max_length=16)
    reused: bool = False
    created_at: str = Field(max_length=32)


class WinnerRow(Table, table=True):
    """The best correct kernel a run found for a task at a shape on a chip.  ``folder`` lies under the run's folder.

    general: it holds at every size; beside it a specialised winner may be faster where its guards hold.
    """

    __tablename__: ClassVar[str] = "winners"
    __table_args__ = (
        _index("task_id", "chip", "us", table="winners"),
        _index("run_id", table="winners"),
        _index("candidate_id", table="winners"),
    )
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    run_id: str = Field(max_length=96)
    task_id: int = Field(foreign_key="tasks.id")
    candidate_id: int = Field(foreign_key="candidates.id")
    evaluation_id: int = Field(foreign_key="evaluations.id")
    chip: str = Field(max_length=64)
    shape: dict[str, Any] = _json()
    kind: str = Field(max_length=16)  # measured | modelled
    us: float
    floor_us: float
    general: bool = True
    guards: list[Any] = _json(list)
    folder: str = Field(default="", max_length=255)
    promoted_at: str = Field(default="", max_length=32)
    created_at: str = Field(max_length=32)


class FactRow(Table, table=True):
    """A figure or finding with its source.  ``subject`` is a chip, an op or a topic."""

    __tablename__: ClassVar[str] = "facts"
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    subject: str = Field(max_length=64, index=True)
    name: str = Field(max_length=128)
    value: str = _text()
    unit: str = Field(default="", max_length=32)
    op: str = Field(default="", max_length=128, index=True)
    chip: str = Field(default="", max_length=64, index=True)
    source: str = _text()
    origin: str = Field(default="seed", max_length=16)  # seed | user | run
    created_at: str = Field(max_length=32)


class RuleRow(Table, table=True):
    """A belief that evidence can change.  status: hypothesised | supported | refuted | superseded.

    ``form`` is the checkable form (scope, when, against, effect); ``claimed`` what its author says the effect is;
    ``effect`` and its interval what evidence says (log-ratio of times; negative is faster), None before there is any.
    """

    __tablename__: ClassVar[str] = "rules"
    id: int | None = Field(default=None, primary_key=True)
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
    source: str = _text()
    origin: str = Field(default="seed", max_length=16)  # seed | mined | llm | user
    superseded_by: str = Field(default="", max_length=64)
    created_at: str = Field(max_length=32)
    updated_at: str = Field(max_length=32)


class RuleEvidenceRow(Table, table=True):
    """One piece of evidence about a rule: usually two evaluations that differ in what the rule speaks of alone."""

    __tablename__: ClassVar[str] = "rule_evidence"
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    rule_id: int = Field(foreign_key="rules.id", index=True)
    kind: str = Field(max_length=16)  # measured | modelled | compiled | claimed
    with_id: int | None = Field(default=None, foreign_key="evaluations.id")
    without_id: int | None = Field(default=None, foreign_key="evaluations.id")
    log_ratio: float | None = None
    note: str = _text()
    created_at: str = Field(max_length=32)


class LlmCallRow(Table, table=True):
    """One exchange with a language model, whole, so that a run can be repeated from its recording."""

    __tablename__: ClassVar[str] = "llm_calls"
    id: int | None = Field(default=None, primary_key=True)
    key: str = _key()
    run_id: str = Field(default="", max_length=96, index=True)
    task_id: int | None = Field(default=None, foreign_key="tasks.id")
    model: str = Field(default="", max_length=128)
    prompt: str = Field(default="", max_length=64, index=True)  # hash of the request's messages
    request: dict[str, Any] = _json()
    response: dict[str, Any] = _json()
    status: str = Field(default="", max_length=32)
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    created_at: str = Field(max_length=32)
