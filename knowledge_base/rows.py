"""Records into rows: each function stores one thing once, inside the caller's transaction.

Used by :mod:`knowledge_base.store` alone.  "Once" is by content key: what is there stays, except that a judgement
replaces an evaluation that was compiled only, and a definite verdict one that the machine's load may explain.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .content import canonical, content_key, plain
from .records import Candidate, Measurement, Status

if TYPE_CHECKING:
    from sqlalchemy import Table as SqlTable
    from sqlalchemy.engine import Connection

    from .snf.task import Task
    from .store import Evaluation

COMPILED = "compiled"  # status of an evaluation that was compiled and modelled, but not judged
UNSURE = (Status.TIMEOUT.value, Status.CRASH.value)


def now() -> str:
    """UTC in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rank(status: str) -> int:
    """A later evaluation replaces an earlier one of a lower rank."""
    return 0 if status == COMPILED else 1 if status in UNSURE else 2


def table_of(row: type) -> SqlTable:
    table: SqlTable = row.__table__  # type: ignore[attr-defined]
    return table


def named(name: str) -> SqlTable:
    from .tables import METADATA

    return METADATA.tables[name]


def by_id(name: str, row_id: int, *columns: str) -> Any:
    from sqlalchemy import select

    table = named(name)
    return select(*(table.c[c] for c in columns)).where(table.c.id == row_id)


def find(connection: Connection, table: SqlTable, key: str) -> int | None:
    from sqlalchemy import select

    found = connection.execute(select(table.c.id).where(table.c.key == key)).scalar()
    return None if found is None else int(found)


def id_of(connection: Connection, name: str, key: str) -> int:
    found = find(connection, named(name), key)
    if found is None:
        raise KeyError(f"{name} has no {key}")
    return found


def once(connection: Connection, row: Any) -> int:
    """The id of the row with this key, stored now if it was not."""
    from sqlalchemy.exc import IntegrityError

    table = table_of(type(row))
    found = find(connection, table, row.key)
    if found is not None:
        return found
    try:
        with connection.begin_nested():
            stored = connection.execute(table.insert().values(**row.model_dump(exclude={"id"})))
            return int((stored.inserted_primary_key or (0,))[0])
    except IntegrityError:  # another writer came between (not on SQLite, whose writers take turns)
        return id_of(connection, table.name, row.key)


def task_row(task: Task) -> Any:
    from .snf.printer import show
    from .tables import TaskRow

    ops = dict.fromkeys(node.op for node in task.graph.nodes)
    return TaskRow(
        key=task.identity,
        name=task.name,
        ops="," + ",".join(ops) + ",",
        dtype=task.outputs[0].dtype if task.outputs else "",
        precision=task.precision,
        snf=show(task.graph),
        created_at=now(),
    )


def candidate(connection: Connection, candidate: Candidate, run: str, prompt: str) -> int:
    from .tables import CandidateRow

    return once(
        connection,
        CandidateRow(
            key=content_key("candidate", candidate.task, candidate.digest),
            digest=candidate.digest,
            task_id=id_of(connection, "tasks", candidate.task),
            source=candidate.source,
            parent=candidate.parent,
            proposer=candidate.proposer,
            prompt=prompt,
            note=candidate.note,
            run_id=run,
            created_at=now(),
        ),
    )


def evaluation(connection: Connection, evaluation: Evaluation, task_id: int, candidate_id: int, run: str) -> int:
    from .tables import EvaluationRow

    verdict = evaluation.verdict
    found: dict[str, Any] = {
        "status": evaluation.status,
        "stage": verdict.stage.value if verdict else "",
        "error_class": verdict.error_class if verdict else "",
        "message": verdict.message if verdict else "",
        "verdict": plain(verdict.model_dump()) if verdict else None,
        "evidence": plain([e.model_dump() for e in evaluation.evidence]),
        "seed": evaluation.seed,
        "seconds": evaluation.seconds,
    }
    table = table_of(EvaluationRow)
    existing = find(connection, table, evaluation.key)
    if existing is None:
        row = EvaluationRow(
            key=evaluation.key,
            task_id=task_id,
            candidate_id=candidate_id,
            configuration=plain(evaluation.configuration),
            chip=evaluation.chip,
            shape=plain(evaluation.shape),
            evaluator=evaluation.evaluator,
            run_id=run,
            created_at=now(),
            **found,
        )
        return once(connection, row)
    (status,) = connection.execute(by_id("evaluations", existing, "status")).one()
    if rank(evaluation.status) > rank(status):
        if not found["evidence"]:
            del found["evidence"]  # what a search compiled stays known
        connection.execute(table.update().where(table.c.id == existing).values(**found))
    return existing


def measurement(
    connection: Connection, evaluation: Evaluation, measurement: Measurement, evaluation_id: int, run: str
) -> None:
    from .tables import MeasurementRow

    # A model gives one time per evaluation (its version is part of the evaluator's); a GPU gives new samples each time.
    parts = [run, canonical(list(measurement.samples))] if measurement.kind == "measured" else []
    row = MeasurementRow(
        key=content_key("measurement", evaluation.key, measurement.kind, *parts),
        evaluation_id=evaluation_id,
        kind=measurement.kind,
        chip=measurement.chip,
        us=measurement.us,
        floor_us=measurement.floor_us,
        status=measurement.status,
        terms=plain(measurement.terms),
        samples=plain(measurement.samples),
        run_id=run,
        created_at=now(),
    )
    once(connection, row)


def attempt(
    connection: Connection, evaluation: Evaluation, task_id: int, evaluation_id: int, run: str, move: str, reused: bool
) -> None:
    from .tables import AttemptRow

    row = AttemptRow(
        key=content_key("attempt", run, evaluation.key, move),
        run_id=run,
        task_id=task_id,
        evaluation_id=evaluation_id,
        move=move,
        reused=reused,
        created_at=now(),
    )
    once(connection, row)
