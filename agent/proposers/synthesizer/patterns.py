"""Patterns in primitives that a kernel of their own serves: attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .primitives import ELEMENTWISE, Prim


def attention_parts(
    v: Prim, readers: Mapping[Prim, Sequence[Prim]], outputs: Sequence[Prim]
) -> tuple[Prim, Prim] | None:
    """(scores, q kᵀ) if ``v`` is softmax(scores) @ values, scores are elementwise in q kᵀ, and nobody else reads these.

    readers: who reads a value.  outputs: values that must be stored, and so have a reader of their own.
    """
    if v.op != "matmul":
        return None
    weights = v.args[0]
    inside: set[Prim] = set()
    while weights.op == "cast":
        inside.add(weights)
        weights = weights.args[0]
    if weights.op != "softmax":
        return None
    scores = weights.args[0]
    between = between_matmul_and(scores)
    products = [x for x in between if x.op == "matmul"]
    if len(products) != 1 or products[0].shape != scores.shape:
        return None
    inside |= {*between, weights}
    private = all(x not in outputs and all(r in inside or r is v for r in readers.get(x, ())) for x in inside)
    return (scores, products[0]) if private else None


def between_matmul_and(root: Prim) -> list[Prim]:
    """Nodes from ``root`` down to matmuls through elementwise ops, as far as they depend on one; matmuls included."""
    depends: dict[Prim, bool] = {}

    def look(x: Prim) -> bool:
        if x not in depends:
            depends[x] = x.op == "matmul" or (x.op in ELEMENTWISE and max(map(look, x.args), default=False))
        return depends[x]

    look(root)
    return [x for x, yes in depends.items() if yes]
