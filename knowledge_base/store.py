"""The knowledge base as the loop sees it: record what happened, once; retrieve what is known.

Each ``record_*`` is one short transaction: a candidate, evaluation, measurement and attempt that belong together are
stored together or not at all, and what is stored survives a kill.  Recording again changes nothing (content keys).
What people browse is :mod:`knowledge_base.browse`; both work on the same :class:`knowledge_base.database.Database`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import rows
from .content import content_key, plain
from .database import Database
from .errors import UserError
from .records import Candidate, CompileEvidence, Measurement, Verdict

if TYPE_CHECKING:
    from .snf.task import Task


@dataclass(frozen=True)
class Evaluation:
    """What one look at a candidate found.  ``verdict`` None: compiled and modelled only.

    ``task`` is an identity, ``candidate`` a digest, ``evaluator`` the version of what looked.
    """

    task: str
    candidate: str
    configuration: Mapping[str, Any]
    chip: str
    shape: Mapping[str, int]
    evaluator: str
    verdict: Verdict | None = None
    evidence: tuple[CompileEvidence, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    seed: int = 0
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """Candidate × configuration × chip × shape × evaluator version: counted once."""
        return content_key(
            "evaluation",
            self.task,
            self.candidate,
            dict(self.configuration),
            self.chip,
            dict(self.shape),
            self.evaluator,
        )

    @property
    def status(self) -> str:
        return rows.COMPILED if self.verdict is None else self.verdict.status.value


@dataclass(frozen=True)
class Known:
    """An evaluation as it is stored, with its candidate's source."""

    evaluation: Evaluation
    candidate: Candidate

    @property
    def best_us(self) -> float:
        """The fastest usable time, measured ones first; infinity if there is none."""
        usable = [m for m in self.evaluation.measurements if m.status != "quarantined"]
        measured = [m.us for m in usable if m.kind == "measured"]
        return min(measured or [m.us for m in usable], default=float("inf"))


@dataclass(frozen=True)
class Winner:
    """The best correct kernel a run found for a task.  ``folder`` is relative to the run's folder."""

    evaluation: Evaluation
    measurement: Measurement
    general: bool = True  # holds at every size
    guards: tuple[Any, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class RunRecord:
    """A run as it is stored."""

    id: str
    target: str
    chip: str
    device: str
    proposer: str
    status: str
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    pid: int = 0


class Store:
    """The knowledge base, open.  Threads may share one."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, url: str | None = None) -> Store:
        """Opens (creates, migrates, seeds) the base at a path or SQLAlchemy URL; None: runs/knowledge.db.

        Raises EnvironmentLacks where it can't be written, UserError where the URL makes no sense.
        """
        from .seed import plant

        database = Database.open(url)
        try:
            plant(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ runs

    def start_run(self, run: RunRecord) -> None:
        """Records that ``run`` has begun in this process.  Raises UserError if the id exists."""
        from .tables import Run

        with self.database.write() as connection:
            table = rows.table_of(Run)
            if connection.execute(table.select().where(table.c.id == run.id)).first():
                raise UserError(f"a run {run.id} exists already", f"Go on with it: --resume {run.id}")
            row = Run(
                id=run.id,
                target=run.target,
                chip=run.chip,
                device=run.device,
                proposer=run.proposer,
                status="running",
                started_at=rows.now(),
                host=socket.gethostname(),
                pid=os.getpid(),
                options=plain(run.options),
                versions=plain(run.versions),
            )
            connection.execute(table.insert().values(**row.model_dump()))

    def resume_run(self, run_id: str) -> RunRecord:
        """Takes over a run that stopped (the caller makes sure that it did).  Raises UserError where there is none."""
        from .tables import Run

        table = rows.table_of(Run)
        with self.database.write() as connection:
            found = connection.execute(table.select().where(table.c.id == run_id)).mappings().first()
            if found is None:
                known = connection.execute(table.select().order_by(table.c.started_at.desc()).limit(3)).mappings().all()
                latest = f"The latest: {', '.join(r['id'] for r in known)}" if known else "There is no run yet."
                raise UserError(f"no run {run_id!r} in {self.database.url}", latest)
            mine = {"status": "running", "host": socket.gethostname(), "pid": os.getpid(), "ended_at": ""}
            connection.execute(table.update().where(table.c.id == run_id).values(**mine))
        return RunRecord(**{name: found[name] for name in RunRecord.__dataclass_fields__})

    def finish_run(self, run_id: str, status: str, exit_code: int, summary: Mapping[str, Any]) -> None:
        """Records how a run ended: done | incomplete | interrupted | failed."""
        from .tables import Run

        table = rows.table_of(Run)
        values = {"status": status, "exit_code": exit_code, "summary": plain(summary), "ended_at": rows.now()}
        with self.database.write() as connection:
            connection.execute(table.update().where(table.c.id == run_id).values(**values))

    # ------------------------------------------------------------------------------------------------ recording

    def record_tasks(self, tasks: Iterable[Task]) -> None:
        """Stores the tasks that are not stored yet."""
        stored = [rows.task_row(task) for task in tasks]
        with self.database.write() as connection:
            for row in stored:
                rows.once(connection, row)

    def record_candidate(self, candidate: Candidate, *, run: str = "", prompt: str = "") -> None:
        """Stores a candidate of a task that is stored."""
        with self.database.write() as connection:
            rows.candidate(connection, candidate, run, prompt)

    def record(
        self,
        candidate: Candidate,
        evaluations: Sequence[Evaluation],
        *,
        run: str = "",
        move: str = "check",
        reused: bool = False,
    ) -> None:
        """Stores evaluations of one candidate, with their measurements, and (within a run) the attempts they were."""
        with self.database.write() as connection:
            task_id = rows.id_of(connection, "tasks", candidate.task)
            candidate_id = rows.candidate(connection, candidate, run, "")
            for evaluation in evaluations:
                evaluation_id = rows.evaluation(connection, evaluation, task_id, candidate_id, run)
                for measurement in evaluation.measurements:
                    rows.measurement(connection, evaluation, measurement, evaluation_id, run)
                if run:
                    rows.attempt(connection, evaluation, task_id, evaluation_id, run, move, reused)

    def record_winner(self, run: str, winner: Winner) -> None:
        """Stores (or replaces) the run's general or specialised winner for the evaluation's task, chip and shape."""
        from .tables import WinnerRow

        evaluation, measurement = winner.evaluation, winner.measurement
        table = rows.table_of(WinnerRow)
        with self.database.write() as connection:
            evaluation_id = rows.id_of(connection, "evaluations", evaluation.key)
            found = connection.execute(rows.by_id("evaluations", evaluation_id, "candidate_id", "task_id")).one()
            row = WinnerRow(
                key=content_key(
                    "winner", run, evaluation.task, evaluation.chip, dict(evaluation.shape), winner.general
                ),
                run_id=run,
                task_id=found.task_id,
                candidate_id=found.candidate_id,
                evaluation_id=evaluation_id,
                chip=evaluation.chip,
                shape=plain(evaluation.shape),
                kind=measurement.kind,
                us=measurement.us,
                floor_us=measurement.floor_us,
                general=winner.general,
                guards=plain(winner.guards),
                folder=winner.folder,
                created_at=rows.now(),
            )
            connection.execute(table.delete().where(table.c.key == row.key))
            connection.execute(table.insert().values(**row.model_dump(exclude={"id"})))

    def mark_promoted(self, run: str, task: str) -> None:
        """Notes that a run's winner for the task (identity) was copied to kernels_generated."""
        from .tables import WinnerRow

        table = rows.table_of(WinnerRow)
        with self.database.write() as connection:
            task_id = rows.id_of(connection, "tasks", task)
            mine = (table.c.run_id == run) & (table.c.task_id == task_id)
            connection.execute(table.update().where(mine).values(promoted_at=rows.now()))

    # ------------------------------------------------------------------------------------------------ retrieval

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """The stored evaluations with these keys."""
        from .retrieve import by_keys

        with self.database.read() as connection:
            return by_keys(connection, keys)

    def of_candidate(self, task: str, digest: str, chip: str, shape: Mapping[str, int], evaluator: str) -> list[Known]:
        """What is known of a candidate's configurations at a shape on a chip, by this version of the evaluator."""
        from .retrieve import of_candidate

        with self.database.read() as connection:
            known = of_candidate(connection, task, digest, chip, evaluator)
        return [k for k in known if dict(k.evaluation.shape) == dict(shape)]

    def best(self, task: str, chip: str, *, limit: int = 5) -> list[Known]:
        """The best correct evaluations of a task (identity), fastest first: on this chip, else on any.

        Times of different chips or shapes do not compare; use them as a warm start, to be judged again.
        """
        from .retrieve import best

        with self.database.read() as connection:
            return best(connection, task, chip, limit) or best(connection, task, None, limit)
