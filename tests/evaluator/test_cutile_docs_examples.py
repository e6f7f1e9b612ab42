"""cuTile's own documented examples, run on the CPU: what they print must be what the documentation says they print.

The examples are read from the docstrings of the installed cuda.tile at test time (reStructuredText blocks
``testcode`` and ``testoutput``); nothing of them is kept here. A block marked ``:template: kernel_wrapper.py`` is the
body of a kernel without parameters, ``setup_only.py`` a program with cuda.tile, torch and a stream at hand.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

cuda_tile = pytest.importorskip("cuda.tile")
from evaluator import emulator  # noqa: E402

_BLOCK = re.compile(r"^(?P<indent> *)\.\. (?P<kind>testcode|testoutput)::.*$")
# What can't run here, and why. The key is part of the example's name or text.
SKIPPED = {
    "module _jax": "needs JAX, which is no dependency",
    "exhaustive_search": "times candidates on a GPU",
    "compile_kernel": "compiles for the GPU of this machine",
}


@dataclass(frozen=True)
class Example:
    """A documented program, the template it is meant for, and the output that the documentation shows (None: none)."""

    name: str
    template: str
    code: str
    output: str | None


def _blocks(doc: str) -> Iterator[tuple[str, str, str]]:
    """(kind, template, text) of each testcode and testoutput block of a docstring."""
    lines = doc.split("\n")
    i = 0
    while i < len(lines):
        head = _BLOCK.match(lines[i])
        i += 1
        if head is None:
            continue
        depth, body = len(head["indent"]), []
        while i < len(lines) and (not lines[i].strip() or len(lines[i]) - len(lines[i].lstrip()) > depth):
            body.append(lines[i])
            i += 1
        options = [line for line in body if re.match(r"\s*:\w+:", line)]
        template = next((o.split(":")[2].strip() for o in options if ":template:" in o), "")
        text = textwrap.dedent("\n".join(line for line in body if line not in options))
        yield head["kind"], template, text.strip("\n")


def _docstrings() -> dict[str, str]:
    """Docstring by qualified name of everything that cuda.tile defines."""
    found: dict[str, str] = {}
    texts: set[str] = set()

    def note(name: str, thing: Any) -> None:
        doc = getattr(thing, "__doc__", None)
        if isinstance(doc, str) and ".. testcode::" in doc and doc not in texts:
            texts.add(doc)
            found[name] = doc

    for part in ("tune", "compilation"):
        importlib.import_module(f"cuda.tile.{part}")
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith("cuda.tile"):
            continue
        note(module_name, module)
        for name, thing in vars(module).items():
            if not str(getattr(thing, "__module__", "")).startswith("cuda.tile"):
                continue
            note(f"{module_name}.{name}", thing)
            if inspect.isclass(thing):
                for attribute, member in vars(thing).items():
                    member = getattr(member, "__func__", member)
                    note(f"{module_name}.{name}.{attribute}", member)
    return found


def _examples() -> list[Example]:
    result = []
    for name, doc in _docstrings().items():
        blocks = list(_blocks(doc))
        for i, (kind, template, text) in enumerate(blocks):
            if kind == "testcode":
                follows = i + 1 < len(blocks) and blocks[i + 1][0] == "testoutput"
                output = blocks[i + 1][2] if follows else None
                result.append(Example(f"{name.removeprefix('cuda.tile.')}-{i}", template, text, output))
    return result + _examples_of_modules_that_do_not_import()


def _examples_of_modules_that_do_not_import() -> list[Example]:
    """Modules with examples that need what is not installed: named, so that they are seen to be left out."""
    root = Path(cuda_tile.__path__[0])
    loaded = {Path(m.__file__) for m in sys.modules.values() if getattr(m, "__file__", None)}
    sources = ((path, path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py")) if path not in loaded)
    return [
        Example(str(path.relative_to(root)), "", f"module {path.stem}", None)
        for path, text in sources
        if ".. testcode::" in text
    ]


EXAMPLES = _examples()


def _program(example: Example) -> str:
    """The example as a program for a machine whose only device is the CPU."""
    code = re.sub(r"""device=(['"])cuda(?::0)?\1""", 'device="cpu"', example.code)
    if example.template == "kernel_wrapper.py":
        code = (
            "@ct.kernel\ndef kernel():\n" + textwrap.indent(code, "    ") + "\n\nct.launch(stream, (1,), kernel, ())\n"
        )
    return code


def _run(example: Example, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the example prints; cuda.tile.launch goes to the emulator."""
    program = _program(example)
    file = f"<example {example.name}>"
    # cuTile reads a kernel's source back through linecache.
    linecache.cache[file] = (len(program), None, program.splitlines(keepends=True), file)
    monkeypatch.setattr(cuda_tile, "launch", lambda stream, grid, kernel, args: emulator.launch(grid, kernel, args))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    space = {"__name__": "example", "ct": cuda_tile, "torch": torch, "stream": None}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(program, file, "exec"), space)
        except cuda_tile.TileError as error:
            if example.output is None or not example.output.startswith("Traceback"):
                raise
            print(f"Traceback (most recent call last):\n    ...\n{type(error).__name__}: {error}")
    return printed.getvalue()


def _reason_to_skip(example: Example) -> str | None:
    return next((why for key, why in SKIPPED.items() if key in example.template or key in example.code), None)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_documented_example_prints_what_its_documentation_says(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = _reason_to_skip(example)
    if reason is not None:
        pytest.skip(reason)
    printed = _run(example, monkeypatch)
    if example.output is not None:
        assert _as_documented(example.output, printed), (
            f"{example.code}\n--- documented\n{example.output}\n--- printed\n{printed}"
        )


def _as_documented(documented: str, printed: str) -> bool:
    """The documentation's own rule (sphinx's doctest flags): ``...`` is anything, of an error only the type counts."""
    if documented.startswith("Traceback"):
        kinds = [text.split("...", 1)[-1].strip().split(":")[0] for text in (documented, printed)]
        return kinds[0] == kinds[1]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(documented + "\n", printed, flags)


def test_few_documented_examples_are_left_out() -> None:
    left_out = {e.name: _reason_to_skip(e) for e in EXAMPLES if _reason_to_skip(e)}
    compared = [e for e in EXAMPLES if e.output is not None and e.name not in left_out]
    assert len(left_out) <= 3, left_out
    assert len(compared) >= 125
