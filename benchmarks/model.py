"""How well modelled times rank what was measured on an H200: one JSON line for each file at each size, then one of all.

    python benchmarks/model.py [--fit | --leave-out] [--keep FOLDER]

Every row of the landscapes h200_product and h200_runs whose file ships (knowledge_base/landscapes.py) is traced,
compiled and modelled: some 3,400 kernels, 25 minutes on two cores the first time, then a few from the cubin cache;
``--keep`` keeps what the model is given, for a second time in seconds.

rho: Spearman's rank correlation of modelled and measured times.  first: the measured time of what the model puts
first ÷ the best.  ratio: the median of modelled ÷ measured; spread: the standard deviation of its logarithm.
dearest: the highest price (docs/model.md) of what is within 3% of the best ÷ the least modelled time: above 1.1 it
would not be compiled.

``--fit`` looks for the constants of evaluator/timing/model.py that fit these rows best, and prints them (SciPy's
least_squares on log(modelled ÷ measured) with a soft L1 loss; each file at each size weighs the same, a row of it
best ÷ measured).  ``--leave-out`` fits as often as there are kinds of tasks, each time without one, and says how well
that one comes out.  Both need SciPy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pickle
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.loop import PLAN
from agent.loop.assay import PRUNE, Assay, Assemblers, over
from agent.loop.ranking import SPILLS
from evaluator.compile import Cache, cores
from evaluator.plans import Plans
from evaluator.timing import MODEL, model
from kernels_generated.runtime.bound import bind
from knowledge_base.chips import CHIPS
from knowledge_base.landscapes import LandscapeRow, landscape, landscape_sources
from knowledge_base.records import Candidate
from knowledge_base.snf import decompose, load_target, parse
from knowledge_base.snf.task import Task

CHIP = CHIPS["h200"]
TARGETS = (
    ("gpt2-block", {"B": 8, "T": 1024}), ("gpt2-block", {"B": 8, "T": 128}), ("gpt2-block", {"B": 1, "T": 1024}),
    ("llama3-8b-block", {"B": 1, "T": 4096}),
)  # fmt: skip
# What the Llama block's gate fed while its projections were tasks of their own.
GATED = """
M, K, N = 4096, 4096, 14336
x: bf16[M, K]
gate: bf16[M, N]
y = SiLU(gate) * Linear(x, N, θ.up, bias=False)
outputs = y, Linear(x, N, θ.gate, bias=False)
"""
NEAR = 1.03
TOGETHER = 32  # configurations traced by one child

# What is fitted, with the range in which it makes sense.
FITTED = {
    "LAUNCH_S": (2e-6, 6e-6), "BLOCK_S": (1e-7, 2e-6), "PLAIN_BLOCK_S": (2e-8, 2e-6), "CROWD_S": (1e-9, 5e-7),
    "PHASE_S": (1e-8, 1e-6), "TRIP_S": (1e-8, 1e-6), "SHARED_TRIP_S": (1e-9, 3e-7), "REDUCE_S": (5e-9, 5e-7),
    "SHARED_REDUCE_S": (1e-9, 3e-7), "SPLIT_REDUCE_S": (1e-8, 1e-6), "ISSUE_S": (1e-9, 2e-7), "DRAIN_S": (1e-9, 3e-7),
    "SERIAL_WGMMA_S": (1e-9, 5e-7), "CROWDED_LOOP_S": (1e-9, 5e-7), "STAGE_S": (3e-7, 2e-6),
    "MEMORY_LATENCY_S": (4e-7, 1.5e-6), "ARITHMETIC": (0.5, 4.0), "OVERLAP": (1.0, 8.0), "PLAIN_COPY": (1.0, 8.0),
    "SPILL_CLOCKS": (1.0, 9.0), "FAR_SPILLS": (1.0, 4.0), "OUTER_SPILLS": (0.05, 1.0),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration: µs measured, and what the model looks at, once with its cubins and once with ideal ones."""

    us: float
    spills: bool
    launches: tuple[tuple[Any, ...], ...]  # arguments of launch_terms, but for the chip
    price: float

    def modelled(self) -> float:
        body = sum(model.launch_terms(*launch, CHIP)["body"] for launch in self.launches)
        return (body + model.LAUNCH_S + model.NEXT_LAUNCH_S * (len(self.launches) - 1)) * 1e6


@dataclasses.dataclass(frozen=True)
class File:
    """One file at one size."""

    name: str
    kind: str  # of its task: the label less sizes
    rows: tuple[Row, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--leave-out", action="store_true")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    files = sorted(kept(asked.keep) if asked.keep else known(), key=lambda file: file.name)
    if asked.fit:
        print(json.dumps(fit(files)))
    if asked.leave_out:
        found = []
        for kind in sorted({file.kind for file in files}):
            fit([file for file in files if file.kind != kind])
            found += [report(file) for file in files if file.kind == kind]
    else:
        found = [report(file) for file in files]
    for line in found:
        print(json.dumps(line))
    rhos, firsts = ([line[key] for line in found] for key in ("rho", "first"))
    print(json.dumps({
        "benchmark": "model", "files": len(found), "rows": sum(line["rows"] for line in found),
        "rho": round(statistics.mean(rhos), 3), "least_rho": min(rhos),
        "first": round(statistics.mean(firsts), 3), "worst_first": max(firsts),
        "dearest": max(line["dearest"] for line in found), "compiled_up_to": PRUNE,
    }))  # fmt: skip


def report(file: File) -> dict[str, Any]:
    measured = [row.us for row in file.rows]
    modelled = [row.modelled() for row in file.rows]
    best = min(measured)
    first = min(range(len(measured)), key=lambda i: modelled[i] * (SPILLS if file.rows[i].spills else 1))
    logs = [math.log(a / b) for a, b in zip(modelled, measured, strict=True)]
    near = [row.price for row in file.rows if row.us <= NEAR * best]
    return {
        "file": file.name, "rows": len(file.rows), "best_us": round(best, 1),
        "rho": round(statistics.correlation(ranks(measured), ranks(modelled)), 2),
        "first": round(measured[first] / best, 2),
        "ratio": round(math.exp(statistics.median(logs)), 2), "spread": round(statistics.pstdev(logs), 2),
        "dearest": round(max(near) / min(modelled), 2),
    }  # fmt: skip


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each in their order; of equal ones the mean of theirs."""
    places = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [statistics.mean(places[value]) for value in values]


# ---------------------------------------------------------------------------------------------------- the rows


def kept(folder: Path) -> list[File]:
    """What an earlier call left in the folder; else worked out, and left there."""
    path = folder / "model.pickle"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(known()))
    found: list[File] = pickle.loads(path.read_bytes())
    return found


def known() -> list[File]:
    rows: defaultdict[tuple[str, tuple[tuple[str, int], ...], str], list[LandscapeRow]] = defaultdict(list)
    for name in ("h200_product", "h200_runs"):
        for row in landscape(name):
            if row.us is not None and row.source:
                rows[row.task.split()[0], tuple(sorted(row.sizes.items())), row.source].append(row)
    graphs = [load_target(target, shape).graph for target, shape in TARGETS]
    tasks = {
        (task.name, tuple(sorted(task.sizes.items()))): task
        for graph in (*graphs, parse(GATED))
        for task in decompose(graph, PLAN).tasks
    }
    found = []
    for (label, sizes, source), of_file in rows.items():
        name = f"{label} {'×'.join(str(size) for _, size in sizes)} {source}"
        task = tasks.get((label, sizes))
        made = tuple(looked_at(task, source, of_file)) if task is not None else ()
        if made:
            found.append(File(name, label, made))
        print(f"{name}: {len(made)} of {len(of_file)} rows", file=sys.stderr)
    return found


def looked_at(task: Task, source: str, rows: Sequence[LandscapeRow]) -> Iterable[Row]:
    """What the model is given of each row; none where the file is another task's."""
    candidate = Candidate(task=task.identity, source=landscape_sources()[source], proposer="synthesizer")
    plans = Plans()
    assay = Assay(candidate, task, CHIP, Assemblers(cores()), Cache(), MODEL, plans)
    for start in range(0, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        trials = assay.traced([row.axes for row in some])
        assay.compile([trial for trial in trials if not over(trial)])
        for row, trial in zip(some, trials, strict=True):
            if over(trial) or row.us is None or (timed := assay.timed(trial)).time is None:
                continue
            one = plans.of(trial)[0]
            evidence = {e.kernel: e for e in timed.evidence}
            launches = []
            for launch in bind(one.plan, {"num_sms": CHIP.sm_count, **task.sizes}).launches:
                work = model.launch_work(launch, one.kernels[launch.kernel])
                launches.append((work, model.traffic_of(launch, work), evidence[launch.kernel]))
            yield Row(row.us, timed.spills, tuple(launches), assay.price(trial))


# ---------------------------------------------------------------------------------------------------- the fit


def fit(files: Sequence[File]) -> dict[str, float]:
    """Sets the constants of the model to those that fit best; returns them."""
    import numpy
    from scipy.optimize import least_squares

    names = list(FITTED)
    low, high = (numpy.log([FITTED[name][i] for name in names]) for i in (0, 1))
    begin = (low + high) / 2  # and not what is in the model, which has seen all rows
    distinct = [list(distinguished(file.rows)) for file in files]

    def residuals(logs: Any) -> Any:
        set_to(names, numpy.exp(logs))
        found = [weight * math.log(row.modelled() / row.us) for rows in distinct for row, weight in rows]
        return numpy.array([*found, *(0.01 * (logs - begin))])

    answer = least_squares(residuals, begin, bounds=(low - 1e-9, high + 1e-9), loss="soft_l1", f_scale=0.05)
    set_to(names, numpy.exp(answer.x))
    return {name: float(f"{getattr(model, name):.3g}") for name in names}


def set_to(names: Sequence[str], values: Iterable[float]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(model, name, float(value))


def distinguished(rows: Sequence[Row]) -> Iterable[tuple[Row, float]]:
    """Of rows that the model can't tell apart one, with what all of them weigh."""
    best = min(row.us for row in rows)
    together: defaultdict[float, list[Row]] = defaultdict(list)
    for row in rows:
        together[row.modelled()].append(row)
    for alike in together.values():
        us = statistics.geometric_mean([row.us for row in alike])
        weight = best / us * math.sqrt(len(alike) / len(rows))
        yield dataclasses.replace(alike[0], us=us), weight


if __name__ == "__main__":
    main()
