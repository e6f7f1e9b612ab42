"""What the knowledge base has to say, in sentences, and how many of them a prompt has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from knowledge_base.advice import Advice, Belief, Fact, Item, Mistake
from knowledge_base.chips import CHIPS, Chip

# Of a prompt.  What was told by hand, and took answers from 1.05 to 0.93 of PyTorch's time, were 350 words; this is
# three times that, as not everything that is found helps.
TOKENS = 1_500
SHOWN = 200  # characters of a message

HERE, ARCH, ELSEWHERE = "Measured on this GPU:", "Of this architecture ({}):", "Measured on an {}, another GPU:"
RULES, FOREIGN = "Rules, with their evidence:", "Rules of an {}, another GPU, with their evidence:"
MISTAKES = "What earlier answers to such tasks were rejected for:"


@dataclass(frozen=True)
class Line:
    """A sentence of a prompt, under a heading."""

    heading: str
    text: str
    item: Item


def worth_telling(advice: Advice, chip: Chip) -> list[Line]:
    """All that there is to say, what is worth most first."""
    return [Line(_heading(item, chip), _sentence(item), item) for item in advice.items]


def fitting(said: list[Line], tokens: float, characters_a_token: float) -> int:
    """How many of these, from the first on, have at most about so many tokens; the first one always has room."""
    left = tokens * characters_a_token
    for i, line in enumerate(said):
        left -= len(line.text) + 3  # "- " and the line's end
        if left < 0:
            return max(i, 1)
    return len(said)


def grouped(said: list[Line], chip: Chip) -> list[tuple[str, list[str]]]:
    """Under their headings: what was measured, rules, mistakes; what is of this GPU before what is not."""
    parts: dict[str, list[str]] = {}
    for line in said:
        parts.setdefault(line.heading, []).append(line.text)
    first = [HERE, ARCH.format(chip.arch)]
    last = [RULES, *(h for h in parts if h.startswith(FOREIGN.partition("{")[0])), MISTAKES]
    between = [heading for heading in parts if heading not in (*first, *last)]
    return [(heading, parts[heading]) for heading in (*first, *between, *last) if heading in parts]


def _heading(item: Item, chip: Chip) -> str:
    match item.what:
        case Fact(where=where):
            if where in (chip.name, chip.arch):
                return HERE if where == chip.name else ARCH.format(where)
            return ELSEWHERE.format(CHIPS[where].product if where in CHIPS else where)
        case Belief(where=where):
            return RULES if where in ("", chip.name) else FOREIGN.format(CHIPS[where].product)
    return MISTAKES


def _sentence(item: Item) -> str:
    match item.what:
        case Fact(name=name, value=value):
            return f"{name}: {value}"
        case Belief():
            return _belief(item.what)
        case Mistake():
            return _mistake(item.what)


def _belief(belief: Belief) -> str:
    """``linear in bf16 on h200 is faster at TM=128: 18.0% less time (-23.0 to -13.2%), supported by 15 shapes``."""
    if belief.effect is None or belief.interval is None:
        claim = f", {belief.claimed}" if belief.claimed else ""
        return f"{belief.statement} (not tested yet{claim}; {belief.source})"
    effect, low, high = (100 * math.expm1(x) for x in (belief.effect, *belief.interval))
    shapes = "1 shape" if belief.evidence == 1 else f"{belief.evidence} shapes"
    found = f"{abs(effect):.1f}% {'less' if effect <= 0 else 'more'} time ({low:+.1f} to {high:+.1f}%)"
    how = "open after" if belief.status == "hypothesised" else f"{belief.status} by"
    return f"{belief.statement}: {found}, {how} {shapes}"


def _mistake(mistake: Mistake) -> str:
    """``mma-dtypes, 3 of 10 answers (linear: "x and y must have …"): cast both operands …``."""
    message = mistake.message if len(mistake.message) <= SHOWN else mistake.message[: SHOWN - 1] + "…"
    answers = "answer" if mistake.of == 1 else "answers"
    found = f"{mistake.name}, {mistake.answers} of {mistake.of} {answers} ({mistake.task}: {message})"
    return f"{found}: {mistake.hint}" if mistake.hint else found
