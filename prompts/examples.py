"""How others write it: TileGym's kernel for the op that a task is about, read from the installed package.

The source is cut to the kernel with the functions and constants of its file that it uses, without docstrings.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path

from kernels_generated.runtime.syntax import parse
from knowledge_base.snf.task import Task

PACKAGE = "tilegym"
OPS = Path("ops") / "cutile"
# What a task has to hold, the most telling first → file and function.
KERNELS: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(ops), file, function)
    for ops, file, function in (
        (("matmul", "softmax"), "attention.py", "fmha_kernel_impl"),
        (("linear",), "matmul.py", "_static_persistent_matmul_kernel"),
        (("matmul",), "matmul.py", "_static_persistent_matmul_kernel"),
        (("rope",), "rope.py", "_rope_kernel"),
        (("layernorm",), "layer_norm_legacy.py", "_persistent_layer_norm_fwd_kernel"),
        (("rmsnorm",), "rms_norm.py", "_rms_norm_kernel_static_persistent"),
        (("softmax",), "softmax.py", "_softmax_kernel_tma"),
        (("silu",), "silu_and_mul.py", "_silu_and_mul_kernel_row_wise"),
        (("gelu",), "activation/gelu.py", "_gelu_kernel"),
        (("permute",), "transpose.py", "_transpose_kernel"),
        (("relu",), "activation/relu.py", "_relu_fwd_kernel"),
    )
)

# What of such a source this contract refuses, or this cuTile: a piece of the source, and what to do instead.
CAVEATS: tuple[tuple[str, str], ...] = (
    ("_kernel_impl(", "it is called by a function with @ct.kernel, which is left out"),
    ("avg_square - mean * mean", "its variance loses every digit at an offset: take the mean of (x - mean)²"),
    ("ct.sigmoid(", "ct.sigmoid is not there: 1 / (1 + ct.exp(-x))"),
    ("torch.float32", "dtypes in a kernel are cuTile's: ct.float32, ct.int32"),
    (
        "shape=(1, 1, TILE_N, TILE_D), latency",
        "what its loads of keys and values leave undetermined at the end may be NaN: padding_mode=ct.PaddingMode.ZERO",
    ),
    ("dtype=x_val.dtype", "it computes in the dtype of its input: convert to ct.float32 first"),
)


def caveats(source: str) -> list[str]:
    """What in a kernel of TileGym's is not to be taken over."""
    return [said for piece, said in CAVEATS if piece in source]


def tilegym(task: Task) -> tuple[str, str] | None:
    """(file and function, source) of the kernel nearest to ``task``; None where there is none, or no TileGym."""
    ops = {node.op for node in task.graph.nodes}
    for wanted, file, function in KERNELS:
        if wanted <= ops:
            source = excerpt(file, function)
            return (f"{file}: {function}", source) if source else None
    return None


@functools.cache
def excerpt(file: str, function: str) -> str:
    """A function of the installed package with those of its file that it calls; empty where it is not there."""
    path = _folder() / OPS / file
    try:
        tree = parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return ""
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in known:
        return ""
    wanted, ahead = [function], [function]
    while ahead:
        called = {n.id for n in ast.walk(known[ahead.pop()]) if isinstance(n, ast.Name) and n.id in known}
        ahead += sorted(called - set(wanted))
        wanted += sorted(called - set(wanted))
    used = {n.id for name in wanted for n in ast.walk(known[name]) if isinstance(n, ast.Name)}
    constants = [node for node in tree.body if _bound(node) & used]
    return "\n\n".join([*map(ast.unparse, constants), *(_bare(known[name]) for name in reversed(wanted))]) + "\n"


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives: constants, and what is imported under a name of its own."""
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names if alias.asname != "ct"}
    return set()


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path("/nowhere")


def _bare(node: ast.FunctionDef) -> str:
    """The function's text, without docstring and comments."""
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
        node.body = node.body[1:]
    return ast.unparse(node)
