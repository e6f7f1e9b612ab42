"""Which base this is, and of which others there are rows here.

And texts that may be longer than was thought: SQLite never minded, other databases refuse them.
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bases = op.create_table(
        "bases",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("own", sa.Boolean(), nullable=False),
        sa.Column("file", sa.String(255), nullable=False),
        sa.Column("exported_at", sa.String(32), nullable=False),
        sa.Column("imported_at", sa.String(32), nullable=False),
        sa.Column("took", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_bases"),
    )
    nothing: dict[str, int] = {}
    own = {"key": secrets.token_hex(8), "own": True, "file": "", "exported_at": "", "imported_at": "", "took": nothing}
    op.bulk_insert(bases, [own])
    for table, column, length in (("facts", "name", 128), ("runs", "target", 255)):
        with op.batch_alter_table(table) as changed:
            changed.alter_column(column, type_=sa.Text(), existing_type=sa.String(length), existing_nullable=False)
