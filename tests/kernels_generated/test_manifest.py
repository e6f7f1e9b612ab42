"""A folder of winners as who uses it reads it: whatever was changed is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernels_generated
from kernels_generated.runtime.manifest import MANIFEST, ManifestError, read_manifest

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


def test_a_manifest_that_is_none(folder: Path) -> None:
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
            read_manifest(folder)
    path.unlink()
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(folder)
