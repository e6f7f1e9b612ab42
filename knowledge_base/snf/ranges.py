"""Between which ends the whole numbers lie that a graph makes of sizes, positions, constants and integer inputs.

Interval arithmetic (Moore, Interval Analysis, 1966) on size expressions, so that an answer holds for all sizes at once;
at numbers the ends are numbers.  An end is None where nothing is known of it.  What an interval says is true, though it
may be wider than what the values really take: ``t - t`` lies between ``-n`` and ``n``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_generated.runtime.expr import Expr, build, decide

from .graph import Graph, Node, Tensor
from .op_table import OPS

Interval = tuple[Expr | None, Expr | None]  # the least and the greatest value
UNKNOWN: Interval = (None, None)
WHOLE = ("i32", "i64")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def interval(graph: Graph, name: str, given: Mapping[str, Interval]) -> Interval:
    """Between which ends the values of ``name`` lie, where each input lies in its interval of ``given``."""
    known: dict[str, Interval] = {}
    todo = [name]
    while todo:
        value = graph.value(todo[-1])
        missing = [arg for arg in value.args if arg not in known] if isinstance(value, Node) else []
        if missing:
            todo += missing
            continue
        known[todo.pop()] = (
            _node(value, [known[arg] for arg in value.args])
            if isinstance(value, Node)
            else given.get(value.name, UNKNOWN)
        )
    return known[name]


def reaching(graph: Graph, name: str) -> set[str]:
    """The inputs that ``name`` is computed from."""
    seen, todo = {name}, [name]
    while todo:
        value = graph.value(todo.pop())
        new = set(value.args) - seen if isinstance(value, Node) else set()
        seen |= new
        todo += new
    return {t.name for t in graph.inputs} & seen


def held_against(graph: Graph, name: str) -> list[tuple[str, str]]:
    """(what is computed from the input ``name``, what it is compared with) of each comparison, minimum and maximum."""
    found = []
    for node in graph.nodes:
        if node.op in (*COMPARISONS, "minimum", "maximum"):
            for mine, other in (node.args, reversed(node.args)):
                if name in reaching(graph, mine) and name not in reaching(graph, other):
                    found.append((mine, other))
    return found


def _node(node: Node, args: list[Interval]) -> Interval:
    if node.op in ("const", "dim"):
        number = node.attr("value") if node.op == "const" else node.attr("expr")
        whole = not isinstance(number, float) or number.is_integer()
        return (_whole(number), _whole(number)) if whole else UNKNOWN
    if node.op == "iota":
        return 0, build("-", node.attr("n"), 1)
    if OPS[node.op].kind == "view" or (node.op == "cast" and node.dtype in WHOLE) or node.op == "gather":
        return args[0]
    if node.op in COMPARISONS:
        return _compared(node.op, args)
    rule = _RULES.get(node.op)
    return UNKNOWN if rule is None or (node.dtype not in WHOLE and node.shape != ()) else rule(args)


def _whole(number: Any) -> Expr:
    return int(number) if isinstance(number, float) else number


def _both(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    return None if a is None or b is None else build(op, a, b)


def _add(args: list[Interval]) -> Interval:
    (a, b), (c, d) = args
    return _both("+", a, c), _both("+", b, d)


def _sub(args: list[Interval]) -> Interval:
    (a, b), (c, d) = args
    return _both("-", a, d), _both("-", b, c)


def _mul(args: list[Interval]) -> Interval:
    """Of two that are not negative, or of one and a number."""
    for one, other in (args, reversed(args)):
        (a, b), (c, d) = one, other
        if isinstance(c, int) and c == d:
            ends = (_both("*", a, c), _both("*", b, c))
            return ends if c >= 0 else (ends[1], ends[0])
    (a, b), (c, d) = args
    if a is not None and c is not None and decide(">=", a, 0) and decide(">=", c, 0):
        return build("*", a, c), _both("*", b, d)
    return UNKNOWN


def _neg(args: list[Interval]) -> Interval:
    return _sub([(0, 0), args[0]])


def _abs(args: list[Interval]) -> Interval:
    least, greatest = args[0]
    if least is not None and decide(">=", least, 0):
        return args[0]
    return 0, _both("max", _both("-", 0, least), greatest)


def _minimum(args: list[Interval]) -> Interval:
    (a, b), (c, d) = args
    return _both("min", a, c), _both("min", b, d) if b is not None and d is not None else d if b is None else b


def _maximum(args: list[Interval]) -> Interval:
    (a, b), (c, d) = args
    return _both("max", a, c) if a is not None and c is not None else c if a is None else a, _both("max", b, d)


def _compared(op: str, args: list[Interval]) -> Interval:
    """1 where the comparison holds for all values, 0 where for none."""
    (a, b), (c, d) = args
    if op in ("gt", "ge"):
        return _compared("lt" if op == "gt" else "le", [args[1], args[0]])
    if op in ("lt", "le"):
        comparison, opposite = ("<", ">=") if op == "lt" else ("<=", ">")
        if b is not None and c is not None and decide(comparison, b, c):
            return 1, 1
        return (0, 0) if a is not None and d is not None and decide(opposite, a, d) else (0, 1)
    apart = (b is not None and c is not None and decide("<", b, c)) or (
        a is not None and d is not None and decide(">", a, d)
    )
    same = a is not None and all(other is not None and decide("==", a, other) for other in (b, c, d))
    if not apart and not same:
        return 0, 1
    holds = int(bool(same) == (op == "eq"))
    return holds, holds


def _where(args: list[Interval]) -> Interval:
    return args[1] if args[0] == (1, 1) else args[2] if args[0] == (0, 0) else _hull(args[1:])


def _hull(args: list[Interval]) -> Interval:
    least, greatest = args[0]
    for a, b in args[1:]:
        least, greatest = _both("min", least, a), _both("max", greatest, b)
    return least, greatest


_RULES = {
    "add": _add, "sub": _sub, "mul": _mul, "neg": _neg, "abs": _abs, "square": lambda args: _mul([*args, *args]),
    "relu": lambda args: _maximum([args[0], (0, 0)]), "minimum": _minimum, "maximum": _maximum, "max": _hull,
    "where": _where, "concat": _hull,
}  # fmt: skip


def indices(graph: Graph) -> list[tuple[Node, str, Tensor | Node]]:
    """(the gather, its index, its table) of each gather of ``graph``."""
    return [(n, n.args[1], graph.value(n.args[0])) for n in graph.nodes if n.op == "gather"]
