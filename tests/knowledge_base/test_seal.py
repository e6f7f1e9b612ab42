"""The key that seals results: made once, for its owner alone; without a place for it, one for each process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from knowledge_base import seal


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of this test's own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_the_key_is_made_once_for_its_owner_alone(mine: Path) -> None:
    code = "from knowledge_base.seal import seal; print(seal('kind', 1, {'b': [2.5]}))"
    asked = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = {process.communicate()[0].strip() for process in asked}
    assert said == {seal.seal("kind", 1, {"b": [2.5]})}
    assert (mine / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in mine.iterdir()] == ["key"]
    assert seal.seal("kind", 1) != seal.seal("another", 1)


def test_where_no_key_can_be_kept_seals_hold_for_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    assert seal.seal("kind", 1) == seal.seal("kind", 1)
    code = "from knowledge_base.seal import seal; print(seal('kind', 1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() != seal.seal("kind", 1)


def test_a_file_system_without_hard_links_holds_a_key_too(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", refused)
    said = seal.seal("kind", 1)
    seal._key.cache_clear()
    assert seal.seal("kind", 1) == said
    assert [path.name for path in mine.iterdir()] == ["key"]
