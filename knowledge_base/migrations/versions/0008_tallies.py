"""Trials by shape and standing, and how many there are of each."""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MANY = 5000  # rows in memory at once
_PLACE = ("task", "chip", "shape", "evaluator", "status", "standing")


def upgrade() -> None:
    connection = op.get_bind()
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("shape", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("standing", sa.String(16), nullable=False, server_default=""))
    op.create_table(
        "tallies",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("chip", sa.String(64), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("evaluator", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("standing", sa.String(16), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_tallies"),
        sa.ForeignKeyConstraint(["task"], ["tasks.key"], name="fk_tallies_task"),
    )
    op.create_index("ix_tallies_task", "tallies", ["task"])
    trials, tallies = (
        sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False) for name in ("trials", "tallies")
    )
    tally: Counter[tuple[str, ...]] = Counter()
    last = ""
    while rows := connection.execute(
        sa.select(trials).where(trials.c.key > last).order_by(trials.c.key).limit(_MANY)
    ).all():
        last = rows[-1].key
        changed = [{"of": r.key, "shape": _canonical(r.record["shape"]), "standing": _standing(r)} for r in rows]
        mine = trials.update().where(trials.c.key == sa.bindparam("of"))
        connection.execute(mine.values(shape=sa.bindparam("shape"), standing=sa.bindparam("standing")), changed)
        for row, new in zip(rows, changed, strict=True):
            tally[(row.task, row.chip, new["shape"], row.evaluator, row.status, new["standing"])] += 1
    counted = [dict(zip(_PLACE, place, strict=True)) | {"key": _key(place), "trials": n} for place, n in tally.items()]
    if counted:
        connection.execute(tallies.insert(), counted)
    columns = ["task", "chip", "shape", "standing", "kind", "us"]
    op.create_index("ix_trials_task_chip_shape_standing_kind_us", "trials", columns)


def _standing(row: Any) -> str:
    """As ``Trial.standing`` said when this was written."""
    record = row.record
    if record.get("verdict") is not None and row.status != "correct":
        return "infeasible" if row.status == "infeasible" else "failed"
    if row.us is not None:
        return "spills" if any(e["spill_bytes"] > 0 for e in record.get("evidence", ())) else "ranked"
    if record.get("pruned"):
        return "pruned"
    return "untimed" if record.get("measurements") else "does-not-fit"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _key(place: tuple[str, ...]) -> str:
    return sha256(_canonical(["tally", *place]).encode()).hexdigest()
