"""``agent kb why``: what a prompt would say of what is known about a task, in which order, and why in that order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.console import console, emit, table, us
from knowledge_base.advice import Example, Fact, Item, Mistake, advice
from knowledge_base.errors import EXIT_DONE
from prompts import CHARACTERS_A_TOKEN, TOKENS, fitting, tilegym, worth_telling

from .hardware import chip_for
from .kb import reading
from .task_option import task_of


def why(
    task_name: str,
    target: str,
    shape: Mapping[str, int],
    gpu: str | None,
    tokens: int | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Prints what is known of a task, what is worth most first.  Raises UserError where several could be meant.

    tokens: that there is room for; None: as many as a prompt has.
    """
    from rich.markup import escape

    room = TOKENS if tokens is None else tokens
    chip = chip_for(gpu)
    task = task_of(target, task_name, shape)
    with reading(db) as store:
        known = advice(store, task, chip)
    said = worth_telling(known, chip)
    fit = fitting(said, room, CHARACTERS_A_TOKEN)
    gallery = tilegym(task)
    example = _example(known.example) if known.example is not None else None
    if as_json:
        document = {
            "task": task.name,
            "identity": task.identity,
            "shape": task.sizes,
            "chip": chip.name,
            "tokens": room,
            "items": [
                {"told": i < fit, "text": line.text, "heading": line.heading} | _document(line.item)
                for i, line in enumerate(said)
            ],
            "example": example,
            "tilegym": gallery[0] if gallery is not None else None,
        }
        emit(document)
        return EXIT_DONE
    out = console()
    sizes = ", ".join(f"{n}={v}" for n, v in task.sizes.items())
    out.print(f"{task.name} at {sizes} on {chip.name}", markup=False)
    rows = table([("worth", "right", 5), ("is", "left", 7), ("id", "left", 8), ("what is told, and why", "left", None)])
    for i, line in enumerate(said):
        if i == fit:
            rows.add_section()
        item = line.item
        kind = _kind(item) if i < fit else f"({_kind(item)})"
        told = f"{escape(line.text)}\n[dim]{escape(_why(item))}[/dim]"
        rows.add_row(f"{item.worth:.3f}", kind, item.key[:8], told)
    out.print(rows)
    out.print("worth = how much of its scope this is × what heeding it changes × what of it is new", style="dim")
    if fit < len(said):
        out.print(f"{len(said) - fit} in brackets are not told: they do not fit {room} tokens.")
    if example is not None:
        time, kernel = us(example["us"], example["kind"]), example["kernel"][:8]
        of = f"Example: the fastest kernel of {example['task']} ({time} µs, kernel {kernel})"
        out.print(f"{of}; {example['common']:.0%} of the ops are common.", markup=False)
    if gallery is not None:
        out.print(f"Example: TileGym's {gallery[0]}", markup=False)
    return EXIT_DONE


def _kind(item: Item) -> str:
    return "fact" if isinstance(item.what, Fact) else "mistake" if isinstance(item.what, Mistake) else "rule"


def _why(item: Item) -> str:
    """``match 0.80 (linear is in it, on this GPU) × 0.132``."""
    new = f" × {item.new:.2f} new" if item.new < 1 else ""
    return f"{item.match:.2f} ({item.because}) × {item.effect:.3f}{new}"


def _document(item: Item) -> dict[str, Any]:
    figures = {"worth": item.worth, "match": item.match, "effect": item.effect, "new": item.new}
    return {"is": _kind(item), "key": item.key, "because": item.because} | {k: round(v, 6) for k, v in figures.items()}


def _example(example: Example) -> dict[str, Any]:
    trial = example.trial.brief()
    return {"task": example.task, "common": round(example.common, 4)} | {
        name: trial[name] for name in ("trial", "kernel", "configuration", "shape", "chip", "kind", "us", "floor_us")
    }
