"""What the page says, as data: everything comes from :mod:`knowledge_base.browse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.timing import peak
from knowledge_base import browse
from knowledge_base.chips import CHIPS
from knowledge_base.database import Database
from knowledge_base.errors import UserError
from knowledge_base.snf import canonical, cost, parse
from knowledge_base.tables import now

Row = dict[str, Any]

RUNS = 12  # of which curves are drawn, the latest
PLACES = 12  # curves' pictures: a task at a shape on a chip
KERNELS = 100  # of a chip


def gather(database: Database, *, op: str = "", gpu: str = "") -> Row:
    """Of all that ``--op`` and ``--gpu`` mean: ``chips`` with their best kernels, ``places`` with their curves, rules.

    The best kernels have ``flops`` and ``bytes`` of the task at their shape and the chip's ``peak_flops`` for it, where
    the task can be read.
    """
    tasks = browse.tasks(database, op=op, gpu=gpu)
    best = [one | {"task": task["task"], "identity": task["identity"]} for task in tasks for one in task["best"]]
    texts = browse.specifications(database, [row["identity"] for row in best])
    runs = browse.runs(database, gpu=gpu, limit=RUNS)
    rules = browse.rules(database, op=op, gpu=gpu)
    return {
        "base": database.url,
        "made_at": now(),
        "op": op,
        "gpu": gpu,
        "tasks": len(tasks),
        "trials": sum(task["trials"] for task in tasks),
        "correct": sum(task["correct"] for task in tasks),
        "chips": [_chip(name, best, texts) for name in dict.fromkeys(row["chip"] for row in best)],
        "places": _places(database, runs, {task["identity"] for task in tasks}, gpu),
        "rules": [rule for rule in rules if rule["effect"] is not None],
        "untested": [rule for rule in rules if rule["effect"] is None],
        "runs": runs,
    }


def _chip(name: str, best: Sequence[Row], texts: dict[str, str]) -> Row:
    mine = sorted((row for row in best if row["chip"] == name), key=lambda row: (row["task"], row["us"]))[:KERNELS]
    chip = CHIPS.get(name)
    kernels = [row | _work(texts.get(row["identity"], ""), row, name) for row in mine]
    return {"name": name, "product": chip.product if chip else "", "kernels": kernels}


def _work(text: str, row: Row, chip: str) -> Row:
    """Operations and bytes of a task at a shape; nothing where it can't be read as it is named there."""
    try:
        task = canonical(parse(text, row["task"])).at(**row["shape"])
        needed = cost(task.graph, task.sizes)
    except (UserError, KeyError, ValueError):
        return {"flops": 0, "bytes": 0, "peak_flops": 0.0}
    reached = peak(task, CHIPS[chip]) if chip in CHIPS else 0.0
    return {"flops": needed.total_flops, "bytes": needed.bytes, "peak_flops": reached}


def _places(database: Database, runs: Sequence[Row], tasks: set[str], gpu: str) -> list[Row]:
    """Curves of the latest runs by task, shape, chip and kind of time, the earliest run first; the latest place first.

    A curve's ``speedups`` are the first time of the first run ÷ its best so far, by evaluations.
    """
    found: dict[tuple[Any, ...], list[Row]] = {}
    for run in runs:
        for curve in browse.curves(database, run["id"]):
            learnt = curve["points"] and curve["evaluations"] > 1
            if learnt and curve["identity"] in tasks and gpu in ("", curve["chip"]):
                place = (curve["identity"], curve["chip"], repr(curve["shape"]), curve["kind"])
                found.setdefault(place, []).insert(0, curve | {"run": run["id"]})
    places = []
    for curves in list(found.values())[:PLACES]:
        start = curves[0]["points"][0][1]
        for curve in curves:
            curve["speedups"] = [(number, start / us) for number, us in curve["points"]]
        said = {name: curves[0][name] for name in ("task", "chip", "shape", "kind")}
        places.append(said | {"start_us": start, "curves": curves})
    return places
