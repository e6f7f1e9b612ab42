"""A run's summary for people: the final table of 80 columns, and report.md in the run's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.confine import containment

from .console import pairs, table, us
from .summary import RunSummary, TaskResult

if TYPE_CHECKING:
    from rich.console import Console

MODELLED = "Times are modelled, not measured: a roofline with waves, occupancy and spills (docs/model.md)."
MEASURED = "Times are measured; those marked ~ are modelled (docs/model.md)."


def final_table(summary: RunSummary, out: Console) -> None:
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
    for task in summary.tasks:
        name = f"{task.calls}× {task.name}" if task.calls > 1 else task.name
        if task.correct:
            kernel, error = task.kernel[:7], ratio(task.error)
        else:
            kernel, error = "-", "-"  # the status is said in words below
        times = (us(task.us, task.kind), us(task.floor_us), _percent(task.share))
        made.add_row(escape(name), kernel, escape(task.fusion), error, *times)
    out.print()
    out.print(made)
    out.print(_totals(summary), style="dim")
    for task in summary.tasks:
        if not task.correct:
            out.print(f"[red]{task.name}[/red]: {escape(f'{task.status}: {task.message}')}")
    if summary.composed:
        said = summary.composed.get("message") or ""
        good = summary.composed.get("status") == "correct"
        where = f"{summary.target} composed of these kernels: {summary.composed['status']}" + (
            f", {said}" if said else ""
        )
        out.print(escape(where), style="green" if good else "red")
    for note in summary.notes:
        out.print(escape(note), style="dim")
    out.print(escape(f"{summary.folder}/report.md   {summary.seconds:.1f} s"))


def _totals(summary: RunSummary) -> str:
    lines = ["error: RMS over PyTorch's own; ~ modelled; µs and floor of one call"]
    if summary.total_us is not None:
        kind = next((t.kind for t in summary.tasks if t.kind), "")
        lines.append(
            f"target: {us(summary.total_us, kind)} µs, floor {us(summary.total_floor_us)} µs on {summary.chip}"
        )
    for name, plan in summary.plans.items():
        counts = f"{count(plan['tasks'], 'task')}, {count(plan['calls'], 'call')}"
        chosen = " (chosen)" if name == summary.plan else ""
        lines.append(f"plan {name}: {counts}, floor ~{us(plan['floor_us'])} µs{chosen}")
    return "\n".join(lines)


def count(number: float, thing: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{int(number)} {thing}" if number == 1 else f"{int(number)} {thing}s"


def ratio(value: float | None) -> str:
    return "exact" if value is None else f"{value:.2f}×"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def markdown(summary: RunSummary, versions: dict[str, str]) -> str:
    """report.md."""
    lines = [
        f"# {summary.target} on {summary.chip}",
        "",
        f"Run `{summary.id}`: **{summary.status}** in {summary.seconds:.1f} s. Kernels by the {summary.proposer} "
        f"({summary.why}), run on {summary.device}.",
        "",
        MEASURED if any(t.kind == "measured" for t in summary.tasks) else MODELLED,
        "",
        "| task | calls | kernel | fusion | error ÷ PyTorch's | µs | floor µs | share | configuration |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in summary.tasks:
        cells = [
            t.name,
            str(t.calls),
            f"`{t.kernel[:12]}`" if t.correct else f"**{t.status}**",
            t.fusion,
            ratio(t.error) if t.correct else "-",
            us(t.us, t.kind),
            us(t.floor_us),
            _percent(t.share),
            f"`{pairs(dict(t.configuration))}`" if t.configuration else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "```", _totals(summary), "```", ""]
    if summary.composed:
        lines += [
            "## The target, composed",
            "",
            f"**{summary.composed['status']}** {summary.composed.get('message', '')}",
            "",
        ]
    for t in summary.tasks:
        lines += _task(t)
    lines += [
        "## Where",
        "",
        *(f"- {name}: {version}" for name, version in versions.items()),
        "",
        *summary.notes,
        "",
        containment().says,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _task(t: TaskResult) -> list[str]:
    lines = [f"## {t.name}", "", f"Sizes {pairs(dict(t.sizes))}; identity `{t.identity[:16]}`; {t.seconds:.1f} s.", ""]
    if t.correct:
        lines += [f"Kernel `{t.kernel[:12]}` by {t.proposer} in `{t.folder}`. {t.note}".rstrip(), ""]
        lines += [
            f"{t.searched} of {count(t.configurations, 'configuration')} compiled and ranked by {t.kind} time.",
            "",
        ]
        for number, guards in enumerate(t.guards, 1):
            lines.append(f"- plan {number}: {' and '.join(guards) or 'every size'}")
        for e in t.evidence:
            unit = f", {e['mma']}" if e.get("mma") else ""
            lines.append(
                f"- `{e['symbol']}` on {e['arch']}: {e['registers']} registers, {e['spill_bytes']} B spilled, "
                f"{e['shared_bytes']} B shared{unit}{', TMA' if e.get('tma') else ''}"
            )
    else:
        lines.append(f"**{t.status}**: {t.message}")
    for r in t.rejected:
        lines.append(f"- rejected `{str(r['kernel'])[:12]}` ({r['proposer']}): {r['status']}, {r['message']}")
    return [*lines, ""]
