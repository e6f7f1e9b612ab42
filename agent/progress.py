"""What a run shows while it works: a bar per task on a terminal, one line per event elsewhere (a log, a pipe).

The loop tells a :class:`Progress` what happens and never looks at it; it may be called from several threads.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column


EVERY_S = 15.0  # a task at work is heard of at least so often


class Progress(Protocol):
    """What the loop may say.  ``done`` of ``total`` steps of a task; ``now`` says what it is doing."""

    def begin(self, tasks: list[str]) -> None: ...  # the last one is the whole target
    def step(self, task: str, done: float, total: float, now: str) -> None: ...
    def end(self, task: str, good: bool, text: str) -> None: ...
    def say(self, text: str) -> None: ...


class Silent:
    """Says nothing."""

    def begin(self, tasks: list[str]) -> None:
        pass

    def step(self, task: str, done: float, total: float, now: str) -> None:
        pass

    def end(self, task: str, good: bool, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Lines:
    """One line per event on standard error, with the seconds since the start; a task at work is heard of now and then.

    Lines fit 80 columns: a long one is wrapped.
    """

    def __init__(self, every: float = EVERY_S) -> None:
        self._start = time.monotonic()
        self._every = every
        self._lock = threading.Lock()
        self._now: dict[str, str] = {}  # task at work → what it is doing
        self._heard: dict[str, float] = {}  # task → when it was last spoken of

    def begin(self, tasks: list[str]) -> None:
        *works, whole = tasks
        self.say(f"{len(works)} task{'s' if len(works) != 1 else ''}: {', '.join(works)}; then {whole}")
        threading.Thread(target=self._remind, daemon=True).start()

    def step(self, task: str, done: float, total: float, now: str) -> None:
        self._heard.setdefault(task, time.monotonic())
        self._now[task] = now

    def end(self, task: str, good: bool, text: str) -> None:
        self._now.pop(task, None)
        self.say(f"{'ok ' if good else '-- '} {task}: {text}")

    def say(self, text: str) -> None:
        import textwrap

        with self._lock:
            head = f"[{time.monotonic() - self._start:6.1f}] "
            # a path is never broken: it may be copied
            for line in textwrap.wrap(text, 80 - len(head), break_long_words=False, break_on_hyphens=False) or [""]:
                print(head + line, file=sys.stderr, flush=True)
                head = " " * len(head)

    def _remind(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads, or the interpreter ends
            while True:
                time.sleep(self._every / 5)
                self.remind()

    def remind(self) -> None:
        """Says what each task is doing that has not been heard of for a while."""
        now = time.monotonic()
        for task, doing in list(self._now.items()):
            if now - self._heard.get(task, now) >= 0.8 * self._every:
                self._heard[task] = now
                self.say(f"    {task}: {doing}")


class Bars:
    """A bar per task on a terminal.  A context manager: the bars are drawn while it is entered."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.fields[mark]}"),
            TextColumn("{task.description}", table_column=_column(26)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[now]}", table_column=_column(26)),
            TimeElapsedColumn(),
            console=console,
        )
        self._ids: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, tasks: list[str]) -> None:
        for task in tasks:
            bar = self._bars.add_task(_safe(task), total=1.0, mark=" ", now="waiting", start=False)
            self._ids[task] = bar

    def step(self, task: str, done: float, total: float, now: str) -> None:
        bar = self._bars.tasks[self._ids[task]]
        if not bar.started:
            self._bars.start_task(bar.id)
        self._bars.update(bar.id, completed=done, total=total, now=_safe(now))

    def end(self, task: str, good: bool, text: str) -> None:
        bar = self._bars.tasks[self._ids[task]]
        mark = "[green]✓[/green]" if good else "[red]✗[/red]"
        self._bars.update(bar.id, completed=bar.total, mark=mark, now=_safe(text))
        self._bars.stop_task(bar.id)

    def say(self, text: str) -> None:
        self._bars.console.print(_safe(text), highlight=False)


def _column(width: int) -> Column:
    from rich.table import Column

    return Column(width=width, no_wrap=True, overflow="ellipsis")


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
