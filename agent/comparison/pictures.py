"""Pictures of an outcome (:mod:`.outcomes`), each as PNG and SVG: speed-ups, a roofline, samples with intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.console import called
from evaluator.replay import OURS
from evaluator.timing import median
from knowledge_base.chips import Chip

Row = Mapping[str, Any]

FORMATS = ("png", "svg")
OTHERS = ("#1f77b4", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#393b79")
GREEN = "#2ca02c"  # ours


def draw(rows: Sequence[Row], chip: Chip, title: str, folder: Path) -> list[Path]:
    """Draws what the rows have times for; the files, which are replaced where they are there.

    title: what was measured, where and when: it stands on every picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"  # the same picture is the same file
    timed = [row for row in rows if row["kind"] == "measured"]
    if not timed:
        return []
    made = []
    for name, figure in (
        ("speedup", _speedups(timed)),
        ("roofline", roofline(timed, chip)),
        ("samples", _samples(timed)),
    ):
        figure.suptitle("\n".join(textwrap.wrap(title, int(14 * figure.get_size_inches()[0]))), fontsize=8)
        for kind in FORMATS:
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            made.append(path)
    return made


def figure_of(rows: int, columns: int, width: float, height: float) -> Any:
    """An empty figure of so many axes; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    names = dict.fromkeys(name for row in rows for name in row["samples"] if name != OURS)
    return {OURS: GREEN, **{name: OTHERS[i % len(OTHERS)] for i, name in enumerate(sorted(names))}}


def _speedups(rows: Sequence[Row]) -> Any:
    """Each baseline's time ÷ ours, with its 95% interval: right of 1 ours is faster."""
    figure = figure_of(1, 1, 8, 1.2 + 0.55 * len(rows))
    axes, colours, seen = figure.axes[0], _colours(rows), set()
    for place, row in enumerate(rows):
        for number, one in enumerate(row["baselines"]):
            low, high = one["speedup_interval"]
            y = place + 0.6 * ((number + 0.5) / len(row["baselines"]) - 0.5)
            label = None if one["name"] in seen else one["name"]
            seen.add(one["name"])
            ends = [[one["speedup"] - low], [high - one["speedup"]]]
            axes.errorbar(one["speedup"], y, xerr=ends, fmt="o", ms=4, color=colours[one["name"]], label=label)
    axes.axvline(1.0, color=GREEN, lw=1)
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(rows)), [called(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"time ÷ {OURS}'s")
    axes.grid(axis="x", which="both", alpha=0.3)
    if seen:
        axes.legend(fontsize=7, ncols=2)
    return figure


def roofline(rows: Sequence[Row], chip: Chip) -> Any:
    """What is reached of the chip's peaks: operations by definition, compulsory bytes.  Modelled times are hollow."""
    figure = figure_of(1, 1, 8, 5)
    axes, colours = figure.axes[0], _colours(rows)
    intensities = [row["flops"] / row["bytes"] for row in rows if row["flops"]]
    if not intensities:
        axes.text(0.5, 0.5, "no arithmetic", ha="center", transform=axes.transAxes)
        return figure
    ridge = max(row["peak_flops"] for row in rows) / chip.memory_bytes_per_s
    ends = (min(intensities) / 4, 4 * max(*intensities, ridge))
    points = [ends[0] * (ends[1] / ends[0]) ** (i / 100) for i in range(101)]
    for peak in sorted({row["peak_flops"] for row in rows}):
        roof = [min(peak, chip.memory_bytes_per_s * at) / 1e12 for at in points]
        axes.plot(points, roof, color="black", lw=1)
        axes.annotate(f"{peak / 1e12:.0f} TFLOP/s", (points[-1], roof[-1]), fontsize=7, ha="right", va="bottom")
    axes.annotate(f"{chip.memory_bytes_per_s / 1e12:.2f} TB/s", (points[3], chip.memory_bytes_per_s * points[3] / 1e12),
                  fontsize=7, ha="left", va="top")  # fmt: skip
    for row in rows:
        if not row["flops"]:
            continue
        at = row["flops"] / row["bytes"]
        reached = row["flops"] / row["us"] / 1e6
        axes.plot(at, reached, "o", color=GREEN, fillstyle="none" if row["kind"] == "modelled" else "full")
        axes.annotate(called(row), (at, reached), fontsize=7, xytext=(4, -8), textcoords="offset points")
        if row["baselines"]:
            best = row["baselines"][0]
            axes.plot(at, row["flops"] / best["us"] / 1e6, "x", color=colours[best["name"]])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations by definition ÷ compulsory bytes")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"● {OURS}   × best baseline", fontsize=8)
    axes.grid(which="both", alpha=0.2)
    return figure


def _samples(rows: Sequence[Row]) -> Any:
    """Every sample, a column for each contestant with its processes from left to right; medians with intervals."""
    across = min(3, len(rows))
    down = math.ceil(len(rows) / across)
    figure = figure_of(down, across, 4 * across, 3 * down)
    colours = _colours(rows)
    for axes, row in zip(figure.axes, rows, strict=False):
        names = [OURS, *(one["name"] for one in row["baselines"])]
        for place, name in enumerate(names):
            series = row["samples"][name]
            flat = [us for one in series for us in one]
            spread = [place + 0.7 * (i / len(flat) - 0.5) for i in range(len(flat))]
            axes.plot(spread, flat, ".", ms=2, alpha=0.4, color=colours[name])
            found = median(series)
            ends = [[found.value - found.low], [found.high - found.value]]
            axes.errorbar(place, found.value, yerr=ends, fmt="_", color="black", capsize=3)
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=7)
        axes.set_title(called(row), fontsize=8)
        axes.set_ylabel("µs", fontsize=8)
        times = [us for name in names for one in row["samples"][name] for us in one]
        if max(times) > 4 * min(times):
            axes.set_yscale("log")
        axes.axhline(row["floor_us"], color="black", lw=0.7, ls=":")
    for axes in figure.axes[len(rows) :]:
        axes.set_visible(False)
    return figure


def _plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_major_locator(LogLocator(10, subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
