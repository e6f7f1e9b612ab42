"""Where configurations with their times come from: the landscapes that ship, and a base's own measured trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from knowledge_base.landscapes import LANDSCAPES, landscape, landscape_sources
from knowledge_base.records import FOREIGN

from .spaces import Timed, ops_in

if TYPE_CHECKING:
    from knowledge_base.database import Database


SPOKEN = {"linear times SiLU(x2), no bias": "linear_silu_mul"}  # what a landscape calls by words that are no op's


def shipped() -> Iterator[Timed]:
    """What the landscapes that ship have a time of."""
    sources = landscape_sources()
    for name in sorted(path.name.removesuffix(".jsonl.gz") for path in LANDSCAPES.glob("*.jsonl.gz")):
        for row in landscape(name):
            if row.us is not None:  # a name may end with sizes: linear_residual K=768
                spoken = SPOKEN.get(row.task, row.task)
                task, source = spoken.split(" ")[0], sources.get(row.source, "")
                yield Timed(task, ops_in(spoken), row.sizes, row.dtype, row.chip, name, row.axes, source, row.us)


def own(database: Database, newest: int | None = None, foreign: bool = False) -> Iterator[Timed]:
    """A base's measured trials, or so many of them, the oldest first.  The session is the run that measured them.

    ``foreign``: those of other bases as well, but for what these call wrong.
    Of times of several processes that of one counts, which a search took beside the others.
    """
    from sqlalchemy import and_, false, func, or_, select

    from knowledge_base.tables import CANDIDATES, TASKS, TRIALS

    t = TRIALS.c
    there = func.coalesce(t.record[("verdict", "status")].as_string(), "correct")
    of_others = and_(t.status == FOREIGN, there == "correct") if foreign else false()
    query = (
        select(
            TASKS.c.name, TASKS.c.ops, TASKS.c.dtype, t.chip, t.run_id, t.us, CANDIDATES.c.source,
            t.record["shape"].label("shape"), t.record["configuration"].label("axes"),
            t.record["measurements"].label("times"), t.record["origin"].as_string().label("origin"),
        )
        .join(TASKS, TASKS.c.key == t.task)
        .join(CANDIDATES, CANDIDATES.c.key == t.candidate)
        .where(t.kind == "measured", t.us.is_not(None), t.run_id != "")
        .where(or_(t.status.in_(("correct", "compiled")), of_others))
    )  # fmt: skip
    with database.read() as connection:
        if newest is None:
            rows = iter(connection.execute(query.order_by(t.created_at, t.key).execution_options(yield_per=2000)))
        else:
            last = query.order_by(t.created_at.desc(), t.key.desc()).limit(newest)
            rows = reversed(connection.execute(last).all())
        for row in rows:
            times = [m for m in row.times or () if m["kind"] == "measured" and m.get("status") == "stable"]
            alone = [m["us"] for m in times if m.get("terms", {}).get("processes", 1) == 1]
            ops = tuple(op for op in row.ops.split(",") if op)
            yield Timed(
                row.name, ops, row.shape, row.dtype, row.chip, (row.origin or "") + row.run_id, row.axes, row.source,
                alone[0] if alone else row.us,
            )  # fmt: skip
