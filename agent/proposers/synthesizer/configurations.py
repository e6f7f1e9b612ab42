"""AXES: which configurations a file offers, and which of them is its default.

Tile sizes, occupancies and cluster sizes that pay by architecture (measured on an H200; elsewhere by the rules of
thumb of the chips' MMA units), cut down to the sizes of the task.  The same axis has the same name in every file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels_generated.runtime.expr import evaluate
from knowledge_base.chips import Chip

from .groups import Group
from .primitives import Prim

Axes = dict[str, list[int]]

# One tile of a row kernel by default: with more, a long expression spills.
ROW_TILE = 2048

# Matrix tiles: 16-bit operands on tensor cores, by family.  sm_90: wgmma wants TM >= 64, and 256 columns want 8 warps;
# sm_100: tcgen05 takes larger tiles and pairs of blocks; sm_120: mma.sync, less shared memory.  The first values are
# those that tileiras 13.4 compiles without spills also where nothing is known of alignment (found by trying).
_MMA: dict[str, Axes] = {
    "sm_90": {
        "TM": [128, 64], "TN": [128, 256, 64], "TK": [64, 32, 128], "GROUP": [8, 4, 16], "PERSISTENT": [0, 1],
        "occupancy": [1, 2], "num_worker_warps": [4, 8],
    },
    "sm_100": {
        "TM": [128, 256, 64], "TN": [128, 256, 64], "TK": [64, 128, 32], "GROUP": [8, 4, 16], "PERSISTENT": [1, 0],
        "occupancy": [1, 2], "num_ctas": [1, 2],
    },
    "sm_120": {
        "TM": [128, 64], "TN": [128, 64], "TK": [32, 64], "GROUP": [8, 4, 16], "PERSISTENT": [1, 0],
        "occupancy": [1, 2], "num_worker_warps": [8, 4],
    },
}  # fmt: skip
WIDEST_PAIR = 128  # columns of each of two accumulators: they share a block's registers
# float32 without tensor cores: an accumulator of 64 by 64 leaves registers for the operands; TK is also the length of
# the pieces in which products are summed (short pieces round less: with 8 to 16 no more than PyTorch on a CPU).
_FMA: Axes = {
    "TM": [64, 32, 128], "TN": [64, 32, 128], "TK": [16, 32, 8], "GROUP": [8], "PERSISTENT": [1, 0],
    "occupancy": [1, 2],
}  # fmt: skip
# Attention by family, with heads of up to 64 and wider ones.  On sm_90 many small blocks hide what exponentials wait
# for; with heads of 128 long tiles of keys pay, 128 by 128 with 8 warps (measured on an H200).  On sm_100 tcgen05 has
# its full rate from 128 rows on.
_WIDE: Axes = {"TM": [64, 32], "TN": [32, 64], "occupancy": [1, 2]}
_ATTENTION: dict[str, tuple[Axes, Axes]] = {
    "sm_90": (
        {"TM": [64, 128], "TN": [64, 32, 128], "occupancy": [2, 4, 3, 1]},
        {"TM": [64, 128], "TN": [128, 64, 32], "occupancy": [2, 1, 3], "num_worker_warps": [4, 8]},
    ),
    "sm_100": (
        {"TM": [64, 128], "TN": [64, 32, 128], "occupancy": [2, 1, 3, 4]},
        {"TM": [128, 256, 64], "TN": [128, 64], "occupancy": [1, 2]},
    ),
    "sm_120": ({"TM": [64, 128], "TN": [32, 64, 128], "occupancy": [3, 2, 4, 1]}, _WIDE),
}
FEWEST_QUERIES = 16  # rows that a tensor core multiplies at once
_ATTENTION_FMA: Axes = {"TM": [32, 16, 64], "TN": [32, 16, 64], "TK": [8, 16, 32], "occupancy": [1, 2]}


def configurations(
    groups: Sequence[Group], constants: Sequence[str], sizes: Mapping[str, int], chip: Chip | None, tf32: bool
) -> Axes:
    """The axes that the kernels of ``groups`` take; ``constants`` are their compile-time parameters."""
    axes: Axes = {}
    for group in sorted(groups, key=lambda g: g.kind not in ("matmul", "attention")):  # theirs are the defaults
        for name, values in _of_group(group, sizes, chip, tf32).items():
            axes[name] = [v for v in axes.get(name, values) if v in values] or values
    hints = ("occupancy", "num_ctas", "num_worker_warps")
    order = ("TM", "TN", "TK", "GROUP", "ROWS", "CHUNK", "PERSISTENT", *hints)
    return {name: axes[name] for name in order if name in axes and (name in constants or name in hints)}


def family(chip: Chip | None) -> str:
    arch = chip.arch if chip is not None else "sm_120"
    return {"sm_103": "sm_100", "sm_121": "sm_120"}.get(arch, arch)


def _of_group(group: Group, sizes: Mapping[str, int], chip: Chip | None, tf32: bool) -> Axes:
    if group.kind == "matmul":
        assert group.rows is not None
        assert group.columns is not None
        assert group.inner is not None
        base = _MMA.get(family(chip), _MMA["sm_120"]) if _on_tensor_cores(group, tf32) else _FMA
        widest = max(evaluate(axis.extent, sizes) for axis in (group.columns, *group.beside))
        lengths = {"TM": evaluate(group.rows.extent, sizes), "TN": widest, "TK": evaluate(group.inner.extent, sizes)}
        axes = {n: _fitting(v, lengths[n]) if n in lengths else list(v) for n, v in base.items()}
        if len(group.anchors) > 1 + len(group.beside):
            axes["TN"] = sorted(tn for tn in axes["TN"] if tn <= WIDEST_PAIR)
            if family(chip) == "sm_120":  # a loop over tiles needs registers too, and two accumulators leave none
                axes["PERSISTENT"] = sorted(axes["PERSISTENT"])
        if _reads_matrix(group):  # beside a wide accumulator it spills where tiles can't be loaded as a block
            axes["TN"].sort(key=lambda tn: tn != 64)
            axes["TK"].sort(key=lambda tk: tk != 64)
        return axes
    if group.kind == "attention":
        assert group.inner is not None
        assert group.columns is not None
        width = max(evaluate(group.inner.extent, sizes), evaluate(group.columns.extent, sizes))
        narrow, wide = _ATTENTION.get(family(chip), _ATTENTION["sm_120"])
        if width > 128:
            wide = _WIDE
        base = _ATTENTION_FMA if not _on_tensor_cores(group, tf32) else narrow if width <= 64 else wide
        assert group.rows is not None
        if evaluate(group.rows.extent, sizes) <= FEWEST_QUERIES:  # decoding: it is the keys that take time
            base = base | {"TM": [FEWEST_QUERIES]}
        return {n: list(v) for n, v in base.items()}
    if group.columns is None:
        return {"CHUNK": [1024], "occupancy": [1]}
    return _elementwise(group, sizes)


def _reads_matrix(group: Group) -> bool:
    """Whether the epilogue reads something as large as the result (a residual)."""
    shape = group.anchors[0].shape
    seen: set[Prim] = set(group.anchors)
    todo = [s.value for s in group.stores]
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op == "leaf" and v.shape[-2:] == shape[-2:]:
            return True
        todo += v.args
    return False


def _on_tensor_cores(group: Group, tf32: bool) -> bool:
    operands = (group.product or group.anchors[0]).args
    return all(o.dtype in ("bf16", "f16") or (tf32 and o.dtype == "f32") for o in operands)


def _fitting(values: Sequence[int], length: int) -> list[int]:
    """The tile sizes that are not mostly padding; the smallest where all are."""
    kept = [v for v in values if v <= max(32, power_of_two(length))]
    return kept or [min(values)]


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _elementwise(group: Group, sizes: Mapping[str, int]) -> Axes:
    assert group.columns is not None
    columns = evaluate(group.columns.extent, sizes)
    if group.kind == "map" and group.transposes:
        return {"ROWS": [32, 64, 16], "CHUNK": [32, 64, 16], "occupancy": [4, 2, 1]}
    widest = power_of_two(columns)
    chunks = [c for c in (1024, 512, 256, 2048, 4096) if c <= max(widest, 32)] or [max(16, widest)]
    if group.flat:
        return {"CHUNK": [1024, 2048, 512, 4096], "occupancy": [4, 8, 2, 1]}
    best = max(1, min(16, ROW_TILE // chunks[0]))
    if group.kind == "map":  # short rows: fewer, larger blocks
        return {
            "ROWS": [best, 2 * best, 4 * best, max(1, best // 2)], "CHUNK": chunks[:3],
            "PERSISTENT": [1, 0], "occupancy": [4, 2, 8, 1],
        }  # fmt: skip
    rows = sorted((1, 2, 4, 8, 16), key=lambda r: (abs(r.bit_length() - best.bit_length()), r))[:4]
    return {"ROWS": rows, "CHUNK": chunks[:3], "PERSISTENT": [1, 0], "occupancy": [4, 2, 8, 1]}
