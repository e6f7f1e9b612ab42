"""``agent prompt``: what a language model would be told about a task, to the letter, and how long each part is."""

from __future__ import annotations

from collections.abc import Mapping

from agent.console import console, emit, table
from agent.loop import known_trials
from agent.proposers import ProposalRequest, brief, request_body
from knowledge_base.chips import Chip
from knowledge_base.errors import EXIT_DONE
from knowledge_base.snf.task import Task
from prompts import Prompt, write

from .hardware import chip_for
from .kb import reading
from .task_option import task_of


def prompt(
    target: str, task_name: str, shape: Mapping[str, int], gpu: str | None, model: str, db: str | None, as_json: bool
) -> int:
    """Prints the first prompt of a run for one task.  Raises UserError where several tasks could be meant."""
    chip = chip_for(gpu)
    task = task_of(target, task_name, shape)
    made = _prompt(task, chip, db)
    if as_json:
        sections = [{"name": s.name, "role": s.role, "tokens": s.tokens} for s in made.sections]
        emit({"request": request_body(model, made), "prompt": made.digest, "sections": sections, "tokens": made.tokens})
        return EXIT_DONE
    out = console()
    for message in made.messages:
        out.rule(message["role"], characters="-")
        out.print(message["content"], markup=False, highlight=False, soft_wrap=True)
    err = console(error=True)
    rows = table([("section", "left", 10), ("message", "left", 8), ("tokens", "right", 8)])
    for section in made.sections:
        rows.add_row(section.name, section.role, f"~{section.tokens}")
    rows.add_row("all", "", f"~{made.tokens}")
    err.print(rows)
    return EXIT_DONE


def _prompt(task: Task, chip: Chip, db: str | None) -> Prompt:
    with reading(db) as store:
        return write(brief(ProposalRequest(task, chip, known_trials(store, task, chip), label=task.name), store))
