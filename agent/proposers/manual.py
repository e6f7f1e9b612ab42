"""The proposer ``manual``: a person or a coding agent writes the kernel.

For each task it writes what is wanted to ``prompts/<task>/prompt.md`` in the run's folder, and waits until
``answer.py`` appears beside it.  What became of an answer is in ``verdict.md``, and it waits for another one until one
is correct at every size.
Ctrl-C is fine at any time: ``--resume`` goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from knowledge_base.records import Candidate, Trial
from knowledge_base.snf.printer import show
from knowledge_base.snf.task import Task

from .base import ProposalRequest

POLL_S = 0.2

CONTRACT = """\
# {name}

Write `{answer}`: a cuTile kernel file for this task.

```
{snf}```

```python
import cuda.tile as ct                    # also allowed: math, torch (sizes, empty and zeros workspaces, views)
AXES = {{"TM": [128, 64]}}                  # a literal; first value = default
@ct.kernel
def kernel({arguments}, TM: ct.Constant[int]): ...
def launch(stream, {arguments}, *, TM=128, num_sms=None):
    ct.launch(stream, grid, kernel, ({arguments}, TM))
```

Results go into {outputs}. Raise ValueError in `launch` where the configuration does not fit the sizes.
Try it: `agent check {answer} --task ...`
"""


@dataclass
class Manual:
    """``folder``: the run's prompts.  ``say``: tells the user what is waited for.  ``stop``: true ends the waiting."""

    folder: Path
    say: Callable[[str], None]
    stop: Callable[[], bool] = lambda: False
    name: str = "manual"
    learns: bool = True
    _seen: dict[str, str] = field(default_factory=dict)  # task → the answer that was taken last

    def propose(self, request: ProposalRequest) -> list[Candidate]:
        """Waits for an answer that it has not taken yet; empty if told to stop, and once a general kernel is found."""
        if any(trial.general for trial in request.tried):
            return []
        task = request.task
        place = self.folder / _place(task)
        place.mkdir(parents=True, exist_ok=True)
        answer = place / "answer.py"
        (place / "prompt.md").write_text(prompt(task, answer), encoding="utf-8")
        if request.tried:
            (place / "verdict.md").write_text(_feedback(request.tried[-1]), encoding="utf-8")
        self.say(f"waiting for {answer} (see prompt.md beside it)")
        while not self.stop():
            source = _settled(answer)
            if source and source != self._seen.get(task.identity):
                self._seen[task.identity] = source
                return [Candidate(source=source, task=task.identity, proposer=self.name, note=str(answer))]
            time.sleep(POLL_S)
        return []


def prompt(task: Task, answer: Path) -> str:
    """What is wanted: the task's SNF and the form of the answer."""
    arguments = ", ".join(t.name for t in (*task.inputs, *task.outputs))
    outputs = ", ".join(t.name for t in task.outputs)
    return CONTRACT.format(name=task.name, answer=answer, snf=show(task.graph), arguments=arguments, outputs=outputs)


def _place(task: Task) -> str:
    return "-".join([task.name, *(f"{n}{v}" for n, v in task.graph.dims)])


def _feedback(trial: Trial) -> str:
    verdict = trial.verdict
    if verdict is None:
        return f"# {trial.status}\n\nIt was not judged: a faster kernel is known.\n"
    lines = [f"# {verdict.status.value} ({verdict.error_class})", "", verdict.message]
    if verdict.line is not None:
        lines.append(f"\nline {verdict.line}: `{verdict.source}`")
    return "\n".join([*lines, "", verdict.hint]).rstrip() + "\n"


def _settled(answer: Path) -> str:
    """The file's text once it is no longer being written; empty if it is not there."""
    try:
        first = answer.stat()
        time.sleep(POLL_S)
        if answer.stat().st_mtime_ns != first.st_mtime_ns:
            return ""
        return answer.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
