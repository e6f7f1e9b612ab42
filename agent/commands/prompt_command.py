"""``agent prompt``: what a language model would be told about a task, to the letter, and how long each part is."""

from __future__ import annotations

from collections.abc import Mapping

from agent.console import console, emit, table
from agent.loop import known_trials, label_tasks
from agent.proposers import ProposalRequest, brief, request_body
from knowledge_base.chips import Chip
from knowledge_base.errors import EXIT_DONE, UserError, nearest
from knowledge_base.snf import decompose, load_target, task_named
from knowledge_base.snf.task import Task
from prompts import Prompt, write

from .hardware import chip_for
from .kb import reading


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


def task_of(target: str, name: str, shape: Mapping[str, int]) -> Task:
    """The task that is meant: of a target's by its name, or one that has a name of its own."""
    if not target:
        if not name:
            raise UserError(
                "--target or --task is missing", "For example: agent prompt --target gpt2-block --task linear"
            )
        return task_named(name, dict(shape))
    tasks = decompose(load_target(target, dict(shape)).graph).tasks
    labels = label_tasks(tasks)
    if not name and len(tasks) == 1:
        return tasks[0]
    plain = name.replace("-", "_")
    found = [t for t, label in zip(tasks, labels, strict=True) if plain in (label, t.name, label.replace(" ", "_"))]
    if len(found) == 1:
        return found[0]
    said = f"--task {name}" if name else "--task is missing"
    what = (
        f"{said}: {target} has several of that name" if found else f"{said}: no such task of {target}" if name else said
    )
    near = [label for t, label in zip(tasks, labels, strict=True) if t in found] or nearest(plain, labels) or labels
    raise UserError(what, f"Name one: {', '.join(repr(label) if ' ' in label else label for label in near)}.")
