"""From a request of the loop to what is told to whoever writes the kernel, a language model or a person."""

from __future__ import annotations

import math
from typing import Any

from agent.proposers.base import ProposalRequest
from evaluator.judging import LARGEST_FACTOR, RMS_FACTOR
from evaluator.timing import floor_us
from evaluator.trace import read_axes
from knowledge_base.advice import advice
from knowledge_base.chips import DEFAULT, chip
from knowledge_base.records import Trial
from knowledge_base.store import Store
from prompts import Answer, Briefing, Prompt

MAX_TOKENS = 32_000  # of an answer, thoughts included; files have one to three thousand


def brief(request: ProposalRequest, store: Store, by: str = "openai") -> Briefing:
    """What ``by``, a proposer, is told of a task; a fresh kernel is asked for, unless the caller replaces the move."""
    task, hardware = request.task, request.chip or chip(DEFAULT)
    answers = answers_of(request, by)
    return Briefing(
        task=task,
        chip=hardware,
        floor_us=floor_us(task, task.sizes, hardware),
        rms_factor=RMS_FACTOR,
        largest_factor=LARGEST_FACTOR,
        advice=advice(store, task, hardware, but={trial.candidate.digest for trial in answers}),
        best=request.best,
        answers=tuple(_answer(trial, request, store) for trial in answers),
    )


def request_body(model: str, prompt: Prompt, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """The request that is sent, but for what depends on the endpoint (streaming, the spelling of the limit)."""
    return {"model": model, "messages": prompt.messages, "max_tokens": max_tokens}


def answers_of(request: ProposalRequest, by: str) -> list[Trial]:
    """A proposer's candidates that this run tried, oldest first, each as it was heard of last.

    What an earlier run knew already is no answer of this one.
    """
    known = {trial.candidate.digest for trial in request.known}
    last: dict[str, Trial] = {}
    for trial in request.tried:
        if trial.candidate.proposer == by and trial.candidate.digest not in known:
            last[trial.candidate.digest] = trial
    return list(last.values())


def _answer(trial: Trial, request: ProposalRequest, store: Store) -> Answer:
    """A trial with what is known of the candidate's other configurations at the same sizes."""
    digest = trial.candidate.digest
    looked = store.of_candidate(trial.task, digest, trial.chip, trial.shape, trial.evaluator)
    axes = read_axes(trial.candidate.source)
    total = math.prod(len(values) for values in axes.values()) if isinstance(axes, dict) else 0
    return Answer(trial, tuple(looked), total)
