"""The cubins that ship are what tileiras makes of the Tile IR beside them, to the byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import kernels_generated
from evaluator.compile import compile_kernels
from kernels_generated.runtime.manifest import MANIFEST, read_manifest
from knowledge_base.records import Verdict

HERE = Path(kernels_generated.__file__).parent


@pytest.mark.parametrize("name", ["gelu", "linear_gelu", "attention_f16"])
def test_a_cubin_is_reproducible(name: str) -> None:
    """Of each winner the first kernel, which is the one that was timed."""
    manifest = read_manifest(HERE / name)
    for winner in (one for one in manifest.winners if one.kind == "measured"):
        (first, *_) = manifest.plan(winner.plans[0]).kernels
        (made,) = compile_kernels({first: manifest.bytecode(first)}, [winner.arch]).values()
        assert not isinstance(made, Verdict)
        assert hashlib.sha256(made.cubin).hexdigest() == winner.cubins[f"cubins/{first}.{winner.arch}"]


def test_every_measured_winner_ships_its_cubins() -> None:
    for path in HERE.glob(f"*/{MANIFEST}"):
        manifest = read_manifest(path.parent)
        for winner in (one for one in manifest.winners if one.kind == "measured"):
            kernels = {kernel for digest in winner.plans for kernel in manifest.plan(digest).kernels}
            assert set(winner.cubins) == {f"cubins/{kernel}.{winner.arch}" for kernel in kernels}
