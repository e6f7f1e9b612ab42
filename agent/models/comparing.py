"""A comparison of a model as whoever asks for it sees it: a question, and the document that a process answers with.

The model's code is the user's own and is not confined.  It has a process to itself, as it may print, end or take all
memory; and the process of a command never imports torch.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from knowledge_base.errors import EXIT_ENVIRONMENT, EnvironmentLacks, UserError, cannot_start

GRACE_S = 10.0  # for a process that was interrupted to end by itself


@dataclass(frozen=True)
class Asked:
    """model: a file of Python, a folder of transformers, or a name of GPT-2.  device: cpu or cuda.

    dtype: bf16, f16 or f32; None: as the model has it.  sizes: B and T of the example's tokens, where it is made here.
    mode: torch.compile's, or none.  chip: the emulated one, for cpu.
    """

    model: str
    device: str
    chip: str
    dtype: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    mode: str = "reduce-overhead"


def compared(asked: Asked, say: Callable[[str], None]) -> dict[str, Any]:
    """The document of the comparison (:func:`.versus.versus`).  say: is told what is being done.

    Raises UserError for what the model's process says is the user's to mend, and EnvironmentLacks where the process
    ended without an answer.
    """
    with tempfile.TemporaryFile() as answer:
        command = [sys.executable, "-m", "agent.models.model_process", str(answer.fileno()), json.dumps(asdict(asked))]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[answer.fileno()], text=True
            )
        except OSError as error:
            raise cannot_start(error) from None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                say(line.rstrip("\n"))
            code = process.wait()
        except BaseException:
            _ended(process)
            raise
        answer.seek(0)
        said = answer.read()
    if not said:
        raise _unanswered(code)
    document: dict[str, Any] = json.loads(said)
    complaint = document.get("error")
    if complaint is not None:
        kind = EnvironmentLacks if complaint["exit_code"] == EXIT_ENVIRONMENT else UserError
        raise kind(complaint["what"], complaint["mend"])
    return document


def _ended(process: subprocess.Popen[str]) -> None:
    """Ctrl-C reaches the process as well, and it ends by itself; else it is ended."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unanswered(code: int) -> EnvironmentLacks:
    if code >= 0:
        return EnvironmentLacks(f"the process that ran the model ended with code {code}, without an answer")
    mend = "Its memory may not suffice: try a smaller example." if code == -signal.SIGKILL else ""
    return EnvironmentLacks(f"the process that ran the model was ended by {signal.Signals(-code).name}", mend)
