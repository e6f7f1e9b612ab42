"""``agent doctor``: what this machine can do, what is missing, and the command that mends each.

It looks and asks, and leaves nothing behind; a knowledge base that is there is opened, which is how it is known to be
writable.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from agent.console import console, emit, table
from agent.loop import RUNS
from agent.proposers import choose
from evaluator import toolchain
from evaluator.confinement import containment
from knowledge_base.chips import DEFAULT, from_driver
from knowledge_base.errors import EXIT_DONE, EXIT_ENVIRONMENT, UserError
from knowledge_base.records import Level
from knowledge_base.store import Store

from .kb import file_of


@dataclass(frozen=True)
class Check:
    """state: ok | without (works, less can be done) | missing (needed)."""

    name: str
    state: str
    says: str
    mend: str = ""


def findings(db: str | None) -> list[Check]:
    """Everything that was looked at, in the order of dependence."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _machine,
        _torch,
        lambda: _package("cuda-tile", "1.7.0"),
        lambda: _tool("tileiras"),
        lambda: _tool("tileirdisasm"),
        lambda: _tool("ptxas"),
        _tilegym,
        _gpu,
        _containment,
        _key,
        _runs,
        lambda: _database(db),
    )
    return [check() for check in checks]


def doctor(db: str | None, as_json: bool) -> int:
    """Prints the findings; exit 3 if something that is needed is missing."""
    found, notice = findings(db), containment().says
    missing = [f for f in found if f.state == "missing"]
    code = EXIT_ENVIRONMENT if missing else EXIT_DONE
    if as_json:
        emit({"findings": [asdict(f) for f in found], "notice": notice, "ready": not missing})
        return code
    from rich.markup import escape

    marks = {"ok": "[green]ok[/green]", "without": "[yellow]-[/yellow]", "missing": "[red]missing[/red]"}
    made = table([("", "left", 7), ("", "left", 13), ("", "left", None)])
    made.show_header = False
    for finding in found:
        mend = f"\n[dim]→ {escape(finding.mend)}[/dim]" if finding.mend else ""
        made.add_row(marks[finding.state], finding.name, escape(finding.says) + mend)
    out = console()
    out.print(made)
    out.print()
    out.print(notice)
    if missing:
        out.print(f"Missing: {', '.join(f.name for f in missing)}. The arrows say what mends each.")
    else:
        out.print("Ready: agent run --target gpt2-block")
    return code


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()}, {platform.machine()}")


def _machine() -> Check:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Check("machine", "ok", f"{cores} cores, {memory:.1f} GiB of memory")


def _torch() -> Check:
    # Reading a file, where importing torch would take seconds.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return Check("torch", "missing", "not installed", "make setup, or: python -m pip install torch==2.13.0")
    text = (Path(spec.origin).parent / "version.py").read_text()
    cuda = re.search(r"^cuda\b.*?= '([^']+)'", text, re.MULTILINE)
    build = f"built for CUDA {cuda.group(1)}" if cuda else "CPU build"
    return Check("torch", "ok", f"{metadata.version('torch')}, {build}")


def _package(name: str, wanted: str) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "missing", "not installed", f"python -m pip install {name}=={wanted}")
    if version != wanted:
        return Check(name, "missing", f"{version}, wanted {wanted}", f"python -m pip install {name}=={wanted}")
    return Check(name, "ok", version)


def _tool(name: str) -> Check:
    try:
        tool = toolchain.tool(name)
    except UserError as error:
        return Check(name, "missing", error.what, error.mend)
    if tool.version != toolchain.VERSION:
        says = f"{tool.version} at {tool.path}; tested with {toolchain.VERSION}"
        return Check(name, "without", says, toolchain.MEND)
    return Check(name, "ok", tool.version)


def _tilegym() -> Check:
    try:
        return Check("TileGym", "ok", metadata.version("tilegym"))
    except metadata.PackageNotFoundError:
        mend = "python -m pip install --no-deps tilegym==1.5.1"
        return Check("TileGym", "without", "not installed: no examples of others' kernels", mend)


def _gpu() -> Check:
    try:
        chip = from_driver()
    except UserError as error:
        why = error.what.split(",")[0]
        says = f"none ({why}): kernels run on the CPU from their Tile IR, times for {DEFAULT} are modelled"
        return Check("GPU", "without", says)
    derived = ", figures derived from the driver" if chip.derived else ""
    return Check("GPU", "ok", f"{chip.product} ({chip.arch}, {chip.sm_count} SMs{derived}); times are modelled")


def _containment() -> Check:
    held = containment()
    if held.level is not Level.FULL:
        return Check("containment", "without", f"{held.level.value}: {held.why}", held.mend)
    return Check("containment", "ok", "full: seccomp, Landlock and namespaces of its own hold a candidate")


def _key() -> Check:
    choice = choose("auto", None)
    return Check("proposer", "ok", f"auto is {choice.name}: {choice.why}")


def _runs() -> Check:
    why = _unwritable(RUNS / "any")
    if why:
        return Check("runs", "missing", f"no run can be kept in {RUNS}: {why}", "start agent in a folder of yours")
    return Check("runs", "ok", f"each is kept in {RUNS}")


def _unwritable(file: Path) -> str:
    """Why ``file`` cannot be made, with its folders; empty if it can."""
    folder = next(p for p in file.absolute().parents if p.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    with suppress(OSError), tempfile.TemporaryFile(dir=folder):
        return ""
    return f"{folder} can't be written"


def _database(db: str | None) -> Check:
    file = file_of(db)
    if file is not None and not file.is_file():
        why = _unwritable(file)
        if not why:
            return Check("database", "ok", f"none yet at {file}: agent run makes it")
        mend = "start agent in a folder of yours" + (", or name a file with --db" if db else "")
        return Check("database", "missing", f"none at {file}, and {why}", mend)
    try:
        with Store.open(db) as store:
            return Check("database", "ok", f"{store.database.url} can be written")
    except UserError as error:
        return Check("database", "missing", error.what, error.mend)
