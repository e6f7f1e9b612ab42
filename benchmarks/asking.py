"""What asking a language model costs besides the model: one JSON line each, with its limit.

Prompts: seconds to assemble a task's first prompt, from an open knowledge base.  Loop: the share of a run's time that
is neither the endpoint's (a local one here, that takes a second for an answer) nor the evaluator's (search, judging).

    python benchmarks/asking.py
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from model_runs import RIGHT, block, go  # noqa: E402
from model_server import Answer, Asked, ModelServer  # noqa: E402

from agent.loop import task_work  # noqa: E402
from agent.loop.judges import Judges  # noqa: E402
from agent.proposers.base import ProposalRequest  # noqa: E402
from agent.proposers.briefs import brief  # noqa: E402
from agent.proposers.language_model.endpoint import Endpoint  # noqa: E402
from knowledge_base.chips import chip  # noqa: E402
from knowledge_base.snf import decompose, load_target  # noqa: E402
from knowledge_base.store import Store  # noqa: E402
from prompts import write  # noqa: E402

PROMPT_S, LOOP_SHARE = 0.3, 0.05
ANSWER_S = 1.0


def prompts(folder: Path) -> None:
    with Store.open(str(folder / "prompts.db")) as store:
        for task in decompose(load_target("gpt2-block").graph).tasks:
            start = time.perf_counter()
            made = write(brief(ProposalRequest(task, chip("h200")), store))
            row = {"prompt": task.name, "tokens": made.tokens, "seconds": round(time.perf_counter() - start, 4)}
            print(json.dumps(row | {"limit": PROMPT_S}), flush=True)


def loop(folder: Path) -> None:
    """One task, one request after another, so that nothing happens at the same time."""
    spent = {"model": 0.0, "search": 0.0, "judge": 0.0}
    inside = [0]

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            start, inside[0] = time.perf_counter(), inside[0] + 1
            try:
                return function(*arguments, **more)
            finally:
                inside[0] -= 1
                if not inside[0]:
                    spent[name] += time.perf_counter() - start

        return call

    count = itertools.count()

    def answer(_: Asked) -> Answer:
        time.sleep(ANSWER_S)
        return block(RIGHT + f"# {next(count)}\n")

    with (
        mock.patch.object(Endpoint, "ask", timed("model", Endpoint.ask)),
        mock.patch.object(task_work, "search", timed("search", task_work.search)),
        mock.patch.object(Judges, "__init__", timed("judge", Judges.__init__)),
        mock.patch.object(Judges, "judge", timed("judge", Judges.judge)),
        mock.patch.object(Judges, "judge_composed", timed("judge", Judges.judge_composed)),
        mock.patch("agent.proposers.language_model.model_proposer.IN_A_ROUND", 1),
        ModelServer(answer) as server,
    ):
        Store.open(str(folder / "kb.db")).close()  # made once, not by every run
        start = time.perf_counter()
        summary = go(folder, server.url, rounds=8)
        whole = time.perf_counter() - start
    assert summary.status == "done", summary.status
    rest = whole - sum(spent.values())
    row: dict[str, Any] = {"loop": "add", "requests": len(server.asked), "seconds": round(whole, 2)}
    row |= {name: round(seconds, 2) for name, seconds in spent.items()}
    print(json.dumps(row | {"overhead": round(rest / whole, 4), "limit": LOOP_SHARE}), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        prompts(Path(name))
        loop(Path(name))


if __name__ == "__main__":
    main()
