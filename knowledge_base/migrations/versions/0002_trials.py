"""Trials: evaluations and their measurements become one record each; content keys become the primary keys.

An evaluation that was judged gets its judged sizes from its verdict's figures, and the sizes at which launch refused to
run from the verdict's message, which is where the first schema kept them (three of them at most).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Children before parents, so that no foreign key is left without its row.
REPLACED = (
    "winners", "attempts", "measurements", "rule_evidence", "evaluations", "llm_calls", "candidates", "tasks", "rules",
    "facts",
)  # fmt: skip

Row = dict[str, Any]


def upgrade() -> None:
    connection = op.get_bind()
    tables = sa.MetaData()
    tables.reflect(connection, only=REPLACED)
    # The JSON columns reflect as JSON, so that their values are read as Python's.
    old = {
        name: [dict(row) for row in connection.execute(table.select()).mappings()]
        for name, table in tables.tables.items()
    }
    for name in REPLACED:
        op.drop_table(name)
    _create()
    keys = {name: {row["id"]: row["key"] for row in rows} for name, rows in old.items()}
    _insert("facts", (_without_id(row) for row in _in_order(old["facts"])))
    _insert("rules", (_without_id(row) for row in _in_order(old["rules"])))
    _insert("tasks", (_without_id(row) for row in old["tasks"]))
    _insert("candidates", (_without_id(row) | {"task": keys["tasks"][row["task_id"]]} for row in old["candidates"]))
    _insert("trials", _trials(old, keys))
    trial = keys["evaluations"]
    _insert(
        "attempts", (_without_id(row) | {"trial": trial[row["evaluation_id"]]} for row in _in_order(old["attempts"]))
    )
    _insert("winners", (_without_id(row) | {"trial": trial[row["evaluation_id"]]} for row in _in_order(old["winners"])))
    evidence = (
        _without_id(row)
        | {"rule": keys["rules"][row["rule_id"]]}
        | {"with_trial": trial.get(row["with_id"]), "without_trial": trial.get(row["without_id"])}
        for row in old["rule_evidence"]
    )
    _insert("rule_evidence", evidence)
    _insert("llm_calls", (_without_id(row) | {"task": keys["tasks"].get(row["task_id"])} for row in old["llm_calls"]))


def _trials(old: Mapping[str, list[Row]], keys: Mapping[str, Mapping[int, str]]) -> Iterator[Row]:
    times: dict[int, list[Row]] = {}
    for row in _in_order(old["measurements"]):
        fields = ("kind", "chip", "us", "floor_us", "terms", "samples", "status")
        times.setdefault(row["evaluation_id"], []).append({name: row[name] for name in fields})
    for row in _in_order(old["evaluations"]):
        measurements = times.get(row["id"], [])
        usable = [m for m in measurements if m["status"] != "quarantined"]
        best = min(usable, key=lambda m: (m["kind"] != "measured", m["us"]), default=None)
        verdict = row["verdict"]
        record = {
            name: row[name] for name in ("configuration", "chip", "shape", "evaluator", "evidence", "seed", "seconds")
        }
        record |= {"plans": [], "pruned": "", "measurements": measurements, "verdict": verdict}
        record |= {"judged": _judged(verdict), "infeasible": _infeasible(verdict)}
        yield {
            **_without_id(row),
            "task": keys["tasks"][row["task_id"]],
            "candidate": keys["candidates"][row["candidate_id"]],
            "kind": best["kind"] if best else "",
            "us": best["us"] if best else None,
            "record": record,
        }


def _judged(verdict: Row | None) -> list[Row]:
    """The sizes that a correct verdict's figures speak of, each once."""
    found: list[Row] = []
    if verdict is not None and verdict["status"] == "correct":
        figures = (f for outputs in verdict["numbers"].values() if isinstance(outputs, dict) for f in outputs.values())
        for sizes in (f.get("sizes", ()) for f in figures if isinstance(f, dict)):
            found += [at for at in sizes if at not in found]
    return found


def _infeasible(verdict: Row | None) -> list[Row]:
    if verdict is None or verdict["status"] != "correct" or "launch refuses" not in verdict["message"]:
        return []
    listed = verdict["message"].partition("launch refuses")[2].split(";")
    return [{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", one)} for one in listed]


def _in_order(rows: list[Row]) -> Iterator[Row]:
    """The rows in the order in which they were stored, with times that sort in that order too.

    The first schema's times have milliseconds; rows of the same one get microseconds that count up.
    """
    last, count = "", 0
    for row in sorted(rows, key=lambda row: row["id"]):
        count = count + 1 if row["created_at"] == last else 0
        last = row["created_at"]
        yield row | {"created_at": f"{last[:-1]}{min(count, 999):03d}Z"}


def _without_id(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "id"}


def _insert(name: str, rows: Iterator[Row]) -> None:
    """Stores what the new table has columns for."""
    connection = op.get_bind()
    table = sa.Table(name, sa.MetaData(), autoload_with=connection)
    columns = {column.name for column in table.columns} - {"id"}
    stored = [{k: v for k, v in row.items() if k in columns} for row in rows]
    if stored:
        connection.execute(table.insert(), stored)


def _create() -> None:
    op.create_table(
        "artifacts",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "facts",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("unit", sa.String(length=32), nullable=False),
        sa.Column("op", sa.String(length=128), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_facts")),
    )
    op.create_index(op.f("ix_facts_chip"), "facts", ["chip"], unique=False)
    op.create_index(op.f("ix_facts_op"), "facts", ["op"], unique=False)
    op.create_index(op.f("ix_facts_subject"), "facts", ["subject"], unique=False)
    op.create_table(
        "rules",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("op", sa.String(length=128), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("form", sa.JSON(), nullable=False),
        sa.Column("claimed", sa.JSON(), nullable=False),
        sa.Column("effect", sa.Float(), nullable=True),
        sa.Column("effect_low", sa.Float(), nullable=True),
        sa.Column("effect_high", sa.Float(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("superseded_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("updated_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_rules")),
    )
    op.create_index(op.f("ix_rules_chip"), "rules", ["chip"], unique=False)
    op.create_index(op.f("ix_rules_op"), "rules", ["op"], unique=False)
    op.create_index(op.f("ix_rules_status"), "rules", ["status"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("ops", sa.String(length=512), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("precision", sa.String(length=16), nullable=False),
        sa.Column("snf", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_name"), "tasks", ["name"], unique=False)
    op.create_table(
        "candidates",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=False),
        sa.Column("proposer", sa.String(length=32), nullable=False),
        sa.Column("prompt", sa.String(length=64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.key"], name=op.f("fk_candidates_task")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_candidates")),
    )
    op.create_index(op.f("ix_candidates_digest"), "candidates", ["digest"], unique=False)
    op.create_index(op.f("ix_candidates_parent"), "candidates", ["parent"], unique=False)
    op.create_index(op.f("ix_candidates_task"), "candidates", ["task"], unique=False)
    op.create_table(
        "llm_calls",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("prompt", sa.String(length=64), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.key"], name=op.f("fk_llm_calls_task")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_llm_calls")),
    )
    op.create_index(op.f("ix_llm_calls_prompt"), "llm_calls", ["prompt"], unique=False)
    op.create_index(op.f("ix_llm_calls_run_id"), "llm_calls", ["run_id"], unique=False)
    op.create_table(
        "trials",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("candidate", sa.String(length=64), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("evaluator", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("us", sa.Float(), nullable=True),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["candidate"], ["candidates.key"], name=op.f("fk_trials_candidate")),
        sa.ForeignKeyConstraint(["task"], ["tasks.key"], name=op.f("fk_trials_task")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_trials")),
    )
    op.create_index("ix_trials_candidate_chip_evaluator", "trials", ["candidate", "chip", "evaluator"], unique=False)
    op.create_index("ix_trials_chip_created_at", "trials", ["chip", "created_at"], unique=False)
    op.create_index("ix_trials_created_at", "trials", ["created_at"], unique=False)
    op.create_index("ix_trials_status_created_at", "trials", ["status", "created_at"], unique=False)
    op.create_index(
        "ix_trials_task_chip_status_kind_us", "trials", ["task", "chip", "status", "kind", "us"], unique=False
    )
    op.create_index("ix_trials_task_created_at", "trials", ["task", "created_at"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("trial", sa.String(length=64), nullable=False),
        sa.Column("move", sa.String(length=16), nullable=False),
        sa.Column("reused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["trial"], ["trials.key"], name=op.f("fk_attempts_trial")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "trial", "move", name=op.f("uq_attempts_run_id_trial_move")),
    )
    op.create_index("ix_attempts_run_id_id", "attempts", ["run_id", "id"], unique=False)
    op.create_index("ix_attempts_trial", "attempts", ["trial"], unique=False)
    op.create_table(
        "rule_evidence",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("with_trial", sa.String(length=64), nullable=True),
        sa.Column("without_trial", sa.String(length=64), nullable=True),
        sa.Column("log_ratio", sa.Float(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["rule"], ["rules.key"], name=op.f("fk_rule_evidence_rule")),
        sa.ForeignKeyConstraint(["with_trial"], ["trials.key"], name=op.f("fk_rule_evidence_with_trial")),
        sa.ForeignKeyConstraint(["without_trial"], ["trials.key"], name=op.f("fk_rule_evidence_without_trial")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_rule_evidence")),
    )
    op.create_index(op.f("ix_rule_evidence_rule"), "rule_evidence", ["rule"], unique=False)
    op.create_table(
        "winners",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("trial", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.String(length=255), nullable=False),
        sa.Column("promoted_at", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["trial"], ["trials.key"], name=op.f("fk_winners_trial")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_winners")),
    )
    op.create_index("ix_winners_run_id", "winners", ["run_id"], unique=False)
    op.create_index("ix_winners_trial", "winners", ["trial"], unique=False)
