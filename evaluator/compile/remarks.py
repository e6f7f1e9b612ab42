"""tileiras' optimisation remarks: from its YAML to short lines, each once, with the candidate's line number.

    line 30: MMA: Tensor-core SM90 [64, 128, 16]        line 10: MMA failed: FMA [1, 1, 1]

Reads just the subset of YAML that tileiras writes (LLVM's remark format); anything else in the file is skipped.
"""

from __future__ import annotations

import re

MAX_REMARKS = 64
_DOCUMENT = re.compile(r"^--- !(\w+)\n(.*?)^\.\.\.", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(?:  - )?(Name|DebugLoc|Remark|Instruction|Shape|NumCTAs):\s+(.*)$", re.MULTILINE)
_TRANSFER = re.compile(
    r"line (?P<line>\d+): (?:(?P<kind>load|store): (?P<how>\S+)|MemoryTma(?P<failed>Load|Store)Failed)"
)
_CALLS = {"load": "load|gather", "store": "store|scatter"}
_KINDS = {
    "RemarkTensorCoreMMA": "MMA",
    "RemarkMemoryLoadInstructionSelected": "load",
    "RemarkMemoryStoreInstructionSelected": "store",
}


def summary(text: str) -> tuple[str, ...]:
    """The remarks of a YAML file in order of line, without repetitions, at most MAX_REMARKS of them."""
    found: dict[tuple[int, str], None] = {}
    for document in _DOCUMENT.finditer(text):
        outcome, fields = document[1], {key: value.strip("'\" ") for key, value in _FIELD.findall(document[2])}
        line = re.search(r"Line:\s*(\d+)", fields.get("DebugLoc", ""))
        kind = _KINDS.get(fields.get("Name", ""), fields.get("Name", "remark").removeprefix("Remark"))
        said = fields.get("Instruction") or fields.get("Remark", "")
        said = said.removesuffix(" instruction").removesuffix(" Load").removesuffix(" Store")
        words = [kind + ("" if outcome == "Passed" else f" {_outcome(outcome)}") + ":", said, fields.get("Shape", "")]
        found[(int(line[1]) if line else 0, " ".join(w for w in words if w))] = None
    ordered = sorted(found)[:MAX_REMARKS]
    return tuple(f"line {line}: {said}" if line else said for line, said in ordered)


def transfers(remarks: tuple[str, ...], source: str) -> str:
    """Which arrays of a candidate's kernel go by TMA and which do not: ``TMA: x, w; not y (line 39)``; maybe empty.

    An array is what the line of ``source`` loads from or stores to; where that cannot be seen, it is the line's number.
    """
    by_tma: dict[str, list[str]] = {}
    other: dict[str, list[str]] = {}
    lines = source.splitlines()
    for remark in remarks:
        found = _TRANSFER.match(remark)
        if found is None:
            continue
        number = int(found["line"])
        calls = _CALLS[(found["kind"] or found["failed"]).lower()]
        array = re.search(rf"ct\.(?:{calls})\((\w+)", lines[number - 1] if number <= len(lines) else "")
        which = by_tma if found["how"] == "TMA" else other
        which.setdefault(array[1] if array else "", []).append(str(number))
    said = [f"TMA: {', '.join(name or _at(by_tma['']) for name in by_tma)}"] if by_tma else []
    if other:
        named = (f"{name} ({_at(numbers)})" if name else _at(numbers) for name, numbers in other.items())
        said.append(f"{'not' if by_tma else 'no TMA:'} {', '.join(named)}")
    return "; ".join(said)


def _at(lines: list[str]) -> str:
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(lines)}"


def scalar_mma(remarks: tuple[str, ...]) -> bool:
    """Whether some contraction fell back to scalar multiply-adds."""
    return any("MMA failed: FMA" in remark for remark in remarks)


def _outcome(tag: str) -> str:
    return {"Failure": "failed", "Missed": "missed", "Analysis": "analysis"}.get(tag, tag.lower())
