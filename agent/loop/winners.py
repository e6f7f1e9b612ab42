"""Winners on disk: a folder per task with sources, launch plans, bytecode and a manifest that says what each is for.

What lies where is :mod:`kernels_generated.runtime.manifest`'s to say, which reads it for those who use the kernels.
The same layout serves the run's folder (one chip) and kernels_generated/ (a winner per chip and shape).  A folder
appears whole or not at all, and writers take turns.  A modelled winner never replaces a measured one; a measured one
yields to a faster one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels_generated.runtime.expr import to_json
from kernels_generated.runtime.launch_rules import INT32_MAX
from kernels_generated.runtime.manifest import MANIFEST, REFERENCE, VERSION
from kernels_generated.runtime.plan import MAX_GRID, Launchable
from knowledge_base.chips import chip
from knowledge_base.content import plain
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.records import Measurement, Trial
from knowledge_base.snf import decompose, parse
from knowledge_base.snf.batch import batch
from knowledge_base.snf.graph import FLOATS
from knowledge_base.snf.op_table import kind
from knowledge_base.snf.task import Task, told_by
from knowledge_base.snf.torch_text import torch_text


def write(
    folder: Path,
    task: Task,
    trial: Trial,
    plans: Sequence[Launchable],
    provenance: Mapping[str, Any],
    cubins: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes a correct, timed trial to ``folder/<task>``, beside winners at other shapes that are there; returns it.

    ``plans``: all that the trial names, in order.  cubins: of the plans' kernels, by the bytecode's hash, for the
    trial's chip.  Raises ValueError for other plans.
    """
    if trial.plans != tuple(plan.digest for plan in plans):
        raise ValueError("a winner's plans are those that its trial names")
    target = folder / folder_of(task)
    cubins = {f"cubins/{kernel}.{chip(trial.chip).arch}": data for kernel, data in (cubins or {}).items()}
    entry = _entry(task, trial, plans, provenance)
    entry["cubins"] = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(cubins.items())}
    with _locked(folder), _whole(target) as new:
        present = read(target)["winners"] if (target / MANIFEST).is_file() else []
        others = [w for w in present if _place(w) != _place(entry)]
        _files(new, entry["source"], trial, plans)
        if cubins:
            (new / "cubins").mkdir()
        for name, data in cubins.items():
            (new / name).write_bytes(data)
        _copy(target, new, others)
        (new / REFERENCE).write_text(torch_text(task), encoding="utf-8")
        winners = sorted([*others, entry], key=_place)
        _json(new / MANIFEST, {"version": VERSION, "task": task_document(task), "winners": winners})
    return target


def folder_of(task: Task) -> str:
    """The name of a task's folder: an everyday task's is the same in every dtype, so that others than bf16 are said."""
    everyday = not task.name.endswith(task.identity[:6])
    floats = {tensor.dtype for tensor in task.inputs if tensor.dtype in FLOATS}
    said = [*sorted(floats - {"bf16"}), *([task.precision] if task.precision != "ieee" else [])] if everyday else []
    return "_".join([task.name, *said])


def read(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``.  Raises UserError if there is none, or none that this version reads."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} has no {MANIFEST}", "Winners are written when a task of a run is done.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged: {error}", "Run the task again.") from None
    if manifest.get("version") == 1:
        manifest |= {"version": 2, "winners": [_of_version_1(entry) for entry in manifest["winners"]]}
    if manifest.get("version") == 2:
        entries = [{"arch": chip(entry["chip"]).arch, **entry} for entry in manifest["winners"]]
        task = task_document(_task(path, manifest["task"]))
        manifest |= {"version": VERSION, "task": task, "winners": entries}
    if manifest.get("version") != VERSION:
        raise UserError(f"{path} has version {manifest.get('version')}, this tilewright reads {VERSION}")
    return dict(manifest)


def merge(source: Path, target: Path) -> list[str]:
    """Promotes the winners in ``source`` into ``target`` (both ``…/<task>``); returns what was done, a line each.

    Raises UserError where the two folders are of different tasks.
    """
    with _locked(source.parent, target.parent):
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
                (folder / extra).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(target / extra, folder / extra, follow_symlinks=False)
            (folder / REFERENCE).write_text(_reference(source, new["task"]), encoding="utf-8")
            _json(folder / MANIFEST, {**old, "winners": sorted(kept, key=_place)})
    return said


def files(entry: Mapping[str, Any]) -> list[str]:
    """The files of a winner, by its entry in the manifest; their paths in the folder."""
    plans = entry["plans"]
    return [
        entry["source"],
        *(p["file"] for p in plans),
        *(f"bytecode/{kernel}.tileir" for p in plans for kernel in p["kernels"]),
        *entry.get("cubins", ()),
    ]


def task_document(task: Task) -> dict[str, Any]:
    """A task as JSON: its SNF, which parses back to the same graph, and its arguments for readers without a parser."""

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
        "constraints": [[comparison, to_json(a), to_json(b)] for comparison, a, b in task.constraints],
        "inputs": arguments(task.inputs),
        "outputs": arguments(task.outputs),
        "told": [
            {"dim": t.dim, "argument": t.tensor.name, "axis": t.axis, "less": to_json(t.less), "by": to_json(t.by)}
            for t in told_by(task.inputs)
        ],
        **({"given": list(task.size_arguments)} if task.size_arguments else {}),
        "untold": list(task.untold_sizes),
        "batch": batch(task),
        "contraction": any(kind(node.op) == "contraction" for node in task.graph.nodes),
        "snf": task.text,
    }


# ---------------------------------------------------------------------------------------------------- parts


def _entry(task: Task, trial: Trial, plans: Sequence[Launchable], provenance: Mapping[str, Any]) -> dict[str, Any]:
    return trial.document() | {
        "arch": chip(trial.chip).arch,
        "source": f"{task.name}_{trial.candidate.digest[:8]}.py",
        "plans": [{"file": f"plans/{plan.digest}.json", **plan.document()} for plan in plans],
        "provenance": plain(provenance),
    }


def _reference(folder: Path, task: Mapping[str, Any]) -> str:
    """The task in PyTorch, as it lies in the folder; one of an older version has none."""
    written = folder / REFERENCE
    return written.read_text(encoding="utf-8") if written.is_file() else torch_text(_task(folder, task))


def _task(place: Path, document: Mapping[str, Any]) -> Task:
    """The task of a manifest, from its SNF.  Raises UserError where that is no one task any more."""
    tasks = decompose(parse(document["snf"], document["name"])).tasks
    if len(tasks) != 1 or tasks[0].identity != document["identity"]:
        raise UserError(f"{place}: its task {document['name']} is not what its text says today", "Run the task again.")
    return tasks[0]


def _of_version_1(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as it is written now."""
    candidate, provenance = dict(entry["candidate"]), dict(entry["provenance"])
    gone = {"candidate", "measurement", "plans", "provenance"}
    return {
        **{name: value for name, value in entry.items() if name not in gone},
        "trial": provenance.pop("evaluation", ""),
        "identity": candidate.pop("task"),
        "kernel": candidate.pop("digest"),
        **candidate,
        "measurements": [entry["measurement"]],
        "plans": [{"digest": Path(plan["file"]).stem, **plan} for plan in entry["plans"]],
        "provenance": provenance,
    }


def _files(folder: Path, source: str, trial: Trial, plans: Sequence[Launchable]) -> None:
    (folder / "plans").mkdir()
    (folder / "bytecode").mkdir()
    (folder / source).write_text(trial.candidate.source, encoding="utf-8")
    for one in plans:
        (folder / "plans" / f"{one.digest}.json").write_text(one.plan.dumps() + "\n", encoding="utf-8")
        for kernel in one.plan.kernels:
            (folder / "bytecode" / f"{kernel}.tileir").write_bytes(one.kernels[kernel])


def _copy(origin: Path, folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Copies the files that the entries name, as far as ``origin`` has them."""
    for name in (name for entry in entries for name in files(entry)):
        if (origin / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin / name, folder / name)


def _place(winner: Mapping[str, Any]) -> tuple[str, str, bool, bool]:
    """What only one winner is there for; those that want packed weights are beside those that do not."""
    shape = json.dumps(winner["shape"], sort_keys=True)
    return winner["chip"], shape, not winner["general"], winner.get("packing_us") is not None


# Guards of every plan: sizes are 32-bit, a grid's axes have so many blocks (docs/tracing.md).
_ALWAYS = tuple(f"<= {most}" for most in (INT32_MAX, *MAX_GRID))


def _serves(winner: Mapping[str, Any]) -> str:
    """``general`` or ``specialised where N%64 == 0``: which sizes a winner is for, and whether it packs weights."""
    packs = ", weights packed" if winner.get("packing_us") is not None else ""
    if winner["general"]:
        return f"general{packs}"
    plans = [[g for g in plan["guards"] if not g.endswith(_ALWAYS)] for plan in winner["plans"]]
    where = " or ".join(dict.fromkeys(" and ".join(some) for some in plans if some))
    return (f"specialised where {where}" if where else "specialised: launch refuses some sizes") + packs


def _decide(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> tuple[bool, str]:
    if old is None:
        return True, f"promoted ({new['kind']} {new['us']:.2f} µs)"
    was, now = f"{old['kind']} {old['us']:.2f} µs", f"{new['kind']} {new['us']:.2f} µs"
    if old["kind"] == "measured" and new["kind"] != "measured":
        return False, f"kept ({was}): a modelled time never replaces a measured one"
    if old["kind"] == new["kind"] and not _time(new) < _time(old):
        same = all(old[name] == new[name] for name in ("kernel", "configuration"))
        return (True, f"promoted again ({now})") if same else (False, f"kept ({was}): the new one is no faster ({now})")
    return True, f"promoted ({now}; was {was})"


def _time(winner: Mapping[str, Any]) -> Measurement:
    return Measurement(**{name: winner[name] for name in ("kind", "chip", "us", "floor_us")})


def _not_ours(folder: Path) -> list[Path]:
    """What lies in the folder and no manifest names (an __init__.py, notes in a folder), by its path there: kept."""
    ours = set[str]()
    if (folder / MANIFEST).is_file():
        ours = {MANIFEST, REFERENCE, *(name for w in read(folder)["winners"] for name in files(w))}
    found = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return [path for path in (one.relative_to(folder) for one in found) if str(path) not in ours]


@contextlib.contextmanager
def _locked(*folders: Path) -> Iterator[None]:
    """Waits for, and holds, the right to change what is in these folders; they are made where they are not there.

    The lock is the operating system's, on the folder itself: it leaves no file, and goes with the process.
    """
    with contextlib.ExitStack() as held:
        for folder in sorted({folder.absolute() for folder in folders}):  # in one order, so that two never wait in turn
            try:
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                raise _unwritable(folder, error) from None
            held.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a file system without such locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _unwritable(folder: Path, error: OSError) -> EnvironmentLacks:
    return EnvironmentLacks(f"can't write winners to {folder}: {error.strerror}", "Make the folder writable.")


class _whole:
    """A folder written beside its place and renamed into it at the end, so that nobody sees a half-written one."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        try:
            self._new = Path(tempfile.mkdtemp(prefix=f".{self._target.name}.", dir=self._target.parent))
            self._new.chmod(0o755)
        except OSError as error:
            raise _unwritable(self._target.parent, error) from None
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
