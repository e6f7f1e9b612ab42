"""A prompt: sections with names, made from templates; as messages, with an estimate of its tokens.

What is the same for every task stands first (the system's message), then the chip and the task, then what changes from
request to request, so that an endpoint's cache of prompts holds as much as it can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernels_generated.runtime.expr import show as show_size
from knowledge_base.content import content_key
from knowledge_base.records import Move, Trial
from knowledge_base.rules import MOST_CONDITIONS, STRUCTURES, known_as
from knowledge_base.snf.op_table import OPS
from knowledge_base.snf.signatures import signature
from knowledge_base.snf.task import Task

from .briefing import Briefing
from .cheat_sheet import functions, version
from .examples import caveats, tilegym
from .feedback import axes, outcome, said, us
from .knowledge import TOKENS, fitting, grouped, worth_telling

TEMPLATES = Path(__file__).with_name("templates")
CHARACTERS_A_TOKEN = 3.5  # of English with code, for the tokenizers in use; endpoints report the true count
MOST_RULES = 3  # that are asked for at once: a model that may say more says more, not better
LIMIT_TOKENS = 12_000  # of a prompt: what is longer is read less well, and costs more than it brings


@dataclass(frozen=True)
class Section:
    """A part of a prompt.  ``role`` is that of the message it is in: system or user."""

    name: str
    role: str
    text: str
    characters_a_token: float = CHARACTERS_A_TOKEN

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return round(len(self.text) / self.characters_a_token)


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


def write(briefing: Briefing, limit: int = LIMIT_TOKENS, characters_a_token: float = CHARACTERS_A_TOKEN) -> Prompt:
    """The prompt for a briefing, of at most about ``limit`` tokens.

    Where it would be longer, the longest part that can be shortened is, one step, until it fits: what is known from
    what is worth least, answers from the oldest one (first their sources), examples as a whole.  The contract, the
    language, the task, the last answer and the kernels that the request is about are never shortened.
    """
    drafts = [draft for draft in _drafts(briefing, characters_a_token) if draft.text(0)]
    cut = [0] * len(drafts)

    def length(i: int) -> int:
        return len(drafts[i].text(cut[i]))

    while sum(map(length, range(len(drafts)))) > limit * characters_a_token:
        longer = [i for i, draft in enumerate(drafts) if cut[i] < draft.steps]
        if not longer:
            break
        cut[max(longer, key=length)] += 1
    made = [Section(d.name, d.role, d.text(n), characters_a_token) for d, n in zip(drafts, cut, strict=True)]
    return Prompt(tuple(section for section in made if section.text))


@dataclass(frozen=True)
class _Draft:
    """A section that can be written at several lengths: ``text(n)`` after n of ``steps`` steps of shortening."""

    name: str
    role: str
    text: Callable[[int], str]
    steps: int = 0


def _drafts(b: Briefing, characters_a_token: float) -> list[_Draft]:
    """All sections in their order: what stays the same longest stands first."""

    def fixed(name: str, role: str, **values: Any) -> _Draft:
        return _Draft(name, role, lambda _: _fill(name, values))

    def droppable(name: str, values: Mapping[str, Any] | None, kept: bool = False) -> _Draft:
        return _Draft(name, "user", lambda n: "" if n or values is None else _fill(name, values), 0 if kept else 1)

    best = _best(b)
    fastest = _Draft(
        "best",
        "user",
        lambda n: _fill("best", best | ({"source": ""} if n else {})) if best else "",
        0 if b.best is not None and b.best[0].candidate.digest in b.about else 1,
    )
    chip = fixed("chip", "user", chip=b.chip, tensor=list(b.chip.tensor_flops.items()))
    task = fixed("task", "user", floor_us=b.floor_us, **_task(b.task))
    if b.move is Move.REFLECT:
        asked = {"ops": sorted(ops_of(b.task)), "axes": axes_seen(b), "structures": STRUCTURES}
        return [
            fixed("reflection", "system", most=MOST_RULES, conditions=MOST_CONDITIONS),
            chip,
            task,
            _knowledge(b, characters_a_token),
            fastest,
            _trials(b),
            fixed("reflect", "user", **asked),
        ]
    ops = {node.op for node in b.task.graph.nodes}
    return [
        fixed("contract", "system", cutile=version(), example=_text("example.txt"), **_limits(b)),
        fixed("language", "system", functions=functions()),
        chip,
        task,
        fixed("axes", "user", ops=ops, rows=any(OPS[op].kind in ("row", "reduction") for op in ops)),
        droppable("gallery", _gallery(b)),
        _knowledge(b, characters_a_token),
        droppable("example", _example(b), kept=b.move is Move.TRANSFER),
        fastest,
        _trials(b),
        fixed("request", "user", **_request(b)),
    ]


def ops_of(task: Task) -> frozenset[str]:
    """What a rule about the task may name as its op."""
    return known_as(task.name, (node.op for node in task.graph.nodes))


def axes_seen(b: Briefing) -> list[str]:
    """The names of all axes of the kernels that a model is told of."""
    trials = [trial for answer in b.answers for trial in (answer.trial, *answer.configurations)]
    trials += [b.best[0]] if b.best is not None else []
    return sorted({name for trial in trials for name in trial.configuration})


# ---------------------------------------------------------------------------------------------------- what is filled in


def _limits(b: Briefing) -> dict[str, Any]:
    return {"rms_factor": f"{b.rms_factor:g}", "largest_factor": f"{b.largest_factor:g}"}


def _task(task: Task) -> dict[str, Any]:
    tensors = (*task.inputs, *task.outputs)
    used = dict.fromkeys(node.op for node in task.graph.nodes)
    return {
        "signature": signature(task),
        "snf": task.text,
        "dtypes": ", ".join(f"{t.name} {t.dtype}" for t in tensors),
        "constants": task.constants,
        "constraints": [f"{show_size(a)} {comparison} {show_size(b)}" for comparison, a, b in task.constraints],
        "formulas": [(_named(task, op), OPS[op].says) for op in used if OPS[op].says and OPS[op].spellings],
    }


def _named(task: Task, op: str) -> str:
    """``LayerNorm with eps = 1e-05``: an op as the SNF spells it, with the attributes that it leaves to defaults."""
    given = {k: v for n in task.graph.nodes if n.op == op for k, v in n.attrs if k in ("eps", "approximate")}
    return OPS[op].spellings[0] + "".join(f" with {name} = {value}" for name, value in given.items())


def _best(b: Briefing) -> dict[str, Any] | None:
    if b.best is None:
        return None
    trial, time = b.best
    return {"best": time, "floor_us": b.floor_us, "number": _best_answer(b) + 1} | _shown(trial)


def _request(b: Briefing) -> dict[str, Any]:
    """What is asked for, with the kernels that it is about as the prompt names them."""
    numbers = {answer.trial.candidate.digest: number for number, answer in enumerate(b.answers, 1)}
    named = [f"answer {numbers[d]}" if d in numbers else "the fastest kernel so far" for d in b.about]
    example = b.advice.example.task if b.advice.example is not None else ""
    return {
        "problem": b.problem,
        "move": b.move.value,
        "named": named,
        "example": example,
        "number": len(b.answers),
        "another": b.another,
    }


def _shown(trial: Trial) -> dict[str, str]:
    return {"configuration": axes(trial), "source": _ended(trial.candidate.source)}


def _gallery(b: Briefing) -> dict[str, Any] | None:
    found = tilegym(b.task)
    return None if found is None else {"name": found[0], "source": found[1], "caveats": caveats(found[1])}


def _example(b: Briefing) -> dict[str, Any] | None:
    if b.advice.example is None:
        return None
    name, trial = b.advice.example.task, b.advice.example.trial
    return None if trial.time is None else {"name": name, "best": trial.time} | _shown(trial)


def _knowledge(b: Briefing, characters_a_token: float) -> _Draft:
    """What is known.  Shortened from what is worth least."""
    said = worth_telling(b.advice, b.chip)
    said = said[: fitting(said, TOKENS, characters_a_token)]

    def text(dropped: int) -> str:
        parts = grouped(said[: len(said) - dropped], b.chip)
        return _fill("knowledge", {"parts": parts}) if parts else ""

    return _Draft("knowledge", "user", text, len(said))


def _trials(b: Briefing) -> _Draft:
    """The answers.  Shortened from the oldest: first the sources go, then the answers.

    The last one stays whole, those that the request is about, and the fastest one, if it is the fastest kernel that is
    known.
    """
    about = {i for i, answer in enumerate(b.answers) if answer.trial.candidate.digest in b.about}
    kept = {len(b.answers) - 1, _best_answer(b)} | about
    order = [i for i in range(len(b.answers)) if i not in kept]

    def text(steps: int) -> str:
        bare, gone = set(order[:steps]), set(order[: max(0, steps - len(order))])
        shown = [
            {
                "number": i + 1,
                "outcome": outcome(answer.trial),
                "source": "" if i in bare else _ended(answer.trial.candidate.source),
                "said": said(answer, b),
            }
            for i, answer in enumerate(b.answers)
            if i not in gone
        ]
        return _fill("trials", {"answers": shown}) if shown else ""

    return _Draft("trials", "user", text, 2 * len(order))


def _best_answer(b: Briefing) -> int:
    """Which of the answers is the fastest kernel that is known; -1 where none of them is."""
    digests = [answer.trial.candidate.digest for answer in b.answers]
    return digests.index(b.best[0].candidate.digest) if b.best and b.best[0].candidate.digest in digests else -1


# ---------------------------------------------------------------------------------------------------- templates


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    made.globals["us"] = us
    return made


def _fill(name: str, values: Mapping[str, Any]) -> str:
    return _environment().get_template(f"{name}.md").render(values)


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _ended(source: str) -> str:
    return source.rstrip("\n") + "\n"
