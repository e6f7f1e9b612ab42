"""The first schema: runs, tasks, candidates, evaluations, measurements, winners, facts, rules, model calls.

Written down in full and never edited: what a later version needs is a later migration.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "facts",
        sa.Column("id", sa.Integer(), nullable=False),
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facts")),
        sa.UniqueConstraint("key", name=op.f("uq_facts_key")),
    )
    op.create_index(op.f("ix_facts_chip"), "facts", ["chip"], unique=False)
    op.create_index(op.f("ix_facts_op"), "facts", ["op"], unique=False)
    op.create_index(op.f("ix_facts_subject"), "facts", ["subject"], unique=False)
    op.create_table(
        "meta",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_meta")),
    )
    op.create_table(
        "rules",
        sa.Column("id", sa.Integer(), nullable=False),
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rules")),
        sa.UniqueConstraint("key", name=op.f("uq_rules_key")),
    )
    op.create_index(op.f("ix_rules_chip"), "rules", ["chip"], unique=False)
    op.create_index(op.f("ix_rules_op"), "rules", ["op"], unique=False)
    op.create_index(op.f("ix_rules_status"), "rules", ["status"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=96), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=16), nullable=False),
        sa.Column("proposer", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.String(length=32), nullable=False),
        sa.Column("ended_at", sa.String(length=32), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_started_at"), "runs", ["started_at"], unique=False)
    op.create_index(op.f("ix_runs_status"), "runs", ["status"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("ops", sa.String(length=512), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("precision", sa.String(length=16), nullable=False),
        sa.Column("snf", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("key", name=op.f("uq_tasks_key")),
    )
    op.create_index(op.f("ix_tasks_name"), "tasks", ["name"], unique=False)
    op.create_table(
        "candidates",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=False),
        sa.Column("proposer", sa.String(length=32), nullable=False),
        sa.Column("prompt", sa.String(length=64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_candidates_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("key", name=op.f("uq_candidates_key")),
    )
    op.create_index(op.f("ix_candidates_digest"), "candidates", ["digest"], unique=False)
    op.create_index(op.f("ix_candidates_parent"), "candidates", ["parent"], unique=False)
    op.create_index(op.f("ix_candidates_task_id"), "candidates", ["task_id"], unique=False)
    op.create_table(
        "llm_calls",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=True),
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
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_llm_calls_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_llm_calls")),
        sa.UniqueConstraint("key", name=op.f("uq_llm_calls_key")),
    )
    op.create_index(op.f("ix_llm_calls_prompt"), "llm_calls", ["prompt"], unique=False)
    op.create_index(op.f("ix_llm_calls_run_id"), "llm_calls", ["run_id"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("candidate_id", sa.Integer(), nullable=False),
        sa.Column("configuration", sa.JSON(), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("evaluator", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("error_class", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_evaluations_candidate_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_evaluations_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("key", name=op.f("uq_evaluations_key")),
    )
    op.create_index("ix_evaluations_candidate_id", "evaluations", ["candidate_id"], unique=False)
    op.create_index("ix_evaluations_chip_id", "evaluations", ["chip", "id"], unique=False)
    op.create_index("ix_evaluations_run_id", "evaluations", ["run_id"], unique=False)
    op.create_index("ix_evaluations_status_id", "evaluations", ["status", "id"], unique=False)
    op.create_index("ix_evaluations_task_id_id", "evaluations", ["task_id", "id"], unique=False)
    op.create_index("ix_evaluations_task_id_chip_status", "evaluations", ["task_id", "chip", "status"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("move", sa.String(length=16), nullable=False),
        sa.Column("reused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluations.id"], name=op.f("fk_attempts_evaluation_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_attempts_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("key", name=op.f("uq_attempts_key")),
    )
    op.create_index("ix_attempts_evaluation_id", "attempts", ["evaluation_id"], unique=False)
    op.create_index("ix_attempts_run_id_id", "attempts", ["run_id", "id"], unique=False)
    op.create_index("ix_attempts_task_id_id", "attempts", ["task_id", "id"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("us", sa.Float(), nullable=False),
        sa.Column("floor_us", sa.Float(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("context", sa.JSON(), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluations.id"], name=op.f("fk_measurements_evaluation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint("key", name=op.f("uq_measurements_key")),
    )
    op.create_index("ix_measurements_chip_kind_us", "measurements", ["chip", "kind", "us"], unique=False)
    op.create_index("ix_measurements_evaluation_id_kind", "measurements", ["evaluation_id", "kind"], unique=False)
    op.create_table(
        "rule_evidence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("rule_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("with_id", sa.Integer(), nullable=True),
        sa.Column("without_id", sa.Integer(), nullable=True),
        sa.Column("log_ratio", sa.Float(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["rule_id"], ["rules.id"], name=op.f("fk_rule_evidence_rule_id")),
        sa.ForeignKeyConstraint(["with_id"], ["evaluations.id"], name=op.f("fk_rule_evidence_with_id")),
        sa.ForeignKeyConstraint(["without_id"], ["evaluations.id"], name=op.f("fk_rule_evidence_without_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule_evidence")),
        sa.UniqueConstraint("key", name=op.f("uq_rule_evidence_key")),
    )
    op.create_index(op.f("ix_rule_evidence_rule_id"), "rule_evidence", ["rule_id"], unique=False)
    op.create_table(
        "winners",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=96), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("candidate_id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("chip", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("us", sa.Float(), nullable=False),
        sa.Column("floor_us", sa.Float(), nullable=False),
        sa.Column("general", sa.Boolean(), nullable=False),
        sa.Column("guards", sa.JSON(), nullable=False),
        sa.Column("folder", sa.String(length=255), nullable=False),
        sa.Column("promoted_at", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_winners_candidate_id")),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluations.id"], name=op.f("fk_winners_evaluation_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_winners_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_winners")),
        sa.UniqueConstraint("key", name=op.f("uq_winners_key")),
    )
    op.create_index("ix_winners_candidate_id", "winners", ["candidate_id"], unique=False)
    op.create_index("ix_winners_run_id", "winners", ["run_id"], unique=False)
    op.create_index("ix_winners_task_id_chip_us", "winners", ["task_id", "chip", "us"], unique=False)
