"""``agent kb show``: everything about one thing, as a page of 80 columns or as JSON.

What there is to say is :func:`knowledge_base.browse.show`'s work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent.console import console, count, emit, pairs, percent, table, us, visible
from knowledge_base import browse

from .kb import Row, effect, figure, known_chip, plain, reading, run_status

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = "█▇▆▅▄▃▂▁"  # of a curve, from its first time down to its best one
CURVE = 16  # characters
_SHOWN = 12  # rows of a table of trials
_MODELLED = "~ is modelled, not measured."


def show(what: str, gpu: str, db: str | None, as_json: bool) -> int:
    """Prints everything about what ``what`` names.  Raises UserError where that is nothing or several things."""
    with reading(db) as store:
        row = browse.show(store.database, what, gpu=known_chip(gpu))
    if as_json:
        emit(row)
        return 0
    out = console()
    PAGES.get(row["is"], _fields)(out, row)
    return 0


# ---------------------------------------------------------------------------------------------------- pages


def _task(out: Console, row: Row) -> None:
    _title(out, "task", row["task"], row["identity"])
    out.print(f"{row['dtype']}, {row['precision']}; {row['ops'].strip(',').replace(',', ', ')}", markup=False)
    out.print()
    out.print(visible(row["snf"].rstrip()), markup=False, soft_wrap=True)
    for place in row["places"]:
        out.print()
        _place(out, place)
    if row["more_places"]:
        out.print()
        out.print(f"And {count(row['more_places'], 'other place')}: --gpu, or --json, has them.", style="dim")
    if not row["places"]:
        out.print()
        out.print("Not tried yet.")
    elif any(place["kind"] == "modelled" for place in row["places"]):
        out.print(_MODELLED, style="dim")
    if row["winners"]:
        _heading(out, "winners")
        _winners(out, row["winners"], of_task=True)


def _place(out: Console, place: Row) -> None:
    where = f"{place['chip']} at {pairs(place['shape'])}"
    tried = ", ".join(f"{n} {standing}" for standing, n in place["trials"].items())
    older = f"; {place['older_trials']} more by earlier versions of the evaluator" if place["older_trials"] else ""
    out.print(plain(where), style="bold")
    out.print(plain(f"{count(sum(place['trials'].values()), 'configuration')} seen: {tried}{older}"))
    if place["best"]:
        rows = table(
            [("µs", "right", 8), ("slower", "right", 6), ("kernel", "left", 8), ("configuration", "left", None)]
        )
        for one in place["best"]:
            judged = "✓ " if one["status"] == "correct" else "  "
            why = f"\n  [dim]{plain(', '.join(one['why']))}[/dim]" if one["why"] else ""
            slower = "best" if one["slower"] == 1 else f"{one['slower']:.2f}×"
            rows.add_row(_time(one), slower, one["kernel"][:8], plain(judged + pairs(one["configuration"])) + why)
        out.print(rows)
        first = next((one for one in place["best"] if one["slower"] == 1), place["best"][0])
        light = ""
        if first["floor_us"]:  # of a few bytes it is less than a nanosecond, which is stored as 0
            light = f" speed of light {us(first['floor_us'])} µs: the best takes {first['us'] / first['floor_us']:.2f}×"
        out.print(f"✓ judged: correct; the others were compiled and timed.{light}")
    if place["lost"]:
        rows = table([("lost", "left", 12), ("trials", "right", 6), ("why, of those looked at", "left", None)])
        before = ""
        for one in place["lost"]:
            new = one["standing"] != before
            before = one["standing"]
            share = "" if one["of_these"] == one["looked_at"] else f"{one['of_these']} of {one['looked_at']}: "
            named = f"{one['error_class']}: " if one["error_class"] else ""
            time = f" ({_time(one)} µs)" if one["us"] is not None else ""
            said = plain(f"{share}{named}{one['reason']}{time}")
            rows.add_row(one["standing"] if new else "", str(one["trials"]) if new else "", said)
        out.print(rows)


def _kernel(out: Console, row: Row) -> None:
    _title(out, "kernel", f"for {row['task']}", row["kernel"])
    made = [f"by {row['proposer']}"] if row["proposer"] else []
    made += [f"in run {row['run_id']}"] if row["run_id"] else []
    out.print(plain(", ".join([*made, row["created_at"]])))
    if row["note"]:
        out.print(plain(row["note"]))
    for call in row.get("calls", ()):
        out.print(f"It answers call {call[:12]}: agent kb show {call[:12]}", markup=False)
    if len(row["lineage"]) > 1:
        _heading(out, "lineage")
        for one in row["lineage"]:
            mark = "→ " if one["here"] else "  "
            branch = "  " * (one["depth"] - 1) + "└ " if one["depth"] else ""
            said = f"{one['status'] or 'not tried'} {_time(one) if one['us'] is not None else ''}".strip()
            note = f"  {one['note']}" if one["note"] else ""
            line = f"{mark}{branch}{one['kernel'][:8]}  {said}  {one['proposer']}{note}"
            out.print(plain(line), no_wrap=True, overflow="ellipsis", style="bold" if one["here"] else "")
    for step in row["steps"]:
        _heading(out, f"what changed from {step['from'][:8]} to {step['to'][:8]}")
        _diff(out, step["diff"])
    _trials(out, row["trials"])
    _text(out, "source", row["source"])


def _run(out: Console, row: Row) -> None:
    _title(out, "run", row["target"], row["id"], whole=True)
    ended = f", ended {row['ended_at']}" if row["ended_at"] else ""
    out.print(f"{run_status(row)} on {row['chip']} ({row['device']}) by {row['proposer']}", markup=False)
    out.print(f"started {row['started_at']}{ended}, exit {row['exit_code']}", markup=False)
    asked = f", {count(row['calls'], 'call')} of a language model" if row["calls"] else ""
    out.print(f"{count(row['attempts'], 'attempt')}{asked}: agent kb attempts --run {row['id']}", markup=False)
    for name in ("options", "versions"):
        said = {k: v for k, v in row[name].items() if v not in (None, "", [], {})}
        if said:
            out.print(plain(f"{name}: {pairs(said)}"))
    if row["winners"]:
        _heading(out, "winners")
        _winners(out, row["winners"], of_task=False)
    learnt = [curve for curve in row["curves"] if curve["points"]]
    if learnt:
        _heading(out, "learning curves")
        columns = [("tried", "right", 5), ("first µs", "right", 8), ("best µs", "right", 8), ("at", "right", 4)]
        rows = table([("task", "left", None), *columns, ("", "left", CURVE)])
        for one in learnt:
            (_, first), (at, best) = one["points"][0], one["points"][-1]
            named = plain(f"{one['task']} {pairs(one['shape'])}")
            times = (us(first, one["kind"]), us(best, one["kind"]))
            rows.add_row(named, str(one["evaluations"]), *times, str(at), sparkline(one))
        out.print(rows)
    if any(one["kind"] == "modelled" for one in (*row["curves"], *row["winners"])):
        out.print(_MODELLED, style="dim")


def sparkline(curve: Mapping[str, Any], width: int = CURVE) -> str:
    """The best time so far over a curve's evaluations, from the first (█) to the best (▁)."""
    points, number = curve["points"], curve["evaluations"]
    (_, first), (_, last) = points[0], points[-1]
    drawn = ""
    for place in range(1, min(width, number) + 1):
        until = math.ceil(place * number / min(width, number))
        here = [time for at, time in points if at <= until]
        fallen = (first - here[-1]) / (first - last) if here and first > last else 0.0
        drawn += LEVELS[round(fallen * (len(LEVELS) - 1))] if here else " "
    return drawn


def _trial(out: Console, row: Row) -> None:
    _title(out, "trial", f"of {row['task']}", row["trial"])
    out.print(
        f"kernel {row['kernel'][:12]} by {row['proposer'] or 'nobody known'}: {pairs(row['configuration'])}",
        markup=False,
    )
    out.print(f"on {row['chip']} at {pairs(row['shape'])}", markup=False)
    verdict = row["verdict"]
    general = "" if not row["correct"] else ", at every size" if row["general"] else ", but launch refuses sizes"
    judged = f" ({count(len(row['judged']), 'size')} judged in {row['seconds']:.1f} s)" if row["judged"] else ""
    out.print(f"[bold]{row['status']}[/bold]{general}{judged}")
    if row["origin"]:
        out.print(plain(f"{row['message']}. Not judged here: agent kb show {row['origin'][:8]}"))
    elif verdict is not None and verdict["message"]:
        where = f"line {verdict['line']}: {verdict['source']}\n" if verdict["line"] else ""
        named = f"{verdict['error_class']}: " if verdict["error_class"] else ""
        hint = f"\n{verdict['hint']}" if verdict["hint"] else ""
        out.print(plain(f"{where}{named}{verdict['message']}{hint}"))
    elif row["message"]:
        out.print(plain(row["message"]))
    _rows(out, "times", row["measurements"], [
        ("µs", "right", 9, _time),
        ("floor", "right", 8, lambda m: us(m["floor_us"])),
        ("", "left", 9, lambda m: m["kind"]),
        ("is", "left", 12, lambda m: m["status"]),
        ("of", "left", None, lambda m: pairs({k: f"{v:.4g}" for k, v in m["terms"].items()})),
    ])  # fmt: skip
    cubins = [
        e | {"for": where}
        for where, name in (("", "evidence"), ("other sizes", "evidence_elsewhere"))
        for e in row[name]
    ]
    _rows(out, "cubins", cubins, [
        ("kernel", "left", 22, lambda e: e["symbol"]),
        ("arch", "left", 7, lambda e: e["arch"]),
        ("regs", "right", 4, lambda e: str(e["registers"])),
        ("spill", "right", 5, lambda e: str(e["spill_bytes"])),
        ("shared", "right", 6, lambda e: str(e["shared_bytes"])),
        ("threads", "right", 7, lambda e: str(e["threads"])),
        ("units", "left", None, lambda e: ", ".join(filter(None, [e["mma"], "TMA" if e["tma"] else "", e["for"]]))),
    ])  # fmt: skip
    if verdict is not None:
        _rows(out, "findings", verdict["findings"], [
            ("kind", "left", 18, lambda f: f["kind"]),
            ("line", "right", 4, lambda f: str(f["line"] or "")),
            ("said", "left", None, lambda f: f["message"]),
        ])  # fmt: skip
        figures = [
            {"inputs": inputs, "output": output} | found
            for inputs, outputs in verdict["numbers"].items()
            for output, found in (outputs.items() if isinstance(outputs, dict) else ())
            if isinstance(found, dict)
        ]
        _rows(out, "errors over PyTorch's own", figures, [
            ("inputs", "left", 12, lambda f: f["inputs"]),
            ("output", "left", 12, lambda f: f["output"]),
            ("", "left", None, lambda f: pairs({k: v for k, v in f.items() if isinstance(v, int | float)})),
        ])  # fmt: skip
    _text(out, "source", row["source"])


def _rule(out: Console, row: Row) -> None:
    _title(out, f"{row['status']} rule", f"({row['origin']})", row["key"])
    out.print(plain(f"{row['statement']}: {effect(row)}"))
    out.print(plain(f"source: {row['source']}"))
    out.print(plain(f"checked as: {json.dumps(row['form'], ensure_ascii=False)}"))
    if row["superseded_by"]:
        out.print(f"superseded by rule {row['superseded_by'][:12]}", markup=False)
    _rows(out, "evidence", row["evidence"], [
        ("time", "right", 7, lambda e: _effect(e["log_ratio"])),
        ("pairs'", "right", 7, lambda e: _effect(e["paired"])),
        ("pairs", "right", 5, lambda e: str(e["pairs"] or "")),
        ("", "left", 9, lambda e: e["kind"]),
        ("where", "left", None, lambda e: e["note"] or _where(e["place"])),
    ])  # fmt: skip
    _rows(out, "history", row["history"], [
        ("at", "left", 16, lambda h: str(h.get("at", ""))[:16].replace("T", " ")),
        ("became", "left", 25, lambda h: f"{h['was']} → {h['status']}" if h.get("was") else str(h["status"])),
        ("why", "left", None, lambda h: str(h.get("why", ""))),
    ])  # fmt: skip


def _effect(log_ratio: float | None) -> str:
    return "-" if log_ratio is None else percent(log_ratio)


def _where(place: Mapping[str, Any]) -> str:
    sizes = place.get("sizes", {})
    named = [str(place[name]) for name in ("task", "dtype", "chip") if place.get(name)]
    return ", ".join([*named, *([pairs(sizes)] if sizes else [])])


def _chip(out: Console, row: Row) -> None:
    _title(out, "chip", f"{row['product']}, {row['arch']}", row["chip"])
    _rows(out, "facts", row["facts"], [
        ("fact", "left", 40, lambda f: f"{f['name']}: {figure(f['value'], f['unit'])}"),
        ("source", "left", None, lambda f: f["source"]),
    ], wrap=True)  # fmt: skip
    _rows(out, "rules of this chip alone", row["rules"], [
        ("id", "left", 8, lambda r: r["key"][:8]),
        ("status", "left", 12, lambda r: r["status"]),
        ("rule", "left", None, lambda r: f"{r['statement']} ({effect(r)})"),
    ])  # fmt: skip
    won = [best | {"task": task["task"]} for task in row["tasks"] for best in task["best"]]
    if won:
        _heading(out, "best kernels on it")
        _winners(out, won, of_task=False)
    else:
        out.print()
        out.print("No task has a kernel on it yet.")


def _base(out: Console, row: Row) -> None:
    _title(out, "base", "(this one)" if row["own"] else f"from {row['file']}", row["key"])
    if not row["own"]:
        out.print(f"exported {row['exported_at']}, imported {row['imported_at']}", markup=False)
        for kind, changes in row["took"].items():
            out.print(plain(f"{kind}: {pairs(changes)}"))


def _call(out: Console, row: Row) -> None:
    for name, value in row.items():
        if name == "request":
            for message in value["messages"]:
                _text(out, message["role"], message["content"])
            out.print(f"[bold]request:[/bold] {plain(pairs({k: v for k, v in value.items() if k != 'messages'}))}")
        elif name == "text":
            _text(out, name, str(value))
        elif name != "is":
            _field(out, name, value)


def _fields(out: Console, row: Row) -> None:
    for name, value in row.items():
        _field(out, name, value)


PAGES: dict[str, Callable[[Any, Row], None]] = {
    "task": _task, "kernel": _kernel, "run": _run, "trial": _trial, "rule": _rule, "chip": _chip, "call": _call,
    "base": _base,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------------- parts of pages


def _title(out: Console, kind: str, name: str, key: str, whole: bool = False) -> None:
    out.print(f"[bold]{plain(f'{kind} {name}')}[/bold]  {plain(key if whole else key[:16])}")


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(text, style="bold", markup=False)


def _text(out: Console, name: str, text: str) -> None:
    _heading(out, f"{name}:")
    out.print(visible(text.rstrip()), markup=False, soft_wrap=True)


def _field(out: Console, name: str, value: Any) -> None:
    flat = isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values())
    out.print(f"[bold]{name}:[/bold] {plain(pairs(value) if flat else str(value))}")


def _diff(out: Console, diff: str) -> None:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff.splitlines():
        out.print(visible(line), style=styles.get(line[:1], ""), markup=False, soft_wrap=True)


def _time(row: Row) -> str:
    return us(row["us"], row["kind"])


def _winners(out: Console, winners: Iterable[Row], of_task: bool) -> None:
    """A table of winners: those of one task each with its run, others with their task."""
    first = ("run", "left", 32) if of_task else ("task", "left", 22)
    rows = table([first, ("kernel", "left", 8), ("chip", "left", 8), ("µs", "right", 8),
                  ("floor", "right", 7), ("shape", "left", None)])  # fmt: skip
    for won in winners:
        name = won["run_id" if of_task else "task"]
        general = "" if won["general"] else " (not every size)"
        times = (_time(won), us(won["floor_us"]))
        rows.add_row(plain(name), won["kernel"][:8], won["chip"], *times, plain(pairs(won["shape"]) + general))
    out.print(rows)


def _trials(out: Console, trials: list[Row]) -> None:
    if not trials:
        return
    _heading(out, count(len(trials), "trial") + (f", the first {_SHOWN}" if len(trials) > _SHOWN else ""))
    rows = table([("id", "left", 8), ("chip", "left", 8), ("status", "left", 13), ("µs", "right", 8),
                  ("configuration", "left", None)])  # fmt: skip
    for one in trials[:_SHOWN]:
        said = f"\n[dim]{plain(one['message'])}[/dim]" if one["message"] else ""
        rows.add_row(
            one["trial"][:8], one["chip"], one["status"], _time(one), plain(pairs(one["configuration"])) + said
        )
    out.print(rows)


def _rows(
    out: Console, heading: str, rows: list[Row], columns: list[tuple[str, str, int | None, Callable[[Row], str]]],
    wrap: bool = False,
) -> None:  # fmt: skip
    """A table under a heading; nothing where there is no row.  ``wrap``: columns with a width wrap, too."""
    if not rows:
        return
    _heading(out, heading)
    made = table([column[:3] for column in columns])
    if wrap:
        for column in made.columns:
            column.no_wrap = False
    for row in rows:
        made.add_row(*(plain(str(text(row))) for *_, text in columns))
    out.print(made)
