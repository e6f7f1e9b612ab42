"""``agent promote RUN [TASK]``: copies a run's winners into kernels_generated/, where users import them from."""

from __future__ import annotations

import json
from pathlib import Path

import kernels_generated
from agent.console import console, emit
from agent.loop import find_run, winners
from knowledge_base.errors import EXIT_DONE, UserError, nearest
from knowledge_base.store import Store


def promote(run: str, task: str | None, to: str | None, db: str | None, as_json: bool) -> int:
    """Merges the winners of ``run`` (all, or one task's) into ``to``.  Raises UserError if there is nothing to copy."""
    folder = find_run(run) / "winners"
    names = sorted(p.name for p in folder.iterdir() if (p / winners.MANIFEST).is_file()) if folder.is_dir() else []
    if not names:
        raise UserError(
            f"run {run} has no winners",
            f"A winner is written when its task is done. Go on with: agent run --resume {run}.",
        )
    if task is not None:
        plain = task.replace("-", "_")
        if plain not in names:
            near = nearest(plain, names) or names
            raise UserError(f"run {run} has no winner for {task!r}", f"It has {', '.join(near)}.")
        names = [plain]
    target = Path(to) if to else _package()
    done = []
    with Store.open(db) as store:
        for name in names:
            lines = winners.merge(folder / name, target / name)
            done.append({"task": name, "folder": str(target / name), "said": lines})
            if any("promoted" in line for line in lines):
                identity = json.loads((folder / name / winners.MANIFEST).read_text())["task"]["identity"]
                store.mark_promoted(find_run(run).name, identity)
    if as_json:
        emit({"run": run, "promoted": done})
    else:
        out = console()
        for entry in done:
            for line in entry["said"]:
                out.print(f"{line} → {entry['folder']}", markup=False, soft_wrap=True)
    return EXIT_DONE


def _package() -> Path:
    return Path(kernels_generated.__file__).parent
