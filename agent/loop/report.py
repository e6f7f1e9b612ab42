"""A run for people: the final table of 80 columns, and report.md in the run's folder.

Both are made from the run's document (:meth:`.summary.RunSummary.document`): the one just made, or one that is stored,
by this version or an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.console import called, count, pairs, table, us
from evaluator.confinement import containment

if TYPE_CHECKING:
    from rich.console import Console

Document = Mapping[str, Any]

MODELLED = "Times are modelled, not measured: a roofline with waves, occupancy and spills (docs/model.md)."
MEASURED = "Times are measured (docs/measuring.md), with 95% intervals; those marked ~ are modelled (docs/model.md)."


def final_table(run: Document, out: Console) -> None:
    """Prints the table and what to do next."""
    from rich.markup import escape

    made = table(
        [
            ("task", "left", 26),
            ("kernel", "left", 7),
            ("fusion", "left", 13),
            ("error", "right", 6),
            ("µs", "right", 8),
            ("floor", "right", 8),
            ("share", "right", 5),
        ]
    )
    for task in run["tasks"]:
        if task["correct"]:
            kernel, error = task["kernel"][:7], ratio(task["error"])
        else:
            kernel, error = "-", "-"  # the status is said in words below
        times = (_time(task), us(task["floor_us"]), _percent(task["share"]))
        made.add_row(escape(called(task)), kernel, escape(task["fusion"]), error, *times)
    out.print()
    out.print(made)
    out.print(_totals(run), style="dim")
    for task in run["tasks"]:
        if not task["correct"]:
            why = f"{task['status']}: {task['message']}"
            out.print(f"[red]{task['name']}[/red]: {escape(why)}")
    if run["composed"]:
        status, said = run["composed"]["status"], run["composed"]["message"]
        where = f"{run['target']} composed of these kernels: {status}" + (f", {said}" if said else "")
        out.print(escape(where), style="green" if status == "correct" else "red")
    for note in run["notes"]:
        out.print(escape(note), style="dim")
    out.print(escape(f"{run['folder']}/report.md   {run['seconds']:.1f} s"))


def _totals(run: Document) -> str:
    marks = "~ modelled"
    if any(task.get("stability") == "unstable" for task in run["tasks"]):
        marks += ", ? unstable"
    lines = [f"error: RMS over PyTorch's own; {marks}; µs and floor of one call"]
    if run["total_us"] is not None:
        kind = next((task["kind"] for task in run["tasks"] if task["kind"]), "")
        total = f"{us(run['total_us'], kind)} µs, floor {us(run['total_floor_us'])} µs"
        if run["composed"].get("interval_us"):  # it was measured as a whole
            whole = f"{_time(run['composed'])} µs{_interval(run['composed'])}"
            lines.append(f"target: {whole} on {run['chip']}; its calls alone, each with a cold L2: {total}")
        else:
            lines.append(f"target: {total} on {run['chip']}")
    for task in run["tasks"]:
        if task.get("packing_us") is not None:
            once = us(task["packing_us"], task["kind"])
            lines.append(f"{task['name']}: its weights are packed once, {once} µs more")
    for name, plan in run["plans"].items():
        counts = f"{count(plan['tasks'], 'task')}, {count(plan['calls'], 'call')}"
        chosen = " (chosen)" if name == run["plan"] else ""
        took = f", took {us(plan['us'])} µs" if "us" in plan else ""
        lines.append(f"plan {name}: {counts}, floor ~{us(plan['floor_us'])} µs{took}{chosen}")
    return "\n".join(lines)


def _time(task: Document) -> str:
    """A task's time; ``?`` behind one whose interval stayed too wide."""
    return us(task["us"], task["kind"]) + ("?" if task.get("stability") == "unstable" else "")


def ratio(value: float | None) -> str:
    return "exact" if value is None else f"{value:.2f}×"


def _interval(task: Document) -> str:
    """The 95% interval of a measured time, and of how many processes it is."""
    if not task.get("interval_us"):
        return ""
    low, high = task["interval_us"]
    return f" ({us(low)} to {us(high)}, {task['processes']} processes)"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def markdown(run: Document, versions: dict[str, str]) -> str:
    """report.md."""
    tasks, composed = run["tasks"], run["composed"]
    lines = [
        f"# {run['target']} on {run['chip']}",
        "",
        f"Run `{run['id']}`: **{run['status']}** in {run['seconds']:.1f} s. Kernels by the {run['proposer']} "
        f"({run['why']}), run on {run['device']}.",
        "",
        MEASURED if any(task["kind"] == "measured" for task in tasks) else MODELLED,
        "",
        "| task | calls | kernel | fusion | error ÷ PyTorch's | µs | floor µs | share | configuration |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in tasks:
        cells = [
            t["name"],
            str(t["calls"]),
            f"`{t['kernel'][:12]}`" if t["correct"] else f"**{t['status']}**",
            t["fusion"],
            ratio(t["error"]) if t["correct"] else "-",
            _time(t) + _interval(t),
            us(t["floor_us"]),
            _percent(t["share"]),
            f"`{pairs(t['configuration'])}`" if t["correct"] else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "```", _totals(run), "```", ""]
    if composed:
        lines += ["## The target, composed", "", f"**{composed['status']}** {composed['message']}", ""]
    for t in tasks:
        lines += _task(t)
    changes = run.get("lesson", {}).get("changes", ())
    if changes:
        lines += ["## Rules", ""]
        for change in changes:
            became = f"{change['was']} → {change['status']}" if change["was"] else f"new, {change['status']}"
            lines.append(f"- {became}: {change['statement']} ({change['why']})")
        lines.append("")
    lines += [
        "## Where",
        "",
        *(f"- {name}: {version}" for name, version in versions.items()),
        "",
        *run["notes"],
        "",
        containment().says,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _task(t: Document) -> list[str]:
    effort = t["effort"]
    lines = [f"## {t['name']}", ""]
    lines += [f"Sizes {pairs(t['shape'])}; identity `{t['identity'][:16]}`; {effort['seconds']:.1f} s.", ""]
    if t["correct"]:
        lines += [f"Kernel `{t['kernel'][:12]}` by {t['proposer']} in `{t['folder']}`. {t['note']}".rstrip(), ""]
        of = count(effort["configurations"], "configuration")
        lines += [f"{effort['searched']} of {of} compiled and ranked by {t['kind']} time.", ""]
        if over := t.get("over"):
            lines += [f"Asked no more: {over}.", ""]
        for number, plan in enumerate(t["plans"], 1):
            lines.append(f"- plan {number}: {' and '.join(plan['guards']) or 'every size'}")
        for e in (*t["evidence"], *t["evidence_elsewhere"]):
            unit = f", {e['mma']}" if e["mma"] else ""
            lines.append(
                f"- `{e['symbol']}` on {e['arch']}: {e['registers']} registers, {e['spill_bytes']} B spilled, "
                f"{e['shared_bytes']} B shared{unit}{', TMA' if e['tma'] else ''}"
            )
    else:
        lines.append(f"**{t['status']}**: {t['message']}")
    for rejected in t["rejected"]:
        kernel, by = rejected["kernel"][:12], rejected["proposer"]
        lines.append(f"- rejected `{kernel}` ({by}): {rejected['status']}, {rejected['message']}")
    return [*lines, ""]
