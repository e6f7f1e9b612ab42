"""Products in a traced graph, and what is done to each element of them after, by one operator.

A compiler cannot fuse GELU into a product that is an operator; an operator that does both can.  The graph is one of
torch.compile, before anything is decomposed.  Which operator a piece of it is, is found as for modules
(:mod:`.recognition`): by what the piece gives in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from kernels_generated.ops import Operator, operators
from kernels_generated.runtime.plan import Argument

from .racing import is_faster
from .recognition import ELEMENTWISE, ELEMENTWISE_METHODS, agree, scaled_rows, widened
from .traced import are_same, called, is_harmless, is_plain, is_undisturbed, value

LINEAR, UNBIASED, DENSE = "linear", "linear_nobias", "dense"  # what products of PyTorch's are

RESHAPING = {"view", "reshape"}
LONGEST = 32  # nodes of a piece
BATCH, SIZES = 6, (5, 7, 11)  # rows of a piece that is tried, and its other dimensions in turn


@dataclass(frozen=True)
class GraphPiece:
    """Nodes of a graph that give one tensor, of a product and at most one tensor more.

    anchor: the product's node.  product: the operator that computes it, operands: that operator's arguments.
    own: whether the node calls it.  side: the other tensor.  nodes: in the graph's order; the last one gives the
    result.
    """

    anchor: fx.Node
    product: Operator
    operands: tuple[fx.Node, ...]
    own: bool
    nodes: tuple[fx.Node, ...]
    side: fx.Node | None

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return self.operands if self.side is None else (*self.operands, self.side)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the inputs are to the product; the other tensor is as its result."""
        interface = self.product.interface
        return interface.tensors if self.side is None else (*interface.tensors, *interface.outputs)

    @property
    def end(self) -> fx.Node:
        return self.nodes[-1]


def join(module: fx.GraphModule) -> list[str]:
    """Replaces, in place, products that an operator computes, PyTorch's or operators', with what follows them where an
    operator computes that too.

    Returns the operators' names, in the graph's order.  What gradients are recorded of stays, as operators have no
    kernels for them; so does what has no kernels on its device, and PyTorch's products in float32.
    """
    made: list[str] = []
    gone: set[fx.Node] = set()
    for node in list(module.graph.nodes):
        for piece in _pieces(node) if node not in gone else ():
            found = _found(piece)
            if found is not None:
                _replace(module.graph, piece, *found)
                gone.update(piece.nodes)
                made.append(found[0].name)
                break
    if made:
        module.graph.lint()
        module.recompile()
    return made


# ---------------------------------------------------------------------------------------------------- pieces


def _pieces(node: fx.Node) -> Iterator[GraphPiece]:
    """Those of this product, the longest first."""
    alone = _product(node)
    if alone is None:
        return
    pieces = [alone]
    inside, side, after = {node}, alone.side, node.next
    while len(inside) < LONGEST:
        while after.op != "root" and not inside.intersection(after.all_input_nodes):
            after = after.next
        if after.op == "root" or not _is_elementwise(after, node):
            break
        others = [one for one in after.all_input_nodes if one not in inside and one is not side]
        if len(others) > (side is None) or not all(_is_like(one, node) for one in others):
            break
        side = others[0] if others else side
        inside.add(after)
        pieces.append(replace(pieces[-1], nodes=(*pieces[-1].nodes, after), side=side))
        after = after.next
    for piece in reversed(pieces):
        if not _is_closed(piece.nodes):
            continue
        for one in reversed([piece, *_with_sides(piece)]):
            nothing_more = all(part is node or _reshapes(part) for part in one.nodes)
            if not (one.own and nothing_more) and is_undisturbed(one.nodes[0], one.end, one.nodes):
                yield one


def _with_sides(piece: GraphPiece) -> Iterator[GraphPiece]:
    """The piece, and what is done to each element of its other tensor before, a step more each."""
    while piece.side is not None and len(piece.nodes) < LONGEST:
        node = piece.side
        if len(node.all_input_nodes) != 1 or not _is_elementwise(node, piece.anchor):
            return
        if not _is_like(node.all_input_nodes[0], piece.anchor) or not set(node.users).issubset(piece.nodes):
            return
        inside = {node, *piece.nodes}
        nodes = tuple(one for one in node.graph.nodes if one in inside)
        piece = replace(piece, nodes=nodes, side=node.all_input_nodes[0])
        yield piece


def _product(node: fx.Node) -> GraphPiece | None:
    """The piece that is a product alone."""
    if node.op != "call_function":
        return None
    operator, given = called().get(node.target), tuple(node.args)
    own = operator is not None
    if node.target is F.linear:
        given += tuple(node.kwargs[name] for name in ("weight", "bias") if name in node.kwargs)
        given = given[:2] if given[2:] == (None,) else given
        operator = operators().get(LINEAR if len(given) == 3 else UNBIASED)
    elif node.target is torch.addmm and not node.kwargs and len(given) == 3:
        operator, given = operators().get(DENSE), (given[1], given[2], given[0])
    elif not own or node.kwargs:
        return None
    if operator is None or not _multiplies_rows(operator):
        return None
    operands = tuple(one for one in given if isinstance(one, fx.Node))
    if not len(operands) == len(given) == len(operator.interface.tensors):
        return None
    if not all(map(is_plain, (node, *operands))) or len({value(one).dtype for one in (node, *operands)}) > 1:
        return None
    if not own and (value(node).dtype is torch.float32 or not _fits(operator, operands)):
        return None
    return GraphPiece(node, operator, operands, own, (node,), None)


def _multiplies_rows(operator: Operator) -> bool:
    """Whether it takes x[..., K], and gives one tensor."""
    interface = operator.interface
    if not operator.contracts or interface.numbers or len(interface.outputs) != 1:
        return False
    tensors = (*interface.tensors, *interface.outputs)
    return all(isinstance(axis, str) for one in tensors for axis in one.shape) and all(
        len(one.shape) == 2 and interface.batched(one) for one in (tensors[0], tensors[-1])
    )


def _fits(operator: Operator, operands: Sequence[fx.Node]) -> bool:
    """Whether nothing would be broadcast, nor a parameter be copied at each call."""
    dims: dict[Any, Any] = {}
    for argument, node in zip(operator.interface.tensors, operands, strict=True):
        shape = value(node).shape
        if operator.interface.batched(argument):
            shape = (0, *shape[-1:])  # the batch is any number of axes
        elif not value(node).is_contiguous():
            return False
        if len(shape) != len(argument.shape):
            return False
        if not are_same(shape, [dims.setdefault(axis, n) for axis, n in zip(argument.shape, shape, strict=True)]):
            return False
    return True


def _is_like(node: fx.Node, product: fx.Node) -> bool:
    """Whether it is a tensor of the product's rows, which may be arranged otherwise."""
    if not is_plain(node):
        return False
    one, other = value(node), value(product)
    return (one.dtype, one.device) == (other.dtype, other.device) and _has_rows(one, other)


def _has_rows(one: torch.Tensor, other: torch.Tensor) -> bool:
    if are_same(one.shape, other.shape):
        return True
    if not all(isinstance(n, int) for n in (*one.shape, *other.shape)):  # no reshaping by symbols
        return False
    return one.numel() == other.numel() and one.shape[-1:] == other.shape[-1:]


def _reshapes(node: fx.Node) -> bool:
    """Whether it arranges rows otherwise, where it keeps them."""
    if node.op != "call_method" or node.target not in RESHAPING or node.kwargs:
        return False
    return not any(isinstance(one, torch.dtype) for one in node.args)


def _is_elementwise(node: fx.Node, product: fx.Node) -> bool:
    """Whether the node gives rows as the product has them, each element from one of each of its arguments."""
    result, of = value(node), value(product)
    if not is_harmless(node) or not isinstance(result, torch.Tensor):
        return False
    if result.device != of.device or not _has_rows(result, of):
        return False
    if _reshapes(node):
        return len(node.all_input_nodes) == 1
    for one in node.all_input_nodes:
        given = value(one)
        if not isinstance(given, torch.Tensor) or not are_same(given.shape, result.shape):
            return False
    if node.op == "call_method":
        return node.target in ELEMENTWISE_METHODS
    operator = called().get(node.target)
    if operator is not None:  # over a row, maybe: what it gives is compared
        return not operator.contracts
    return node.op == "call_function" and (node.target in ELEMENTWISE or node.target is F.dropout)


def _is_closed(nodes: Sequence[fx.Node]) -> bool:
    """Whether no other than the last is used elsewhere."""
    return all(user in nodes for one in nodes[:-1] for user in one.users)


# ---------------------------------------------------------------------------------------------------- operators


def _found(piece: GraphPiece) -> tuple[Operator, tuple[fx.Node, ...]] | None:
    """The operator that gives what the piece does and has kernels for it, and the inputs in its order."""
    first, last = value(piece.anchor), value(piece.end)
    if last.dtype != first.dtype or not is_plain(piece.end) or not last.is_contiguous():
        return None  # an operator's result is contiguous, and views of it were traced
    graph = _formula(piece)
    for operator, order in _candidates(piece):
        inputs = tuple(piece.inputs[place] for place in order)
        tensors = [value(one) for one in inputs]
        if operator.lacks(tuple(one.dtype for one in tensors), first.device):
            continue
        if _gives(graph, piece, operator, order) and _is_faster(piece, operator, order):
            return operator, inputs
    return None


def _candidates(piece: GraphPiece) -> Iterator[tuple[Operator, tuple[int, ...]]]:
    """Operators on tensors of such shapes, each with an order in which it may be given them."""
    arguments, batched = piece.arguments, piece.product.interface.batched
    for operator in filter(_multiplies_rows, operators().values()):
        tensors = operator.interface.tensors
        if len(tensors) != len(arguments):
            continue
        for order in itertools.permutations(range(len(arguments))):
            given = [arguments[place] for place in order]
            if any(
                operator.interface.batched(one) != batched(other) or len(one.shape) != len(other.shape)
                for one, other in zip(tensors, given, strict=True)
            ):
                continue
            axes = {
                pair for one, other in zip(tensors, given, strict=True)
                for pair in zip(one.shape, other.shape, strict=True)
            }  # fmt: skip
            if len(axes) == len({axis for axis, _ in axes}) == len({axis for _, axis in axes}):
                yield operator, order


def _formula(piece: GraphPiece) -> fx.Graph:
    """What the piece does to its inputs, as rows and in float64 throughout."""
    graph = fx.Graph()
    made = {one: graph.placeholder(f"input{n}") for n, one in enumerate(piece.inputs)}
    for node in piece.nodes:
        if node is piece.anchor:
            made[node] = graph.call_function(piece.product.reference, tuple(made[one] for one in piece.operands))
        elif _reshapes(node):
            made[node] = made[node.all_input_nodes[0]]
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            operator = called().get(node.target)
            if operator is not None:
                made[node].target = operator.reference
    graph.output(made[piece.end])
    return widened(graph, torch.float32, value(piece.anchor).dtype)


def _gives(graph: fx.Graph, piece: GraphPiece, operator: Operator, order: Sequence[int]) -> bool:
    """Whether the operator's reference gives what the graph does, on random tensors with small and large rows."""
    interface = piece.product.interface
    names = dict.fromkeys(axis for one in piece.arguments for axis in one.shape if axis != interface.batch)
    sizes = {interface.batch: BATCH, **dict(zip(names, itertools.cycle(SIZES)))}  # as many as there are
    generator = torch.Generator("cpu").manual_seed(11)
    inputs = []
    for one in piece.arguments:
        shape = [sizes[axis] for axis in one.shape]
        made = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        inputs.append(scaled_rows(made) if interface.batched(one) else made)
    with torch.no_grad(), torch.random.fork_rng(devices=()):  # a dropout may be in it
        wanted = operator.reference(*(inputs[place].clone() for place in order))
        try:
            result = fx.Interpreter(nn.Module(), graph=graph).run(*inputs)
        except Exception:  # it wants other shapes, or dtypes
            return False
    return isinstance(result, torch.Tensor) and agree(result, wanted)


def _is_faster(piece: GraphPiece, operator: Operator, order: Sequence[int]) -> bool:
    """Whether the operator takes less than PyTorch's product and, where more is done, one pass over its result.

    What else is done TorchInductor fuses with what is around it.  It reads the product and writes it anew, at least:
    beside an operator whose result a norm reads, a residual sum has that much more to move.
    """
    product, count = value(piece.anchor), len(piece.operands)
    tensors = [value(one) for one in piece.operands]
    if piece.side is not None:
        tensors.append(product)  # its shape is what the other tensor is given
    more = any(not _reshapes(one) for one in piece.nodes if one is not piece.anchor)

    def ours(*given: torch.Tensor) -> Any:
        return operator.packet.default(*(given[place] for place in order))

    def pytorchs(*given: torch.Tensor) -> torch.Tensor:
        x, w, *bias = operands = given[:count]
        if piece.product.name == DENSE:
            found = torch.addmm(bias[0], x.reshape(-1, x.shape[-1]), w)
        elif piece.product.name in (LINEAR, UNBIASED):
            found = F.linear(x, w, *bias)
        else:
            found = piece.product.reference(*operands)
        return found.clone() if more else found

    return is_faster((operator.name, piece.product.name, tuple(order), more), tensors, ours, pytorchs)


# ---------------------------------------------------------------------------------------------------- replacing


def _replace(graph: fx.Graph, piece: GraphPiece, operator: Operator, inputs: Sequence[fx.Node]) -> None:
    """A call of the operator at the piece's end, in place of it."""
    product, end = value(piece.anchor), piece.end
    with graph.inserting_before(end):
        given = []
        for one in inputs:
            if one is piece.side and not are_same(value(one).shape, product.shape):
                one = graph.call_method("reshape", (one, *product.shape))
            given.append(one)
        made = graph.call_function(operator.packet.default, tuple(given))
        if not are_same(value(end).shape, product.shape):
            made.meta["example_value"] = product
            made = graph.call_method("reshape", (made, *value(end).shape))
    made.meta = dict(end.meta)
    end.replace_all_uses_with(made)
    for node in reversed(piece.nodes):
        graph.erase_node(node)
