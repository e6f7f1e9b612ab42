"""Reading a file out of an answer, however it is wrapped."""

from __future__ import annotations

import json
import time

import pytest

from agent.proposers.language_model.answers import NO_BASE, NO_LAUNCH, NOTHING, TOO_LONG, is_whole, source_of

FILE = "import cuda.tile as ct\n\n\ndef launch(stream, x, y):\n    pass\n"
OTHER = "def launch(stream):\n    raise ValueError\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{FILE}```",
        f"Here:\n```py\n{FILE}```\nand that is all.",
        f"```\n{FILE}\n```",
        f"~~~python\n{FILE}~~~",
        f"````python\n{FILE}````",
        f"```python\n{FILE}",  # cut off before the fence
        FILE,
        f"<think>maybe\n```python\n{OTHER}```\n</think>\n```python\n{FILE}```",
        f"First try:\n```python\n{OTHER}```\nBetter:\n```python\n{FILE}```",
        f"```python\n{FILE}```\nUse it like this:\n```python\nlaunch(s, x, y)\n```",
        f"```python\n{FILE}```".replace("\n", "\r\n"),
        f"I think so, and ```python\n{OTHER}```\n</think>\n```python\n{FILE}```",  # the mark was in the template
        "1. A file:\n\n   ```python\n"
        + "".join(f"   {line}\n" for line in FILE.splitlines())
        + "   ```\n\n2. That's it.",
        f"```python\n{OTHER}\n```\nand\n~~~py\n{FILE}~~~",
        f"This adds:\n\n{FILE}",
        f"This adds:\n\n{FILE}\nIt is fast, isn't it?\n\nUse it well.",
        json.dumps({"file": FILE}),
        json.dumps({"why": "def launch, what a name", "result": {"code": FILE}}, indent=1),
        f"```json\n{json.dumps({'code': FILE})}\n```",
        f"Sure!\n{json.dumps({'code': FILE})}",
        json.dumps({"code": FILE})[:-1],  # broken, as of local models
        "{'code': '" + FILE.replace("\n", "\\n") + "',}",
        '{"code": "' + FILE + '", "why": "fast"}',
        json.dumps({"code": f"```python\n{FILE}```"}),
        f"```python\n{FILE}```\nIn JSON:\n```json\n{json.dumps({'code': OTHER})}\n```",
    ],
)
def test_the_file_is_found(text: str) -> None:
    assert source_of(text) == (FILE, "")


def test_fences_in_a_docstring_end_no_file() -> None:
    told = '"""Like this:\n\n```python\nlaunch(s, x, y)\n```\n"""\n' + FILE
    for text in (f"```python\n{told}```", f"So:\n```python\n{OTHER}```\nBetter:\n```\n{told}```\nIt is `fast`."):
        assert source_of(text) == (told, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", NOTHING),
        ("No.", NOTHING),
        ("def: what a word", NOTHING),
        ("```python\nprint(1)\n```", NO_LAUNCH),
        ("```\nlaunch(x)\n```", NO_LAUNCH),
        (f"<think>```python\n{OTHER}```", NOTHING),
        (f"```python\n{FILE}{'# and on' * 10_000}\n```", TOO_LONG),
        (json.dumps({"code": FILE + "# and on" * 10_000}), TOO_LONG),
        ('{"code": "print(1)"}', NOTHING),
        ("import this\n\nand that.", NOTHING),
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", NO_BASE),
        ("```diff\n-a\n+b\n```", NO_BASE),
    ],
)
def test_an_answer_without_one_says_so(text: str, problem: str) -> None:
    assert source_of(text) == ("", problem)


# ---------------------------------------------------------------------------------------------------- changes

BASE = """\
import cuda.tile as ct

AXES = {"TM": [64]}


@ct.kernel
def kernel(x, y, TM: ct.Constant[int]):
    for k in range(x.shape[1] // TM):
        t = ct.load(x, index=(0, k), shape=(1, TM))

        ct.store(y, index=(0, k), tile=t)


def launch(stream, x, y, *, TM=64):
    ct.launch(stream, (1,), kernel, (x, y, TM))
"""
MENDED = BASE.replace("range(x.shape[1] // TM)", "range(ct.cdiv(x.shape[1], TM))")
BOTH = MENDED.replace('"TM": [64]', '"TM": [64, 128]')
OLD, NEW = "    for k in range(x.shape[1] // TM):", "    for k in range(ct.cdiv(x.shape[1], TM)):"
SEARCH, MIDDLE, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
HUNK = f"""\
@@ -6,5 +6,5 @@
 @ct.kernel
 def kernel(x, y, TM: ct.Constant[int]):
-{OLD}
+{NEW}
         t = ct.load(x, index=(0, k), shape=(1, TM))

"""
FIRST = '@@ -3 +3 @@\n-AXES = {"TM": [64]}\n+AXES = {"TM": [64, 128]}\n'


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (f"{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}\n{REPLACE}", MENDED),
        (f"The fault is the floor.\n\n```python\n{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}\n{REPLACE}\n```\nDone.", MENDED),
        (f"{SEARCH}\n{OLD.strip()}\n{MIDDLE}\n{NEW.strip()}\n{REPLACE}", MENDED),  # without the indentation
        (f"{SEARCH}\n{OLD}   \n\n{MIDDLE}\n{NEW}\n\n{REPLACE}".replace("\n", "\r\n"), MENDED),
        (
            f'{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}\n{REPLACE}\n{SEARCH}\nAXES = {{"TM": [64]}}\n{MIDDLE}\n'
            f'AXES = {{"TM": [64, 128]}}\n{REPLACE}', BOTH,
        ),
        (f"```diff\n--- a/kernel.py\n+++ b/kernel.py\n{HUNK}```", MENDED),
        (f"```diff\n--- a/kernel.py\n+++ b/kernel.py\n{FIRST}{HUNK}```", BOTH),
        (f"--- a/kernel.py\n+++ b/kernel.py\n{HUNK}It is mended.", MENDED),
        (f"```patch\n-{OLD}\n+{NEW}\n```", MENDED),
        (HUNK.replace("-6,5 +6,5", "-106,5 +206,9"), MENDED),  # line numbers are not believed
        (f"```diff\n{HUNK}```\n```diff\n{FIRST}```", BOTH),
        (f"{SEARCH}\ndef launch(stream, x, y, *, TM=64):\n{MIDDLE}\ndef launch(stream, x, y, *, TM=64):  # \n{REPLACE}",
         BASE.replace("TM=64):", "TM=64):  # ")),
        (f"```python\n{FILE}```\nor\n{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}\n{REPLACE}", FILE),  # a whole file is clearer
    ],
)  # fmt: skip
def test_changes_are_made_to_the_file_that_was_shown(text: str, made: str) -> None:
    assert source_of(text, BASE) == (made, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{SEARCH}\n for i in range(9):\n{MIDDLE}\nx\n{REPLACE}", "`for i in range(9):` and what follows"),
        (f"{SEARCH}\n\n{MIDDLE}\nx\n{REPLACE}", "Change 1 of your last answer can't be made"),
        (f"{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}", NOTHING),
        (f"{SEARCH}\n{OLD}\n{MIDDLE}\n{NEW}\n{REPLACE}\n" * 2, "Change 2 of your last answer can't be made"),
        ("```diff\n+x = 1\n```", "Change 1 of your last answer can't be made"),
        ("```diff\n-\n+x = 1\n```", "Change 1 of your last answer can't be made"),
        (f"{SEARCH}\n{OLD}\n{MIDDLE}\n{OLD}\n{REPLACE}\n" * 101, "more than 100 changes"),
    ],
)  # fmt: skip
def test_changes_that_fit_nowhere_are_told(text: str, problem: str) -> None:
    source, said = source_of(text, BASE)
    assert source == ""
    assert problem in said


def test_a_change_that_fits_in_two_places_is_told() -> None:
    source, said = source_of("```diff\n-    pass\n+    return\n```", FILE + FILE)
    assert (source, "`pass` and what follows stands in 2 places" in said) == ("", True)


# ---------------------------------------------------------------------------------------------------- the rest


def test_an_answer_that_broke_off_may_hold_a_whole_file() -> None:
    assert is_whole(f"```python\n{FILE}```\nAnd it is f")
    for text in (f"```python\n{FILE}", f"```python\n{FILE[:-6]}```", "no", f"<think>```python\n{FILE}```"):
        assert not is_whole(text)


@pytest.mark.parametrize(
    "text",
    [
        "```\n" * 300_000, "~~~`\n" * 200_000, "<think>" * 100_000, "</think" * 100_000, "`" * 1_000_000,
        f"{SEARCH}\n" * 60_000, f"{SEARCH}\n{MIDDLE}\n" * 30_000, "@@\n-\n" * 100_000, "import x\n\n" * 90_000,
        '{"a":' * 100_000 + "def launch", '{"code": "def launch ' + '["' * 5_900, "a\n" * 400_000,
        ("import x\n" + "(" * 50 + "\n\n") * 900,
        f"{SEARCH}\n{OLD}\nx\n{MIDDLE}\n{NEW}\n{REPLACE}\n" * 9000,
    ],
    ids=lambda text: repr(text[:16]),
)  # fmt: skip
def test_no_answer_takes_long_to_read(text: str) -> None:
    start = time.process_time()  # whatever else the machine does
    source_of(text, BASE)
    is_whole(text)
    assert time.process_time() - start < 8
