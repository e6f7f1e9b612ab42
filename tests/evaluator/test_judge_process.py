"""The process that judges: what one judgement costs or breaks stays in its fork, which can be ended in any operation.

What is run there is bounded by itself: with no limit at all it takes 20 s and 1 GiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import processes
import pytest

from evaluator.judging.judge_process import SECONDS, JudgeProcess
from evaluator.judging.rejection import Rejected
from evaluator.kernel import refusal
from evaluator.plans import Plans
from evaluator.tileir.errors import TooLarge
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from knowledge_base.chips import chip
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import Candidate, Trial, Verdict
from knowledge_base.snf.everyday import everyday

CANDIDATES = Path(__file__).parent.parent / "candidates"
CHIP = chip("rtx5070")
TASK = everyday("gelu", M=100, N=70)
GELU = (CANDIDATES / "gelu_tiles.py").read_text()

FUNCTIONS = """
import os, signal, sys, threading, time

def whole(number, desk):
    return number + 1

def reports(desk):
    for share in range(3):
        desk.progress("counting", share / 4)
    return os.getpid()

def counts(seconds, desk):
    with desk.within(seconds, "counting was late"):
        sum(range(7 * 10**8))  # one operation of many seconds

def in_time(desk):
    with desk.within(0.01, "the step was late"):
        pass
    time.sleep(0.5)

def takes(megabytes, desk):
    return len(bytes(megabytes << 20))

def dies(number, desk):
    os.kill(os.getpid(), number)
    time.sleep(20)

def server_dies(desk):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(20)

def exits(desk):
    sys.exit(3)

def leaves_threads(desk):
    threading.Thread(target=time.sleep, args=(20,)).start()
    return "done"

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def raises(kind, desk):
    raise Odd(1, 2) if kind == "odd" else KeyError("mine")

def remembers(desk):
    sys.modules[__name__].seen = getattr(sys.modules[__name__], "seen", 0) + 1
    return sys.modules[__name__].seen

def asks(desk):
    from knowledge_base.snf.everyday import everyday
    return float(desk.oracle.expect(everyday("gelu"), {"M": 5, "N": 2}, "normal", 1).reference[0].sum())

def oracle_dies(desk):
    with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children") as file:
        others = [int(pid) for pid in file.read().split() if int(pid) != os.getpid()]
    for pid in others:
        with open(f"/proc/{pid}/cmdline") as file:
            if "judge_server" in file.read():
                os.kill(pid, signal.SIGKILL)
    return asks(desk)

def judged_in(seconds, trial, task, chip, desk):
    from evaluator.judging import executable
    from evaluator.judging.judge_server import QUESTIONS
    from evaluator.plans import Plans
    executable.LAUNCH_SECONDS = seconds
    return QUESTIONS["judge"](trial, task, chip, Plans(), 1, 1, desk)
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "for_a_judge.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(str(folder))
        import for_a_judge  # type: ignore[import-not-found]

        yield for_a_judge


@pytest.fixture(scope="module")
def process(functions: ModuleType) -> Iterator[JudgeProcess]:
    with JudgeProcess() as started:
        started.wait()
        yield started


def ended(process: JudgeProcess, *call: object) -> tuple[Verdict, float]:
    """The verdict of a call that had to be ended, and the seconds that it took; the process goes on."""
    start = time.monotonic()
    with pytest.raises(Rejected) as raised:
        process.call(*call)  # type: ignore[arg-type]
    seconds = time.monotonic() - start
    process.seconds = SECONDS
    assert process.call(sys.modules["for_a_judge"].whole, 1) == 2
    return raised.value.verdict, seconds


def test_a_function_gets_its_arguments_and_reports_how_far_it_is(process: JudgeProcess, functions: ModuleType) -> None:
    told: list[tuple[str, float]] = []
    first = process.call(functions.reports, progress=lambda stage, share: told.append((stage, share)))
    assert told == [("counting", 0.0), ("counting", 0.25), ("counting", 0.5)]
    assert first != process.call(functions.reports), "each call has a process of its own"


def test_an_operation_that_does_not_end_is_ended(process: JudgeProcess, functions: ModuleType) -> None:
    verdict, seconds = ended(process, functions.counts, 1.0)
    assert (verdict.status, verdict.error_class, verdict.message) == ("timeout", "too-slow", "counting was late")
    assert seconds < 1.2 * 1.0 + 0.4
    process.seconds = 1.0
    verdict, seconds = ended(process, functions.counts, 100.0)
    assert (verdict.status, verdict.message) == ("timeout", "the judgement was not done after 1 s")
    assert seconds < 1.6


def test_a_step_that_was_in_time_sets_no_limit_to_what_follows(process: JudgeProcess, functions: ModuleType) -> None:
    process.call(functions.in_time)


def test_memory_is_refused_beyond_a_limit(
    process: JudgeProcess, functions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "memory_bytes", 256 << 20)
    assert process.call(functions.takes, 64) == 64 << 20
    with pytest.raises(MemoryError):
        process.call(functions.takes, 1024)


@pytest.mark.parametrize(
    ("call", "how"), [(("dies", 9), "SIGKILL"), (("dies", 11), "SIGSEGV"), (("exits",), "exit code 0")]
)
def test_a_judgement_that_dies_is_a_verdict(
    call: tuple[object, ...], how: str, process: JudgeProcess, functions: ModuleType
) -> None:
    verdict, seconds = ended(process, getattr(functions, str(call[0])), *call[1:])
    assert (verdict.status, verdict.error_class) == ("crash", "evaluator-defect")
    assert verdict.message.endswith(how)
    assert seconds < 5


def test_where_the_whole_process_dies_there_is_another(process: JudgeProcess, functions: ModuleType) -> None:
    verdict, _ = ended(process, functions.server_dies)
    assert (verdict.status, verdict.error_class) == ("crash", "evaluator-defect")


def test_threads_that_go_on_end_with_the_judgement(process: JudgeProcess, functions: ModuleType) -> None:
    start = time.monotonic()
    assert process.call(functions.leaves_threads) == "done"
    assert process.call(functions.whole, 1) == 2
    assert time.monotonic() - start < 5


def test_what_is_raised_comes_back(process: JudgeProcess, functions: ModuleType) -> None:
    with pytest.raises(KeyError, match="mine"):
        process.call(functions.raises, "plain")
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*Odd"):
        process.call(functions.raises, "odd")


def test_a_judgement_leaves_nothing_behind_in_the_process(process: JudgeProcess, functions: ModuleType) -> None:
    assert [process.call(functions.remembers) for _ in range(3)] == [1, 1, 1]


def test_an_oracle_that_dies_spoils_one_judgement(process: JudgeProcess, functions: ModuleType) -> None:
    before = process.call(functions.asks)
    for _ in range(5):  # at once: one that was killed takes a moment to be gone
        with pytest.raises(Exception, match="the reference process ended"):
            process.call(functions.oracle_dies)
        assert process.call(functions.asks) == before


def test_the_process_can_be_ended_from_another_thread(functions: ModuleType) -> None:
    with JudgeProcess() as process:
        process.wait()
        threading.Timer(0.3, process.kill).start()
        with pytest.raises(EnvironmentLacks, match="was ended"):
            process.call(functions.counts, 100.0)
        with pytest.raises(EnvironmentLacks, match="was ended"):
            process.call(functions.whole, 1)


def test_a_process_that_cannot_start_is_the_environments_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with JudgeProcess() as process, pytest.raises(EnvironmentLacks, match="did not start: exit code 1"):
        process.wait()


def test_a_caller_that_dies_takes_its_process_along(functions: ModuleType) -> None:
    code = "import for_a_judge as f\nfrom evaluator.judging import JudgeProcess\nprocess = JudgeProcess()\n"
    code += "print(process.call(f.reports), flush=True)\nprocess.call(f.counts, 100.0)"
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    caller.stdout.readline()
    time.sleep(0.3)
    children = processes.below(caller.pid)
    assert len(children) == 4  # the process, its oracle, warden and judgement
    caller.kill()
    caller.wait()
    caller.stdout.close()
    assert processes.gone(children, 10), processes.running(children)


# ---------------------------------------------------------------------------------------------------- judging


def begun(source: str) -> Trial:
    return begin(Candidate(source=source, task=TASK.identity), TASK, CHIP)


def test_a_candidate_is_judged_as_it_is_in_this_process(process: JudgeProcess) -> None:
    stages: set[str] = set()
    plans = Plans()
    trial = process.judge(begun(GELU), TASK, CHIP, plans=plans, seed=3, progress=lambda stage, _: stages.add(stage))
    assert trial.verdict is not None
    assert trial.verdict.correct
    assert trial.seed == 3
    assert tuple(plan.digest for plan in plans) == trial.plans
    assert plans.traced(trial) is not None
    assert stages == {"trace", "emulate", "compile"}


KERNEL = """
import cuda.tile as ct

@ct.kernel
def kernel(x, y):
    v = ct.load(x, index=(0, 0), shape=(1, 1)).astype(ct.float64)
{lines}
    ct.store(y, index=(ct.bid(0), 0), tile=ct.full((1, 128), 0.0, y.dtype) + ct.sum(z).astype(y.dtype))

def launch(stream, x, y):
    ct.launch(stream, (x.shape[0], 1, 1), kernel, (x, y))
"""


def kernel(*lines: str) -> str:
    return KERNEL.format(lines="\n".join(f"    {line}" for line in lines))


# Two tiles of 2^23 elements, 64 MiB each, and more while they are multiplied.
ONE_OPERATION = kernel(
    "z = ct.full((2048, 4096), 1.5, ct.float64) + v", "z = ct.mul(z, z, rounding_mode=ct.RoundingMode.RZ)"
)
LIVE = kernel(*(f"t{i} = ct.full((2048, 4096), {i}.0, ct.float64) + v" for i in range(8)),
              "z = " + " + ".join(f"t{i}" for i in range(8)))  # fmt: skip
SEVERAL = kernel("w = v.astype(ct.float32)", "z = ct.full((1024, 1024), 1.5, ct.float32) + w", *["z = z * w"] * 500)


def test_a_launch_is_ended_inside_an_operation(process: JudgeProcess, functions: ModuleType) -> None:
    verdict, seconds = ended(process, functions.judged_in, 1.0, begun(ONE_OPERATION), TASK, CHIP)
    assert (verdict.status, verdict.error_class) == ("timeout", "too-slow")
    assert verdict.message.startswith("an operation went on beyond the 1 s that its launch may take (M=")
    assert seconds < 1.2 * 1.0 + 2  # to trace it takes a second


def test_a_launch_that_is_late_between_operations_says_where(process: JudgeProcess, functions: ModuleType) -> None:
    trial, _ = process.call(functions.judged_in, 0.1, begun(SEVERAL), TASK, CHIP)
    verdict = trial.verdict
    assert (verdict.status, verdict.error_class) == ("timeout", "too-slow")
    assert verdict.message.startswith("launch 0: stopped: the time allowed is over at candidate.py:")
    assert verdict.source in ("z = z * w", "z = ct.full((1024, 1024), 1.5, ct.float32) + w")


def test_tiles_that_do_not_fit_into_memory_are_unsupported(
    process: JudgeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "memory_bytes", 300 << 20)
    trial = process.judge(begun(LIVE), TASK, CHIP)
    verdict = trial.verdict
    assert (verdict.status, verdict.error_class) == ("unsupported", "emulator-memory")
    assert "takes more memory than there is" in verdict.message
    assert verdict.source.startswith("t")
    assert "smaller tiles" in verdict.hint


def test_a_kernel_of_too_much_text_is_unsupported(process: JudgeProcess) -> None:
    from evaluator.tileir import disassembly

    limit, limits = disassembly.MAX_TEXT, disassembly.LIMITS
    source = kernel(*["z = v", *["z = z + v"] * 400])
    (traced,) = trace(source, TASK, [Request(TASK.sizes)], CHIP)
    assert isinstance(traced, Traced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disassembly, "MAX_TEXT", 20_000)
        patch.setattr(disassembly, "LIMITS", replace(disassembly.LIMITS, output_bytes=20_000))
        with pytest.raises(TooLarge, match="more than 0 MiB of Tile IR") as raised:
            disassembly.disassemble(next(iter(traced.kernels.values())))
        patch.setattr(disassembly, "MAX_TEXT", limit)
        patch.setattr(disassembly, "LIMITS", replace(limits, wall_s=0.0))
        with pytest.raises(TooLarge, match="takes the disassembler more than 20 s"):
            disassembly.disassemble(next(iter(traced.kernels.values())))
    assert limit == disassembly.LIMITS.output_bytes
    verdict = refusal(raised.value)
    assert (verdict.status, verdict.error_class) == ("unsupported", "kernel-too-large")
    assert "loops in the kernel" in verdict.hint


def test_a_judgement_that_had_to_be_ended_is_the_candidates_verdict(
    process: JudgeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "seconds", 0.05)
    plans = Plans()
    trial = process.judge(begun(GELU), TASK, CHIP, plans=plans, seed=7)
    assert trial.verdict is not None
    assert (trial.verdict.status, trial.verdict.error_class) == ("timeout", "too-slow")
    assert trial.verdict.contained is not None
    assert (trial.seed, list(plans)) == (7, [])


def test_many_judgements_leave_no_process_no_descriptor_and_no_file(
    functions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    hostile = [path.read_text() for path in (CANDIDATES / "hostile").glob("*.py") if "loops" not in path.name]
    with JudgeProcess() as process:
        process.judge(begun(GELU), TASK, CHIP)
        before = held(process)
        for source in [*hostile[::8], GELU]:
            process.judge(begun(source), TASK, CHIP)
        ended(process, functions.dies, 9)
        assert held(process) == before
        (server,) = (seen for seen in processes.below(os.getpid()) if seen.pid == process._python.process.pid)
    assert processes.running([server]) == []
    assert processes.gone(before[0], 5), processes.running(before[0])
    assert os.listdir(tmp_path) == []


def held(process: JudgeProcess) -> tuple[list[processes.Seen], int, list[int]]:
    """What the process and its caller hold once those that it keeps have started: who imports opens files."""
    assert processes.idle(below(process), within_s=20)
    return below(process), len(os.listdir("/proc/self/fd")), descriptors(process)


def below(process: JudgeProcess) -> list[processes.Seen]:
    return processes.below(process._python.process.pid)


def descriptors(process: JudgeProcess) -> list[int]:
    """Of the process and of those that it keeps."""
    pids = [process._python.process.pid, *(seen.pid for seen in below(process))]
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
