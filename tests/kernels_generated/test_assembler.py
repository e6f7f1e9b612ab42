"""Where no cubin ships: NVIDIA's assembler, asked once, makes what ships for other chips."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import kernels_generated
from kernels_generated.runtime import assembler
from kernels_generated.runtime.assembler import AssemblerError, assembled, located
from kernels_generated.runtime.manifest import read_manifest

MANIFEST = read_manifest(Path(kernels_generated.__file__).parent / "gelu")
KERNEL = MANIFEST.plan(MANIFEST.winners[0].plans[0]).kernels[0]
BYTECODE = MANIFEST.bytecode(KERNEL)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tilewright" / "assembled"


def test_it_makes_what_was_judged_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tileiras = located("tileiras")
    assert tileiras is not None
    assert assembled(KERNEL, BYTECODE, "sm_90", tileiras) == MANIFEST.cubin(KERNEL, "sm_90")
    (kept,) = cache.iterdir()
    with monkeypatch.context() as m:
        m.setattr(assembler, "_run", None)
        assert assembled(KERNEL, BYTECODE, "sm_90", tileiras) == MANIFEST.cubin(KERNEL, "sm_90")
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")  # damaged: it is made again
    assert assembled(KERNEL, BYTECODE, "sm_90", tileiras) == MANIFEST.cubin(KERNEL, "sm_90")
    data = kept.read_bytes()
    assert data[:32] == hashlib.sha256(data[32:]).digest()


def test_a_cache_that_cannot_be_written_costs_time_alone(cache: Path) -> None:
    cache.parent.write_text("no folder")
    tileiras = located("tileiras")
    assert tileiras is not None
    assert assembled(KERNEL, BYTECODE, "sm_120", tileiras).startswith(b"\x7fELF")


def test_what_it_refuses_is_said(cache: Path, tmp_path: Path) -> None:
    tileiras = located("tileiras")
    assert tileiras is not None
    with pytest.raises(AssemblerError, match="tileiras for sm_90: "):
        assembled("0" * 64, b"no bytecode", "sm_90", tileiras)
    with pytest.raises(AssemblerError, match="sm_75"):
        assembled(KERNEL, BYTECODE, "sm_75", tileiras)
    with pytest.raises(AssemblerError, match="No such file"):
        assembled(KERNEL, BYTECODE, "sm_90", _gone(tmp_path))


def _gone(folder: Path) -> Path:
    """A tool that is there when it is looked for, and cannot be run."""
    tool = folder / "tileiras"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)
    return tool
