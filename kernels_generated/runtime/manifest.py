"""A folder of winners as who uses it reads it: what the task takes and gives, and which kernel is for which sizes.

    <task>/manifest.json           the task, and a list of winners: chip, shape, guards, configuration, evidence, …
    <task>/reference.py            the task in PyTorch: a module with a function of the task's name
    <task>/<task>_<digest>.py      a winner's source
    <task>/plans/<hash>.json       launch plans, named by the SHA-256 of their text
    <task>/bytecode/<hash>.tileir  Tile IR, named by its SHA-256, which is how plans name it
    <task>/cubins/<hash>.<arch>    Tile IR assembled for an architecture; the manifest has each cubin's own SHA-256

Whatever is read is held to the hash that names it: a file that was changed is refused, not run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .expr import Expr as Size
from .expr import ExprError, from_json
from .plan import Argument, Guard, LaunchPlan, PlanError, loads

MANIFEST = "manifest.json"
REFERENCE = "reference.py"
VERSION = 3  # 2 wrote constraints as text, and no architecture, nor how sizes are told, nor which axis is a batch
# What stands before the task, which is written before the winners; and how many characters are read for it: nine times
# the longest task that ships.  A file where that is not enough is read whole.
_BEGIN = re.compile(r'\{\s*"version": (?P<version>\d+),\s*"task": ')
_HEAD = 16_384


class ManifestError(ValueError):
    """A folder that is no folder of winners, or a file in it that is not what its name says."""


@dataclass(frozen=True)
class ToldSize:
    """``dim`` is the size of ``argument`` along ``axis``, less ``less``, divided by ``by``."""

    dim: str
    argument: str
    axis: int
    less: Size
    by: Size


@dataclass(frozen=True)
class Winner:
    """A kernel in one configuration: it was ranked on ``chip`` at ``shape``.

    general: its plans hold at every size.  kind: of ``us`` (µs), measured or modelled.  plans: their digests, the
    first that applies is meant.  cubins: the SHA-256 of each, by its path in the folder.
    """

    kernel: str
    chip: str
    arch: str
    shape: Mapping[str, int]
    general: bool
    kind: str
    us: float
    plans: tuple[str, ...]
    cubins: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A task and its winners; one that was read is equal to itself alone.

    inputs, outputs: contiguous in the task's own form, as ``launch`` takes them; sizes are expressions over its
    dimensions.  numbers: dimensions that no input tells.  told: how the others are read off the inputs, in order.
    batch: the dimension whose every position is computed by itself, first axis of every output; empty where there is
    none.  contraction: whether it multiplies matrices, and so is what automatic mixed precision makes faster.
    """

    folder: Path
    name: str
    identity: str
    precision: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    numbers: tuple[str, ...]
    told: tuple[ToldSize, ...]
    batch: str
    contraction: bool
    constraints: tuple[Guard, ...]
    winners: Sequence[Winner]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its inputs, in order."""
        return tuple(one.dtype for one in self.inputs)

    def plan(self, digest: str) -> LaunchPlan:
        """One of the winners' plans.  Raises ManifestError where the file is not what it was."""
        path = self.folder / "plans" / f"{digest}.json"
        data = self._bytes(path).removesuffix(b"\n")
        _hold(path, data, digest)
        try:
            return loads(data.decode())
        except (PlanError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: {error}") from None

    def bytecode(self, kernel: str) -> bytes:
        """A kernel's Tile IR.  Raises ManifestError where the file is not what it was."""
        path = self.folder / "bytecode" / f"{kernel}.tileir"
        data = self._bytes(path)
        _hold(path, data, kernel)
        return data

    def cubin(self, kernel: str, arch: str) -> bytes | None:
        """A kernel as it was assembled for ``arch``; None where that does not ship.  Raises ManifestError."""
        name = f"cubins/{kernel}.{arch}"
        expected = next((winner.cubins[name] for winner in self.winners if name in winner.cubins), None)
        if expected is None:
            return None
        data = self._bytes(self.folder / name)
        _hold(self.folder / name, data, expected)
        return data

    @staticmethod
    def _bytes(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise ManifestError(f"{path}: {error.strerror}") from None


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``.  Raises ManifestError naming the file and what is wrong with it."""
    path = folder / MANIFEST
    with _damage(path):
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise ManifestError(f"{path}: version {version}, this reader knows {VERSION}")
        return _manifest(folder, document["task"], tuple(map(_winner, document["winners"])))


def read_task(folder: Path) -> Manifest:
    """The manifest in ``folder``, whose winners are read when they are asked for: they come with all of their evidence.

    Raises ManifestError, and so does the one that asks.
    """
    path = folder / MANIFEST
    with _damage(path), path.open(encoding="utf-8") as file:
        text = file.read(_HEAD)
        begun = _BEGIN.match(text)
        if begun is not None and int(begun["version"]) == VERSION:
            with contextlib.suppress(json.JSONDecodeError):  # the task is longer
                task, _ = json.JSONDecoder().raw_decode(text, begun.end())
                return _manifest(folder, task, _Winners(folder))
    return read_manifest(folder)


class _Winners(Sequence[Winner]):
    """Of a folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cached_property
    def _all(self) -> Sequence[Winner]:
        return read_manifest(self._folder).winners

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: Any) -> Any:
        return self._all[place]


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raises ManifestError for whatever is wrong with the file."""
    try:
        yield
    except ManifestError:
        raise
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ExprError) as error:
        raise ManifestError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    except ValueError as error:
        raise ManifestError(f"{path}: not JSON: {error}") from None


def _manifest(folder: Path, task: Mapping[str, Any], winners: Sequence[Winner]) -> Manifest:
    return Manifest(
        folder=folder,
        name=task["name"],
        identity=task["identity"],
        precision=task["precision"],
        inputs=tuple(map(_argument, task["inputs"])),
        outputs=tuple(map(_argument, task["outputs"])),
        numbers=tuple(task["untold"]),
        told=tuple(
            ToldSize(one["dim"], one["argument"], one["axis"], from_json(one["less"]), from_json(one["by"]))
            for one in task["told"]
        ),
        batch=task["batch"],
        contraction=task["contraction"],
        constraints=tuple(Guard(how, from_json(left), from_json(right)) for how, left, right in task["constraints"]),
        winners=winners,
    )


def _argument(one: Mapping[str, Any]) -> Argument:
    return Argument(one["name"], one["role"], one["dtype"], tuple(from_json(size) for size in one["shape"]))


def _winner(entry: Mapping[str, Any]) -> Winner:
    return Winner(
        kernel=entry["kernel"],
        chip=entry["chip"],
        arch=entry["arch"],
        shape=entry["shape"],
        general=entry["general"],
        kind=entry["kind"],
        us=entry["us"],
        plans=tuple(plan["digest"] for plan in entry["plans"]),
        cubins=entry.get("cubins", {}),
    )


def _hold(path: Path, data: bytes, expected: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise ManifestError(f"{path}: was changed: its SHA-256 is {found[:12]}…, it should be {expected[:12]}…")
