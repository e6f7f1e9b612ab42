"""Seals: a stored verdict says that this user's own evaluator wrote it.  Earlier ones have none, so are made anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("seal", sa.String(64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("trials", "seal")
