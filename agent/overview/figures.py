"""The page's pictures, as SVG text that stands inside HTML."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent.comparison import GREEN, figure_of, roofline
from agent.console import pairs
from knowledge_base.chips import CHIPS

Row = Mapping[str, Any]

STATUS = {"supported": GREEN, "refuted": "#d62728", "superseded": "#7f7f7f", "hypothesised": "#1f77b4"}
RULES = 40  # that are drawn, those of the largest effect
ACROSS = 3  # pictures in a row


def svg(figure: Any, said: str) -> str:
    """The figure as an SVG element; ``said`` is what a screen reader says of it."""
    import matplotlib
    from markupsafe import escape

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": said}):
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    whole = written.getvalue()
    start = whole.index("<svg ")
    return f'<svg role="img" aria-label="{escape(said)}" ' + whole[start + len("<svg ") :]


def chip_roofline(chip: Row) -> str:
    """What the best kernels reach of a chip's peaks; empty where nothing is known of the work or the chip."""
    rows = [
        row | {"name": row["task"], "calls": 1, "baselines": [], "samples": {}}
        for row in chip["kernels"]
        if row["flops"]
    ]
    if not rows or chip["name"] not in CHIPS:
        return ""
    figure = roofline(rows, CHIPS[chip["name"]])
    figure.axes[0].set_title("")
    return svg(figure, f"Roofline of {chip['name']}: operations per second over operations per byte")


def learning(places: Sequence[Row]) -> str:
    """Speed-up over evaluations: a picture for each place, a line for each run, later ones darker."""
    from matplotlib import colormaps

    if not places:
        return ""
    across = min(ACROSS, len(places))
    down = math.ceil(len(places) / across)
    figure = figure_of(down, across, 4 * across, 2.9 * down)
    shades = colormaps["viridis_r"]
    for axes, place in zip(figure.axes, places, strict=False):
        for number, curve in enumerate(place["curves"]):
            at, reached = zip(*curve["speedups"], strict=True)
            colour = shades(0.15 + 0.85 * (number + 1) / len(place["curves"]))
            at, reached = (*at, curve["evaluations"]), (*reached, reached[-1])
            axes.step(at, reached, where="post", color=colour, label=curve["run"])
            axes.plot(at[:-1], reached[:-1], ".", color=colour)
        axes.set_title(f"{place['task']} on {place['chip']}\n{pairs(place['shape'])}", fontsize=8)
        unit = "~" if place["kind"] == "modelled" else ""
        axes.set_ylabel(f"{unit}{place['start_us']:.4g} µs ÷ best so far", fontsize=7)
        axes.set_xlabel("evaluations", fontsize=7)
        axes.tick_params(labelsize=7)
        axes.set_ylim(0.95 * min(1.0, *reached), max(1.1, axes.get_ylim()[1]))
        axes.grid(alpha=0.3)
        if len(place["curves"]) > 1:
            axes.legend(fontsize=5)
    for axes in figure.axes[len(places) :]:
        axes.set_visible(False)
    return svg(figure, "Learning curves: speed-up over the first time, by evaluations")


def forest(rules: Sequence[Row]) -> str:
    """Rules (that have an effect) by how much it is, with 95% intervals."""
    drawn = sorted(sorted(rules, key=lambda rule: -abs(rule["effect"]))[:RULES], key=lambda rule: rule["effect"])
    if not drawn:
        return ""
    figure = figure_of(1, 1, 11, 1.0 + 0.24 * len(drawn))
    axes, seen = figure.axes[0], set()
    for place, rule in enumerate(drawn):
        middle, low, high = (_percent(rule[name]) for name in ("effect", "effect_low", "effect_high"))
        label = None if rule["status"] in seen else rule["status"]
        seen.add(rule["status"])
        ends = [[middle - low], [high - middle]]
        axes.errorbar(middle, place, xerr=ends, fmt="o", ms=4, color=STATUS[rule["status"]], label=label)
    axes.axvline(0.0, color="black", lw=0.8)
    axes.set_yticks(range(len(drawn)), [_shortened(rule["statement"]) for rule in drawn], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time, best with it ÷ best without, in % (left: faster)", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=7)
    return svg(figure, "Rules by their effect on time, with 95% intervals")


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _shortened(text: str, most: int = 76) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
