"""The process that has a model: ``FD QUESTION``, a file's number for its answer and what is asked, both in JSON.

What the model's code prints goes to standard error; standard output has a line for each thing that is begun.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from knowledge_base.errors import EXIT_INTERRUPTED, UserError


def main() -> int:
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    asked = json.loads(sys.argv[2])

    def say(text: str) -> None:
        print(text, file=said, flush=True)

    try:
        answer = _answer(asked, say)
    except UserError as error:
        answer = {"error": {"what": error.what, "mend": error.mend, "exit_code": error.exit_code}}
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    with open(int(sys.argv[1]), "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0


def _answer(asked: dict[str, Any], say: Any) -> dict[str, Any]:
    say("loading the model …")
    from .sources import given
    from .versus import versus

    model = given(asked["model"], asked["device"], asked["dtype"], asked["sizes"])
    return versus(model, asked["device"], asked["chip"], asked["mode"], say)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # compilers' threads and processes may still wait
