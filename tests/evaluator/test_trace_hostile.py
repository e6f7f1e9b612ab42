"""Candidates that break the contract, hang, exit, flood, forge: each is a Verdict with class and line, nothing raises.

The files in tests/candidates/hostile say in their first comment what is expected: status, stage, error class, line.
Each is bounded by itself: with no guard at all it takes at most 64 processes or threads, 1 GiB, 100 MB of files, 20 s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.confinement.confine import MIB, containment
from evaluator.trace import Request, Traced, TraceLimits, read_axes, trace
from knowledge_base.chips import chip
from knowledge_base.records import MAX_TEXT, Level, Status, Verdict
from knowledge_base.snf.everyday import everyday

FOLDER = Path(__file__).parent.parent / "candidates" / "hostile"
GPU = chip("rtx5070")
TASK = everyday("gelu", M=100, N=192)
LIMITS = TraceLimits(import_s=1.0, trace_s=1.0, memory_bytes=768 * MIB, file_bytes=4 * MIB, output_bytes=MIB)

COPY = """
import cuda.tile as ct

@ct.kernel
def copy(x, y):
    ct.store(y, index=(ct.bid(0), 0), tile=ct.load(x, index=(ct.bid(0), 0), shape=(1, 256)))
"""


def verdict(source: str, policy: str = "general") -> Verdict:
    (answer,) = trace(source, TASK, [Request(TASK.sizes, policy=policy)], GPU, limits=LIMITS)
    assert isinstance(answer, Verdict), answer
    return answer


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_a_hostile_file_gets_the_verdict_it_announces(name: str) -> None:
    source = (FOLDER / name).read_text()
    status, stage, error_class, line = source.split("\n")[0].removeprefix("# expect: ").split()
    if error_class == "not-permitted" and containment().level is Level.LIMITED:
        pytest.skip(f"the kernel refuses too little here: {containment().why}")
    got = verdict(source)
    assert got.contained is (None if stage == "static" else containment().level)
    assert (got.status, got.stage, got.error_class) == (status, stage, error_class), got
    assert str(got.line or "-") == line, got
    if got.line is not None:
        assert got.source == source.split("\n")[got.line - 1].strip()
    assert got.message
    assert got.hint or got.error_class in ("import-raised", "launch-raised"), "the error table has advice"
    assert "/" not in got.message.replace("x / ", ""), "no path of this machine"
    assert got.message.isprintable()
    assert len(got.message) <= MAX_TEXT


REFUSED = (
    "torch.full((4,), 1.0)",
    "torch.randn(4)",
    "torch.cuda.synchronize()",
    "torch.nn.functional.gelu(x)",
    "torch.compile(launch)",
    "y.zero_()",
    "y.fill_(1)",
    "y.copy_(x)",
    "y[0] = 1",
    "x.tolist()",
    "x.data_ptr()",
    "x.to(torch.float32)",
    "x.sum()",
    "x.cpu()",
    "bool(x)",
    "float(x)",
    "x == y",
    "x @ y",
    "-x",
    "x[x]",
    "x[[1, 2]]",
    "x.t().reshape(-1)",
    "torch.empty(4, dtype=torch.float32, out=y)",
    "torch.as_strided(x, (1,), (1,))",
    "stream.synchronize()",
    "ct.tune.exhaustive_search()",
)


def test_torch_compute_is_refused_by_name_and_line() -> None:
    source = "import cuda.tile as ct\nimport torch\n\n"
    source += f"AXES = {{'CASE': {list(range(len(REFUSED)))}}}\n\ndef launch(stream, x, y, *, CASE):\n"
    source += "".join(f"    if CASE == {number}:\n        {body}\n" for number, body in enumerate(REFUSED))
    requests = [Request(TASK.sizes, {"CASE": number}) for number in range(len(REFUSED))]
    for number, got in enumerate(trace(source, TASK, requests, GPU)):
        assert isinstance(got, Verdict), REFUSED[number]
        assert (got.status, got.error_class, got.line) == (Status.INVALID, "torch-compute", 8 + 2 * number), got
        assert got.source == REFUSED[number]


def test_questions_about_the_stand_in_are_answered_like_torchs() -> None:
    source = (
        COPY
        + """
import torch

def launch(stream, x, y):
    assert not hasattr(torch, "compile") and not hasattr(x, "backward") and hasattr(torch, "float32")
    assert getattr(torch, "nn", None) is None
    assert isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.is_cuda and x.device.type == "cuda"
    assert str(x.device) == "cuda:0" and x.device == torch.device("cuda") and x.dtype is torch.bfloat16
    assert x.element_size() == 2 and x.dtype.is_floating_point and not x.requires_grad
    assert torch.finfo(x.dtype).max > 3e38 and torch.iinfo(torch.int32).max == 2**31 - 1
    assert torch.cuda.current_stream().cuda_stream == 0 and torch.cuda.get_device_capability() == (12, 0)
    assert isinstance(x.shape, torch.Size) and x.shape.numel() == x.numel() and len(x.shape) == x.ndim == 2
    assert torch.empty_like(x).shape == x.shape and x.new_zeros(3).dtype is x.dtype
    with torch.no_grad(), torch.inference_mode():
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    ct.launch(torch.cuda.current_stream(), (min(x.shape[0], 9 * sms),), copy, (x, y))
"""
    )
    (answer,) = trace(source, TASK, [Request(TASK.sizes)], GPU)
    assert isinstance(answer, Traced), answer
    assert answer.plan.launches[0].grid[0] == ("min", "M", ("*", 9, "num_sms"))
    assert answer.chip_facts == ("arch",)


def test_a_size_kept_from_an_earlier_call_is_refused_in_the_next() -> None:
    source = (
        COPY
        + """
kept = []

def launch(stream, x, y):
    kept.append(x.shape[0])
    ct.launch(stream, (kept[0],), copy, (x, y))
"""
    )
    (answer,) = trace(source, TASK, [Request(TASK.sizes)], GPU)
    assert (answer.status, answer.error_class) == (Status.INVALID, "stale-size"), answer


def test_an_array_kept_from_an_earlier_call_is_refused_in_the_next() -> None:
    source = (
        COPY
        + """
kept = []

def launch(stream, x, y):
    kept.append(x)
    ct.launch(stream, (x.shape[0],), copy, (kept[0], y))
"""
    )
    (answer,) = trace(source, TASK, [Request(TASK.sizes)], GPU)
    assert answer.error_class == "stale-array", answer


@pytest.mark.parametrize("policy", ["general", "sample", "concrete"])
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("done or x.new_zeros(4)\n    done.append(1)", "its arguments differ"),  # a workspace cleared on the first call
        ("done.append(1)\n    if len(done) % 2 == 0: raise ValueError('odd calls only')", "odd calls only"),
        ("done.append(1)\n    ct.launch(stream, (len(done),), copy, (x, y))", "its steps differ"),
    ],
)
def test_launch_is_called_twice_and_must_do_the_same(policy: str, lines: str, said: str) -> None:
    source = COPY + f"done = []\n\ndef launch(stream, x, y):\n    {lines}\n    ct.launch(stream, (8,), copy, (x, y))\n"
    (answer,) = trace(source, TASK, [Request(TASK.sizes, policy=policy)], GPU)
    assert (answer.status, answer.error_class) == (Status.INVALID, "launch-changes"), answer
    assert said in answer.message


def test_what_breaks_the_child_leaves_the_answers_it_gave() -> None:
    source = (
        COPY
        + """
import typing

AXES = {"DIE": [0, 1]}

def launch(stream, x, y, *, DIE=0):
    clock = typing.sys.modules["time"].monotonic
    until = clock() + 15 * DIE
    while clock() < until: pass
    ct.launch(stream, (x.shape[0],), copy, (x, y))
"""
    )
    requests = [Request(TASK.sizes), Request(TASK.sizes, {"DIE": 1}), Request(TASK.sizes)]
    first, second, third = trace(source, TASK, requests, GPU, limits=LIMITS)
    assert isinstance(first, Traced)
    assert (second.status, second.error_class, second.source) == (
        Status.TIMEOUT,
        "launch-timeout",
        "while clock() < until: pass",
    )
    assert third == second


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\0",
        "\ud800",
        "x" * 600_000,
        "(" * 10_000,
        "x" + ".a" * 100_000,
        "-" * 100_000 + "1",
        "not " * 100_000 + "1",
        "1" + "+1" * 100_000,
        "lambda:" * 20_000 + "1",
        "AXES = " + "[" * 150 + "]" * 150,
        "AXES = {'T': " + "-" * 5000 + "1}",
        "AXES = {'T': [" + "9" * 5000 + "]}",
        "def launch(stream, x, y):\n" + "\n".join(" " * i + "if x:" for i in range(1, 200)),
    ],
)
def test_any_text_at_all_gets_a_verdict(source: str) -> None:
    assert verdict(source).status is Status.INVALID
    assert isinstance(read_axes(source), Verdict)


def test_axes_are_read_without_running_anything() -> None:
    source = 'AXES: dict = {"T": [128, 64], "MODE": ("a", None), "S": [0.5, True]}\n1 / 0\n'
    source += "def launch(stream, x, y, *, T, MODE, S, num_sms):\n    pass\n"
    assert read_axes(source) == {"T": [128, 64], "MODE": ["a", None], "S": [0.5, True]}


@pytest.mark.parametrize("choice", ["2**70", "1" + 30 * "0", r"'\ud800'", r"'\033[2J'", repr(100 * "x"), "[1]"])
def test_an_axis_holds_numbers_and_short_words(choice: str) -> None:
    source = f"AXES = {{'T': [1, {choice}]}}\ndef launch(stream, x, y, *, T):\n    pass\n"
    found = read_axes(source)
    assert isinstance(found, Verdict)
    assert (found.error_class, found.line) == ("bad-axes", 1)
    assert found.message.isprintable()


def test_a_callers_mistake_is_no_verdict() -> None:
    with pytest.raises(KeyError):
        trace(COPY, TASK, [Request({"M": 1})], GPU)
    with pytest.raises(ValueError, match="policy"):
        trace(COPY, TASK, [Request(TASK.sizes, policy="other")], GPU)


def test_an_unknown_axis_is_a_verdict_of_its_request_alone() -> None:
    source = COPY + "\ndef launch(stream, x, y):\n    ct.launch(stream, (x.shape[0],), copy, (x, y))\n"
    bad, good = trace(source, TASK, [Request(TASK.sizes, {"T": 1}), Request(TASK.sizes)], GPU)
    assert bad.error_class == "bad-axes"
    assert isinstance(good, Traced)


def test_the_child_loads_neither_torch_nor_numpy_nor_the_knowledge_base() -> None:
    source = """
import typing

def launch(stream, x, y):
    loaded = [m for m in typing.sys.modules if m.startswith(("torch.", "numpy.", "pydantic", "knowledge_base"))]
    raise ValueError(f"loaded {loaded}")
"""
    assert verdict(source).message == "loaded []"


def test_the_environment_of_the_child_is_cleared() -> None:
    source = """
import typing

def launch(stream, x, y):
    raise ValueError(str(sorted(typing.sys.modules["os"].environ)))
"""
    assert verdict(source).message == "['CUDA_TILE_CACHE_DIR', 'HOME', 'LANG', 'PATH', 'TMPDIR']"
