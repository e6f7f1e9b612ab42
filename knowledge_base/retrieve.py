"""Rows back into records, for the loop: what is known of an evaluation, and the best known kernels of a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, select

from .records import Candidate, CompileEvidence, Measurement, Status, Verdict
from .store import Evaluation, Known
from .tables import METADATA

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_CHUNK = 500  # keys per query: below every database's limit on bound variables
_E, _C, _T, _M = (METADATA.tables[name] for name in ("evaluations", "candidates", "tasks", "measurements"))


def by_keys(connection: Connection, keys: Sequence[str]) -> dict[str, Known]:
    """The stored evaluations with these keys; the others are absent."""
    found: dict[str, Known] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        found |= {k.evaluation.key: k for k in _known(connection, _joined().where(_E.c.key.in_(chunk)))}
    return found


def of_candidate(connection: Connection, task: str, digest: str, chip: str, evaluator: str) -> list[Known]:
    """Every evaluation of a candidate for a task on a chip by one version of the evaluator, in order of recording."""
    mine = (_T.c.key == task, _C.c.digest == digest, _E.c.chip == chip, _E.c.evaluator == evaluator)
    return _known(connection, _joined().where(*mine).order_by(_E.c.id))


def best(connection: Connection, task: str, chip: str | None, limit: int) -> list[Known]:
    """Correct evaluations of a task, fastest first (measured before modelled), ``limit`` candidates."""
    query = (
        _joined()
        .join(_M, _M.c.evaluation_id == _E.c.id)
        .where(_T.c.key == task, _E.c.status == Status.CORRECT.value)
        .where(_M.c.status != "quarantined")
        .order_by(case((_M.c.kind == "measured", 0), else_=1), _M.c.us)
        .limit(limit * 20)
    )
    if chip is not None:
        query = query.where(_E.c.chip == chip)
    first: dict[str, Known] = {}
    for known in _known(connection, query):
        first.setdefault(known.candidate.digest, known)
    return list(first.values())[:limit]


def _joined() -> Any:
    evaluation = [_E.c[name] for name in ("configuration", "chip", "shape", "evaluator", "verdict", "evidence", "seed")]
    candidate = [_C.c[name] for name in ("source", "proposer", "parent", "note")]
    return (
        select(_E.c.id, _T.c.key, _C.c.digest, *evaluation, _E.c.seconds, *candidate)
        .select_from(_E)
        .join(_C, _C.c.id == _E.c.candidate_id)
        .join(_T, _T.c.id == _E.c.task_id)
    )


def _known(connection: Connection, query: Any) -> list[Known]:
    rows = connection.execute(query).all()
    times = _measurements(connection, [row[0] for row in rows])
    found = []
    for row_id, task, digest, configuration, chip, shape, version, verdict, evidence, seed, seconds, *rest in rows:
        source, proposer, parent, note = rest
        evaluation = Evaluation(
            task=task,
            candidate=digest,
            configuration=configuration,
            chip=chip,
            shape=shape,
            evaluator=version,
            verdict=None if verdict is None else Verdict.model_validate(verdict),
            evidence=tuple(CompileEvidence.model_validate(e) for e in evidence),
            measurements=tuple(times.get(row_id, ())),
            seed=seed,
            seconds=seconds,
        )
        candidate = Candidate(source=source, task=task, proposer=proposer, parent=parent, note=note)
        found.append(Known(evaluation, candidate))
    return found


def _measurements(connection: Connection, ids: Iterable[int]) -> dict[int, list[Measurement]]:
    ids = list(dict.fromkeys(ids))
    fields = ("kind", "chip", "us", "floor_us", "terms", "samples", "status")
    found: dict[int, list[Measurement]] = {}
    for start in range(0, len(ids), _CHUNK):
        chunk = _M.c.evaluation_id.in_(ids[start : start + _CHUNK])
        for row in connection.execute(select(_M.c.evaluation_id, *(_M.c[f] for f in fields)).where(chunk)).mappings():
            measurement = Measurement.model_validate({f: row[f] for f in fields})
            found.setdefault(row["evaluation_id"], []).append(measurement)
    return found
