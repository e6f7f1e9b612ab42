"""The compile cache: remembers, notices damage, survives company, keeps its limit, and is never a reason to fail."""

from __future__ import annotations

import hashlib
import os
import threading

import pytest

from evaluator.compile import Cache, Compiled, pool
from evaluator.compile.cache import key
from knowledge_base import seal
from knowledge_base.records import CompileEvidence, Stage, Status, Verdict


def entry(byte: int = 1, size: int = 100) -> Compiled:
    evidence = CompileEvidence(
        arch="sm_90", kernel="0" * 64, symbol="k", registers=byte, stack_bytes=0, spill_bytes=0, shared_bytes=0
    )
    return Compiled(bytes([byte]) * size, evidence)


NAME = key("0" * 64, "sm_90", "13.4.92", ())
REFUSED = Verdict(status=Status.COMPILE_ERROR, stage=Stage.COMPILE, message="no")


@pytest.mark.parametrize("value", [entry(), entry(10, 0), REFUSED], ids=["cubin", "empty cubin", "verdict"])
def test_what_was_put_is_got(tmp_path, value):
    cache = Cache(tmp_path)
    assert cache.get(NAME) is None
    cache.put(NAME, value)
    assert Cache(tmp_path).get(NAME) == value


def test_everything_that_reaches_the_cubin_is_in_the_key():
    base = ("0" * 64, "sm_90", "13.4.92", ("-O3",))
    others = [("1" * 64, *base[1:]), (base[0], "sm_100", *base[2:]), (*base[:2], "13.4.93", base[3]), (*base[:3], ())]
    assert len({key(*k) for k in [base, *others]}) == 5


@pytest.mark.parametrize("at", [0, 30, 200, -1])
def test_a_damaged_entry_is_a_miss_and_goes(tmp_path, at):
    cache = Cache(tmp_path)
    cache.put(NAME, entry())
    path = cache.path(NAME)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert cache.get(NAME) is None
    assert not path.exists()


def test_an_entry_that_another_made_or_that_was_moved_is_a_miss(tmp_path, monkeypatch):
    cache = Cache(tmp_path / "mine")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "another"))
    cache.put(NAME, entry())
    theirs = cache.path(NAME).read_bytes()
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    assert cache.get(NAME) is None
    cache.put(NAME, entry())
    other = key("1" * 64, "sm_90", "13.4.92", ())
    cache.path(other).parent.mkdir(parents=True, exist_ok=True)
    cache.path(other).write_bytes(cache.path(NAME).read_bytes())
    assert cache.get(other) is None
    assert cache.get(NAME) == entry()
    assert theirs != cache.path(NAME).read_bytes()


def test_half_an_entry_is_a_miss(tmp_path):
    cache = Cache(tmp_path)
    cache.put(NAME, entry())
    path = cache.path(NAME)
    path.write_bytes(path.read_bytes()[:-10])
    assert cache.get(NAME) is None


def test_writers_and_readers_at_once_see_whole_entries_only(tmp_path):
    values = [entry(b, 50_000 + b) for b in range(1, 5)]
    wrong: list[object] = []

    def work(mine: Compiled) -> None:
        cache = Cache(tmp_path)
        for _ in range(40):
            cache.put(NAME, mine)
            found = cache.get(NAME)
            if found not in values:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(v,)) for v in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [p.name for p in Cache(tmp_path).folder.glob("*/*")] == [NAME]  # no half-written files are left


def test_pruning_removes_what_was_used_longest_ago(tmp_path):
    cache = Cache(tmp_path, limit_bytes=60_000)
    names = [hashlib.sha256(bytes([i])).hexdigest() for i in range(10)]
    for age, name in enumerate(names):
        cache.put(name, entry(size=9_000))
        os.utime(cache.path(name), (1000 + age, 1000 + age))
    assert cache.get(names[0]) is not None  # a use makes it young
    gone = cache.prune()
    left = [n for n in names if cache.path(n).exists()]
    assert gone == 10 - len(left)
    assert left == [names[0], *names[-len(left) + 1 :]]
    assert sum(cache.path(n).stat().st_size for n in left) <= 48_000
    assert cache.prune() == 0


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = Cache(blocked)
    cache.put(NAME, entry())
    assert cache.get(NAME) is None
    assert cache.prune() == 0


def test_the_users_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("TILEWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert seal.folder() == tmp_path / "tilewright"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert seal.folder() == tmp_path / "home" / ".cache" / "tilewright"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    assert Cache().folder == tmp_path / "mine" / "cubins"


@pytest.mark.parametrize(
    ("status", "error_class", "remembered"),
    [("compile-error", "", True), ("compile-error", "assembler-crash", False), ("timeout", "compile-timeout", False)],
)
def test_refusals_are_remembered_but_not_what_the_machine_may_have_done(
    monkeypatch, tmp_path, status, error_class, remembered
):
    said = Verdict(status=Status(status), stage=Stage.COMPILE, error_class=error_class, message="no")
    asked = []
    monkeypatch.setattr(pool, "assemble", lambda *given: asked.append(given) or said)
    kernels = {hashlib.sha256(b"k").hexdigest(): b"k"}
    for _ in range(2):
        assert list(pool.compile_kernels(kernels, ["sm_90"], cache=Cache(tmp_path)).values()) == [said]
    assert len(asked) == (1 if remembered else 2)


def test_a_second_compilation_runs_no_assembler(monkeypatch, tmp_path):
    bytecode = b"never a kernel"
    kernels = {hashlib.sha256(bytecode).hexdigest(): bytecode}
    first = pool.compile_kernels(kernels, ["sm_90", "sm_120"], cache=Cache(tmp_path))

    def unreachable(*_: object) -> Compiled:
        raise AssertionError("assembled again")

    monkeypatch.setattr(pool, "assemble", unreachable)
    assert pool.compile_kernels(kernels, ["sm_90", "sm_120"], cache=Cache(tmp_path)) == first
