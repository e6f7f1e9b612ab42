"""A prompt: sections with names, made from templates; as messages, with an estimate of its tokens.

What is the same for every task stands first (the system's message), then the chip and the task, then what changes from
request to request, so that an endpoint's cache of prompts holds as much as it can.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernels_generated.runtime.expr import show as show_size
from knowledge_base.content import content_key
from knowledge_base.records import Trial, Verdict
from knowledge_base.snf.ops import OPS
from knowledge_base.snf.printer import show, signature
from knowledge_base.snf.task import Task

from .briefing import Briefing
from .cheat_sheet import functions, version

TEMPLATES = Path(__file__).with_name("templates")
CHARACTERS_A_TOKEN = 3.5  # of English with code, for the tokenizers in use; endpoints report the true count


@dataclass(frozen=True)
class Section:
    """A part of a prompt.  ``role`` is that of the message it is in: system or user."""

    name: str
    role: str
    text: str

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return round(len(self.text) / CHARACTERS_A_TOKEN)


@dataclass(frozen=True)
class Prompt:
    """Sections in their order."""

    sections: tuple[Section, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """What is sent: a system's message and a user's."""
        texts: dict[str, list[str]] = {}
        for section in self.sections:
            texts.setdefault(section.role, []).append(section.text)
        return [{"role": role, "content": "\n".join(parts)} for role, parts in texts.items()]

    @property
    def digest(self) -> str:
        """Hash of the messages."""
        return content_key("prompt", self.messages)

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return sum(section.tokens for section in self.sections)


def write(briefing: Briefing) -> Prompt:
    """The prompt for a briefing."""
    b = briefing
    last = b.answers[-1] if b.answers else None
    made: list[tuple[str, str, Mapping[str, Any] | None]] = [
        ("contract", "system", {"cutile": version(), "example": _text("example.txt")} | _limits(b)),
        ("language", "system", {"functions": functions()}),
        ("chip", "user", {"chip": b.chip, "tensor": list(b.chip.tensor_flops.items())}),
        ("task", "user", _task(b.task) | {"floor_us": b.floor_us}),
        ("best", "user", _best(b)),
        ("trials", "user", {"trials": _answers(b)} if b.answers else None),
        (
            "request",
            "user",
            {"problem": b.problem, "number": len(b.answers), "wrong": last is not None and not last.general},
        ),
    ]
    sections = (Section(name, role, _fill(f"{name}.md", values)) for name, role, values in made if values is not None)
    return Prompt(tuple(sections))


# ---------------------------------------------------------------------------------------------------- what is filled in


def _limits(b: Briefing) -> dict[str, Any]:
    return {"rms_factor": f"{b.rms_factor:g}", "largest_factor": f"{b.largest_factor:g}"}


def _task(task: Task) -> dict[str, Any]:
    tensors = (*task.inputs, *task.outputs)
    used = dict.fromkeys(node.op for node in task.graph.nodes)
    return {
        "signature": signature(task),
        "snf": show(task.graph),
        "dtypes": ", ".join(f"{t.name} {t.dtype}" for t in tensors),
        "constants": task.constants,
        "constraints": [f"{show_size(a)} {comparison} {show_size(b)}" for comparison, a, b in task.constraints],
        "formulas": [(OPS[op].spellings[0], OPS[op].says) for op in used if OPS[op].says and OPS[op].spellings],
    }


def _best(b: Briefing) -> dict[str, Any] | None:
    if b.best is None:
        return None
    trial, time = b.best
    return {
        "best": time,
        "floor_us": b.floor_us,
        "configuration": ", ".join(f"{name}={value}" for name, value in trial.configuration.items()),
        "source": _ended(trial.candidate.source),
    }


def _answers(b: Briefing) -> list[dict[str, str]]:
    return [
        {"outcome": outcome(trial), "source": _ended(trial.candidate.source), "said": said(trial)}
        for trial in b.answers
    ]


def outcome(trial: Trial) -> str:
    """What became of an answer, in a few words."""
    time = trial.time
    speed = f", {us(time.us)} µs ({time.kind})" if time is not None else ""
    if trial.verdict is None:
        return f"not judged{speed}"
    if trial.correct and trial.infeasible:
        return f"right where it ran, but launch refused some sizes{speed}"
    return f"right{speed}" if trial.correct else trial.status


def said(trial: Trial) -> str:
    """What its author needs to know about an answer: the verdict with its line and hint, the compiler's figures."""
    verdict = trial.verdict
    configuration = ", ".join(f"{name}={value}" for name, value in trial.configuration.items())
    lines = [f"In the configuration {configuration}."] if configuration else []
    if verdict is not None and not verdict.correct:
        lines += _verdict(verdict)
    if trial.correct and trial.infeasible:
        sizes = "; ".join(", ".join(f"{n}={v}" for n, v in size.items()) for size in trial.infeasible[:4])
        lines.append(f"launch raised ValueError at {sizes}. The task needs a kernel that serves every size.")
    for evidence in trial.evidence:
        spilled = f", {evidence.spill_bytes} bytes a thread spilled" if evidence.spill_bytes else ""
        unit = evidence.mma or "none"
        lines.append(
            f"{evidence.symbol}: {evidence.registers} registers a thread{spilled}, {evidence.shared_bytes} bytes of "
            f"shared memory, matrix instruction {unit}, TMA {'yes' if evidence.tma else 'no'}."
        )
    return "\n".join(lines)


def _verdict(verdict: Verdict) -> list[str]:
    lines = [
        f"{verdict.status.value} ({verdict.error_class}): {verdict.message}" if verdict.error_class else verdict.message
    ]
    if verdict.line is not None:
        lines.append(f"Line {verdict.line}: `{verdict.source}`")
    if verdict.hint:
        lines.append(f"Hint: {verdict.hint}")
    return lines


# ---------------------------------------------------------------------------------------------------- templates


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    made.globals["us"] = us
    return made


def _fill(name: str, values: Mapping[str, Any]) -> str:
    return _environment().get_template(name).render(values)


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _ended(source: str) -> str:
    return source.rstrip("\n") + "\n"


def us(value: float) -> str:
    """A time in µs with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
