"""The winners that ship in kernels_generated/: each is what its manifest says, and its source still makes its plan."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest

import kernels_generated
from agent.loop.winners import MANIFEST, files, read, task_document
from evaluator.trace import Request, Traced, trace
from kernels_generated.runtime.manifest import REFERENCE, read_manifest
from kernels_generated.runtime.plan import loads
from knowledge_base.chips import chip
from knowledge_base.snf import decompose, parse
from knowledge_base.snf.torch_text import torch_text

HERE = Path(kernels_generated.__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob(f"*/{MANIFEST}"))
WHOLE = 6 * 2**20  # bytes of all that is shipped, as a wheel packs it


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_there_are_some_and_they_are_not_large() -> None:
    """The GPT-2 block's and the Llama block's."""
    assert {"attention", "layernorm", "linear", "linear_gelu", "linear_residual"} <= {f.name for f in FOLDERS}
    shipped = [file for folder in FOLDERS for file in folder.rglob("*") if file.is_file()]
    assert sum(len(zlib.compress(file.read_bytes())) for file in shipped) < WHOLE


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_file_is_what_its_name_or_its_manifest_says_and_none_is_left_over(folder: Path) -> None:
    winners = read(folder)["winners"]
    present = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    present = {name for name in present if "__pycache__" not in name}
    assert present == {MANIFEST, REFERENCE, *(name for winner in winners for name in files(winner))}
    for winner in winners:
        assert winner["correct"]
        if winner["kind"] == "measured":
            assert winner["interval_us"][0] <= winner["us"] <= winner["interval_us"][1]
        else:
            assert (winner["kind"], winner["cubins"]) == ("modelled", {})
        assert {file: sha256(folder / file) for file in winner["cubins"]} == winner["cubins"]
        for plan in winner["plans"]:
            assert loads((folder / plan["file"]).read_text()).digest == plan["digest"] == Path(plan["file"]).stem
            assert all(sha256(folder / "bytecode" / f"{kernel}.tileir") == kernel for kernel in plan["kernels"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_source_still_makes_the_plan_and_the_tile_ir_that_were_judged(folder: Path) -> None:
    """Else what is timed would be another kernel than the one that was proved."""
    manifest = read(folder)
    (task,) = decompose(parse(manifest["task"]["snf"], manifest["task"]["name"])).tasks
    assert task_document(task) == manifest["task"]
    assert (folder / REFERENCE).read_text() == torch_text(task)
    assert read_manifest(folder).identity == task.identity
    for winner in manifest["winners"]:
        source = (folder / winner["source"]).read_text()
        (made,) = trace(
            source, task, [Request(winner["shape"], winner["configuration"], "sample")], chip(winner["chip"])
        )
        assert isinstance(made, Traced)
        assert made.document() == {k: v for k, v in winner["plans"][0].items() if k != "file"}
