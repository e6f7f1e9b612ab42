"""How a kernel is made, as far as it can be read off its file: what configurations of several files differ in.

persistent: blocks walk over tiles, ``for tile in range(ct.bid(0), tiles, ct.num_blocks(0))``.
paired rows, next scores early: how an attention kernel walks; TMA loads, TMA stores.  Of kernels whose axes say so.
bounds checks: some load or store of the file checks bounds (``check_bounds=False`` is the other way).
approximate math: a function is asked for its approximation.
no TMA: a load or store is told not to be one.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Hashable, Mapping
from typing import Any

PERSISTENT, BOUNDS, APPROXIMATE, NO_TMA = "persistent", "bounds checks", "approximate math", "no TMA"
# What files that have an axis STRUCTURE call theirs.
_STRUCTURES = {"persistent": PERSISTENT, "paired_rows": "paired rows", "split": "next scores early"}
# And axes that say yes or no, or by a number in which order an attention kernel walks over its rows.
_YES_OR_NO = {"PERSISTENT": PERSISTENT, "TMA_LOAD": "TMA loads", "TMA_STORE": "TMA stores"}
_ORDERS = {0: "longest rows of all heads first", 1: "head by head, longest first", 2: "head by head, shortest first"}
STRUCTURES = tuple(dict.fromkeys((*_STRUCTURES.values(), *_YES_OR_NO.values(), BOUNDS, APPROXIMATE, NO_TMA)))


def features(axes: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Axes and structures of a configuration of the file ``source``, by name.

    What axes say counts more than the file.  Without a file they alone do: those of the sweeps that ship so
    (:mod:`knowledge_base.landscapes`).
    """
    made = _structure(source) if source else {}
    guards = {value for value in made.values() if isinstance(value, str)}
    found: dict[str, Any] = {
        name: value if isinstance(value, Hashable) else str(value) for name, value in axes.items() if name not in guards
    }
    found |= {name: bool(axes.get(str(value), value)) for name, value in made.items()}
    if "STRUCTURE" in found:
        written = found.pop("STRUCTURE")
        found |= {name: written == called for called, name in _STRUCTURES.items()}
    found |= {name: bool(found.pop(axis)) for axis, name in _YES_OR_NO.items() if axis in found}
    if not source and found.get("ORDER") in _ORDERS:
        found["ORDER"] = _ORDERS[found["ORDER"]]
    return found


@functools.lru_cache(maxsize=1024)
def _structure(source: str) -> dict[str, bool | str]:
    """Of a file; a text is the axis that decides.  Nothing of one that is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    memory = [call for call in _calls(tree) if _name(call) in ("ct.load", "ct.store")]
    return {
        PERSISTENT: _persistent(tree),
        BOUNDS: not memory or not all(_says(call, "check_bounds", False) for call in memory),
        NO_TMA: any(_says(call, "allow_tma", False) for call in memory),
        APPROXIMATE: any("APPROX" in ast.unparse(keyword.value) for c in _calls(tree) for keyword in c.keywords),
    }


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _says(call: ast.Call, name: str, value: bool) -> bool:
    return any(k.arg == name and isinstance(k.value, ast.Constant) and k.value.value is value for k in call.keywords)


def _persistent(tree: ast.AST, guard: str = "") -> bool | str:
    """Whether a loop goes from a block's number by the number of blocks; under ``if AXIS:`` the name of that axis."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _name(node.iter) == "range":
            said = ast.unparse(node.iter)
            if "ct.bid(" in said and "ct.num_blocks(" in said:
                return guard or True
        inner = node.test.id if isinstance(node, ast.If) and isinstance(node.test, ast.Name) else guard
        found = _persistent(node, inner)
        if found:
            return found
    return False
