"""Targets by name or file: the shipped specs, and a user's own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from knowledge_base.content import readable
from knowledge_base.errors import UserError, nearest

from .canonical import canonical
from .everyday import NAMES, everyday, sized
from .graph import Graph
from .parser import MAX_TEXT, parse_noted
from .task import Task

SPECS = Path(__file__).parent / "specs"
MAX_TASK_NODES = 256  # of a file taken whole as one task: one kernel file for more is not a task any more


@dataclass(frozen=True)
class Target:
    """A piece of a network to be served.  ``notes``: how the text was read where it left things to the reader."""

    name: str
    text: str
    graph: Graph
    notes: tuple[str, ...] = ()
    source: str = ""  # the file it came from


def targets() -> tuple[tuple[str, str], ...]:
    """(name, one line) of each shipped spec, by name."""
    found = []
    for path in sorted(SPECS.glob("*.snf")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found.append((path.stem, first.lstrip("# ").strip()))
    return tuple(found)


def load_target(name_or_path: str, shape: Mapping[str, int] | None = None) -> Target:
    """A shipped spec by its name, or an SNF file: what ends in .snf or contains a slash.

    shape: sample sizes instead of the text's.  Raises UserError for an unknown name or an unreadable file, SnfError
    for a malformed text.
    """
    if name_or_path.endswith(".snf") or "/" in name_or_path:
        path = Path(name_or_path)
    else:
        names = [name for name, _ in targets()]
        plain = name_or_path.replace("_", "-")
        if plain not in names:
            near = nearest(name_or_path, names)
            near = near or [n for n in names if difflib.SequenceMatcher(None, n, plain).ratio() > 0.4][:3]
            mend = f"did you mean {' or '.join(near)}?" if near else f"targets are {', '.join(names)}"
            raise UserError(f"there is no target {name_or_path!r}", f"{mend} A file's name ends in .snf.")
        path = SPECS / f"{plain}.snf"
    text = _text(path)
    shown = name_or_path if path.parent != SPECS else path.stem
    parsed = parse_noted(text, str(path) if path.parent != SPECS else path.name, shape)
    return Target(readable(path.stem) if path.parent != SPECS else shown, text, parsed.graph, parsed.notes, str(path))


def task_named(name_or_path: str, shape: Mapping[str, int] | None = None) -> Task:
    """The task that ``agent check --task`` names: an everyday task, a shipped spec or an SNF file taken whole.

    Raises UserError for an unknown name or dimension, or for a text that is too much for one task.
    """
    if name_or_path.replace("-", "_") in NAMES:
        return sized(everyday(name_or_path), shape or {})
    is_file = name_or_path.endswith(".snf") or "/" in name_or_path
    names = [name for name, _ in targets()]
    if not is_file and name_or_path.replace("_", "-") not in names:
        near = nearest(name_or_path, [*NAMES, *names])
        mend = f"did you mean {' or '.join(near)}?" if near else f"everyday tasks are {', '.join(NAMES)}"
        raise UserError(f"there is no task {name_or_path!r}", f"{mend} An SNF file will do as well.")
    target = load_target(name_or_path, shape)
    if len(target.graph.nodes) > MAX_TASK_NODES:
        raise UserError(
            f"{name_or_path} has {len(target.graph.nodes)} nodes: too much for one task",
            "name one of its tasks, or write the piece down as an SNF file of its own",
        )
    return canonical(target.graph)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * MAX_TEXT:
            raise UserError(
                f"{path} is larger than an SNF text can be", "SNF texts have at most half a million characters"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the file's name") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text", "save it as UTF-8") from error
