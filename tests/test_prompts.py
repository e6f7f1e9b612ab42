"""What a model is told: complete, true of the installed compiler, the same for the same, short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.proposers.base import ProposalRequest
from agent.proposers.language_model.model_proposer import brief
from evaluator.judging import judge
from evaluator.trial import begin
from knowledge_base.chips import CHIPS, chip
from knowledge_base.records import Candidate, Stage, Status, Trial, Verdict
from knowledge_base.snf import canonical, decompose, everyday, load_target, parse, targets
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.ops import OPS
from knowledge_base.snf.printer import show
from prompts import Prompt, write
from prompts.cheat_sheet import LEFT_OUT, NOTES, SHOWN, functions
from prompts.prompt import TEMPLATES

H200 = chip("h200")


def prompt(name: str = "linear_gelu", *tried: Trial, problem: str = "") -> Prompt:
    return write(brief(ProposalRequest(everyday(name), H200, tried=tried), problem))


def text(name: str = "linear_gelu", *tried: Trial, problem: str = "") -> str:
    return "\n".join(message["content"] for message in prompt(name, *tried, problem=problem).messages)


def tried(source: str, verdict: Verdict, **fields: object) -> Trial:
    task = everyday("linear_gelu")
    candidate = Candidate(source=source, task=task.identity, proposer="openai")
    return begin(candidate, task, H200, {"TM": 64}).fuller(verdict=verdict, **fields)


def test_the_example_is_a_right_answer_to_its_task() -> None:
    """What a model copies from has to be right: it is judged like any other file."""
    task = canonical(parse("M, N = 300, 500\nx: bf16[M, N]\nw: weight.bf16[N]\ny = ReLU(x * w)\n", "scaled_relu"))
    source = (TEMPLATES / "example.txt").read_text()
    judged = judge(begin(Candidate(source=source, task=task.identity), task, H200), task, H200)
    assert judged.status == "correct", judged.verdict
    assert judged.general


def test_every_function_of_cutile_is_shown_or_left_out_on_purpose() -> None:
    import cuda.tile as ct

    public = {
        name for name in dir(ct) if not name.startswith("_") and callable(getattr(ct, name)) and name.islower()
    } - {"kernel", "compilation", "tune"}
    types = {name for name in public if isinstance(getattr(ct, name), type | ct.DType)}
    shown = [name for names in SHOWN.values() for name in names]
    assert len(shown) == len(set(shown))
    assert set(shown) | LEFT_OUT == public - types
    assert set(shown) & LEFT_OUT == set()
    assert set(NOTES) <= set(shown)
    for name in shown:
        assert re.search(rf"ct\.{name}\b", functions())


def test_the_sheet_says_how_functions_are_called() -> None:
    assert "ct.load(array, /, index, shape, *, order='C', padding_mode=ct.PaddingMode.UNDETERMINED" in functions()
    assert "ct.mma(x, y, /, acc, *" in functions()
    assert "<" not in functions()  # no repr of an object


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_says_the_task_whole(name: str) -> None:
    task, said = everyday(name), text(name)
    assert show(task.graph) in said
    for node in task.graph.nodes:
        assert OPS[node.op].says in said or not OPS[node.op].spellings
    assert "132 multiprocessors" in said
    assert "Speed of light" in said
    for tensor in (*task.inputs, *task.outputs):
        assert f"{tensor.name} {tensor.dtype}" in said


def test_every_shipped_target_on_every_chip_has_prompts_that_fit() -> None:
    tasks = {t.identity: t for name, _ in targets() for t in decompose(load_target(name).graph).tasks}
    for task in tasks.values():
        for hardware in CHIPS.values():
            made = write(brief(ProposalRequest(task, hardware)))
            assert 2000 < made.tokens < 5000, task.name
            assert not re.search(r"\{\{|\{%|None|nan", made.messages[1]["content"]), task.name


def test_what_is_the_same_stands_first() -> None:
    """An endpoint's cache holds the longest beginning that two prompts share."""
    first, second = prompt("linear_gelu"), prompt("attention")
    assert first.messages[0] == second.messages[0]
    roles = [section.role for section in first.sections]
    assert roles == sorted(roles)  # system, then user
    assert first.sections[2].text == second.sections[2].text  # the chip
    again = prompt("linear_gelu", tried("x\n", Verdict(status=Status.WRONG, stage=Stage.COMPARE, message="m")))
    assert again.messages[1]["content"].startswith(first.messages[1]["content"].split("# What to do now")[0])


def test_the_same_briefing_gives_the_same_prompt_in_another_process() -> None:
    code = "import sys; sys.path.insert(0, 'tests'); import test_prompts; print(test_prompts.prompt().digest)"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == prompt().digest


def test_a_verdict_reaches_its_author_with_line_and_hint() -> None:
    verdict = Verdict(
        status=Status.BUILD_ERROR, stage=Stage.TRACE, error_class="tile-not-power-of-two",
        message="Dimension #0 of shape (48, 64) is not a power of two", hint="use (64, 64) and mask", line=12,
        source="ct.load(x, (i, j), (48, 64))",
    )  # fmt: skip
    said = text("linear_gelu", tried("the source\n", verdict))
    for part in (verdict.message, verdict.hint, "Line 12: `ct.load(x, (i, j), (48, 64))`", "the source\n", "TM=64"):
        assert part in said
    assert "Mend answer 1" in said


def test_a_right_answer_that_refuses_sizes_is_told_which() -> None:
    verdict = Verdict(status=Status.CORRECT, stage=Stage.DONE)
    said = text("linear_gelu", tried("the source\n", verdict, infeasible=({"M": 7, "N": 13, "K": 1},)))
    assert "launch raised ValueError at M=7, N=13, K=1" in said
    assert "Mend answer 1" in said


def test_a_problem_with_the_form_is_what_is_asked_for_next() -> None:
    said = text("linear_gelu", problem="Your last answer holds no Python file.")
    assert "Your last answer holds no Python file. Answer with one complete Python file" in said


def test_what_a_candidate_says_is_no_template() -> None:
    """Sources and messages are data: braces in them stay as they are."""
    source = "{{ 7 * 7 }} {% raw %}\n"
    said = text("linear_gelu", tried(source, Verdict(status=Status.WRONG, stage=Stage.COMPARE, message="{{ 1 }}")))
    assert source in said
    assert "{{ 1 }}" in said


def test_a_prompt_is_quickly_made() -> None:
    """Under 0.3 s with all that is loaded for it, in a process that has loaded nothing."""
    code = (
        "import time; from knowledge_base.snf import everyday; from knowledge_base.chips import chip;"
        "from agent.proposers import ProposalRequest, brief;"
        "start = time.perf_counter(); from prompts import write;"
        "write(brief(ProposalRequest(everyday('attention'), chip('h200')))); print(time.perf_counter() - start)"
    )
    root = Path(__file__).parents[1]

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert min(seconds() for _ in range(3)) < 0.3
