"""Winners on disk: a traced kernel written, read, promoted; and who replaces whom."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest

from agent.loop.winners import MANIFEST, merge, read, write
from agent.proposers.synthesizer import synthesize
from evaluator.trace import Request, Traced, trace
from evaluator.trial import begin
from kernels_generated.runtime.manifest import REFERENCE, read_manifest
from kernels_generated.runtime.plan import loads
from knowledge_base.chips import chip
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Measurement, Stage, Status, Trial, Verdict
from knowledge_base.snf.everyday import everyday
from knowledge_base.snf.task import Task

CHIP = chip("rtx5070")


@dataclass(frozen=True)
class Won:
    """What :func:`agent.loop.winners.write` takes."""

    task: Task
    trial: Trial
    plans: tuple[Traced, ...]

    def having(self, **fields: object) -> Won:
        """The same winner with other fields in its trial."""
        return replace(self, trial=self.trial.fuller(**fields))


def put(folder: Path, won: Won) -> Path:
    return write(folder, won.task, won.trial, won.plans, {"run": "r1"})


@pytest.fixture(scope="module")
def won() -> Won:
    """A winner made of a real candidate and its real plan."""
    task = everyday("layernorm", M=64, N=32)
    candidate = synthesize(task, CHIP)[0]
    (traced,) = trace(candidate.source, task, [Request(task.sizes)], CHIP)
    assert isinstance(traced, Traced)
    verdict = Verdict(status=Status.CORRECT, stage=Stage.DONE, numbers={"normal": {"y": {"rms_ratio": 0.5}}})
    trial = begin(candidate, task, CHIP).fuller(
        plans=(traced.plan.digest,), measurements=(modelled(5.0),), verdict=verdict
    )
    return Won(task, trial, (traced,))


def modelled(us: float) -> Measurement:
    return Measurement(kind="modelled", chip="rtx5070", us=us, floor_us=1.0)


def measured(us: float) -> Measurement:
    return Measurement(kind="measured", chip="rtx5070", us=us, floor_us=1.0, samples=(us,))


def times(folder: Path) -> list[tuple[str, str, float]]:
    return [(w["chip"], w["kind"], w["us"]) for w in read(folder)["winners"]]


def test_a_winner_is_complete_on_disk(won: Won, tmp_path: Path) -> None:
    folder = put(tmp_path, won)
    assert folder == tmp_path / "layernorm"
    (entry,) = read(folder)["winners"]
    assert (folder / entry["source"]).read_text() == won.trial.candidate.source
    for plan in entry["plans"]:
        stored = loads((folder / plan["file"]).read_text())
        assert stored == won.plans[0].plan
        for kernel in stored.kernels:
            assert sha256((folder / "bytecode" / f"{kernel}.tileir").read_bytes()).hexdigest() == kernel
    assert entry["configuration"] == won.trial.configuration
    assert entry["verdict"]["status"] == "correct"
    assert entry["provenance"] == {"run": "r1"}
    assert [p.name for p in tmp_path.iterdir()] == ["layernorm"]  # nothing half-written beside it


def test_cubins_lie_beside_a_measured_winner_and_go_where_it_goes(won: Won, tmp_path: Path) -> None:
    (kernel,) = won.plans[0].plan.kernels
    fast = won.having(measurements=(measured(5.0),))
    folder = write(tmp_path / "a", fast.task, fast.trial, fast.plans, {}, {kernel: b"cubin"})
    name = f"cubins/{kernel}.sm_120"
    assert read(folder)["winners"][0]["cubins"] == {name: sha256(b"cubin").hexdigest()}
    merge(folder, tmp_path / "package" / "layernorm")
    put(tmp_path / "package", replace(won, task=won.task.at(M=128)).having(shape={"M": 128, "N": 32}))
    assert (tmp_path / "package" / "layernorm" / name).read_bytes() == b"cubin"
    other = put(tmp_path / "a", fast.having(measurements=(measured(4.0),)))
    assert not (other / "cubins").exists()  # of the winner that was replaced
    merge(other, tmp_path / "package" / "layernorm")
    assert not (tmp_path / "package" / "layernorm" / name).exists()


def test_the_manifest_alone_gives_the_task_back(won: Won, tmp_path: Path) -> None:
    from knowledge_base.snf import parse

    task = read(put(tmp_path, won))["task"]
    assert parse(task["snf"], "layernorm") == won.task.graph
    assert task["identity"] == won.task.identity
    assert [a["name"] for a in task["inputs"]] == ["x", "weight", "bias"]


def test_winners_at_other_shapes_and_specialised_ones_stand_beside_it(won: Won, tmp_path: Path) -> None:
    put(tmp_path, won)
    put(tmp_path, replace(won, task=won.task.at(M=128)).having(shape={"M": 128, "N": 32}))
    put(tmp_path, won.having(infeasible=({"M": 1, "N": 1},)))
    folder = put(tmp_path, won.having(measurements=(modelled(4.0),)))
    found = [(w["shape"]["M"], w["general"], w["us"]) for w in read(folder)["winners"]]
    assert found == [(128, True, 5.0), (64, True, 4.0), (64, False, 5.0)]


def test_a_winner_that_wants_packed_weights_takes_nobodys_place(won: Won, tmp_path: Path) -> None:
    packed = modelled(4.0).model_copy(update={"terms": {"packing": 3.0}})
    put(tmp_path / "a", won)
    folder = put(tmp_path / "a", won.having(measurements=(packed,)))
    assert [(w["us"], w["packing_us"]) for w in read(folder)["winners"]] == [(5.0, None), (4.0, 3.0)]
    assert all(w["general"] for w in read(folder)["winners"])
    _, said = merge(folder, tmp_path / "package")
    assert ", general, weights packed: promoted" in said
    assert len(read(tmp_path / "package")["winners"]) == 2


def test_promoting_says_which_winner_serves_every_size(won: Won, tmp_path: Path) -> None:
    put(tmp_path / "a", won)
    folder = put(tmp_path / "a", won.having(infeasible=({"M": 1, "N": 1},)))
    general, special = merge(folder, tmp_path / "package")
    assert ", general: promoted" in general
    assert ", specialised" in special
    assert "2147483647" not in special  # a guard of every plan says nothing


@pytest.mark.parametrize(
    ("present", "new", "stays"),
    [
        (modelled(5.0), modelled(4.0), False),
        (modelled(5.0), modelled(6.0), True),
        (modelled(5.0), measured(9.0), False),
        (measured(9.0), modelled(1.0), True),  # never: a model is no measurement
        (measured(9.0), measured(8.0), False),
        (measured(9.0), measured(9.5), True),
    ],
)
def test_who_replaces_whom(won: Won, tmp_path: Path, present: Measurement, new: Measurement, stays: bool) -> None:
    source = won.trial.candidate.source + "\n# other\n"
    other = won.having(candidate=won.trial.candidate.model_copy(update={"source": source}))
    package = tmp_path / "kernels_generated" / "layernorm"
    merge(put(tmp_path / "a", won.having(measurements=(present,))), package)
    (said,) = merge(put(tmp_path / "b", other.having(measurements=(new,))), package)
    expected = present if stays else new
    assert times(package) == [("rtx5070", expected.kind, expected.us)]
    assert ("kept" in said) is stays
    (entry,) = read(package)["winners"]
    sources = [p.name for p in package.glob("layernorm_*.py")]
    assert sources == [entry["source"]]  # what is no longer named is gone


def test_promotion_adds_chips_and_keeps_files_that_are_not_ours(won: Won, tmp_path: Path) -> None:
    package = tmp_path / "layernorm"
    merge(put(tmp_path / "a", won), package)
    mine = [package / "__init__.py", package / "notes" / "first" / "a.txt", package / "plans" / "mine.txt"]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# mine\n")
    (package / "link").symlink_to("nowhere")
    merge(put(tmp_path / "b", won.having(chip="h200")), package)
    assert [c for c, _, _ in times(package)] == ["h200", "rtx5070"]
    assert {file.read_text() for file in mine} == {"# mine\n"}
    assert (package / "link").is_symlink()


def test_promotion_into_a_folder_that_is_none_of_ours_keeps_what_lies_there(won: Won, tmp_path: Path) -> None:
    note = tmp_path / "layernorm" / "notes" / "a.txt"
    note.parent.mkdir(parents=True)
    note.write_text("precious")
    merge(put(tmp_path / "a", won), tmp_path / "layernorm")
    assert note.read_text() == "precious"


def test_another_task_of_the_same_name_is_refused(won: Won, tmp_path: Path) -> None:
    package = tmp_path / "layernorm"
    merge(put(tmp_path / "a", won), package)
    other = replace(won, task=replace(won.task, identity="0" * 64))
    with pytest.raises(UserError, match="another task"):
        merge(put(tmp_path / "b", other), package)
    assert len(times(package)) == 1


def test_a_failure_while_writing_leaves_what_was_there(
    won: Won, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path, won)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    missing = replace(won.having(measurements=(modelled(1.0),)), plans=())
    with pytest.raises(ValueError, match="its trial names"):
        put(tmp_path, missing)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["layernorm"]


def test_a_damaged_manifest_and_an_unwritable_place_are_said(won: Won, tmp_path: Path) -> None:
    folder = put(tmp_path, won)
    (folder / MANIFEST).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read(folder)
    (folder / MANIFEST).write_text(json.dumps({"version": 99}))
    with pytest.raises(UserError, match="version 99"):
        read(folder)
    with pytest.raises(UserError, match="no manifest"):
        read(tmp_path)
    with pytest.raises(EnvironmentLacks, match="can't write"):
        put(Path("/proc/nowhere"), won)


def test_writers_at_once_lose_nothing(won: Won, tmp_path: Path) -> None:
    """Sixty winners for as many shapes, by twelve threads; meanwhile others promote what is there."""
    package = tmp_path / "package"
    rows = [replace(won, trial=won.trial.fuller(shape={"M": m, "N": 32})) for m in range(60)]

    def promote(_: int) -> None:
        if (tmp_path / "run" / "layernorm").is_dir():
            merge(tmp_path / "run" / "layernorm", package / "layernorm")

    with ThreadPoolExecutor(max_workers=12) as pool:
        written = [pool.submit(put, tmp_path / "run", row) for row in rows]
        promoted = [pool.submit(promote, i) for i in range(12)]
        for future in (*written, *promoted):
            future.result()
    promote(0)
    for folder in (tmp_path / "run" / "layernorm", package / "layernorm"):
        assert sorted(w["shape"]["M"] for w in read(folder)["winners"]) == list(range(60))
    assert [p.name for p in tmp_path.joinpath("run").iterdir()] == ["layernorm"]  # the lock leaves no file


def test_a_manifest_of_the_first_version_is_read_and_promoted(won: Won, tmp_path: Path) -> None:
    folder = put(tmp_path / "run", won)
    manifest = read(folder)
    (entry,) = manifest["winners"]
    old = {
        name: entry[name] for name in ("chip", "shape", "general", "kind", "us", "floor_us", "source", "configuration")
    }
    old |= {
        "candidate": {
            "digest": entry["kernel"],
            "task": won.task.identity,
            "proposer": "synthesizer",
            "parent": "",
            "note": "",
        },
        "plans": [{k: v for k, v in plan.items() if k != "digest"} for plan in entry["plans"]],
        "measurement": entry["measurements"][0],
        "verdict": entry["verdict"],
        "evidence": entry["evidence"],
        "provenance": {"run": "r1", "evaluation": entry["trial"], "evaluator": "v1"},
    }
    reference = (folder / REFERENCE).read_text()
    (folder / REFERENCE).unlink()  # neither that nor how sizes are told was written
    task = {k: v for k, v in manifest["task"].items() if k not in ("told", "untold", "batch", "contraction")}
    (folder / MANIFEST).write_text(json.dumps({"task": task, "version": 1, "winners": [old]}))
    assert read(folder)["task"] == manifest["task"]
    (again,) = read(folder)["winners"]
    assert {name: again[name] for name in set(again) - {"provenance", "note"}} == {
        name: entry[name] for name in set(again) - {"provenance", "note"}
    }
    assert again["provenance"] == {"run": "r1", "evaluator": "v1"}
    package = tmp_path / "package" / "layernorm"
    assert "promoted" in merge(folder, package)[0]
    assert read(package)["winners"] == [again]
    assert (package / REFERENCE).read_text() == reference
    assert read_manifest(package).winners[0].kernel == again["kernel"]
    put(tmp_path / "package", won.having(shape={"M": 128, "N": 32}))  # beside one that was promoted from it
    assert [w["shape"]["M"] for w in read(package)["winners"]] == [128, 64]
    other = {**task, "identity": "0" * 64}
    (folder / MANIFEST).write_text(json.dumps({"task": other, "version": 1, "winners": [old]}))
    with pytest.raises(UserError, match="its task layernorm is not what its text says today"):
        read(folder)
