"""Which sizes a candidate is judged at: where tilings, guards and thresholds go wrong, each small enough to emulate.

The recipes: every dimension 1; one below and one above a tile in every dimension; primes; one dimension as long as the
task's sample (and a bit) while the others stay short, and one short while the others are not; both sides of every
number that a guard mentions; multiples of the tiles.  Which of the many are used is drawn from the seed, so a candidate
cannot know them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import prod

from kernels_generated.runtime.expr import Expr, ExprError, evaluate, holds, symbols
from kernels_generated.runtime.plan import Guard, Launch, LaunchPlan
from knowledge_base.snf.graph import Graph, shape_at
from knowledge_base.snf.task import Task

Sizes = dict[str, int]

ELEMENTS = 16_384  # docs/judging.md: errors are pooled over at least this many elements
MAX_WORK = 40_000_000  # multiply-adds and elements of one judged size: some 40 ms of a CPU core
MAX_OUTPUT = 4 * ELEMENTS  # elements of the outputs of one judged size: more teach nothing new
MOST_OUTPUT = 4 * MAX_OUTPUT  # where a condition inside a kernel turns at more
FAR_OUTPUT, FAR_WORK = 2**21, 4 * MAX_WORK  # where a kernel may reach as far
TURNING = 8  # sizes on both sides of conditions inside kernels; half as many where no number of its own stands in one
BEYOND = 4  # sizes beyond what kernels may reach
TOGETHER = 2  # sizes at which several such conditions turn at once
MAX_TILE = 512  # larger numbers in a plan are limits, not tiles
TALLEST = 70_000
MOVED = 7  # sizes that are also tried inside a plan's guards
NEAR = 256  # a dimension is moved by less than that to meet a constraint such as D % 2 == 0
UNTILED = (1, 2, 3, 5, 15, 16, 17)  # extents of a dimension whose tile, if any, is unknown
FLAT = 3  # dimensions that are short while all others are not
ELSEWHERE = 4  # sizes that are also judged on chips with other numbers of multiprocessors
# Multiprocessors of GPUs, and slices of GPUs, that there are, and primes: a plan serves every chip of its architecture.
PROCESSORS = (16, 17, 20, 23, 36, 48, 60, 84, 114, 132, 148, 170, 188)
PRIMES = tuple(n for n in range(2, 2000) if all(n % k for k in range(2, int(n**0.5) + 1)))
MIDDLE = tuple(p for p in PRIMES if 90 < p < 180)  # sizes of the others, where FLAT dimensions are short


def work(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Multiply-adds plus elements of every value: a proxy for the time of a reference or an emulation."""
    total = sum(prod(shape_at(t.shape, sizes)) for t in graph.inputs)
    for node in graph.nodes:
        elements = prod(shape_at(node.shape, sizes))
        total += elements
        if node.op in ("linear", "matmul"):
            right = shape_at(graph.value(node.args[1]).shape, sizes)
            left = shape_at(graph.value(node.args[0]).shape, sizes)
            total += elements * (left[-1] if left else right[-1])
    return total


def output_elements(task: Task, sizes: Mapping[str, int]) -> int:
    """Elements of the smallest output."""
    return min(prod(shape_at(t.shape, sizes)) for t in task.outputs)


# ---------------------------------------------------------------------------------------------------- what plans say


def tiles(plans: Iterable[LaunchPlan], axes: Mapping[str, object], dims: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The tile extents of each dimension: divisors in grids and guards, and axes named for it.

    Where nothing at all is found (a persistent grid, say) every dimension gets the extents of any axis; otherwise a
    dimension without a tile has none.
    """
    found: dict[str, set[int]] = {d: set() for d in dims}
    for plan in plans:
        for e in _expressions(plan):
            for divisor, dividend in _divisions(e):
                if 1 < divisor <= MAX_TILE:
                    for d in symbols(dividend) & set(dims):
                        found[d].add(divisor)
    powers = {k: v for k, v in axes.items() if isinstance(v, int) and not isinstance(v, bool) and 8 <= v <= MAX_TILE}
    for d in dims:
        found[d] |= {v for k, v in powers.items() if k.upper().endswith(d.upper())}
    if not any(found.values()):
        found = {d: set(powers.values()) or {16} for d in dims}
    return {d: tuple(sorted(values)) for d, values in found.items()}


def _expressions(plan: LaunchPlan) -> Iterator[Expr]:
    for step in plan.steps:
        if isinstance(step, Launch):
            yield from step.grid
    for g in plan.guards:
        yield g.left
        yield g.right


def _divisions(e: Expr) -> Iterator[tuple[int, Expr]]:
    if isinstance(e, tuple):
        op, a, b = e
        if op in ("cdiv", "fdiv", "mod") and isinstance(b, int):
            yield b, a
        yield from _divisions(a)
        yield from _divisions(b)


def _edges(guards: Iterable[Guard], dims: Sequence[str]) -> list[tuple[str, int]]:
    """(dimension, value) on both sides of each guard that compares one dimension with a number."""
    out: list[tuple[str, int]] = []
    for guard in guards:
        names = sorted((symbols(guard.left) | symbols(guard.right)) & set(dims))
        numbers = set(_numbers(guard.left)) | set(_numbers(guard.right))
        for name in names[:2]:
            for n in sorted(numbers):
                out += [(name, v) for v in (n - 1, n, n + 1) if 1 <= v <= TALLEST]
    return list(dict.fromkeys(out))


def _numbers(e: Expr) -> Iterator[int]:
    if isinstance(e, int):
        yield e
    elif isinstance(e, tuple):
        yield from _numbers(e[1])
        yield from _numbers(e[2])


# ---------------------------------------------------------------------------------------------------- choosing


def turns(task: Task, condition: Guard, rng: random.Random) -> list[tuple[Sizes, Sizes]]:
    """Sizes on both sides of a condition, for each dimension in it: so long that it turns, the others short."""
    out: list[tuple[Sizes, Sizes]] = []
    rest = _small(tuple(task.sizes), rng)
    numbers = [n for n in (*_numbers(condition.left), *_numbers(condition.right)) if 1 < n <= TALLEST]
    for name in sorted((symbols(condition.left) | symbols(condition.right)) & set(task.sizes)):
        near = {v for n in numbers for v in (n - 1, n, n + 1)}
        tried = sorted({v for v in (*near, *(1 << k for k in range(17)), TALLEST) if v <= TALLEST})
        was = _guarded(condition, rest | {name: tried[0]})
        for low, high in pairwise(tried):
            if _guarded(condition, rest | {name: high}) != was:
                turn = low + 1
                while turn < high:
                    middle = (turn + high) // 2
                    if _guarded(condition, rest | {name: middle}) == was:
                        turn = middle + 1
                    else:
                        high = middle
                out.append((rest | {name: turn - 1}, rest | {name: turn}))
                break
    return out


def _turned(
    task: Task, condition: Guard, both: Sequence[tuple[Sizes, Sizes]], pinned: frozenset[str], rng: random.Random
) -> tuple[Sizes, ...]:
    """A pair that is still on both sides when it is cut to what can be judged, if there is one."""
    for pair in rng.sample(both, len(both)):
        low, high = (fit(task, row, pinned, elements=MOST_OUTPUT) for row in pair)
        if low is not None and high is not None and _guarded(condition, low) != _guarded(condition, high):
            return pair
    return ()


def _together(
    rows: Sequence[Sizes], conditions: Sequence[Guard], listed: Mapping[str, tuple[int, ...]], rng: random.Random
) -> list[Sizes]:
    """Sizes at which several conditions go at once the way that they go at fewer of ``rows``.

    What hides behind two conditions is not seen at sizes that turn one of them.
    """
    rare = []
    for condition in conditions[:TURNING]:
        often = 2 * sum(_guarded(condition, row) for row in rows) > len(rows)
        rare.append(_opposite(condition) if often else condition)
    known = {frozenset(k for k, c in enumerate(rare) if _guarded(c, row)) for row in rows}
    found: dict[frozenset[int], Sizes] = {}
    for row in rng.sample(list(rows), len(rows)):
        for k in rng.sample(range(len(rare)), len(rare)):
            held = [c for c in rare if _guarded(c, row)]
            moved = None if rare[k] in held else inside(row, [*held, rare[k]], listed)
            row = row if moved is None else moved
        here = frozenset(k for k, c in enumerate(rare) if _guarded(c, row))
        if len(here) > 1 and not any(here <= other for other in (*known, *found)):
            found[here] = row
    return [found[here] for here in sorted(found, key=len, reverse=True)[:TOGETHER]]


def _beyond(task: Task, capacities: Sequence[Guard], pinned: frozenset[str], rng: random.Random) -> list[Sizes]:
    """A size for each extent, past the largest of its capacities for which there is one that can be judged."""
    of_extent: dict[Expr, list[Guard]] = {}
    for capacity in sorted(capacities, key=lambda c: sum(_numbers(c.right)), reverse=True):
        of_extent.setdefault(capacity.left, []).append(capacity)
    out: list[Sizes] = []
    for extent in rng.sample(list(of_extent), len(of_extent)):
        rows = (_past(task, capacity, pinned, rng) for capacity in of_extent[extent])
        out += [row for row in rows if row is not None][:1]
        if len(out) == BEYOND:
            break
    return out


def _past(task: Task, capacity: Guard, pinned: frozenset[str], rng: random.Random) -> Sizes | None:
    """A size past a capacity that can be judged, with one dimension as long as that takes; None if there is none."""
    names = sorted(symbols(capacity.left) - pinned)
    for others in ([p for p in PRIMES if p < 40], MIDDLE):
        for name in rng.sample(names, len(names)):
            row = {d: rng.choice(others) for d in task.sizes} | {d: task.sizes[d] for d in pinned}
            lengths = (*(1 << k for k in range(17)), TALLEST)
            first = next((n for n in lengths if not _guarded(capacity, row | {name: n})), None)
            if first is None:
                continue
            least = next(n for n in range(first // 2, first + 1) if not _guarded(capacity, row | {name: n}))
            for more in (rng.randrange(least // 2, least), rng.randrange(16)):  # where it can be, much is beyond
                far = _raised(task, row | {name: least + more}, name)
                fitted = fit(task, far, pinned | {name}, FAR_WORK, FAR_OUTPUT)
                if (
                    fitted is not None
                    and not _guarded(capacity, fitted)
                    and not _too_large(task, fitted, FAR_WORK, FAR_OUTPUT)
                ):
                    return fitted
    return None


def _opposite(condition: Guard) -> Guard:
    comparison = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}[condition.comparison]
    return Guard(comparison, condition.left, condition.right)


def _has_number(condition: Guard) -> bool:
    """Whether a number of its own stands in it: what compares sizes with each other is mostly index computation."""
    for side in (condition.left, condition.right):
        number = side[2] if isinstance(side, tuple) and side[0] == "mod" else side
        if isinstance(number, int) and number != 0:
            return True
    return False


def judged_sizes(
    task: Task,
    plans: Sequence[LaunchPlan],
    axes: Mapping[str, object],
    seed: int,
    edges: int = 4,
    conditions: Sequence[Guard] = (),
    others: Sequence[Guard] = (),
    capacities: Sequence[Guard] = (),
) -> tuple[Sizes, ...]:
    """The sizes to judge at, the first with at least ELEMENTS output elements where that is possible.

    ``edges`` bounds how many guard edges are taken.  conditions: what kernels ask (:mod:`.conditions`): up to TURNING
    sizes are for these.  others: those of them that are guards of other plans; beyond these a plan may serve sizes that
    are far from any edge, and is judged at one.  capacities: what may be all that kernels reach; BEYOND sizes
    have more.  A dimension that the task calls constant and a plan pins takes the values its spec lists and no others;
    all of them occur.
    """
    rng = random.Random(seed)
    dims = tuple(task.sizes)
    pinned = _pinned(task, plans)
    extents = tiles(plans, axes, dims)
    guards = [g for plan in plans for g in plan.guards]
    rows: list[Sizes] = [_bulk(task, rng, pinned)]
    rows.append({d: rng.choice(extents[d]) + 1 if extents[d] else rng.choice(UNTILED) for d in dims})
    rows.append({d: rng.choice(extents[d]) - 1 if extents[d] else rng.choice(UNTILED) for d in dims})
    rows.append(dict.fromkeys(dims, 1))
    rows.append({d: rng.choice(extents[d]) * rng.choice((1, 2)) if extents[d] else 16 for d in dims})
    for d in dims:
        rows.append(_raised(task, _small(dims, rng) | {d: _tall(task.sizes[d], rng)}, d))
    for d in rng.sample(dims, min(len(dims), FLAT)):
        rows.append({other: rng.choice(MIDDLE) for other in dims} | {d: rng.choice((1, 2, 3))})
    near = _edges(guards, [d for d in dims if d not in pinned])
    for name, value in rng.sample(near, min(edges, len(near))):
        rows.append(_small(dims, rng) | {name: value})
    turning: list[Sizes] = []
    for condition in sorted(rng.sample(list(conditions), len(conditions)), key=_has_number, reverse=True):
        if len(turning) >= (TURNING if _has_number(condition) else TURNING // 2):
            break
        both = turns(task, condition, rng)
        turned = _turned(task, condition, both, frozenset(pinned), rng)
        if turned and condition in others:
            low, high = turned
            turned = (low, high, {d: 2 * n + 1 if n != low[d] else n for d, n in high.items()})
        turning += [row for row in turned if row not in turning]
    turning += _together([*rows, *turning], [c for c in conditions if _has_number(c)], pinned, rng)
    longest = max((len(values) for values in pinned.values()), default=0)
    while len(rows) < longest:
        rows.append(_small(dims, rng))
    for i, row in enumerate((*rows, *turning)):
        for d, values in pinned.items():
            row[d] = task.sizes[d] if i == 0 else values[i % len(values)]
    fitted = [row for row in (fit(task, row, frozenset(pinned)) for row in rows) if row is not None]
    far = [fit(task, row, frozenset(pinned), elements=MOST_OUTPUT) for row in turning]
    far += _beyond(task, capacities, frozenset(pinned), rng)
    # A specialised plan holds at few of these: it is judged inside its guards too, at as many sizes as a general one.
    near_by = [_fit_inside(task, row, guards, pinned) for row in fitted[:MOVED]]
    served = [row for row in near_by if row is not None]
    if served and any(row not in fitted for row in served):  # twice as much of each dimension: several tiles
        least = min(served, key=lambda row: prod(row.values()))
        doubled = [_raised(task, least | {d: 2 * least[d]}, d) for d in dims if d not in pinned]
        near_by += [_fit_inside(task, row, guards, pinned) for row in doubled]
    unique = {tuple(sorted(row.items())): row for row in (*near_by, *fitted, *far) if row is not None}
    return tuple(_on_others(list(unique.values()), rng) if any("num_sms" in p.used for p in plans) else unique.values())


def _on_others(rows: list[Sizes], rng: random.Random) -> list[Sizes]:
    """The sizes, and some of them on other chips too, the first one among these: there it has the most to share out."""
    first, *rest = rows
    some = [first, *rng.sample(rest, min(len(rest), ELSEWHERE - 1))]
    return rows + [row | {"num_sms": rng.choice(PROCESSORS)} for row in some]


def _fit_inside(task: Task, row: Sizes, guards: Sequence[Guard], listed: Mapping[str, tuple[int, ...]]) -> Sizes | None:
    moved = inside(row, guards, listed)
    if moved is None:
        return None
    changed = frozenset(d for d in row if moved[d] != row[d])
    fitted = fit(task, moved, changed | frozenset(listed))
    if fitted is None or _too_large(task, fitted) or inside(fitted, guards, listed) != fitted:
        return None
    return fitted


def inside(row: Sizes, guards: Sequence[Guard], listed: Mapping[str, tuple[int, ...]]) -> Sizes | None:
    """``row`` with dimensions changed until every guard holds; None where no small change does that.

    ``listed`` dimensions take their listed values alone.  Guards that speak of other things (num_sms) are left aside.
    """
    mine = [g for g in guards if symbols(g.left) | symbols(g.right) <= set(row)]
    for _ in range(2 * len(mine) + 1):
        broken = next((g for g in mine if not _guarded(g, row)), None)
        if broken is None:
            return row
        free = sorted(symbols(broken.left) | symbols(broken.right))
        numbers = {*_numbers(broken.left), *_numbers(broken.right)}
        tried = [row | {d: v} for d in free for v in listed.get(d) or _values(row[d], numbers)]
        better = [new for new in tried if _guarded(broken, new)]
        if not better:
            return None
        row = min(better, key=lambda new: sum(abs(new[d] - row[d]) for d in free))
    return None


def _values(value: int, numbers: Iterable[int]) -> set[int]:
    """Sizes near ``value`` at which a guard with these numbers may hold.

    They, and what is one of them, or nothing, more or less than a multiple of a divisor of theirs: a size may be wanted
    that leaves 1 when it is divided by 8.  So it is with the product of two of them: where tiles of 32 are to be a
    multiple of 16, the size is one of 512.
    """
    found: set[int] = set()
    numbers = set(numbers)
    alone = {n for n in numbers if n > 1}
    for n in (n for n in alone | {a * b for a, b in combinations(alone, 2)} if n <= TALLEST):
        found |= {n - 1, n, n + 1}
        for k in (k for k in range(2, min(n, 4096) + 1) if n % k == 0):
            for rest in {0, *(m % k for m in numbers), *(-m % k for m in numbers)}:
                found |= {(value - rest) // k * k + rest, -(-(value - rest) // k) * k + rest}
    return {v for v in found if 1 <= v <= TALLEST}


def _guarded(guard: Guard, row: Mapping[str, int]) -> bool:
    return _holds((guard.comparison, guard.left, guard.right), row)


def _pinned(task: Task, plans: Sequence[LaunchPlan]) -> dict[str, tuple[int, ...]]:
    mentioned = {s for plan in plans for g in plan.guards for s in symbols(g.left) | symbols(g.right)}
    return {
        d: tuple(dict.fromkeys((task.sizes[d], *values))) for d, values in task.constants if d in mentioned and values
    }


def _small(dims: Sequence[str], rng: random.Random) -> Sizes:
    return {d: rng.choice([p for p in PRIMES if p < 40]) for d in dims}


def _tall(sample: int, rng: random.Random) -> int:
    """A prime at twice the sample or more (bounded): what is right up to the sample's own size cannot hide."""
    start = min(rng.randrange(2, 4) * max(sample, 32), TALLEST) + rng.randrange(1, 16)
    return next(n for n in range(start, 2 * start + 2) if all(n % k for k in range(2, int(n**0.5) + 1)))


def _raised(task: Task, row: Sizes, name: str) -> Sizes:
    """``row`` with dimensions that ``name`` may not exceed at least as long: it is to be the long one."""
    for comparison, left, right in task.constraints:
        least, most = (left, right) if comparison in ("<=", "<") else (right, left)
        if comparison != "==" and least == name and isinstance(most, str):
            row = row | {most: max(row[most], row[name] + (comparison in ("<", ">")))}
    return row


def _bulk(task: Task, rng: random.Random, pinned: Mapping[str, tuple[int, ...]]) -> Sizes:
    """Primes, grown together until the smallest output has ELEMENTS elements."""
    scale = 7.0
    row: Sizes = {}
    for _ in range(40):
        row = {d: rng.choice([p for p in PRIMES if scale <= p <= 1.5 * scale + 4]) for d in task.sizes}
        row |= {d: task.sizes[d] for d in pinned}
        satisfied = _satisfy(task, row)
        if satisfied is None or output_elements(task, satisfied) >= ELEMENTS or _too_large(task, satisfied):
            break
        scale = min(scale * 1.25, 1200)
    return row


def fit(task: Task, row: Sizes, keep: frozenset[str], most: int = MAX_WORK, elements: int = MAX_OUTPUT) -> Sizes | None:
    """``row`` within the task's constraints, ``most`` work and ``elements`` of outputs: others than ``keep`` are cut.

    None if the constraints cannot be met; too large a row where all that could be cut is 1.
    """
    fitted = _satisfy(task, row)
    while fitted is not None and _too_large(task, fitted, most, elements):
        free = {d: v for d, v in fitted.items() if d not in keep and v > 1}
        if not free:
            return fitted
        longest = max(free, key=lambda d: free[d])
        # the others are cut first: the longest is usually why the row exists
        others = sorted(((v, d) for d, v in free.items() if d != longest and v > 2), reverse=True)
        for victim in (*(d for _, d in others), longest):
            cut = _satisfy(task, fitted | {victim: fitted[victim] // 2 | (fitted[victim] > 7)})
            if cut is None or sum(cut.values()) < sum(fitted.values()):
                break
        else:  # what is cut has to be as long as it was: a table, that of each position has a row
            return fitted
        fitted = cut
    return fitted


def _too_large(task: Task, row: Sizes, most: int = MAX_WORK, elements: int = MAX_OUTPUT) -> bool:
    return work(task.graph, row) > most or output_elements(task, row) > elements


def _satisfy(task: Task, row: Sizes) -> Sizes | None:
    """``row`` with the smaller side of broken constraints lowered, or the larger raised, or one dimension moved.

    None where that fails.
    """
    row = dict(row)
    for _ in range(2 * len(task.constraints) + 2):
        broken = next((c for c in task.constraints if not _holds(c, row)), None)
        if broken is None:
            return row
        comparison, left, right = broken
        if isinstance(left, str) and comparison in ("<=", "<", "=="):
            row[left] = max(1, evaluate(right, row) - (comparison == "<"))
        elif isinstance(right, str) and comparison in (">=", ">", "=="):
            row[right] = max(1, evaluate(left, row) - (comparison == ">"))
        elif isinstance(left, str) and comparison in (">=", ">"):
            row[left] = evaluate(right, row) + (comparison == ">")
        elif isinstance(right, str) and comparison in ("<=", "<"):
            row[right] = evaluate(left, row) + (comparison == "<")
        else:
            moved = _moved(broken, row)
            if moved is None:
                return None
            row = moved
    return None


def _moved(constraint: tuple[str, Expr, Expr], row: Sizes) -> Sizes | None:
    """``row`` with one dimension changed as little as makes the constraint hold (RoPE: a head's width is even)."""
    _, left, right = constraint
    names = sorted((symbols(left) | symbols(right)) & set(row))
    near = (row | {name: row[name] + by} for step in range(1, NEAR) for name in names for by in (step, -step))
    return next((new for new in near if min(new.values()) >= 1 and _holds(constraint, new)), None)


def _holds(constraint: tuple[str, Expr, Expr], row: Mapping[str, int]) -> bool:
    comparison, left, right = constraint
    try:
        return holds(comparison, evaluate(left, row), evaluate(right, row))
    except ExprError:
        return False
