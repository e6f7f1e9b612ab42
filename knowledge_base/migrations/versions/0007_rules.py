"""Rules that are mined: their second effect, the changes of their status, and where evidence was found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("rules") as table:
        table.add_column(sa.Column("paired", sa.JSON(), nullable=False, server_default="{}"))
        table.add_column(sa.Column("history", sa.JSON(), nullable=False, server_default="[]"))
    with op.batch_alter_table("rule_evidence") as table:
        table.add_column(sa.Column("paired", sa.Float(), nullable=True))
        table.add_column(sa.Column("pairs", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("place", sa.JSON(), nullable=False, server_default="{}"))
