"""What an author is told about an answer: what became of it, in which configurations, and what to change."""

from __future__ import annotations

from collections import Counter

from knowledge_base.records import Trial, Verdict

from .briefing import Answer, Briefing
from .change import change

LISTED = 6  # configurations that are named with their times
SIZES = 4  # at which launch refused, that are named


def outcome(trial: Trial) -> str:
    """What became of an answer, in a few words."""
    time = trial.time
    speed = f", {us(time.us)} µs ({time.kind})" if time is not None else ""
    if trial.verdict is None:
        return f"not judged{speed}"
    if trial.correct and trial.infeasible:
        return f"right where it ran, but launch refused some sizes{speed}"
    return f"right{speed}" if trial.correct else trial.status


def said(answer: Answer, briefing: Briefing) -> str:
    """All the rest: the verdict with line and hint; or how fast it is, what the cubin shows, and one change to make."""
    trial = answer.trial
    lines = [f"In the configuration {axes(trial)}."] if trial.configuration else []
    if trial.verdict is not None and not trial.correct:
        lines += _verdict(trial.verdict)
    if trial.correct and trial.infeasible:
        sizes = "; ".join(", ".join(f"{n}={v}" for n, v in size.items()) for size in trial.infeasible[:SIZES])
        lines.append(
            f"launch raised ValueError at {sizes}. It is kept for the sizes that it serves; the task needs a kernel "
            "that serves every size."
        )
    if trial.correct or trial.verdict is None:
        lines += _speed(trial, briefing)
    lines += _configurations(answer)
    if trial.correct and (advised := change(trial, briefing.task, briefing.chip)):
        lines.append(f"To change: {advised}")
    return "\n".join(lines)


def _verdict(verdict: Verdict) -> list[str]:
    named = f"{verdict.status.value} ({verdict.error_class}): " if verdict.error_class else ""
    lines = [f"{named}{verdict.message}"]
    if verdict.line is not None:
        lines.append(f"Line {verdict.line}: `{verdict.source}`")
    if verdict.hint:
        lines.append(f"Hint: {verdict.hint}")
    return lines


def _speed(trial: Trial, briefing: Briefing) -> list[str]:
    """The distance to the speed of light and to the fastest kernel, and the cubin's figures."""
    time, lines = trial.time, []
    if time is not None:
        far = f"{us(time.us)} µs ({time.kind}) is {time.us / briefing.floor_us:.2f} times the speed of light"
        best = briefing.best
        if best is not None and best[0].candidate.digest != trial.candidate.digest and best[1].kind == time.kind:
            far += f" and {time.over(best[1]):.2f} times the fastest kernel so far"
        lines.append(f"{far}.")
    elif trial.reason:
        lines.append(f"{trial.reason}.")
    for e in trial.evidence:
        spilled = f", {e.spill_bytes} bytes a thread spilled" if e.spill_bytes else ""
        lines.append(
            f"{e.symbol}: {e.registers} registers a thread{spilled}, {e.shared_bytes} bytes of shared memory, matrix "
            f"instruction {e.mma or 'none'}, TMA {'yes' if e.tma else 'no'}."
        )
    return lines


def _configurations(answer: Answer) -> list[str]:
    """How the other configurations fared: the fastest by name, the rest by what kept them back."""
    if len(answer.configurations) < 2:
        return []
    timed = [(t, time) for t in answer.configurations if t.standing == "ranked" and (time := t.time) is not None]
    timed.sort(key=lambda pair: pair[1].us)
    lines = [f"Of {answer.total} configurations {len(answer.configurations)} were looked at."]
    if timed:
        named = "; ".join(f"{axes(trial)}: {us(time.us)}" for trial, time in timed[:LISTED])
        lines[0] += f" The fastest, in µs: {named}."
    # What the page is about is not said twice.
    others = [t for t in answer.configurations if t.standing != "ranked" and t.key != answer.trial.key]
    kept = Counter((t.standing, t.reason) for t in others)
    for (standing, reason), count in kept.most_common(LISTED):
        first = next(t for t in others if (t.standing, t.reason) == (standing, reason))
        lines.append(f"{count} {standing} ({axes(first)}{' and others' if count > 1 else ''}): {reason}")
    return lines


def axes(trial: Trial) -> str:
    """``TM=64, TN=128``: a trial's configuration."""
    return ", ".join(f"{name}={value}" for name, value in trial.configuration.items())


def us(value: float) -> str:
    """A time in µs with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
