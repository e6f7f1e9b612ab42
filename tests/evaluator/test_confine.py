"""Limits on hostile programs: every breach ends the whole tree and comes back as a value."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from evaluator.confinement import confine, scratch
from evaluator.confinement.barriers import Containment
from evaluator.confinement.confine import MIB, Limits, python_child, run
from evaluator.judging.judge_process import JudgeProcess
from evaluator.trace import BARE
from knowledge_base.errors import EnvironmentLacks

SH = "/bin/sh"


def python(code: str, **options):
    return run([sys.executable, "-I", "-S", "-c", code], **options)


def alive(marker: str) -> list[str]:
    """The processes whose command line holds ``marker``, this one and zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker.encode() in command and state != "Z":
                found.append(entry.name)
    return found


def test_a_program_gets_its_input_and_files_and_gives_back_output_files_and_code() -> None:
    done = run(
        [SH, "-c", "cat; cat given >made; echo problem >&2; exit 3"],
        stdin=b"in",
        files={"given": b"\x00data"},
        collect=["made", "absent"],
    )
    assert (done.returncode, done.stdout, done.stderr_tail, done.breach) == (3, b"in", b"problem\n", "")
    assert done.files == {"made": b"\x00data"}


def test_the_directory_is_its_own_and_goes_away() -> None:
    done = python(
        "import os; print(os.getcwd(), os.listdir()); os.mkdir('a', 0o700); os.mkdir('a/b', 0)", files={"x": b""}
    )
    folder, names = done.stdout.decode().split()
    assert (names, done.returncode) == ("['x']", 0)
    assert not Path(folder).exists()


def test_a_program_that_removes_its_directory_or_puts_a_link_there_harms_nobody(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert run([SH, "-c", 'rmdir "$HOME"; exit 4']).returncode == 4
    done = run([SH, "-c", f'rmdir "$HOME"; ln -s {tmp_path} "$HOME"; echo "$HOME"'])
    assert not os.path.lexists(done.stdout.decode().strip())
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_the_environment_is_cleared_and_can_be_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    names = {line.partition(b"=")[0] for line in run(["/usr/bin/env"], env={"EXTRA": "1"}).stdout.split(b"\n")}
    assert names - {b""} == {b"PATH", b"HOME", b"TMPDIR", b"LANG", b"EXTRA"}


def test_no_descriptor_of_ours_is_inherited() -> None:
    with open(__file__) as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os\nfor descriptor in range(3, 4096):\n try: print(os.fstat(descriptor))\n except OSError: pass"
        done = python(code)
    assert (done.stdout, done.returncode) == (b"", 0)


def test_the_deadline_ends_a_sleeper_and_its_children() -> None:
    started = time.monotonic()
    done = run([SH, "-c", "sleep 16.51 & sleep 16.52"], limits=Limits(wall_s=0.3))
    assert done.breach == "time"
    assert time.monotonic() - started < 5
    assert not alive("16.5")


@pytest.mark.parametrize("end", ["sleep 15", "exit 0"])
def test_a_grandchild_that_detached_does_not_outlive_the_run(end: str) -> None:
    code = "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execl('/bin/sleep', 'sleep', '16.61')\n"
    done = run([SH, "-c", f'{sys.executable} -c "{code}"; {end}'], limits=Limits(wall_s=0.6))
    assert done.breach == ("time" if end == "sleep 15" else "")
    assert not alive("16.61")


def test_an_exec_of_a_detached_orphan_with_a_cleared_environment_is_found_too() -> None:
    run([SH, "-c", "(setsid env -i sleep 16.71 &) & exit 0"], limits=Limits(wall_s=5))
    assert not alive("16.71")


@pytest.mark.parametrize(
    "start", ["os.fork() or (time.sleep(15), os._exit(0))", "_thread.start_new_thread(time.sleep, (15,))"]
)
def test_a_program_that_starts_too_many_processes_or_threads_is_ended_and_nothing_of_it_stays(start: str) -> None:
    code = f"import _thread, os, time  # many 16.81\nfor _ in range(24): {start}\ntime.sleep(15)"
    done = python(code, limits=Limits(wall_s=10, processes=8))
    assert done.breach == "processes"
    assert not alive("many 16.81")


@pytest.mark.parametrize("stream", [1, 2])
def test_a_flood_is_cut_off_at_its_limit(stream: int) -> None:
    started = time.monotonic()
    done = run(
        [SH, "-c", f"head -c 50000000 /dev/zero >&{stream}; sleep 15"], limits=Limits(wall_s=20, output_bytes=100_000)
    )
    assert done.breach == "output"
    assert len(done.stdout) <= 100_000
    assert len(done.stderr_tail) <= 16 * 1024
    assert time.monotonic() - started < 10


def test_memory_processor_time_and_file_size_are_limited() -> None:
    assert python("bytearray(2**30)", limits=Limits(memory_bytes=512 * MIB)).breach == "memory"
    assert python("sum(range(10**9))", limits=Limits(wall_s=15, cpu_s=1)).breach == "time"
    writing = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); open('big', 'wb').write(bytes(10**7))"
    assert python(writing, limits=Limits(file_bytes=MIB)).breach == "file"


def test_death_by_a_signal_is_told_apart_from_an_exit_code() -> None:
    crashed, left = python("import ctypes; ctypes.string_at(0)"), run([SH, "-c", "exit 139"])
    assert (crashed.breach, crashed.returncode) == ("signal", -11)
    assert (left.breach, left.returncode) == ("", 139)


def test_a_program_that_does_not_exist_says_so() -> None:
    done = run(["/no/such/program"])
    assert done.returncode == 127
    assert b"No such file" in done.stderr_tail


def test_only_plain_files_of_the_directory_are_collected() -> None:
    done = run([SH, "-c", "ln -s /etc/passwd link; mkfifo pipe; mkdir folder; head -c 3000000 /dev/zero >large"],
               collect=["link", "pipe", "folder", "large"], limits=Limits(file_bytes=MIB))  # fmt: skip
    assert done.files == {}


def test_a_program_cannot_see_the_input_of_another_and_runs_from_threads_do_not_mix() -> None:
    answers: dict[int, bytes] = {}

    def one(number: int) -> None:
        answers[number] = run([SH, "-c", "sleep 0.05; cat"], stdin=str(number).encode() * 1000).stdout

    threads = [threading.Thread(target=one, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: str(n).encode() * 1000 for n in range(12)}


def gone(marker: str, seconds: float = 5.0) -> bool:
    """Whether no process with ``marker`` is left, now or soon: a kill takes effect a moment later."""
    until = time.monotonic() + seconds
    while alive(marker) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(marker)


UNHELD = Containment(why="a test")  # as on a machine where the kernel refuses nothing


def test_a_program_that_kills_its_supervisor_dies_with_all_that_it_started() -> None:
    started = time.monotonic()
    done = run([SH, "-c", "(setsid sleep 17.01 &); sleep 17.02 & kill -9 $PPID; sleep 17.03"], held=UNHELD)
    assert done.breach == "signal"
    assert time.monotonic() - started < 5
    assert gone("17.0")
    assert run(["/bin/true"]).returncode == 0


def test_a_program_that_stops_its_supervisor_is_ended_soon_after_its_deadline() -> None:
    started = time.monotonic()
    program = [SH, "-c", "(setsid sleep 17.11 &); sleep 17.12 & kill -STOP $PPID; sleep 17.13"]
    done = run(program, held=UNHELD, limits=Limits(wall_s=1.0))
    assert done.breach == "time"
    assert time.monotonic() - started < 1.1 * 1.0 + 2 * confine.LAST_WORDS_S + 0.5
    assert gone("17.1")


def test_a_helper_process_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["/bin/true"]).returncode == 0
    monkeypatch.setattr(confine, "START_S", 0.5)
    helper = confine._PLAIN._process
    assert helper is not None
    helper.send_signal(signal.SIGSTOP)
    assert run(["/bin/true"]).returncode == 0
    assert helper.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "left",
    [
        "for number in range(3000): open(str(number), 'w').close()",
        "for number in range(5): open(str(number), 'wb').write(bytes(10**6))",
        "for _ in range(50): os.mkdir('x' * 200); os.chdir('x' * 200)",
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
    ],
)
def test_a_directory_takes_so_many_files_and_bytes_and_goes_away_whatever_is_in_it(left: str) -> None:
    code = f"import os, time; print(os.getcwd(), flush=True)\n{left}\ntime.sleep(15)"
    started = time.monotonic()
    done = python(code, limits=Limits(wall_s=20, file_bytes=MIB))
    assert done.breach == "file"
    assert time.monotonic() - started < 10
    assert not Path(done.stdout.decode().strip()).exists()


def test_directories_nested_deeper_than_any_path_are_removed(tmp_path: Path) -> None:
    inner = os.open(tmp_path, os.O_RDONLY)
    closed = []
    for depth in range(3000):
        os.mkdir("d" * 20, 0o700, dir_fd=inner)
        os.close(os.open("file", os.O_CREAT, dir_fd=inner))
        above, inner = inner, os.open("d" * 20, os.O_RDONLY, dir_fd=inner)
        if depth in (1000, 2000):
            closed.append(above)
        else:
            os.close(above)
    for directory in (*closed, inner):
        os.fchmod(directory, 0)
        os.close(directory)
    scratch.remove(str(tmp_path))
    assert not tmp_path.exists()
    tmp_path.mkdir()  # pytest removes it


def test_a_caller_that_dies_takes_its_runs_along(tmp_path: Path) -> None:
    marker = f"16.9{os.getpid()}"  # in the environment, so that the caller's own command does not have it
    code = "import os\nfrom evaluator.confinement import run\nprint('go', flush=True)\nmarker = os.environ['MARKER']\n"
    code += "run(['/bin/sh', '-c', f'setsid sleep {marker}1 & sleep {marker}2'])"
    env = os.environ | {"TMPDIR": str(tmp_path), "MARKER": marker}
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
    assert caller.stdout is not None
    caller.stdout.readline()
    until = time.monotonic() + 10
    while len(alive(marker)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(alive(marker)) == 3  # a shell and two sleepers
    caller.kill()
    caller.wait()
    caller.stdout.close()
    assert gone(marker)
    while list(tmp_path.iterdir()) and time.monotonic() < until + 5:
        time.sleep(0.02)
    assert not list(tmp_path.iterdir())


def test_a_run_works_again_after_the_helper_process_was_killed() -> None:
    assert run(["/bin/true"]).returncode == 0
    helper = confine._PLAIN._process
    assert helper is not None
    helper.kill()
    helper.wait()
    assert run(["/bin/true"]).returncode == 0


def test_a_python_child_is_isolated_but_finds_our_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    done = python_child("evaluator.trace.child", b"not json", Limits(wall_s=20), bare=BARE)
    assert done.returncode == 1
    assert b"JSONDecodeError" in done.stderr_tail


WARMED = """
import json, os, sys
state = []
warmed = os.getpid()

def warm():
    state.append("warm")

def main():
    state.append("run")
    asked = sys.stdin.read()
    if asked == "leave":
        raise ValueError("as asked")
    own = os.listdir(".")
    open("written", "w").close()
    facts = {"state": state, "hash": hash("a"), "asked": asked, "own": own, "argv": sys.argv[1:]}
    facts["home"] = os.environ["HOME"]
    print(json.dumps({**facts, "fork": os.getpid() != warmed, "environment": sorted(os.environ)}), flush=True)
"""


def test_a_child_begins_with_its_module_imported_and_sees_nothing_of_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "warmed.py").write_text(WARMED)
    monkeypatch.syspath_prepend(folder)

    def said(asked: str, **named: Any) -> dict[str, Any]:
        done = python_child("warmed", asked.encode(), Limits(wall_s=20, processes=1), bare=BARE, **named)
        assert done.returncode == 0, done.stderr_tail
        return dict(json.loads(done.stdout))

    first, second, other = said("one"), said("two"), said("three", other=True)
    for one in (first, second, other):
        assert one["state"] == ["warm", "run"]
        assert one["fork"]
        assert not one["own"]
        assert not one["argv"]
        assert one["environment"] == ["CUDA_TILE_CACHE_DIR", "HOME", "LANG", "PATH", "TMPDIR"]
    assert [one["asked"] for one in (first, second, other)] == ["one", "two", "three"]
    assert first["home"] != second["home"]
    assert first["hash"] == second["hash"] != other["hash"]
    failed = python_child("warmed", b"leave", Limits(wall_s=20), bare=BARE)
    assert failed.returncode == 1
    assert failed.stderr_tail.endswith(b"ValueError: as asked\n")
    missing = python_child("no_such_module", b"", Limits(wall_s=20), bare=BARE)
    assert missing.returncode == 1
    assert missing.stderr_tail.endswith(b"ModuleNotFoundError: No module named 'no_such_module'\n")


def test_a_childs_modules_are_compiled_once_for_all_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "child.py").write_text("def main():\n    print('ran')\n")
    monkeypatch.setattr(confine, "ROOT", tmp_path)
    confine.prepare.__wrapped__(("mine",))
    (compiled,) = (tmp_path / "mine" / "__pycache__").iterdir()
    assert compiled.name.startswith("child.")


def test_a_run_costs_milliseconds_however_large_the_caller_is() -> None:
    ballast = bytearray(1 << 29)  # a fork of this process would have to copy the page tables of these
    ballast[::4096] = b"x" * len(ballast[::4096])
    run(["/bin/true"])
    taken = []
    for _ in range(25):
        start = time.perf_counter()
        run(["/bin/true"])
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.05  # 4 ms on a quiet machine


def test_a_machine_that_starts_no_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(EnvironmentLacks, match="starts no more processes: Resource temporarily unavailable"):
        confine._Warden().start()
    with pytest.raises(EnvironmentLacks, match="starts no more processes"):
        JudgeProcess()


def test_a_machine_without_room_for_files_says_so() -> None:
    code = "import resource\nfrom evaluator.confinement import run\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    code += "run(['/bin/true'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "EnvironmentLacks: no room for a temporary directory" in done.stderr


def test_bytecode_that_an_installer_left_out_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cuda" / "tile" / "inner"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    confine.prepare.__wrapped__(())
    assert [path.name.split(".")[0] for path in (package / "__pycache__").iterdir()] == ["module"]
