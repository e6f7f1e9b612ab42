"""Calls of language models: the table as it is written.  Until now nothing was, so it is made anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("llm_calls")
    op.create_table(
        "llm_calls",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(96), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("prompt", sa.String(64), nullable=False),
        sa.Column("candidate", sa.String(64), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_llm_calls"),
        sa.ForeignKeyConstraint(["task"], ["tasks.key"], name="fk_llm_calls_task"),
    )
    op.create_index("ix_llm_calls_run_id_created_at", "llm_calls", ["run_id", "created_at"])
    op.create_index("ix_llm_calls_created_at", "llm_calls", ["created_at"])
    op.create_index("ix_llm_calls_prompt", "llm_calls", ["prompt"])
    op.create_index("ix_llm_calls_candidate", "llm_calls", ["candidate"])
