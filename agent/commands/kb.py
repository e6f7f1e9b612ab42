"""``agent kb``: the knowledge base as tables of 80 columns or as JSON.

What is read, and how, is :mod:`knowledge_base.browse`'s work.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.console import console, emit, pairs, percent, table, us, visible
from knowledge_base import browse
from knowledge_base.chips import chip
from knowledge_base.database import DEFAULT, url_of
from knowledge_base.errors import UserError, nearest
from knowledge_base.records import FOREIGN, Answered, Status
from knowledge_base.rules import learn
from knowledge_base.seed import STATUSES
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.op_table import OPS
from knowledge_base.store import Store

if TYPE_CHECKING:
    from rich.text import Text

Row = dict[str, Any]
Column = tuple[str, str, int | None, Callable[[Row], str]]  # heading, alignment, width, text of a row


@dataclass(frozen=True)
class Listing:
    """One ``agent kb`` table: which filters it takes, its columns, and what to say where it is empty."""

    filters: tuple[str, ...]
    columns: tuple[Column, ...]
    empty: str
    limited: bool = False  # long listings show the latest or best rows alone


def _field(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name) or "")


def _id(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])[:8]


def _when(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])[:16].replace("T", " ")


def _time(row: Row) -> str:
    return us(row.get("us"), row.get("kind"))


def run_status(row: Row) -> str:
    """A run that says it is running, but whose process is gone from this machine, was killed."""
    if row["status"] != "running" or row["host"] != socket.gethostname():
        return str(row["status"])
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return "killed"
    except PermissionError:
        pass
    return "running"


def _best(row: Row) -> str:
    shown = [f"{b['chip']} {us(b['us'], b['kind'])}" for b in row["best"]]
    foreign = [f"{row['foreign']} foreign"] if row["foreign"] else []
    return ", ".join([*shown[:3], *foreign]) + (" …" if len(shown) > 3 else "")


def _of_base(row: Row) -> str:
    return f" (says base {row['origin'][:8]}, not judged here)" if row["origin"] else ""


def effect(row: Row) -> str:
    """What a rule's evidence says of times, best against best and of pairs; without any, what its author claims."""
    if row["effect"] is None:
        return ", ".join(f"{k} {v}" for k, v in row["claimed"].items() if k != "direction") or "faster"
    found, low, high = (percent(row[name]) for name in ("effect", "effect_low", "effect_high"))
    paired = row["paired"].get("value")
    unchanged = f"; else unchanged {percent(paired)}" if paired is not None else ""
    return f"{found} time, {low[:-1]} to {high[:-1]}{unchanged}"


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))  # SI; binary sizes have their own
_BINARY = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def figure(value: str, unit: str) -> str:
    """A fact's value for people: 1965000000 Hz → 1.965 GHz, 233472 B → 228 KiB; text stays as it is."""
    try:
        number = float(value)
    except ValueError:
        return f"{value} {unit}".strip()
    if unit == "B":
        for size, name in _BINARY:
            if number >= size:
                return f"{number / size:.4g} {name}"
    for size, prefix in _PREFIXES:
        if unit in ("Hz", "B/s", "FLOP/s") and number >= size:
            return f"{number / size:.4g} {prefix}{unit}"
    return f"{number:.10g} {unit}".strip()


NO_RUN = "Nothing yet: `agent run --target gpt2-block` fills it."

LISTINGS: dict[str, Listing] = {
    "facts": Listing(
        ("op", "gpu"),
        (
            ("subject", "left", 8, _field("subject")),
            ("fact", "left", None, lambda r: f"{r['name']}: {figure(r['value'], r['unit'])}"),
            ("source", "left", None, _field("source")),
        ),
        "No fact matches.",
    ),
    "rules": Listing(
        ("op", "gpu", "status"),
        (
            ("id", "left", 8, _id("key")),
            ("status", "left", 12, _field("status")),
            ("op", "left", 12, _field("op")),
            ("rows", "right", 4, lambda r: str(r["evidence"])),
            ("rule", "left", None, lambda r: f"{r['statement']} ({effect(r)})"),
        ),
        "No rule matches.",
    ),
    "kernels": Listing(
        ("op", "gpu", "status"),
        (
            ("id", "left", 8, _id("kernel")),
            ("task", "left", 22, _field("task")),
            ("chip", "left", 8, _field("chip")),
            ("µs", "right", 8, _time),
            ("floor", "right", 7, lambda r: us(r["floor_us"])),
            ("configuration", "left", None, lambda r: pairs(r["configuration"]) + _of_base(r)),
        ),
        NO_RUN,
        limited=True,
    ),
    "runs": Listing(
        ("gpu", "status"),
        (
            ("id", "left", 38, _field("id")),
            ("chip", "left", 8, _field("chip")),
            ("proposer", "left", 11, _field("proposer")),
            ("status", "left", 11, run_status),
            ("exit", "right", 4, lambda r: "" if r["exit_code"] is None else str(r["exit_code"])),
        ),
        NO_RUN,
        limited=True,
    ),
    "attempts": Listing(
        ("op", "gpu", "status", "run"),
        (
            ("id", "left", 8, _id("trial")),
            ("task", "left", 18, _field("task")),
            ("kernel", "left", 8, _id("kernel")),
            ("status", "left", 13, _field("status")),
            ("µs", "right", 8, _time),
            ("configuration", "left", None, lambda r: pairs(r["configuration"])),
        ),
        NO_RUN,
        limited=True,
    ),
    "calls": Listing(
        ("op", "status", "run"),
        (
            ("id", "left", 8, _id("call")),
            ("task", "left", 13, _field("task")),
            ("model", "left", 11, _field("model")),
            ("move", "left", 9, _field("move")),
            ("status", "left", 9, _field("status")),
            ("kernel", "left", 8, lambda r: r["candidate"][:8]),
            ("tokens", "right", 7, lambda r: "" if r["tokens_out"] is None else f"{r['tokens_in'] + r['tokens_out']}"),
            ("$", "right", 7, lambda r: "" if r["cost_usd"] is None else f"{r['cost_usd']:.4f}"),
        ),
        "No call yet: `agent run --proposer openai` makes some.",
        limited=True,
    ),
    "tasks": Listing(
        ("op", "gpu"),
        (
            ("id", "left", 8, _id("identity")),
            ("task", "left", 26, _field("task")),
            ("dtype", "left", 5, _field("dtype")),
            ("tried", "right", 6, lambda r: str(r["trials"])),
            ("correct", "right", 7, lambda r: str(r["correct"])),
            ("best µs", "left", None, _best),
        ),
        NO_RUN,
    ),
}


@contextmanager
def reading(db: str | None) -> Iterator[Store]:
    """The knowledge base to look at: nothing is created where there is none, and a read-only file will do.

    Raises UserError where ``db`` names a file that is not there.  The default base may be missing: then there is what
    ships with the project.
    """
    file = file_of(db)
    if db and file is not None and not file.is_file():
        raise UserError(f"there is no knowledge base at {file}", "Check --db; `agent run … --db` makes one.")
    if file is None or (file.is_file() and os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        with Store.open(db or DEFAULT) as store:
            yield store
        return
    with tempfile.TemporaryDirectory() as folder:  # a copy, as opening migrates and seeds
        copy = Path(folder) / "knowledge.db"
        for beside in ("", "-wal"):
            if (part := file.with_name(file.name + beside)).is_file():
                shutil.copyfile(part, copy.with_name(copy.name + beside))
        with Store.open(str(copy)) as store:
            yield store


def file_of(db: str | None) -> Path | None:
    """The file that ``--db`` names; None for a database that is none."""
    scheme, _, path = url_of(db).partition(":///")
    return Path(path.partition("?")[0]) if scheme.startswith("sqlite") and path not in ("", ":memory:") else None


def listing(what: str, db: str | None, filters: dict[str, str], limit: int, as_json: bool) -> int:
    """Prints one table (or JSON list).  Raises UserError for a filter value that names nothing."""
    shown = LISTINGS[what]
    given: dict[str, Any] = {name: value for name, value in filters.items() if value and name in shown.filters}
    _check(what, given)
    limits = {"limit": limit} if shown.limited else {}
    with reading(db) as store:
        rows = getattr(browse, what)(store.database, **given, **limits)
    if as_json:
        emit(rows)
        return 0
    if not rows:
        asked = f" (asked for {pairs(given)})" if given else ""
        console().print(plain(shown.empty + asked))
        return 0
    made = table([column[:3] for column in shown.columns])
    for row in rows:
        made.add_row(*(plain(column[3](row)) for column in shown.columns))
    out = console()
    out.print(made)
    if any(_time(row).startswith("~") for row in rows) or "best" in rows[0]:
        out.print("~ is modelled, not measured.", style="dim")
    return 0


def search(words: list[str], kind: str, limit: int, db: str | None, as_json: bool) -> int:
    """Prints what has all of the words.  Raises UserError for a kind that there is not."""
    if kind and kind not in browse.KINDS:
        near = nearest(kind, list(browse.KINDS)) or list(browse.KINDS)
        raise UserError(f"nothing of the kind {kind!r} has words", f"There are {', '.join(near)}.")
    with reading(db) as store:
        rows = browse.search(store.database, words, kinds=[kind] if kind else [], limit=limit)
    if as_json:
        marks = str.maketrans("", "", browse.OPEN + browse.CLOSE)
        emit([row | {"text": row["text"].translate(marks)} for row in rows])
        return 0
    out = console()
    if not rows:
        among = f" among {kind}s" if kind else ""
        out.print(plain(f"Nothing{among} has {' and '.join(map(repr, words))}."))
        return 0
    made = table([("id", "left", 8), ("is", "left", 6), ("of", "left", 18), ("text", "left", None)])
    for row in rows:
        made.add_row(row["id"][:8], row["is"], plain(row["of"]), _marked(" ".join(row["text"].split())))
    out.print(made)
    return 0


def _marked(text: str) -> Text:
    """A snippet with what was found in bold; whatever else it holds stays as it is."""
    from rich.text import Text

    before, *found = text.split(browse.OPEN)
    made = Text(visible(before))
    for part in found:
        bold, _, rest = part.partition(browse.CLOSE)
        made.append(visible(bold), style="bold").append(visible(rest))
    return made


def mine(db: str | None, as_json: bool) -> int:
    """Mines the base's measured configurations, and those that ship, for rules; prints what that changed."""
    with Store.open(db) as store:
        lesson = learn(store.database)
        assert lesson is not None
        rules = browse.rules(store.database)
    counts = {status: sum(rule["status"] == status for rule in rules) for status in STATUSES}
    if as_json:
        emit({**asdict(lesson), "rules": counts})
        return 0
    out = console()
    out.print(f"{lesson.configurations} configurations ({lesson.own} of this base) in {lesson.spaces} spaces.")
    if lesson.changes:
        made = table([("id", "left", 8), ("status", "left", 25), ("rule", "left", None)])
        for change in lesson.changes:
            became = f"{change.was} → {change.status}" if change.was else f"new: {change.status}"
            made.add_row(change.key[:8], became, plain(f"{change.statement} ({change.why})"))
        out.print(made)
    else:
        out.print("No rule changed.")
    out.print(", ".join(f"{count} {status}" for status, count in counts.items() if count) + ".")
    return 0


def known_chip(gpu: str) -> str:
    """The chip that ``--gpu`` names, as it is stored; empty: any.  Raises UserError where there is none such."""
    return chip(gpu).name if gpu and gpu != "auto" else gpu  # a chip derived from a driver is stored as auto


def known_op(op: str) -> str:
    """What ``--op`` names: the beginning of a task's name, or an op.  Raises UserError where no task can have it."""
    names = (*OPS, *NAMES)
    stored = op.replace("-", "_")
    # A task without a name of its own is named by its ops and six hex digits.
    if any(name.startswith(stored) or stored.startswith(f"{name}_") for name in names):
        return op
    raise UserError(f"--op {op}: there is no such op", f"Near it are {', '.join(nearest(op, names) or ('linear',))}.")


def _check(what: str, given: dict[str, str]) -> None:
    known_op(given.get("op", ""))
    if "gpu" in given:
        given["gpu"] = known_chip(given["gpu"])
    known: dict[str, Sequence[str]] = {
        "rules": STATUSES,
        "kernels": ("measured", "modelled", "promoted", FOREIGN),
        "runs": ("running", "done", "incomplete", "interrupted", "failed"),
        "attempts": (*(s.value for s in Status), "compiled", FOREIGN),
        "calls": tuple(a.value for a in Answered),
    }
    if "status" in given and given["status"] not in known[what]:
        raise UserError(f"--status {given['status']}: no such status of {what}", f"There are {', '.join(known[what])}.")


def plain(text: str) -> str:
    """``text`` as rich prints it as it is, but for what a terminal would act on."""
    from rich.markup import escape

    return escape(visible(text))
