"""``agent bench``: what a target's best known kernels take beside other ways to compute it: a table, and pictures."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import comparison
from agent.comparison import Contest
from agent.console import called, console, count, emit, table, us
from agent.files import write_at_once
from agent.loop import RUNS, new_id, versions
from agent.progress import Lines
from evaluator.replay import OURS, runner_for
from evaluator.timing import PROCESSES, in_fresh_processes
from knowledge_base.chips import Chip
from knowledge_base.errors import EXIT_DONE, EXIT_REJECTED, EnvironmentLacks, UserError
from knowledge_base.snf import load_target
from knowledge_base.store import Store

from .hardware import check_device, chip_for, device_for
from .options import typed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

FOLDER = RUNS / "bench"
ACROSS, BASELINE_WIDTH = 4, 13  # baselines beside each other in a table of all, and their columns


def bench(
    *,
    target: str,
    shape: dict[str, int],
    gpu: str | None,
    device: str,
    out: str | None,
    seed: int | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Times and prints; exit 0, or 1 where a kernel is not right on the card.  Raises UserError before any work."""
    if not target:
        raise UserError("--target is missing", "For example: agent bench --target gpt2-block. `agent targets` has all.")
    check_device(device)
    chip = chip_for(gpu)
    where = device_for(device, chip)
    graph = load_target(target, shape).graph
    given = {"target": target, "shape": typed(shape), "gpu": gpu, "db": db}
    asked = " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items() if value)
    err = console(error=True)
    seed = secrets.randbits(31) if seed is None else seed
    with Store.open(db) as store:
        with err.status("compiling …"):
            contests, missing = comparison.gathered(store, graph, chip)
        if not contests:
            mend = f"First: agent run {asked}"
            raise UserError(f"the knowledge base has no kernel for {target} on {chip.name} at these sizes", mend)
        card: dict[str, str] = {}
        with runner_for(chip) if where == "cuda" else nullcontext() as runner, err.status("starting …") as status:
            if runner is not None:
                card = dict(runner.description)
                in_fresh_processes(contests, runner, seed, _said(err, status, len(contests), target))
        _record(store, contests)
    document: dict[str, Any] = {
        "target": target,
        "asked": asked,
        "chip": chip.name,
        "device": where,
        "card": card,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seed": seed,
        "processes": PROCESSES if where == "cuda" else 0,
        "versions": versions(),
        "rows": comparison.outcome(contests, chip),
        "missing": missing,
    }
    folder = Path(out) if out else FOLDER / new_id(target)
    document["files"] = [str(path) for path in _written(document, chip, folder)] if where == "cuda" else []
    if as_json:
        emit(document)
    else:
        _print(document, err)
    return EXIT_REJECTED if any(row["message"] for row in document["rows"]) else EXIT_DONE


def _said(err: Console, status: Status, parts: int, target: str) -> Callable[[str], None]:
    """What shows the part that is being timed: where a terminal is, else in a line now and then."""
    if err.is_terminal:
        return lambda now: status.update(f"{PROCESSES} processes, {now} …")
    lines = Lines()
    lines.say(f"timing {count(parts, 'part')} of {target} in {PROCESSES} fresh processes each, or more")

    def say(now: str) -> None:
        lines.step(target, 0.0, 1.0, now)
        lines.remind()

    return say


def _record(store: Store, contests: Sequence[Contest]) -> None:
    """What was measured of our own kernels is known from now on."""
    store.record([trial for one in contests if (trial := one.timed) is not None], move="bench")


def _written(document: Mapping[str, Any], chip: Chip, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = write_at_once(folder / "bench.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        text = write_at_once(folder / "bench.md", markdown(document))
        return [data, text, *comparison.draw(document["rows"], chip, _title(document), folder)]
    except OSError as error:
        raise EnvironmentLacks(
            f"can't write to {folder}: {error.strerror}", "Name another folder with --out."
        ) from None


def _title(document: Mapping[str, Any]) -> str:
    card, versions = document["card"], document["versions"]
    made_with = f"driver {card['driver']}, torch {card['torch']}, tileiras {versions['tileiras']}"
    return f"{Path(document['target']).stem} on {card['product']}, {document['date']}; {made_with}"


# ---------------------------------------------------------------------------------------------------- for people


def _print(document: Mapping[str, Any], err: Any) -> None:
    rows = document["rows"]
    measured = document["device"] == "cuda"
    made = table(
        [
            ("part", "left", 24),
            ("µs", "right", 8),
            ("best other", "left", 15),
            ("its µs", "right", 7),
            ("speed-up", "right", 8),
            ("floor", "right", 6),
            ("score", "right", 5),
        ]
    )
    for row in rows:
        made.add_row(*_cells(row))
    err.print(made)
    if measured:
        _print_baselines(rows, err)
    for row in rows:
        if row["message"]:
            err.print(f"[red]{row['name']}[/red]: {row['message']}", soft_wrap=True)
    for line in _notes(document):
        err.print(line, style="dim", markup=False)
    if document["files"]:
        err.print(f"{Path(document['files'][0]).parent}", markup=False, soft_wrap=True)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    unstable = "?" if row["stability"] == "unstable" else ""
    best = row["baselines"][0] if row["baselines"] else None
    return (
        called(row),
        us(row["us"], row["kind"]) + unstable,
        best["name"] if best else "-",
        us(best["us"]) if best else "-",
        _coloured(row) if best else "-",
        us(row["floor_us"]),
        "-" if row["score"] is None else f"{row['score']:.2f}",
    )


def _coloured(row: Mapping[str, Any]) -> str:
    """The speed-up: green or red where its interval says that ours is faster, or slower, by more than 2%."""
    said = f"{row['speedup']:.2f}×"
    colour = {"faster": "green", "slower": "red"}.get(comparison.verdict(row))
    return f"[{colour}]{said}[/{colour}]" if colour else said


def _print_baselines(rows: Sequence[Mapping[str, Any]], err: Any) -> None:
    """Every baseline's time ÷ ours, in tables of 80 columns."""
    names = list(dict.fromkeys(b["name"] for row in rows for b in row["baselines"]))
    for start in range(0, len(names), ACROSS):
        some = names[start : start + ACROSS]
        made = table([("÷ ours", "left", 24), *((name, "right", BASELINE_WIDTH - 1) for name in some)])
        for row in rows:
            found = {b["name"]: f"{b['speedup']:.2f}×" for b in row["baselines"]}
            made.add_row(row["name"], *(found.get(name, "-") for name in some))
        err.print()
        err.print(made)


def _notes(document: Mapping[str, Any]) -> list[str]:
    rows, notes = document["rows"], []
    if document["device"] == "cuda":
        notes.append(
            f"Medians of {document['processes']} fresh processes, interleaved, L2 cold (docs/measuring.md); floor: "
            "speed of light; score: the way to it from the best other, 0.5 where both are as fast."
        )
    else:
        notes.append(
            f"No {document['chip']} was used here, so nothing was timed: times are modelled (docs/model.md), and "
            f"baselines have none. On a machine with that GPU: agent bench {document['asked']} --device cuda"
        )
    if document["missing"]:
        notes.append(f"Without a kernel: {', '.join(document['missing'])}. agent run {document['asked']}")
    parts: dict[tuple[str, str], str] = {}  # the first part for which a baseline lacks something
    for row in rows:
        for said in row["lacking"].items():
            parts.setdefault(said, row["name"])
    for (name, why), part in parts.items():
        notes.append(f"{name}: {why}" if why.startswith("not installed") else f"{name}: {why} ({part})")
    return notes


def markdown(document: Mapping[str, Any]) -> str:
    """bench.md: every time with its interval."""
    command = f"`agent bench {document['asked']}`"
    lines = [f"# {_title(document)}", "", f"Command: {command}; chip {document['chip']}; seed {document['seed']}.", ""]
    lines += ["| part | contestant | µs | 95% | ÷ ours | 95% |", "| --- | --- | --- | --- | --- | --- |"]
    for row in document["rows"]:
        if row["us"] is None:
            lines.append(f"| {row['name']} | {OURS} | {row['message'] or 'no time'} | | | |")
            continue
        lines.append(f"| {called(row)} | **{OURS}** | **{us(row['us'])}** | {_interval(row['interval_us'])} | | |")
        for one in row["baselines"]:
            figures = f"{us(one['us'])} | {_interval(one['interval_us'])} | {one['speedup']:.3f}"
            low, high = one["speedup_interval"]
            lines.append(f"| | {one['name']} | {figures} | {low:.3f} to {high:.3f} |")
        floor = f"{us(row['floor_us'])} | | |"
        lines.append(f"| | speed of light | {floor} score {'-' if row['score'] is None else row['score']} |")
    lines += ["", *(f"- {note}" for note in _notes(document)), "", "## Versions", ""]
    lines += [f"- {name}: {version}" for name, version in (document["card"] | document["versions"]).items()]
    return "\n".join(lines) + "\n"


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{us(ends[0])} to {us(ends[1])}"
