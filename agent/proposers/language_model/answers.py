"""From a model's answer to a candidate file: the block of Python in it that defines ``launch``."""

from __future__ import annotations

import ast
import re

from kernels_generated.runtime.syntax import parse

# ``` or ~~~ with any word behind it, to the same fence at the beginning of a line, or to the end of the text.  Nothing
# here is tried twice (the fence is possessive): an answer of a million backticks takes no time.
_BLOCK = re.compile(r"^(?P<fence>`{3,}+|~{3,}+)[^\n]*\n(?P<code>.*?)(?:^(?P=fence)|\Z)", re.MULTILINE | re.DOTALL)
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)

LONGEST = 60_000  # characters of a file: twenty times what a kernel has, and its author is shown all of it again
TOO_LONG = f"The file in your last answer has more than {LONGEST} characters. Write a short one."
NOTHING = "Your last answer holds no Python file."
NO_LAUNCH = "The Python in your last answer defines no function launch."


def source_of(text: str) -> tuple[str, str]:
    """(source, "") of the candidate in an answer, or ("", what is wrong with the answer, for its author).

    Of several blocks the last one that defines ``launch`` counts: models correct themselves.  A text without a block
    may be a file itself.
    """
    text = _THOUGHTS.sub("", text.replace("\r\n", "\n"))
    blocks = [match["code"] for match in _BLOCK.finditer(text)]
    if not blocks and is_python(text):
        blocks = [text]
    for block in reversed(blocks):
        if re.search(r"^def launch\b", block, re.MULTILINE):
            return (block.strip("\n") + "\n", "") if len(block) <= LONGEST else ("", TOO_LONG)
    return "", NO_LAUNCH if blocks else NOTHING


def is_python(text: str) -> bool:
    """Whether a text is a whole Python file that defines a function."""
    try:
        return any(isinstance(node, ast.FunctionDef) for node in parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
