"""From a model's answer to a candidate file, however it is wrapped.

Models are asked for one fenced block.  Code in JSON has to be escaped, and models that are bound to a schema write code
that fails more often (P. Gauthier, "LLMs are bad at returning code in JSON", aider.chat, 14 August 2024), so that the
structured outputs of endpoints are not asked for.  What a model answers unasked is read: a file in JSON or among prose,
and changes to the file that it was shown, as SEARCH and REPLACE or as a unified diff.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import json_repair

from kernels_generated.runtime.syntax import parse
from knowledge_base.records import Answered, LlmCall

from .edits import applied, diffs, is_edit, searches

# ``` or ~~~ at the beginning of a line, or indented below an item of a list, with any word behind it.  Nothing here is
# tried twice (the marks are possessive): an answer of a million backticks takes no time.
_FENCE = re.compile(r"^(?P<indent>[ \t]{0,12}+)(?P<marks>`{3,}+|~{3,}+)(?P<kind>[^\n]*)\n?", re.MULTILINE)
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
# Where the endpoint's template has the opening mark, the answer begins inside of the thoughts.
_BEGUN = re.compile(r"\A(?:(?!<think).)*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_LAUNCH = re.compile(r"^def launch\b", re.MULTILINE)
_IMPORT = re.compile(r"^(?:import|from) +\w", re.MULTILINE)
_OBJECT = re.compile(r"\{\s*[\"']\w+[\"']\s*:")

LONGEST = 60_000  # characters of a file: twenty times what a kernel has, and its author is shown all of it again
REPAIRED = 12_000  # characters of broken JSON: its repair may take quadratic time, two seconds at this length
DIFFS = ("diff", "patch")  # words behind the fence of a unified diff
PYTHON = ("", "py", "python", "python3")  # words behind the fence of a file
FENCES = 4  # of a block's possible ends that are looked at …
MOST_TRIED = 40  # … and of all blocks'
PARAGRAPHS = 8  # of prose behind a file that stands in no block
TOO_LONG = f"The file in your last answer has more than {LONGEST} characters. Write a short one."
NOTHING = "Your last answer holds no Python file."
NO_LAUNCH = "The Python in your last answer defines no function launch."
NO_RULES = "The answer holds no JSON object with rules."
NO_BASE = "Your last answer holds changes, but you were shown no file that it changes."


@dataclass(frozen=True)
class _Block:
    """A fenced part of an answer.  ``kind``: the word behind the fence.  closed: its end is there."""

    kind: str
    text: str
    closed: bool

    @property
    def is_file(self) -> bool:
        return bool(_LAUNCH.search(self.text)) and not is_edit(self.text) and not self.text.lstrip().startswith("{")


def answered(call: LlmCall) -> bool:
    """Whether the model had its say, if only by an empty text, or by a whole file before the connection ended."""
    return call.status.readable or (call.status is Answered.CUT and is_whole(call.text))


def source_of(text: str, base: str = "") -> tuple[str, str]:
    """(source, "") of the candidate in an answer, or ("", what is wrong with the answer, for its author).

    Of several blocks the last one that defines ``launch`` counts: models correct themselves.  ``base``: the file that
    an answer may be changes to; empty if there was none.
    """
    text = _said(text)
    blocks = _blocks(text)
    parts = blocks or [_Block("", text, False)]
    files = [block.text for block in blocks if block.is_file] or list(_in_json(parts))
    if not files:
        edits = [*searches(text), *(edit for part in parts for edit in diffs(part.text, part.kind in DIFFS))]
        if edits:
            source, problem = applied(edits, base) if base else ("", NO_BASE)
            if not source:
                return "", problem
            files = [source]
    if not files and not any(block.kind.startswith("py") for block in blocks):
        files = list(_among_prose(text))
    if not files:
        return "", NO_LAUNCH if blocks else NOTHING
    return (files[-1].strip("\n") + "\n", "") if len(files[-1]) <= LONGEST else ("", TOO_LONG)


def rules_in(text: str) -> tuple[list[Any], str]:
    """(what stands in the answer's list ``rules``, ""), or ([], what is wrong with the answer)."""
    text = _said(text)
    parts = [block.text for block in _blocks(text)] or [text]
    for part in reversed(parts):
        found = _object(part)
        if isinstance(found, dict) and isinstance(found.get("rules"), list):
            return found["rules"], ""
    return [], NO_RULES


def is_whole(text: str) -> bool:
    """Whether an answer that broke off holds a whole file all the same: in a block that ended, and Python."""
    return any(block.closed and block.is_file and is_python(block.text) for block in _blocks(_said(text)))


def is_python(text: str) -> bool:
    """Whether a text is a whole Python file that defines a function."""
    try:
        return any(isinstance(node, ast.FunctionDef) for node in parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


# ---------------------------------------------------------------------------------------------------- wrappings


def _said(text: str) -> str:
    """Without thoughts, and with plain ends of lines."""
    return _THOUGHTS.sub("", _BEGUN.sub("", text.replace("\r\n", "\n")))


def _blocks(text: str) -> list[_Block]:
    """The fenced parts: each to the next line that begins with the same marks, or to the end of the text.

    Python goes on over such a line where only so it is Python: a docstring may hold fences, too.
    """
    fences = list(_FENCE.finditer(text))
    found: list[_Block] = []
    tried = number = 0
    while number < len(fences):
        begin = fences[number]
        kind, indent = begin["kind"].strip().lower(), begin["indent"]
        ends = (i for i in range(number + 1, len(fences)) if _closes(fences[i], begin))
        end = next(ends, None)
        inside = text[begin.end() : None if end is None else fences[end].start()]
        block = _Block(kind, _dedented(inside, indent), end is not None)
        if end is not None and kind in PYTHON and tried < MOST_TRIED and not is_python(block.text):
            for further in itertools.islice(ends, FENCES):
                longer = text[begin.end() : fences[further].start()]
                tried += 1
                if len(longer) > LONGEST:
                    break
                if is_python(longer := _dedented(longer, indent)):
                    block, end = replace(block, text=longer), further
                    break
        found.append(block)
        if end is None:
            break
        number = end + 1
    return found


def _closes(fence: re.Match[str], begin: re.Match[str]) -> bool:
    return fence["marks"].startswith(begin["marks"]) and len(fence["indent"]) <= len(begin["indent"]) + 3


def _dedented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) if indent else text


def _in_json(parts: list[_Block]) -> Iterator[str]:
    """The file in an object's field, whatever the field is called; the object may be broken, as local models' are."""
    for part in (block.text for block in parts):
        if "def launch" not in part:
            continue
        yield from (value for value in _strings(_object(part), 3) if _LAUNCH.search(value))


def _object(text: str) -> Any:
    """The JSON that a text is, or what is mended of its first object if the text is short; None where there is none."""
    begin = _OBJECT.search(text)
    if begin is None:
        return None
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        if len(text) > REPAIRED:
            return None
    try:
        return json_repair.loads(text[begin.start() :])
    except (ValueError, RecursionError):
        return None


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield _blocks(value)[0].text if value.lstrip().startswith("```") else value
    elif depth and isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one, depth - 1)


def _among_prose(text: str) -> Iterator[str]:
    """A file that stands in no block: from the first import on, without the last paragraphs if they are prose."""
    begin = _IMPORT.search(text)
    if len(text) > LONGEST or (begin is None and not _LAUNCH.search(text)):
        return
    paragraphs = text[begin.start() if begin is not None else 0 :].split("\n\n")
    for dropped in range(min(PARAGRAPHS, len(paragraphs))):
        part = "\n\n".join(paragraphs[: len(paragraphs) - dropped])
        if is_python(part):
            if _LAUNCH.search(part):
                yield part
            return
