"""The knowledge base as the loop sees it: record what happened, once; retrieve what is known.

Each ``record_*`` is one short transaction: a candidate, its trials and the attempts that they were are stored together
or not at all, and what is stored survives a kill.  Recording again changes nothing (content keys).
What people browse is :mod:`knowledge_base.browse`; both work on the same :class:`knowledge_base.database.Database`.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from sqlalchemy import case, func, select

from knowledge_base.content import canonical, content_key, plain
from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.records import COMPILED, COMPOSITION, FOREIGN, PRUNED, Candidate, LlmCall, Move, Status, Trial
from knowledge_base.seal import seal
from knowledge_base.seed import plant
from knowledge_base.tables import ARTIFACTS, ATTEMPTS, CALLS, CANDIDATES, RUNS, TALLIES, TASKS, TRIALS, WINNERS, now

if TYPE_CHECKING:
    from sqlalchemy import Table as SqlTable
    from sqlalchemy.engine import Connection

    from knowledge_base.snf.task import Task

REPLAY = "replay"  # a run's proposer that answers from the recording of another run
_LATEST = 500  # calls of a model that say what pays: enough, and soon read
_FIRST = 16  # trials among which the fastest one of all sizes is looked for
_CHUNK = 500  # keys per query: below every database's limit on bound variables


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
        values = {
            **{name: plain(getattr(run, name)) for name in ("options", "versions", "summary")},
            **{name: getattr(run, name) for name in ("id", "target", "chip", "device", "proposer")},
            **{"status": "running", "started_at": now(), "ended_at": "", "host": socket.gethostname()},
        }
        with self.database.write() as connection:
            if connection.execute(RUNS.select().where(RUNS.c.id == run.id)).first():
                raise UserError(f"a run {run.id} exists already", f"Go on with it: --resume {run.id}")
            connection.execute(RUNS.insert().values(pid=os.getpid(), **values))

    def run(self, run_id: str) -> RunRecord:
        """The run as it is stored.  Raises UserError where there is none."""
        with self.database.read() as connection:
            return self._run(connection, run_id)

    def resume_run(self, run_id: str) -> RunRecord:
        """Takes over a run that stopped (the caller makes sure that it did).  Raises UserError where there is none."""
        with self.database.write() as connection:
            found = self._run(connection, run_id)
            mine = {"status": "running", "host": socket.gethostname(), "pid": os.getpid(), "ended_at": ""}
            connection.execute(RUNS.update().where(RUNS.c.id == run_id).values(**mine))
        return found

    def _run(self, connection: Connection, run_id: str) -> RunRecord:
        found = connection.execute(RUNS.select().where(RUNS.c.id == run_id)).mappings().first()
        if found is None:
            known = connection.execute(RUNS.select().order_by(RUNS.c.started_at.desc()).limit(3)).mappings().all()
            latest = f"The latest: {', '.join(r['id'] for r in known)}" if known else "There is no run yet."
            raise UserError(f"no run {run_id!r} in {self.database.url}", latest)
        return RunRecord(**{name: found[name] for name in RunRecord.__dataclass_fields__})

    def finish_run(self, run_id: str, status: str, exit_code: int, summary: Mapping[str, Any]) -> None:
        """Records how a run ended: done | incomplete | interrupted | failed."""
        values = {"status": status, "exit_code": exit_code, "summary": plain(summary), "ended_at": now()}
        with self.database.write() as connection:
            connection.execute(RUNS.update().where(RUNS.c.id == run_id).values(**values))

    # ------------------------------------------------------------------------------------------------ recording

    def record_tasks(self, tasks: Iterable[Task]) -> None:
        """Stores the tasks that are not stored yet."""
        rows = [task_row(task) for task in tasks]
        with self.database.write() as connection:
            store_new(connection, TASKS, rows)

    def record_candidate(self, candidate: Candidate, *, run: str = "") -> None:
        """Stores a candidate of a task that is stored."""
        with self.database.write() as connection:
            _once(connection, CANDIDATES, candidate_row(candidate, run))

    def record_call(self, call: LlmCall) -> None:
        """Stores (or replaces) a language model's call for a task that is stored."""
        found = {
            "candidate": call.candidate,
            "status": call.status.value,
            "tokens_in": call.tokens_in,
            "tokens_out": call.tokens_out,
            "cost_usd": call.cost_usd,
            "seconds": call.seconds,
            "paid": call.paid,
            "record": plain(call.model_dump()),
        }
        fixed = {"run_id": call.run, "task": call.task, "number": call.number}
        fixed |= {"model": call.model[:255], "move": call.move.value}
        mine = CALLS.c.key == call.key
        with self.database.write() as connection:
            if connection.execute(select(CALLS.c.key).where(mine)).first():
                connection.execute(CALLS.update().where(mine).values(**found))
                return
            row = {"key": call.key, "prompt": call.prompt, "created_at": now(), **fixed, **found}
            connection.execute(CALLS.insert().values(**row))

    def record(
        self,
        trials: Sequence[Trial],
        *,
        run: str = "",
        move: str = "check",
        reused: bool = False,
        artifacts: Mapping[str, bytes] | None = None,
    ) -> None:
        """Stores trials of tasks that are stored, with their candidates, and (within a run) the attempts they were.

        What was pruned was no attempt.

        What is known of a trial already stays known (:meth:`Trial.merged`).  ``artifacts``: launch plans and bytecode
        that the trials name, by the SHA-256 of their bytes.
        """
        with self.database.write() as connection:
            for candidate in {(trial.task, trial.candidate.digest): trial.candidate for trial in trials}.values():
                _once(connection, CANDIDATES, candidate_row(candidate, run))
            tally: Counter[_Counted] = Counter()
            for trial in trials:
                tally.update(_record(connection, trial, run))
                if run and not trial.pruned:
                    _attempt(connection, trial, run, move, reused)
            count(connection, tally)
            for key, content in (artifacts or {}).items():
                # What is there under this key was damaged if it differs.
                connection.execute(ARTIFACTS.delete().where(ARTIFACTS.c.key == key, ARTIFACTS.c.content != content))
                _once(connection, ARTIFACTS, {"key": key, "content": content})

    def record_winner(self, run: str, trial: Trial, folder: str = "") -> None:
        """Stores (or replaces) the run's winner for the trial's task, chip and shape: the general or the other one."""
        key = content_key("winner", run, trial.task, trial.chip, trial.shape, trial.general)
        row = {"key": key, "run_id": run, "trial": trial.key, "folder": folder, "promoted_at": "", "created_at": now()}
        with self.database.write() as connection:
            connection.execute(WINNERS.delete().where(WINNERS.c.key == key))
            connection.execute(WINNERS.insert().values(**row))

    def mark_promoted(self, run: str, task: str) -> None:
        """Notes that a run's winner for the task (identity) was copied to kernels_generated."""
        of_task = WINNERS.c.trial.in_(select(TRIALS.c.key).where(TRIALS.c.task == task))
        with self.database.write() as connection:
            mine = WINNERS.update().where(WINNERS.c.run_id == run, of_task)
            connection.execute(mine.values(promoted_at=now()))

    # ------------------------------------------------------------------------------------------------ retrieval

    def of_candidate(self, task: str, digest: str, chip: str, shape: Mapping[str, int], evaluator: str) -> list[Trial]:
        """What is known of a candidate's configurations at a shape on a chip, by this version of the evaluator.

        A verdict is among it only if this user's evaluator wrote it.
        """
        key, t = candidate_key(task, digest), TRIALS.c
        same = (t.candidate == key, t.chip == chip, t.evaluator == evaluator, t.status != FOREIGN)
        with self.database.read() as connection:
            found = _read(connection, _RECORDS.where(*same).order_by(TRIALS.c.created_at))
        return [trial for trial in found if trial.shape == dict(shape)]

    def best(self, task: str, chip: str, *, limit: int = 5, run: str = "") -> list[Trial]:
        """The fastest correct trial of each of a task's (identity) candidates, on this chip, else on any.

        ``run``: of those alone that this run tried.  Measured times come before modelled ones.  Times of different
        chips or shapes do not compare: use these as a warm start, to be judged again.
        """
        t = TRIALS.c
        correct = [t.status == Status.CORRECT.value]
        if run:
            correct.append(t.key.in_(select(ATTEMPTS.c.trial).where(ATTEMPTS.c.run_id == run)))
        with self.database.read() as connection:
            return _best(connection, task, chip, correct, limit)

    def foreign(self, task: str, chip: str, *, limit: int) -> list[Trial]:
        """The fastest trial of each candidate that another base calls correct, on this chip, else on any.

        Nothing of a candidate that was tried here on this chip.  Verdicts and times are the other base's word.
        """
        t = TRIALS.c
        tried = select(t.candidate).where(t.task == task, t.chip == chip, t.status != FOREIGN)
        right = t.record[("verdict", "status")].as_string() == Status.CORRECT.value
        with self.database.read() as connection:
            return _best(connection, task, chip, [t.status == FOREIGN, right, t.candidate.not_in(tried)], limit)

    def best_at(self, task: str, chip: str, shape: Mapping[str, int]) -> list[Trial]:
        """The correct trials of a task at a shape on a chip that have a time, the fastest first.

        Measured times come before modelled ones.
        """
        same = (TRIALS.c.task == task, TRIALS.c.chip == chip, TRIALS.c.status == Status.CORRECT.value)
        with self.database.read() as connection:
            found = _read(connection, _RECORDS.where(*same, TRIALS.c.us.is_not(None)))
        here = [(trial.time, trial) for trial in found if trial.shape == dict(shape)]
        return [t for _, t in sorted(((time, t) for time, t in here if time), key=lambda row: (row[0].kind, row[0].us))]

    def fastest(self, task: str, chip: str) -> Trial | None:
        """The fastest trial of a task (identity) on a chip that is right at every size; a measured one if there is."""
        same = (TRIALS.c.task == task, TRIALS.c.chip == chip, TRIALS.c.status == Status.CORRECT.value)
        first = (
            _RECORDS.where(*same, TRIALS.c.us.is_not(None))
            .order_by(TRIALS.c.kind, TRIALS.c.us, TRIALS.c.key)
            .limit(_FIRST)
        )
        with self.database.read() as connection:
            return next((trial for trial in _read(connection, first) if trial.general), None)

    def known_tasks(self) -> list[tuple[str, str, frozenset[str]]]:
        """(identity, name, ops) of all tasks but whole targets, for which kernels are composed and none is written."""
        one = select(CANDIDATES.c.proposer).where(CANDIDATES.c.task == TASKS.c.key).limit(1).scalar_subquery()
        written = func.coalesce(one, "") != COMPOSITION
        with self.database.read() as connection:
            rows = connection.execute(select(TASKS.c.key, TASKS.c.name, TASKS.c.ops).where(written)).all()
        return [(key, name, frozenset(ops.strip(",").split(","))) for key, name, ops in rows]

    def answers(self, tasks: Iterable[str], *, limit: int) -> list[Trial]:
        """What became of the ``limit`` latest candidates for tasks (identities) that answer prompts, the latest first.

        Of each a correct trial, without any the one that was rejected last; none of a candidate that was not judged, or
        whose verdict this user's evaluator did not write.
        """
        c, t = CANDIDATES.c, TRIALS.c
        latest = select(c.key).where(c.task.in_(list(tasks)), c.prompt != "").order_by(c.created_at.desc()).limit(limit)
        right_or_last = (case((t.status == Status.CORRECT.value, 0), else_=1), t.created_at.desc(), t.key)
        place = func.row_number().over(partition_by=t.candidate, order_by=right_or_last).label("place")
        judged = t.status.not_in((COMPILED, PRUNED, FOREIGN, Status.INFEASIBLE.value))
        found = select(t.key, place).where(t.candidate.in_(latest.scalar_subquery()), judged).subquery()
        first = _RECORDS.join(found, found.c.key == t.key).where(found.c.place == 1)
        with self.database.read() as connection:
            return [one for one in _read(connection, first.order_by(c.created_at.desc(), c.key)) if one.verdict]

    def calls(self, run: str) -> list[LlmCall]:
        """A run's calls of language models, oldest first."""
        with self.database.read() as connection:
            query = select(CALLS.c.record).where(CALLS.c.run_id == run).order_by(CALLS.c.created_at)
            return [LlmCall.model_validate(record) for record in connection.execute(query).scalars()]

    def moves(self, model: str, but: tuple[str, ...]) -> list[tuple[Move, bool, int]]:
        """What a model was asked for in all runs ``but`` these: (move, whether it paid, tokens), the latest first.

        What was answered from a recording was counted where it was recorded, and is left out.
        """
        c = CALLS.c
        query = select(c.move, c.paid, c.tokens_in + c.tokens_out)
        replays = select(RUNS.c.id).where(RUNS.c.proposer == REPLAY)
        query = query.where(c.model == model[:255], c.paid.is_not(None), c.run_id.not_in(but), c.run_id.not_in(replays))
        with self.database.read() as connection:
            rows = connection.execute(query.order_by(c.created_at.desc()).limit(_LATEST)).all()
        return [(Move(move), bool(paid), int(tokens or 0)) for move, paid, tokens in rows]

    def artifacts(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The stored artifacts with these keys; one that is not stored, or was damaged since, is absent."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, bytes] = {}
        with self.database.read() as connection:
            for start in range(0, len(wanted), _CHUNK):
                some = ARTIFACTS.select().where(ARTIFACTS.c.key.in_(wanted[start : start + _CHUNK]))
                found |= {row.key: bytes(row.content) for row in connection.execute(some)}
        return {key: content for key, content in found.items() if sha256(content).hexdigest() == key}


# ---------------------------------------------------------------------------------------------------- records to rows


def _once(connection: Connection, table: SqlTable, row: Mapping[str, Any]) -> bool:
    """Stores the row unless one with its key is there; whether it did."""
    return bool(store_new(connection, table, [row]))


def store_new(connection: Connection, table: SqlTable, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Stores the rows whose keys are not there yet; the keys of those that it stored.

    Nobody comes between looking and storing: writers take turns (:mod:`knowledge_base.database`).
    """
    wanted = {row["key"]: row for row in rows}
    keys = list(wanted)
    for start in range(0, len(keys), _CHUNK):
        some = select(table.c.key).where(table.c.key.in_(keys[start : start + _CHUNK]))
        for key in connection.execute(some).scalars():
            del wanted[key]
    if wanted:
        connection.execute(table.insert(), [dict(row) for row in wanted.values()])
    return set(wanted)


def task_row(task: Task) -> dict[str, Any]:
    ops = dict.fromkeys(node.op for node in task.graph.nodes)
    return {
        "key": task.identity,
        "name": task.name,
        "ops": "," + ",".join(ops) + ",",
        "dtype": task.outputs[0].dtype if task.outputs else "",
        "precision": task.precision,
        "snf": task.text,
        "created_at": now(),
    }


def candidate_key(task: str, digest: str) -> str:
    return content_key("candidate", task, digest)


def candidate_row(candidate: Candidate, run: str) -> dict[str, Any]:
    key = candidate_key(candidate.task, candidate.digest)
    known = {"key": key, "digest": candidate.digest, "run_id": run, "created_at": now()}
    return {**candidate.model_dump(), **known}


COUNTED = ("task", "chip", "shape", "evaluator", "status", "standing")  # columns of a trial by which tallies count
_Counted = tuple[str, ...]  # their values


def _record(connection: Connection, trial: Trial, run: str) -> dict[_Counted, int]:
    """Stores a trial, or what is new of it; how that changes the tallies."""
    candidate = candidate_key(trial.task, trial.candidate.digest)
    rows = _rows(connection, _RECORDS.where(TRIALS.c.key == trial.key))
    known, mark = next(iter(rows), (None, ""))
    is_new, ours = known is None, known is None or _ours(known, mark)
    if known is not None and trial.verdict is not None and not ours:
        known, ours = _unjudged(known), True  # the verdict of our own evaluator is worth more than a stranger's
    whole = trial if known is None else known.merged(trial)
    if whole == known:
        return {}
    found = {
        "status": whole.status,
        "standing": whole.standing,
        "kind": whole.time.kind if whole.time else "",
        "us": whole.time.us if whole.time else None,
        "record": plain(whole.model_dump(exclude={"candidate"})),
        "seal": _seal(whole) if ours else mark,
    }
    shape = canonical(trial.shape)
    place = (trial.task, trial.chip, shape, trial.evaluator)
    if not is_new:
        mine = TRIALS.c.key == trial.key
        ((status, standing),) = connection.execute(select(TRIALS.c.status, TRIALS.c.standing).where(mine))
        connection.execute(TRIALS.update().where(mine).values(**found))
        before, after = (*place, status, standing), (*place, whole.status, whole.standing)
        return {before: -1, after: 1} if before != after else {}
    fixed = {"task": trial.task, "candidate": candidate, "chip": trial.chip, "shape": shape}
    fixed |= {"evaluator": trial.evaluator, "run_id": run, "created_at": now()}
    new = _once(connection, TRIALS, {"key": trial.key, **fixed, **found})
    return {(*place, whole.status, whole.standing): 1} if new else {}


def count(connection: Connection, tally: Mapping[_Counted, int]) -> None:
    """Adds to the tallies."""
    for counted, more in tally.items():
        if more:
            key = content_key("tally", *counted)
            _once(connection, TALLIES, {"key": key, **dict(zip(COUNTED, counted, strict=True)), "trials": 0})
            mine = TALLIES.update().where(TALLIES.c.key == key)
            connection.execute(mine.values(trials=TALLIES.c.trials + more))


def _attempt(connection: Connection, trial: Trial, run: str, move: str, reused: bool) -> None:
    a = ATTEMPTS.c
    if not connection.execute(select(a.id).where(a.run_id == run, a.trial == trial.key, a.move == move)).first():
        row = {"run_id": run, "trial": trial.key, "move": move, "reused": reused, "created_at": now()}
        connection.execute(ATTEMPTS.insert().values(**row))


# ---------------------------------------------------------------------------------------------------- rows to records

_RECORDS = select(
    TRIALS.c.seal, TRIALS.c.key, TRIALS.c.record, *(CANDIDATES.c[name] for name in Candidate.model_fields)
).join(CANDIDATES, CANDIDATES.c.key == TRIALS.c.candidate)
# What the judge writes into a trial.
_JUDGED = ("verdict", "judged", "infeasible", "seed", "seconds")


def _rows(connection: Connection, query: Any) -> Iterator[tuple[Trial, str]]:
    """The trials of a query of _RECORDS, each with the seal that is stored with it.

    Raises UserError where this version can't read one.
    """
    for mark, key, record, *candidate in connection.execute(query):
        fields = dict(zip(Candidate.model_fields, candidate, strict=True))
        try:
            trial = Trial.model_validate({**record, "candidate": fields})
        except ValidationError as error:
            why = error.errors()[0]
            where = ".".join(map(str, why["loc"]))
            raise _unreadable(key, f"{where}: {why['msg']}") from None
        except TypeError:
            raise _unreadable(key, "no object") from None
        yield trial, mark


def _unreadable(trial: str, why: str) -> UserError:
    return UserError(f"this version can't read trial {trial}: {why}", "Use the version that wrote it.")


def trials(connection: Connection, keys: Sequence[str]) -> list[Trial]:
    """The trials with these keys, in their order, as they are stored: verdicts of whomever."""
    found: dict[str, Trial] = {}
    for start in range(0, len(keys), _CHUNK):
        some = _RECORDS.where(TRIALS.c.key.in_(keys[start : start + _CHUNK]))
        found |= {trial.key: trial for trial, _ in _rows(connection, some)}
    return [found[key] for key in keys]


def _read(connection: Connection, query: Any) -> list[Trial]:
    """The same trials as this user may rely on them: without verdicts that his own evaluator did not write."""
    return [trial if _ours(trial, mark) else _unjudged(trial) for trial, mark in _rows(connection, query)]


def _seal(trial: Trial) -> str:
    return seal("trial", trial.key, trial.plans, trial.model_dump(include=set(_JUDGED)))


def _ours(trial: Trial, mark: str) -> bool:
    """Whether there is no verdict to doubt, or this user's evaluator wrote it; a foreign one is nobody's here."""
    return bool(trial.origin) or trial.verdict is None or hmac.compare_digest(mark, _seal(trial))


def _unjudged(trial: Trial) -> Trial:
    return trial.fuller(**{name: Trial.model_fields[name].default for name in _JUDGED})


def _best(connection: Connection, task: str, chip: str, wanted: Sequence[Any], limit: int) -> list[Trial]:
    """The fastest trial of each of a task's candidates among those ``wanted``, on this chip, else on any."""
    t = TRIALS.c
    fastest = (t.kind, t.us, t.key)  # "measured" sorts before "modelled"
    place = func.row_number().over(partition_by=t.candidate, order_by=fastest).label("place")
    for where in (t.chip == chip, t.chip != chip):
        ranked = select(t.key, place).where(t.task == task, where, t.us.is_not(None), *wanted).subquery()
        first = _RECORDS.join(ranked, ranked.c.key == t.key).where(ranked.c.place == 1)
        if found := _read(connection, first.order_by(*fastest).limit(limit)):
            return found
    return []
