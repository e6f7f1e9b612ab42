"""Winners on disk: a folder per task with sources, launch plans, bytecode and a manifest that says what each is for.

    <task>/manifest.json           the task, and a list of winners: chip, shape, guards, configuration, evidence, …
    <task>/<task>_<digest>.py      a winner's source
    <task>/plans/<hash>.json       launch plans, named by the hash of their text
    <task>/bytecode/<hash>.tileir  Tile IR, named by its hash, which is how plans name it

The same layout serves the run's folder (one chip) and kernels_generated/ (a winner per chip and shape).  A folder
appears whole or not at all.  A modelled winner never replaces a measured one; a measured one yields to a faster one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernels_generated.runtime.expr import show as show_size
from kernels_generated.runtime.expr import to_json
from kernels_generated.runtime.plan import LaunchPlan
from knowledge_base.content import plain
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Candidate, Measurement, Verdict
from knowledge_base.snf.task import Task

VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Won:
    """A winner with everything that is stored of it.  ``kernels``: bytecode by hash, for every plan's launches."""

    task: Task
    candidate: Candidate
    configuration: Mapping[str, Any]
    chip: str
    measurement: Measurement
    verdict: Verdict
    plans: Sequence[LaunchPlan]
    kernels: Mapping[str, bytes]
    provenance: Mapping[str, Any]
    general: bool = True  # its plans hold at every judged size


def write(folder: Path, won: Won) -> Path:
    """Writes ``folder/<task>``, beside winners at other shapes that are there; returns it."""
    target = folder / won.task.name
    entry = _entry(won)
    others: list[dict[str, Any]] = []
    if (target / MANIFEST).is_file():
        others = [w for w in read(target)["winners"] if _place(w) != _place(entry)]
    with _whole(target) as new:
        _files(new, won)
        _copy(target, new, others)
        winners = sorted([*others, entry], key=_place)
        _json(new / MANIFEST, {"version": VERSION, "task": task_document(won.task), "winners": winners})
    return target


def read(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``.  Raises UserError if there is none, or none that this version reads."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} has no {MANIFEST}", "Winners are written when a task of a run is done.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged: {error}", "Run the task again.") from None
    if manifest.get("version") != VERSION:
        raise UserError(f"{path} has version {manifest.get('version')}, this tilewright reads {VERSION}")
    return dict(manifest)


def merge(source: Path, target: Path) -> list[str]:
    """Promotes the winners in ``source`` into ``target`` (both ``…/<task>``); returns what was done, a line each.

    Raises UserError where the two folders are of different tasks.
    """
    new = read(source)
    old = read(target) if (target / MANIFEST).is_file() else {**new, "winners": []}
    if old["task"]["identity"] != new["task"]["identity"]:
        raise UserError(f"{target} holds another task of that name (identity {old['task']['identity'][:12]})")
    kept: list[dict[str, Any]] = list(old["winners"])
    said = []
    for winner in new["winners"]:
        present = next((w for w in kept if _place(w) == _place(winner)), None)
        verdict, line = _decide(winner, present)
        said.append(f"{new['task']['name']} on {winner['chip']}, {_serves(winner)}: {line}")
        if verdict:
            kept = [w for w in kept if w is not present] + [winner]
    with _whole(target) as folder:
        for origin in (target, source):
            _copy(origin, folder, kept)
        for extra in _not_ours(target):
            shutil.copy2(extra, folder / extra.name)
        _json(folder / MANIFEST, {**new, "winners": sorted(kept, key=_place)})
    return said


def task_document(task: Task) -> dict[str, Any]:
    """A task as JSON: its SNF, which parses back to the same graph, and its arguments for readers without a parser."""
    from knowledge_base.snf.printer import show

    def arguments(tensors: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {"name": t.name, "role": t.role, "dtype": t.dtype, "shape": [to_json(s) for s in t.shape]} for t in tensors
        ]

    return {
        "name": task.name,
        "identity": task.identity,
        "precision": task.precision,
        "sizes": task.sizes,
        "constants": {name: list(values) for name, values in task.constants},
        "constraints": [f"{show_size(a)} {comparison} {show_size(b)}" for comparison, a, b in task.constraints],
        "inputs": arguments(task.inputs),
        "outputs": arguments(task.outputs),
        "snf": show(task.graph),
    }


def guards(plan: LaunchPlan) -> list[str]:
    """The plan's guards as people read them; empty: it holds at every size."""
    return [str(guard) for guard in plan.guards]


# ---------------------------------------------------------------------------------------------------- parts


def _entry(won: Won) -> dict[str, Any]:
    return {
        "chip": won.chip,
        "shape": won.task.sizes,
        "general": won.general,
        "kind": won.measurement.kind,
        "us": won.measurement.us,
        "floor_us": won.measurement.floor_us,
        "source": _source_name(won),
        "candidate": {"digest": won.candidate.digest, **won.candidate.model_dump(exclude={"source"})},
        "configuration": plain(won.configuration),
        "plans": [
            {"file": f"plans/{_plan_hash(p)}.json", "policy": p.policy, "guards": guards(p), "kernels": list(p.kernels)}
            for p in won.plans
        ],
        "measurement": plain(won.measurement.model_dump()),
        "verdict": plain(won.verdict.model_dump(exclude={"evidence"})),
        "evidence": plain([e.model_dump() for e in won.verdict.evidence]),
        "provenance": plain(won.provenance),
    }


def _files(folder: Path, won: Won) -> None:
    (folder / "plans").mkdir()
    (folder / "bytecode").mkdir()
    (folder / _source_name(won)).write_text(won.candidate.source, encoding="utf-8")
    for plan in won.plans:
        (folder / "plans" / f"{_plan_hash(plan)}.json").write_text(plan.dumps() + "\n", encoding="utf-8")
        for kernel in plan.kernels:
            (folder / "bytecode" / f"{kernel}.tileir").write_bytes(won.kernels[kernel])


def _copy(origin: Path, folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Copies the files that the entries name, as far as ``origin`` has them."""
    for name in (name for entry in entries for name in _named(entry)):
        if (origin / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin / name, folder / name)


def _source_name(won: Won) -> str:
    return f"{won.task.name}_{won.candidate.digest[:8]}.py"


def _plan_hash(plan: LaunchPlan) -> str:
    return sha256(plan.dumps().encode()).hexdigest()


def _place(winner: Mapping[str, Any]) -> tuple[str, str, bool]:
    return winner["chip"], json.dumps(winner["shape"], sort_keys=True), not winner["general"]


# Guards of every plan: sizes are 32-bit, a grid axis has at most 2^24 - 1 blocks (docs/tracing.md).
_ALWAYS = ("<= 2147483647", "<= 16777215")


def _serves(winner: Mapping[str, Any]) -> str:
    """``general`` or ``specialised where N%64 == 0``: which sizes a winner is for."""
    if winner["general"]:
        return "general"
    plans = [[g for g in plan["guards"] if not g.endswith(_ALWAYS)] for plan in winner["plans"]]
    where = " or ".join(dict.fromkeys(" and ".join(some) for some in plans if some))
    return f"specialised where {where}" if where else "specialised: launch refuses some sizes"


def _decide(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> tuple[bool, str]:
    if old is None:
        return True, f"promoted ({new['kind']} {new['us']:.2f} µs)"
    was, now = f"{old['kind']} {old['us']:.2f} µs", f"{new['kind']} {new['us']:.2f} µs"
    if old["kind"] == "measured" and new["kind"] != "measured":
        return False, f"kept ({was}): a modelled time never replaces a measured one"
    if old["kind"] == new["kind"] and new["us"] >= old["us"]:
        same = old["candidate"]["digest"] == new["candidate"]["digest"] and old["configuration"] == new["configuration"]
        return (True, f"promoted again ({now})") if same else (False, f"kept ({was}): the new one is no faster ({now})")
    return True, f"promoted ({now}; was {was})"


def _named(entry: Mapping[str, Any]) -> list[str]:
    plans = entry["plans"]
    return [
        entry["source"],
        *(p["file"] for p in plans),
        *(f"bytecode/{kernel}.tileir" for p in plans for kernel in p["kernels"]),
    ]


def _not_ours(folder: Path) -> list[Path]:
    """Files beside the manifest that no manifest names (an __init__.py, notes): kept."""
    if not (folder / MANIFEST).is_file():
        return [p for p in folder.glob("*") if p.is_file()] if folder.is_dir() else []
    ours = {MANIFEST, *(name for w in read(folder)["winners"] for name in _named(w))}
    return [p for p in folder.iterdir() if p.is_file() and p.name not in ours]


class _whole:
    """A folder written beside its place and renamed into it at the end, so that nobody sees a half-written one."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._new = Path(tempfile.mkdtemp(prefix=f".{self._target.name}.", dir=self._target.parent))
            self._new.chmod(0o755)
        except OSError as error:
            raise EnvironmentLacks(
                f"can't write winners to {self._target.parent}: {error.strerror}", "Make the folder writable."
            ) from None
        return self._new

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(self._new, ignore_errors=True)
            return
        old = self._new.with_name(self._new.name + ".old")
        if self._target.exists():
            os.replace(self._target, old)
        os.replace(self._new, self._target)
        shutil.rmtree(old, ignore_errors=True)


def _json(path: Path, document: Any) -> None:
    text = json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
