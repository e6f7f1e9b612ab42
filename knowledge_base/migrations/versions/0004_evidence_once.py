"""Evidence once: what the assembler said is the trial's, no longer the verdict's as well.

A trial that was searched has the evidence of its first plan, its verdict had that of all: what the verdict alone had is
of kernels for other sizes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    trials = sa.Table("trials", sa.MetaData(), autoload_with=connection)
    changed = []
    for key, record in connection.execute(sa.select(trials.c.key, trials.c.record)):
        verdict = record["verdict"]
        if verdict is None or "evidence" not in verdict:
            continue
        first = record["evidence"] or verdict["evidence"]
        kernels = {e["kernel"] for e in first}
        elsewhere = [e for e in verdict["evidence"] if e["kernel"] not in kernels]
        kept = {name: value for name, value in verdict.items() if name != "evidence"}
        new = record | {"verdict": kept, "evidence": first, "evidence_elsewhere": elsewhere}
        changed.append({"of": key, "new": new})
    if changed:
        mine = trials.update().where(trials.c.key == sa.bindparam("of"))
        connection.execute(mine.values(record=sa.bindparam("new", type_=sa.JSON())), changed)
