"""Attention in a graph of torch.compile: causal scaled_dot_product_attention by an operator.

Models whose mask is causal build it out of numbers where they are compiled, so that PyTorch attends under a mask, which
takes two to three times as long.  A mask that depends on nothing given is known while the graph is compiled.  Where
queries, keys and values are parts of one tensor they are read from there; apart they would be copied first.
"""

from __future__ import annotations

import inspect
import math
import operator as calls
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._C._functorch import _vmap_decrement_nesting, maybe_current_level

from kernels_generated.ops import Operator, operators

from .attended import ATTENTION, PACKED, compute, computing
from .racing import is_faster
from .traced import is_harmless, is_of_vmap, is_plain, is_undisturbed, value

VIEWS = {"view", "transpose", "permute", "split", "chunk", "unflatten"}
VIEWING = {calls.getitem, torch.transpose, torch.permute, torch.split, torch.chunk}
LARGEST = 1 << 28  # elements of what masks are made of
_PARAMETERS = inspect.signature(computing)


def attend(module: fx.GraphModule) -> list[str]:
    """Replaces, in place, attention that an operator computes.  The operators' names, in the graph's order.

    What gradients are recorded of stays, and so does what has no kernels on its device, and attention in float32.
    """
    graph = module.graph
    asked = {node: _asked(node) for node in graph.nodes if node.target is F.scaled_dot_product_attention}
    causal = _causal(graph, list(asked), [given["attn_mask"] for given in asked.values()])
    made = []
    for node, given in asked.items():
        name = _replaced(graph, node, given, causal)
        if name:
            made.append(name)
    if made:
        graph.lint()
        module.recompile()
    return made


def _asked(node: fx.Node) -> dict[str, Any]:
    """The arguments of scaled_dot_product_attention, by their names."""
    bound = _PARAMETERS.bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _replaced(graph: fx.Graph, node: fx.Node, given: dict[str, Any], causal: Container[Any]) -> str:
    """The operator that is in the node's place now; empty where none is."""
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    if not all(isinstance(one, fx.Node) and is_plain(one) for one in (*tensors, node)):
        return ""
    values = [value(one) for one in tensors]
    if not all(isinstance(n, int) for one in values for n in one.shape):
        return ""
    if given["attn_mask"] in causal and not given["is_causal"]:
        *rows, T, _ = values[0].shape
        *over, queries, keys = value(given["attn_mask"]).shape
        if queries == keys == T and all(n in (1, m) for n, m in zip(reversed(over), reversed(rows))):  # noqa: B905
            given |= {"attn_mask": None, "is_causal": True}
    if any(isinstance(one, fx.Node) for one in given.values()):
        return ""
    operator, _ = computing(*values, **given)
    if operator is None or values[0].dtype is torch.float32:
        return ""
    if operator.name == ATTENTION:
        whole = _whole(tensors)
        if whole is not None and PACKED in operators() and is_undisturbed(whole, node):
            operator, tensors = operators()[PACKED], [whole]
    if operator.lacks(tuple(value(one).dtype for one in tensors), values[0].device):
        return ""
    shape, heads = values[0].shape, values[1].shape[1]
    if not _is_faster(operator, shape, heads, [value(one) for one in tensors]):
        return ""
    _, H, T, D = shape
    in_rows = operator.name != ATTENTION  # in which order the result lies, if not that of PyTorch's, is seen by users
    row_wise = (T * H * D, D, H * D, 1)
    tracer = fx.proxy.GraphAppendingTracer(graph)
    with graph.inserting_before(node):
        made = compute(operator, shape, heads, [fx.Proxy(one, tracer) for one in tensors])
        wanted = value(node).stride() == row_wise
        if wanted and not in_rows:
            made = made.transpose(1, 2).contiguous().transpose(1, 2)
        elif in_rows and not wanted:
            made = made.contiguous()
    made.node.meta = dict(node.meta)
    node.replace_all_uses_with(made.node)
    graph.erase_node(node)
    return operator.name


def _is_faster(operator: Operator, shape: Sequence[int], heads: int, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the operator takes less than PyTorch's causal attention on such tensors; these as :func:`compute` has
    them."""
    B, H, T, D = shape

    def ours(*given: torch.Tensor) -> Any:
        return compute(operator, shape, heads, given)

    def pytorchs(*given: torch.Tensor) -> torch.Tensor:
        if operator.name == PACKED:
            given = given[0].view(B, T, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=heads != H)

    return is_faster((operator.name, tuple(shape)), tensors, ours, pytorchs)


# ---------------------------------------------------------------------------------------------------- parts of one


def _whole(tensors: Sequence[fx.Node]) -> fx.Node | None:
    """The tensor that holds queries, keys and values [B, H, T, D] as [B, T, 3, H, D], where there is one."""
    B, H, T, D = value(tensors[0]).shape
    root = tensors[0]
    while True:
        viewed = _viewed(root)
        if viewed is None:
            break
        root = viewed
    of = value(root)
    if not is_plain(root) or not of.is_contiguous() or of.numel() != 3 * B * T * H * D:
        return None
    for place, one in enumerate(tensors):
        part = _placed(one, root, torch.empty(of.shape, dtype=of.dtype, device="meta"))
        if part is None or (part.shape, part.dtype) != ((B, H, T, D), of.dtype):
            return None
        if (part.storage_offset(), part.stride()) != (place * H * D, (3 * T * H * D, D, 3 * H * D, 1)):
            return None
    return root


def _viewed(node: fx.Node) -> fx.Node | None:
    """The tensor, or the tensors, that the node gives a view of."""
    if (node.op == "call_method" and node.target in VIEWS) or node.target in VIEWING:
        others = node.all_input_nodes
        return others[0] if len(others) == 1 else None
    if node.target is torch.cat and isinstance(node.args[0], list | tuple):  # a cache that holds nothing yet
        first, *others = sorted(node.args[0], key=lambda one: value(one).numel() == 0)
        if all(value(one).numel() == 0 for one in others) and value(first).shape == value(node).shape:
            return first
    return None


def _placed(node: fx.Node, root: fx.Node, whole: torch.Tensor) -> Any:
    """What the node gives of ``root``, in ``whole``'s place; None where it is no view of it."""
    if node is root:
        return whole
    viewed = _viewed(node)
    if viewed is None:
        return None
    of = _placed(viewed, root, whole)
    if of is None or node.target is torch.cat:
        return of
    args = [of, *node.args[1:]]
    if node.op == "call_method":
        return getattr(of, str(node.target))(*args[1:], **node.kwargs)
    return node.target(*args, **node.kwargs)  # type: ignore[operator]


# ---------------------------------------------------------------------------------------------------- masks


def _causal(graph: fx.Graph, attention: Sequence[fx.Node], masks: Sequence[Any]) -> set[fx.Node]:
    """The masks, of those that nothing given has a part in, that let each query see the keys up to its own place."""
    known: dict[fx.Node, None] = {}
    begun, waited = False, set(attention)
    for node in graph.nodes:
        if not waited:
            break
        begun = begun or node in waited
        waited.discard(node)
        held = known.keys() & set(node.all_input_nodes)
        made = _makes(node) and len(held) == len(node.all_input_nodes)
        if held and (begun or not made) and not is_harmless(node):
            return set()  # it might change what a mask is made of, or was
        if made:
            known[node] = None
    wanted = [mask for mask in dict.fromkeys(masks) if isinstance(mask, fx.Node) and mask in known]
    return {mask for mask, made in zip(wanted, _made(known, wanted), strict=True) if _is_causal(made)}


def _makes(node: fx.Node) -> bool:
    """Whether it gives a tensor that is not too large, or is a step of vmap; others enter and leave some context."""
    if node.op not in ("call_function", "call_method"):
        return False
    given = value(node)
    if isinstance(given, torch.Tensor):
        return all(isinstance(n, int) for n in given.shape) and given.numel() <= LARGEST
    return is_of_vmap(node)


def _made(known: Iterable[fx.Node], wanted: Sequence[fx.Node]) -> Sequence[Any]:
    """What these nodes give, which only the known ones take part in; None where that is not to be known."""
    nothing = [None] * len(wanted)
    if not wanted:
        return nothing
    part = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in known:
        made[node] = part.node_copy(node, made.__getitem__)
    part.output(tuple(made[node] for node in wanted))
    before, level = _random_states(), maybe_current_level()
    try:
        with torch.no_grad():
            found: Sequence[Any] = fx.Interpreter(nn.Module(), graph=part).run()
    except Exception:  # the model's own, which is yet to run
        return nothing
    finally:
        while maybe_current_level() != level:  # of a vmap that was left in its midst
            _vmap_decrement_nesting()
    after = _random_states()
    return found if all(map(torch.equal, before, after)) else nothing


def _random_states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _is_causal(mask: Any) -> bool:
    if not isinstance(mask, torch.Tensor) or mask.is_meta or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    seen = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if mask.dtype is torch.bool:
        return torch.equal(mask, seen.expand_as(mask))
    if not mask.is_floating_point():
        return False
    hidden = mask.masked_fill(seen, -math.inf)  # the least number, which a sum with a score is too
    return not mask.masked_fill(~seen, 0.0).any() and bool((hidden <= torch.finfo(mask.dtype).min).all())
