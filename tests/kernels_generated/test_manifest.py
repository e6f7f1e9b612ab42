"""A folder of winners as who uses it reads it: whatever was changed is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernels_generated
import kernels_generated.runtime.manifest as manifest_module
from kernels_generated.runtime.manifest import MANIFEST, Manifest, ManifestError, read_manifest, read_task

SHIPPED = Path(kernels_generated.__file__).parent / "gelu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "gelu"))


def test_what_ships_is_read(folder: Path) -> None:
    manifest = read_manifest(folder)
    (winner,) = manifest.winners[:1]
    assert (manifest.name, manifest.dtypes, manifest.batch, manifest.numbers) == ("gelu", ("bf16",), "M", ())
    assert (winner.arch, winner.kind) == ("sm_90", "measured")
    plan = manifest.plan(winner.plans[0])
    assert plan.digest == winner.plans[0]
    for kernel in plan.kernels:
        assert manifest.bytecode(kernel)
        assert manifest.cubin(kernel, "sm_90")
        assert manifest.cubin(kernel, "sm_120") is None


@pytest.mark.parametrize("kind", ["plans", "bytecode", "cubins"])
@pytest.mark.parametrize("how", ["changed", "lost"])
def test_a_file_that_is_not_what_it_was_is_refused(kind: str, how: str, folder: Path) -> None:
    manifest = read_manifest(folder)
    plan = manifest.plan(manifest.winners[0].plans[0])
    kernel = plan.kernels[0]
    (file,) = (folder / kind).glob(f"{plan.digest if kind == 'plans' else kernel}*")
    read: dict[str, Callable[[], Any]] = {
        "plans": lambda: manifest.plan(plan.digest),
        "bytecode": lambda: manifest.bytecode(kernel),
        "cubins": lambda: manifest.cubin(kernel, "sm_90"),
    }
    if how == "changed":
        file.write_bytes(file.read_bytes().replace(b"1", b"2", 1) + b" ")
    else:
        file.unlink()
    with pytest.raises(ManifestError, match="was changed: its SHA-256 is" if how == "changed" else "No such file"):
        read[kind]()


@pytest.mark.parametrize("shipped", sorted(path.parent.name for path in SHIPPED.parent.glob(f"*/{MANIFEST}")))
def test_the_task_of_what_ships_is_read_without_its_winners(shipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are read when they are asked for, once."""
    asked = []

    def counted(folder: Path) -> Manifest:
        asked.append(folder)
        return read_manifest(folder)

    whole = read_manifest(SHIPPED.parent / shipped)
    monkeypatch.setattr(manifest_module, "read_manifest", counted)
    found = read_task(SHIPPED.parent / shipped)
    names = [field.name for field in dataclasses.fields(Manifest) if field.name != "winners"]
    assert [getattr(found, name) for name in names] == [getattr(whole, name) for name in names]
    assert asked == []
    assert (len(found.winners), found.winners[0], list(found.winners)) == (
        len(whole.winners), whole.winners[0], list(whole.winners),
    )  # fmt: skip
    assert asked == [SHIPPED.parent / shipped]


def test_a_task_that_is_longer_or_written_otherwise_is_read_with_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / MANIFEST
    document = json.loads(path.read_text())
    monkeypatch.setattr(manifest_module, "_HEAD", 200)
    assert read_task(folder).winners == read_manifest(folder).winners
    monkeypatch.undo()
    path.write_text(json.dumps({"winners": document["winners"], "task": document["task"], "version": 3}))
    assert read_task(folder).winners == read_manifest(folder).winners


def test_winners_that_are_damaged_are_refused_when_they_are_asked_for(folder: Path) -> None:
    path = folder / MANIFEST
    text = path.read_text()
    for damaged, message in ((text[:-100], "not JSON"), (text.replace('"plans"', '"plan"'), "damaged: KeyError")):
        path.write_text(damaged)
        manifest = read_task(folder)
        assert manifest.name == "gelu"
        with pytest.raises(ManifestError, match=message):
            len(manifest.winners)


@pytest.mark.parametrize("read_manifest", [read_manifest, read_task])
def test_a_manifest_that_is_none(folder: Path, read_manifest: Callable[[Path], Manifest]) -> None:
    path = folder / MANIFEST
    document = json.loads(path.read_text())
    for text, message in (
        ("{", "not JSON"),
        ("[]", "version None, this reader knows"),
        (json.dumps({**document, "version": 2}), "version 2, this reader knows 3"),
        (json.dumps({**document, "task": {}}), "damaged: KeyError: 'name'"),
        (json.dumps({**document, "winners": [{}]}), "damaged: KeyError"),
    ):
        path.write_text(text)
        with pytest.raises(ManifestError, match=message):
            list(read_manifest(folder).winners)
    path.unlink()
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(folder)
