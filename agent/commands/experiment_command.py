"""``agent experiment``: what a knowledge base is worth, tried on the measured spaces that ship.  No GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.console import console, emit, table
from agent.experiments import compounding as tried

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "sequence": "in sequence, by place",
    "left_out": "all but what is left out",
    "poisoned": "what is known is wrong",
}


def compounding(tries: int, orders: int, seeds: int, as_json: bool) -> int:
    """Runs the experiment and prints it."""
    err = console(error=True)
    with err.status("reading what was measured …") as status:
        document = tried(tries, orders, seeds, status.update)
    if as_json:
        emit(document)
    else:
        _print(document, console())
    return 0


def _print(document: Mapping[str, Any], out: Console) -> None:
    tries = document["tries"]
    out.print(
        f"{document['spaces']} measured spaces of configurations on {', '.join(document['chips'])}, times looked up: a "
        f"search without a knowledge base (cold) → with one; {document['seeds']} seeds, {document['orders']} orders",
        markup=False,
    )
    for part, title in TITLES.items():
        made = table(
            [
                (title, "left", None),
                ("tries to 98%", "right", 12),
                ("÷ cold (95%)", "right", 16),
                ("area", "right", 13),
                ("best", "right", 13),
            ]
        )
        for name, figures in document[part].items():
            to = figures["tries_to_98%"]
            interval = " ({:.2f}–{:.2f})".format(*to["ratio_95"]) if to["ratio_95"] else ""
            made.add_row(
                name, f"{to['cold_median']:.1f} → {to['warm_median']:.1f}", f"{to['ratio']:.2f}{interval}",
                *(f"{figures[of]['cold']:.3f} → {figures[of]['warm']:.3f}" for of in ("area", "final")),
            )  # fmt: skip
        out.print()
        out.print(made)
    rules = document["planted_rules"]
    out.print()
    out.print(
        f"of {rules['planted']} planted rules that say the contrary of what was measured, what the first order tried "
        f"refutes {rules['refuted']}, and says too little of {rules['left']}",
        markup=False,
    )
    out.print(
        "tries to 98%: until one has that share of the best speed, medians; ÷ cold: of the means; area: of the best so "
        f"far ÷ the best there is, over {tries} tries; best: at the end of these",
        style="dim",
        markup=False,
    )
