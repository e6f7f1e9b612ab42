"""What a model is told: complete, true of the installed compiler, the same for the same, within its budget."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.proposers.base import ProposalRequest
from agent.proposers.briefs import brief
from evaluator.judging import judge
from evaluator.trial import begin
from knowledge_base.advice import Advice, Belief, Example, Item
from knowledge_base.chips import CHIPS, chip
from knowledge_base.records import Candidate, CompileEvidence, Measurement, Move, Stage, Status, Trial, Verdict
from knowledge_base.snf import canonical, decompose, everyday, load_target, parse, targets
from knowledge_base.snf.everyday import NAMES
from knowledge_base.snf.op_table import OPS
from knowledge_base.snf.printer import show
from knowledge_base.store import Store
from prompts import Prompt, write
from prompts.cheat_sheet import LEFT_OUT, MISSING, NOTES, SHOWN, functions
from prompts.examples import CAVEATS, KERNELS, caveats, excerpt
from prompts.knowledge import TOKENS, worth_telling
from prompts.prompt import CHARACTERS_A_TOKEN, LIMIT_TOKENS, TEMPLATES

H200 = chip("h200")
ROOT = Path(__file__).parents[1]
PAGES = ROOT / "tests" / "golden_prompts"
WRONG = Verdict(status=Status.WRONG, stage=Stage.COMPARE, message="m")
RIGHT = Verdict(status=Status.CORRECT, stage=Stage.DONE)


class Prompts:
    """Prompts for tasks on an H200, from a base that holds what ships."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def of(
        self, name: str = "linear_gelu", *tried: Trial, gpu: str = "h200", limit: int = LIMIT_TOKENS,
        characters_a_token: float = CHARACTERS_A_TOKEN, **asked: Any,
    ) -> Prompt:  # fmt: skip
        request = ProposalRequest(everyday(name), chip(gpu), tried=tried)
        return write(replace(brief(request, self.store), **asked), limit, characters_a_token)

    def text(self, name: str = "linear_gelu", *tried: Trial, **more: Any) -> str:
        return "\n".join(message["content"] for message in self.of(name, *tried, **more).messages)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prompts]:
    with Store.open(str(tmp_path_factory.mktemp("kb") / "kb.db")) as store:
        yield Prompts(store)


def tried(
    source: str, verdict: Verdict, task: str = "linear_gelu", by: str = "openai", gpu: str = "h200", **fields: Any
) -> Trial:
    candidate = Candidate(source=source, task=everyday(task).identity, proposer=by)
    return begin(candidate, everyday(task), chip(gpu), {"TM": 64}).fuller(verdict=verdict, **fields)


def mends(answer: Trial) -> dict[str, Any]:
    return {"move": Move.REPAIR, "about": (answer.candidate.digest,)}


def took(us: float) -> tuple[Measurement]:
    return (Measurement(kind="modelled", chip="h200", us=us, floor_us=39.1),)


# ---------------------------------------------------------------------------------------------------- what is true


def test_the_example_is_a_right_answer_to_its_task() -> None:
    """What a model copies from has to be right: it is judged like any other file."""
    task = canonical(parse("M, N = 300, 500\nx: bf16[M, N]\nw: weight.bf16[N]\ny = ReLU(x * w)\n", "scaled_relu"))
    source = (TEMPLATES / "example.txt").read_text()
    judged = judge(begin(Candidate(source=source, task=task.identity), task, H200), task, H200)
    assert judged.status == "correct", judged.verdict
    assert judged.general


def test_every_function_of_cutile_is_shown_or_left_out_on_purpose() -> None:
    import cuda.tile as ct

    public = {name for name in dir(ct) if name.islower() and not name.startswith("_") and callable(getattr(ct, name))}
    public = {name for name in public if not isinstance(getattr(ct, name), type | ct.DType)}
    shown = [name for names in SHOWN.values() for name in names]
    assert len(shown) == len(set(shown))
    assert set(shown) | LEFT_OUT == public
    assert set(shown) & LEFT_OUT == set()
    assert set(NOTES) <= set(shown)
    for name in shown:
        assert re.search(rf"ct\.{name}\b", functions())


def test_the_sheet_says_how_functions_are_called() -> None:
    assert "ct.load(array, /, index, shape, *, order='C', padding_mode=ct.PaddingMode.UNDETERMINED" in functions()
    assert "ct.mma(x, y, /, acc, *" in functions()
    assert re.search(r"ct.PaddingMode: .*ZERO.*NEG_INF", functions())
    assert "<" not in functions()  # no repr of an object


@pytest.mark.parametrize(("file", "function"), [(file, function) for _, file, function in KERNELS])
def test_tilegym_has_the_kernels_that_are_shown(file: str, function: str) -> None:
    pytest.importorskip("tilegym")
    source = excerpt(file, function)
    assert f"def {function}(" in source
    assert 300 < len(source) < 4000
    assert '"""' not in source
    compile(source, file, "exec")


def test_what_is_not_to_be_taken_over_is_still_in_what_is_shown() -> None:
    pytest.importorskip("tilegym")
    sources = [excerpt(file, function) for _, file, function in KERNELS]
    for piece, _ in CAVEATS:
        assert any(piece in source for source in sources), piece
    assert any(not caveats(source) for source in sources)


def test_what_is_said_not_to_be_there_is_not() -> None:
    import cuda.tile as ct

    assert [name for name in MISSING if hasattr(ct, name)] == []


def test_an_excerpt_that_is_not_there_is_none() -> None:
    assert excerpt("matmul.py", "no_such_kernel") == ""
    assert excerpt("no_such_file.py", "kernel") == ""


# ---------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_says_the_task_whole(name: str, prompts: Prompts) -> None:
    task, said = everyday(name), prompts.text(name)
    assert show(task.graph) in said
    for node in task.graph.nodes:
        assert OPS[node.op].says in said or not OPS[node.op].spellings
    assert "132 multiprocessors" in said
    assert "Speed of light" in said
    for tensor in (*task.inputs, *task.outputs):
        assert f"{tensor.name} {tensor.dtype}" in said


def test_constants_that_the_snf_leaves_to_defaults_are_said(prompts: Prompts) -> None:
    assert "LayerNorm with eps = 1e-05" in prompts.text("layernorm")
    assert "GELU with approximate = tanh" in prompts.text("linear_gelu")


def test_every_shipped_target_on_every_chip_has_prompts_that_fit(prompts: Prompts) -> None:
    tasks = {t.identity: t for name, _ in targets() for t in decompose(load_target(name).graph).tasks}
    for task in tasks.values():
        for hardware in CHIPS.values():
            made = write(brief(ProposalRequest(task, hardware), prompts.store))
            assert 2500 < made.tokens < 6000, task.name
            prose = re.sub("```python.*?```", "code", made.messages[1]["content"], flags=re.DOTALL)
            assert not re.search(r"\{\{|\{%|None|nan|\n\n\n\n", prose), task.name


def test_what_was_measured_on_the_chip_is_said_for_the_task_alone(prompts: Prompts) -> None:
    gelu, norm = prompts.text("linear_gelu"), prompts.text("layernorm")
    assert "Measured on this GPU:\n- time reached by hand at M=8192 N=3072 K=768: 62.6 µs" in gelu
    assert "128x256x64 tiles" in gelu
    assert "3 tiles of 256" not in gelu
    assert "3 tiles of 256" in norm
    assert "128x256x64 tiles" not in norm
    assert "Of this architecture (sm_90)" in gelu
    other = prompts.text("linear_gelu", gpu="b200")
    assert "Measured on an NVIDIA H200, another GPU:" in other
    assert "reached" not in other  # a time of another GPU is no goal
    assert "FLOP/s" not in other.split("# What is known")[1]
    assert "tcgen05" in other


def test_a_time_of_another_shape_is_no_goal(prompts: Prompts) -> None:
    small = ProposalRequest(everyday("linear_gelu", M=128), H200)
    assert "time reached" not in str(write(brief(small, prompts.store)).messages)


def test_a_belief_is_said_with_its_evidence(prompts: Prompts) -> None:
    said = prompts.text("linear_gelu")
    assert "1.3 times as fast as two kernels. (not tested yet, ratio 1.3; the project owner's own findings" in said
    assert "tf32" not in said.split("Rules, with")[1].split("#")[0]  # another dtype


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("supported", "supported by 2 shapes"),
        ("refuted", "refuted by 2 shapes"),
        ("hypothesised", "open after 2 shapes"),
    ],
)
def test_what_the_evidence_of_a_belief_comes_to_is_said(status: str, says: str) -> None:
    belief = Belief("linear is faster at TM=128", status, -0.05, (-0.1, 0.02), 2, "", "a test", "h200")
    (told,) = (line.text for line in worth_telling(Advice((Item(belief, "k", 1.0, "", 0.1),)), H200))
    assert told == f"linear is faster at TM=128: 4.9% less time (-9.5 to +2.0%), {says}"


def test_the_nearest_task_that_was_solved_is_an_example(prompts: Prompts, tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "kb.db")) as store:
        mine = Prompts(store)
        assert "The best kernel known for" not in mine.text("linear_gelu")
        for task, us in (("linear", 50.0), ("layernorm", 5.0)):
            store.record_tasks([everyday(task)])
            store.record([tried(f"# {task}\n", RIGHT, task, measurements=took(us))])
        said = mine.text("linear_gelu")
        assert "The best kernel known for linear\n" in said
        assert "50.0 µs (modelled), 1.28 times its speed of light" in said
        assert "# layernorm\n" not in said


def test_an_example_of_no_bytes_to_speak_of_has_no_speed_of_light(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "kb.db")) as store:
        store.record_tasks([everyday("linear")])
        time = Measurement(kind="modelled", chip="h200", us=3.0, floor_us=0.0)
        store.record([tried("# linear\n", RIGHT, "linear", measurements=(time,))])
        assert "3.00 µs (modelled), with" in Prompts(store).text("linear_gelu")


# ---------------------------------------------------------------------------------------------------- order, budget


def test_what_is_the_same_stands_first(prompts: Prompts) -> None:
    """An endpoint's cache holds the longest beginning that two prompts share."""
    first, second = prompts.of("linear_gelu"), prompts.of("attention")
    assert first.messages[0] == second.messages[0]
    roles = [section.role for section in first.sections]
    assert roles == sorted(roles)  # system, then user
    assert first.sections[2].text == second.sections[2].text  # the chip
    again = prompts.of("linear_gelu", tried("x\n", WRONG))
    assert again.messages[1]["content"].startswith(first.messages[1]["content"].split("# What to do now")[0])


def test_the_same_briefing_gives_the_same_prompt_in_another_process(prompts: Prompts, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_prompts as t;"
        f"print(t.Prompts(t.Store.open('{tmp_path}/kb.db')).of().digest)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == prompts.of().digest


ANSWERS = tuple(tried(f"# answer {i}\n" + "x = 1\n" * 1800, WRONG) for i in range(1, 5))


def test_a_long_prompt_is_shortened_from_its_longest_part_and_its_oldest_answers(prompts: Prompts) -> None:
    whole = prompts.of("linear_gelu", *ANSWERS, limit=100_000)
    made = prompts.of("linear_gelu", *ANSWERS)
    assert whole.tokens > 17_000
    assert made.tokens <= LIMIT_TOKENS + len(made.sections)  # each is rounded
    said = "".join(section.text for section in made.sections)
    assert [f"# answer {i}\n" in said for i in range(1, 5)] == [False, False, True, True]
    assert "## Answer 1: wrong" in said  # what became of it stays
    assert {s.name for s in made.sections} == {s.name for s in whole.sections}

    least = prompts.of("linear_gelu", *ANSWERS, limit=1)
    assert [s.name for s in least.sections] == ["contract", "language", "chip", "task", "axes", "trials", "request"]
    assert "# answer 4\n" in least.sections[5].text
    assert "Answer 3" not in least.sections[5].text


def test_the_fastest_answer_is_never_shortened(prompts: Prompts) -> None:
    fast = tried("# the fastest\n" + "x = 1\n" * 2000, RIGHT, measurements=took(50.0))
    least = prompts.of("linear_gelu", fast, *ANSWERS, limit=1)
    by = {section.name: section.text for section in least.sections}
    assert "It is your answer 1" in by["best"]
    assert "# the fastest\n" in by["trials"]
    assert "## Answer 5: wrong" in by["trials"]
    assert "Answer 2" not in by["trials"]


def test_a_budget_is_in_the_tokens_that_the_endpoint_counts(prompts: Prompts) -> None:
    coarse = prompts.of("linear_gelu", *ANSWERS, characters_a_token=2.0)
    fine = prompts.of("linear_gelu", *ANSWERS, characters_a_token=5.0)
    assert sum(len(s.text) for s in coarse.sections) < sum(len(s.text) for s in fine.sections)
    assert coarse.tokens <= LIMIT_TOKENS + len(coarse.sections)


def test_what_is_worth_least_is_dropped_first(prompts: Prompts) -> None:
    sizes = [s.tokens for s in prompts.of("linear_gelu").sections]
    made = prompts.of("linear_gelu", limit=sum(sizes) - 1600)  # the example goes, then some of what is known
    by = {section.name: section.text for section in made.sections}
    assert "gallery" not in by
    for kept in ("time reached by hand", "is faster at TM=128:", "fault of the compiler"):
        assert kept in by["knowledge"]
    for gone in ("num_ctas=2", "is slower at LATENCY=4"):
        assert gone not in by["knowledge"]
        assert gone in prompts.text("linear_gelu")


def test_what_is_known_has_a_budget_of_its_own(prompts: Prompts) -> None:
    for name in ("linear_gelu", "attention", "layernorm"):
        made = prompts.of(name)
        (known,) = (section for section in made.sections if section.name == "knowledge")
        assert TOKENS / 3 < known.tokens < TOKENS + 100  # headings


def test_mistakes_of_earlier_answers_are_told_with_what_helps(prompts: Prompts, tmp_path: Path) -> None:
    verdict = WRONG.model_copy(update={"error_class": "mma-dtypes", "message": "x and y " + "y" * 400, "hint": "cast"})
    with Store.open(str(tmp_path / "kb.db")) as store:
        mine = Prompts(store)
        assert "rejected for" not in mine.text("linear_gelu")
        answer = tried("# of an earlier run\n", verdict, "linear")
        answer = answer.fuller(candidate=answer.candidate.model_copy(update={"prompt": "p"}))
        store.record_tasks([everyday("linear")])
        store.record([answer])
        said = mine.text("linear_gelu")
    assert (
        "What earlier answers to such tasks were rejected for:\n- mma-dtypes, 1 of 1 answer (linear: x and y yyy"
        in said
    )
    assert "…): cast\n" in said
    assert "y" * 200 not in said


# ---------------------------------------------------------------------------------------------------- answers


def test_a_verdict_reaches_its_author_with_line_and_hint(prompts: Prompts) -> None:
    verdict = Verdict(
        status=Status.BUILD_ERROR, stage=Stage.TRACE, error_class="tile-not-power-of-two",
        message="Dimension #0 of shape (48, 64) is not a power of two", hint="use (64, 64) and mask", line=12,
        source="ct.load(x, (i, j), (48, 64))",
    )  # fmt: skip
    answer = tried("the source\n", verdict)
    said = prompts.text("linear_gelu", answer, **mends(answer))
    for part in (verdict.message, verdict.hint, "Line 12: `ct.load(x, (i, j), (48, 64))`", "the source\n", "TM=64"):
        assert part in said
    assert "Mend answer 1" in said


def test_a_right_answer_that_refuses_sizes_is_told_which(prompts: Prompts) -> None:
    answer = tried("the source\n", RIGHT, infeasible=({"M": 7, "N": 13, "K": 1},))
    said = prompts.text("linear_gelu", answer, **mends(answer))
    assert "launch raised ValueError at M=7, N=13, K=1" in said
    assert "Mend answer 1" in said


def test_the_fastest_kernel_is_shown_once(prompts: Prompts) -> None:
    mine = tried("# mine\n", RIGHT, measurements=took(60.0))
    floor = tried("# floor\n", RIGHT, by="synthesizer", measurements=took(70.0))
    said = prompts.text("linear_gelu", floor, mine)
    assert said.count("# mine\n") == 1
    assert "It is your answer 1: 60.0 µs (modelled), 1.54 times the speed of light." in said
    assert "# floor\n" not in said
    said = prompts.text("linear_gelu", floor)
    assert "70.0 µs (modelled), 1.79 times the speed of light, with TM=64" in said
    assert said.count("# floor\n") == 1


def test_what_a_request_is_about_is_named_and_shown_whole(prompts: Prompts) -> None:
    """Whatever else is shortened: the kernels that are to be mended, improved or crossed."""
    pad = "# " + 16_000 * "pad " + "\n"
    old = tried("# old\n" + pad, RIGHT, measurements=took(61.0))
    wrong = [tried(f"# wrong {i}\n" + pad, WRONG) for i in range(3)]
    floor = tried("# floor\n" + pad, RIGHT, by="synthesizer", measurements=took(55.0))
    answers = (floor, old, *wrong)

    def asked(move: Move, *about: Trial, **more: Any) -> str:
        digests = tuple(trial.candidate.digest for trial in about)
        return prompts.text("linear_gelu", *answers, move=move, about=digests, **more)

    said = asked(Move.REPAIR, wrong[1])
    assert "Mend answer 3: " in said
    assert (wrong[1].candidate.source in said, wrong[0].candidate.source in said) == (True, False)
    said = asked(Move.IMPROVE, floor)
    assert "The fastest kernel so far is right. Make one change" in said
    assert (floor.candidate.source in said, old.candidate.source in said) == (True, False)
    said = asked(Move.CROSSOVER, floor, old)
    assert "The fastest kernel so far and answer 1 are both right." in said
    assert (floor.candidate.source in said, old.candidate.source in said) == (True, True)
    said = asked(Move.FRESH)
    assert "of another structure than your answers so far" in said
    assert floor.candidate.source not in said
    example = Advice(
        example=Example("layernorm", tried("# example\n" + pad, RIGHT, "layernorm", measurements=took(9.0)), 0.5)
    )
    said = asked(Move.TRANSFER, advice=example)
    assert "in the way of the best kernel known for layernorm" in said
    assert "# example\n" + pad in said
    assert "# example\n" not in asked(Move.REPAIR, wrong[2], advice=example)
    two = [prompts.text("linear_gelu", another=another) for another in (False, True)]
    assert "being written by somebody else" not in two[0]
    assert "being written by somebody else" in two[1]


def test_a_problem_with_the_form_is_what_is_asked_for_next(prompts: Prompts) -> None:
    said = prompts.text("linear_gelu", problem="Your last answer holds no Python file.")
    assert "Your last answer holds no Python file. Answer with one complete Python file" in said


def test_what_a_candidate_says_is_no_template(prompts: Prompts) -> None:
    """Sources and messages are data: braces in them stay as they are."""
    source = "{{ 7 * 7 }} {% raw %}\n"
    said = prompts.text("linear_gelu", tried(source, WRONG.model_copy(update={"message": "{{ 1 }}"})))
    assert source in said
    assert "{{ 1 }}" in said


# ---------------------------------------------------------------------------------------------------- golden

SLOW = CompileEvidence(
    arch="sm_90", kernel="0" * 64, symbol="kernel", registers=168, stack_bytes=0, spill_bytes=16, shared_bytes=66560,
    mma="wgmma", tma=True,
)  # fmt: skip
GOLDEN: dict[str, tuple[str, str, tuple[Trial, ...]]] = {
    "first": ("linear_gelu", "h200", (
        tried("# the floor's source\n", RIGHT, by="synthesizer", measurements=took(74.2)),
    )),
    "mend": ("layernorm", "h200", (
        tried("# the answer's source\n", Verdict(
            status=Status.UNSAFE, stage=Stage.EMULATE, error_class="tile-outside", line=14, hint="end the loop earlier",
            message="the load of x reads tile (0, 1), which lies outside", source="x = ct.load(x, (i, j), (4, 256))",
        ), "layernorm"),
    )),
    "improve": ("attention", "rtx5070", (
        tried("# a wrong answer's source\n", WRONG, "attention", "openai", "rtx5070"),
        tried("# a right answer's source\n", RIGHT, "attention", "openai", "rtx5070", evidence=(SLOW,), measurements=(
            Measurement(kind="modelled", chip="rtx5070", us=310.0, floor_us=208.9),
        )),
    )),
    "reflect": ("layernorm", "h200", (
        tried("# a wrong answer's source\n", WRONG, "layernorm"),
        tried("# a right answer's source\n", RIGHT, "layernorm", measurements=(
            Measurement(kind="modelled", chip="h200", us=11.2, floor_us=2.62),
        )),
    )),
}  # fmt: skip


def golden(prompts: Prompts, name: str) -> str:
    """A prompt as it is read, without what is other people's text: TileGym's source, cuTile's signatures."""
    task, gpu, answers = GOLDEN[name]
    asked: dict[str, dict[str, Any]] = {
        "first": {}, "mend": mends(answers[-1]), "improve": mends(answers[-1]) | {"move": Move.IMPROVE},
        "reflect": {"move": Move.REFLECT},
    }  # fmt: skip
    made = prompts.of(task, *answers, gpu=gpu, **asked[name])
    parts = []
    for section in made.sections:
        text = section.text.replace(functions(), "…")
        if section.name == "gallery":
            text = re.sub("(```python\n).*?(```)", r"\1…\n\2", text, flags=re.DOTALL)
        parts.append(text)
    return "\n".join(parts)


@pytest.mark.parametrize("name", GOLDEN)
def test_prompts_read_as_they_were_last_read_by_a_person(name: str, prompts: Prompts) -> None:
    """After a change: read the difference, then ``python tests/test_prompts.py`` writes the pages anew."""
    assert golden(prompts, name) == (PAGES / f"{name}.md").read_text()


# ---------------------------------------------------------------------------------------------------- how fast


def test_a_prompt_is_quickly_made(tmp_path: Path) -> None:
    """Under 0.3 s with all that is loaded for it, where nothing was loaded but the knowledge base."""
    code = (
        "import time; from knowledge_base.snf import everyday; from knowledge_base.chips import chip;"
        "from knowledge_base.store import Store; from agent.proposers import ProposalRequest, brief;"
        f"store = Store.open('{tmp_path}/kb.db'); start = time.perf_counter(); from prompts import write;"
        "write(brief(ProposalRequest(everyday('attention'), chip('h200')), store)); print(time.perf_counter() - start)"
    )

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert min(seconds() for _ in range(3)) < 0.3


if __name__ == "__main__":
    import tempfile

    PAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/kb.db") as base:
        for page in GOLDEN:
            (PAGES / f"{page}.md").write_text(golden(Prompts(base), page))
