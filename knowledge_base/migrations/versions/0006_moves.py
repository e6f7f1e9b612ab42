"""Calls of language models: what was asked for, and whether it paid."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("llm_calls") as table:
        table.add_column(sa.Column("move", sa.String(16), nullable=False, server_default="fresh"))
        table.add_column(sa.Column("paid", sa.Boolean(), nullable=True))
        table.create_index("ix_llm_calls_model", ["model"])
