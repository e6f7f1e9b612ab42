"""Reading a file out of an answer, however it is wrapped."""

from __future__ import annotations

import time

import pytest

from agent.proposers.language_model.answers import NO_LAUNCH, NOTHING, TOO_LONG, source_of

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
    ],
)
def test_the_file_is_found(text: str) -> None:
    assert source_of(text) == (FILE, "")


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
    ],
)
def test_an_answer_without_one_says_so(text: str, problem: str) -> None:
    assert source_of(text) == ("", problem)


def test_a_million_fences_take_no_time() -> None:
    for text in ("```\n" * 300_000, "~~~`\n" * 200_000, "<think>" * 100_000, "`" * 1_000_000):
        start = time.perf_counter()
        source_of(text)
        assert time.perf_counter() - start < 2
