"""Where words go: one JSON document on standard output with ``--json``, everything for people elsewhere.

Progress, verdicts and a run's table go to standard error; what a command was asked to list goes to standard output.
Tables are made to fit 80 columns.
"""

from __future__ import annotations

import errno
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from knowledge_base.content import plain
from knowledge_base.errors import EnvironmentLacks, UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 80


def console(error: bool = False) -> Console:
    """A console on standard output or error: 80 columns unless a terminal is narrower."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(
                errno.EPIPE, "nobody reads any more"
            )  # the command line says with which code that ends; rich would exit with 1

    made = Piped(stderr=error, highlight=False, soft_wrap=False)
    made.width = min(made.width, WIDTH) if made.is_terminal else WIDTH
    return made


def visible(text: str) -> str:
    """``text`` without what a terminal would act on: every character but line ends and tabs that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def emit(document: Any) -> None:
    """Prints the one JSON document of ``--json``."""
    json.dump(plain(document), sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def complain(error: UserError, as_json: bool) -> None:
    """Says what is wrong and what to do on standard error; with ``--json`` as a document on standard output too.

    Where these can't be written to, the exit code alone says it.
    """
    with suppress(EnvironmentLacks):
        print(f"agent: {error.what}", *([f"  {error.mend}"] if error.mend else []), sep="\n", file=sys.stderr)
        sys.stderr.flush()
    if as_json:
        with suppress(EnvironmentLacks):
            emit({"error": {"what": error.what, "mend": error.mend, "exit_code": error.exit_code}})


class Stream(io.TextIOWrapper):
    """Standard output or error: a full disk is what the machine lacks, and what the encoding has not is spelled out.

    Raises EnvironmentLacks where it takes no more, BrokenPipeError where nobody reads it any more.
    """

    @classmethod
    def instead_of(cls, stream: TextIO | None, descriptor: int) -> Stream:
        """What takes the words of ``stream`` from now on, which Python has not where the descriptor was closed."""
        if stream is None:
            return cls(open(descriptor, "wb", closefd=False), "utf-8", "backslashreplace")
        buffered = isinstance(stream, io.TextIOWrapper) and stream.line_buffering
        return cls(stream.buffer, stream.encoding, "backslashreplace", line_buffering=buffered)

    def write(self, text: str) -> int:
        with _written():
            return super().write(text)

    def flush(self) -> None:
        with _written():
            super().flush()


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EnvironmentLacks(f"can't print: {error.strerror or error}") from None


def table(columns: Sequence[tuple[str, str, int | None]], title: str = "") -> Table:
    """A borderless table.  A column is (heading, alignment, width); width None takes what is left and wraps."""
    from rich.table import Table

    made = Table(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, title=title or None, title_justify="left", expand=False
    )
    for heading, alignment, width in columns:
        made.add_column(
            heading,
            justify=alignment,  # type: ignore[arg-type]
            width=width,
            no_wrap=width is not None,
            overflow="ellipsis" if width is not None else "fold",
            header_style="bold",
        )
    return made


def us(value: float | None, kind: str | None = None) -> str:
    """A time for people; ``~`` marks a modelled one."""
    if value is None or value != value or value == float("inf"):
        return "-"
    text = f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"~{text}" if kind == "modelled" else text


def percent(log_ratio: float) -> str:
    """The logarithm of a ratio of times for people: -0.1 → ``-9.5%``."""
    return f"{100 * math.expm1(log_ratio):+.1f}%"


def pairs(values: dict[str, Any]) -> str:
    """{"TM": 64, "TN": 128} → ``TM=64 TN=128``."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def called(row: Mapping[str, Any]) -> str:
    """A part's ``name``, with how often the target ``calls`` it where that is more than once: ``2× layernorm``."""
    return f"{row['calls']}× {row['name']}" if row["calls"] > 1 else str(row["name"])


def count(number: float, thing: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{int(number)} {thing}" if number == 1 else f"{int(number)} {thing}s"
