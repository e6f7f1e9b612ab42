"""Cuts a graph into tasks by a fusion plan.

Plan v1 makes every op a task, but one that needs the value of a size which none of its arrays has (attention's division
by the square root of D): that is part of the task that feeds it, as a launch knows sizes by its arrays.  Plan v2 fuses:

- elementwise ops into the contraction that feeds them (bias, activation, residual), where shapes agree
- two contractions of the same left operand with each other, or one that is split in two, where elementwise ops bring
  both together (SwiGLU)
- contractions of one left operand with inputs (the projections to q, k and v): a task with a value for each
- elementwise ops with each other, with gathers that feed them, and with one norm or softmax, or with reductions over
  the last axis, on the same rows
- attention: scores, what is done to them (with what is added to them, where that reads no more than it is: ALiBi),
  softmax and the product with the values

Values are stored between tasks; sizes' values, positions, masks and what is computed of these alone are made where they
are read, and so is an input in another dtype.  A view belongs to
its reader, as long as the reader can step through the buffer axis by axis; where it can't (``Linear`` of ``Merge``) the
producer stores in the view's layout, and where others read the value too, or it is an input, a copy is a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, symbols

from . import axes as sizes
from . import views
from .canonical import canonicalise
from .graph import Graph, Node, Tensor
from .op_table import OPS, ShapeError, broadcast, is_scalar, same_shape
from .task import Call, Decomposition

MAX_CONTRACTIONS = 2  # of a fused task beside attention: each has an accumulator in registers
MAX_SIDE_BY_SIDE = 4  # contractions of one left operand: a kernel has the code of each
MAX_NODES = 64  # of a fused task: more would be no kernel that anyone wants to read, and names bound the work here

PLANS = {"v1": "an op a task", "v2": "epilogues, rows and attention fused"}


def decompose(graph: Graph, plan: str = "v2") -> Decomposition:
    """The calls that compute the graph's outputs from its inputs, in order.  Raises KeyError for an unknown plan."""
    if plan not in PLANS:
        raise KeyError(plan)
    work = _Work(graph)
    groups = _fused(work) if plan == "v2" else {n.name: _single(work, n) for n in work.computed}
    _know_sizes(work, groups)
    distinct = list({id(g): g for g in groups.values()}.values())
    return Decomposition(plan, graph, tuple(_calls(work, distinct, together=plan == "v2")))


@dataclass
class _Group:
    """Nodes that one task computes; the last one is the value that leaves it, ``stored`` as that or as a view of it."""

    nodes: list[Node]
    kind: str = "alone"  # elementwise, row, contraction, attention, alone
    space: tuple[Expr, ...] = ()  # shape of the elements (elementwise, row) that the group walks over
    stored: str = field(default="")

    @property
    def sink(self) -> Node:
        return self.nodes[-1]


class _Work:
    """A graph with what decomposition asks of it again and again."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {n.name: i for i, n in enumerate(graph.nodes)}
        self.order = {v.name: i for i, v in enumerate(graph.values)}
        self.unstored = self._unstored()
        self.computed = [n for n in graph.nodes if self.is_computed(n)]
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op != "causal_mask":  # it reads the shape alone
                for arg in dict.fromkeys(node.args):
                    self.readers.setdefault(arg, []).append(node)

        self.weights = {t.name for t in graph.inputs if t.role == "weight"}
        self.from_products: set[str] = set()  # elementwise, directly or not, on a product
        for node in graph.nodes:
            if OPS[node.op].kind == "elementwise":
                feeding = (graph.value(arg) for arg in node.args)
                if any(f.name in self.from_products or (isinstance(f, Node) and f.op == "matmul") for f in feeding):
                    self.from_products.add(node.name)

    def _unstored(self) -> set[str]:
        """What is made where it is read, as far as it is no output.

        Views and elementwise ops of positions and sizes alone, and an input in another dtype: reading it costs no more.
        """
        found = {n.name for n in self.graph.nodes if OPS[n.op].kind == "source"}
        inputs = {t.name for t in self.graph.inputs}
        for node in self.graph.nodes:
            made = OPS[node.op].kind in ("view", "elementwise") and not is_scalar(node)
            made = made and all(a in found or is_scalar(self.graph.value(a)) for a in node.args)
            if made or (node.op == "cast" and node.args[0] in inputs):
                found.add(node.name)
        return found - set(self.graph.outputs)

    def is_computed(self, value: Tensor | Node) -> bool:
        """Whether a task computes and stores the value, so that others may read it."""
        if not isinstance(value, Node) or is_scalar(value) or value.name in self.unstored:
            return False
        return OPS[value.op].kind not in ("view", "source", "scalar")

    def reads(self, name: str) -> list[Node]:
        return self.readers.get(name, [])

    def parts(self, name: str) -> list[Node]:
        """The parts into which a contraction's value is split, where it is read as these alone; else nothing."""
        value, readers = self.graph.value(name), self.reads(name)
        product = isinstance(value, Node) and OPS[value.op].kind == "contraction" and name not in self.graph.outputs
        splits = product and all(n.op == "split" and n.attr("parts") <= MAX_CONTRACTIONS for n in readers)
        return readers if splits else []

    def whole(self, name: str) -> str:
        """The contraction that ``name`` is a part of, or ``name``."""
        value = self.graph.value(name)
        return value.args[0] if isinstance(value, Node) and value.op == "split" and self.parts(value.args[0]) else name

    def is_source(self, name: str) -> bool:
        return self._is("source", name)

    def is_view(self, name: str) -> bool:
        return self._is("view", name)

    def _is(self, kind: str, name: str) -> bool:
        value = self.graph.value(name)
        return isinstance(value, Node) and OPS[value.op].kind == kind


# ---------------------------------------------------------------------------------------------------- fusion, v2


def _fused(work: _Work) -> dict[str, _Group]:
    """Node name -> its group.  Producers join their readers' group, last readers first, until nothing joins."""
    groups = {n.name: _single(work, n) for n in work.computed}
    for node in work.computed:
        if node.op == "softmax":
            _join_attention(work, groups, node)
    # Epilogues first: a residual sum belongs to the linear that feeds it rather than to the norm that reads it.
    for kinds in (("elementwise", "contraction"), ("elementwise", "contraction", "row", "attention")):
        for node in reversed(work.computed):
            while groups[node.name].kind in kinds:
                producer = _joinable(work, groups, groups[node.name])
                if producer is None:
                    break
                _merge(work, groups, producer, groups[node.name])
    return groups


def _know_sizes(work: _Work, groups: dict[str, _Group]) -> None:
    """Joins a group whose arrays do not tell a size that it needs with the one that feeds it, where that can be."""
    for node in work.computed:
        while not _sizes_used(work, groups[node.name]) <= _sizes_told(work, groups[node.name]):
            producer = _joinable(work, groups, groups[node.name])
            if producer is None:
                break
            _merge(work, groups, producer, groups[node.name])


def _sizes_used(work: _Work, group: _Group) -> set[str]:
    """The dimensions whose values the group computes with."""
    todo = [work.graph.value(arg) for node in group.nodes for arg in node.args]
    used: set[str] = set()
    while todo:
        value = todo.pop()
        if isinstance(value, Node) and is_scalar(value):
            used |= symbols(value.attr("expr")) if value.op == "dim" else set()
            todo += map(work.graph.value, value.args)
    return used


def _sizes_told(work: _Work, group: _Group) -> set[str]:
    """The dimensions in the shapes of the group's arguments and of its result."""
    members = {node.name for node in group.nodes}
    arguments = {arg for node in group.nodes for arg in node.args} - members
    shapes = [group.sink.shape, *(work.graph.value(arg).shape for arg in arguments)]
    return {symbol for shape in shapes for size in shape for symbol in symbols(size)}


def _single(work: _Work, node: Node) -> _Group:
    kind = OPS[node.op].kind
    if kind == "reduction" and node.attr("axis") == -1:
        return _Group([node], "row", work.graph.value(node.args[0]).shape)
    if kind == "row":
        return _Group([node], "row", node.shape)
    if kind == "elementwise" or node.op == "gather":
        return _Group([node], "elementwise", node.shape)
    if kind == "contraction":
        return _Group([node], "contraction", node.shape)
    return _Group([node], "alone", node.shape)


def _joinable(work: _Work, groups: Mapping[str, _Group], reader: _Group) -> _Group | None:
    """The latest group whose value only ``reader`` uses and that may become part of it."""
    args = {work.whole(arg) for node in reader.nodes for arg in node.args}
    members = {n.name for n in reader.nodes}
    computed = [arg for arg in args - members if work.is_computed(work.graph.value(arg))]
    for arg in sorted(computed, key=lambda a: work.place[a], reverse=True):
        producer = groups[arg]
        seen = [n.name for n in work.parts(arg)] or [arg]
        outside = [n for name in seen for n in work.reads(name) if n.name not in members]
        free = producer.sink.name == arg and not outside and not any(name in work.graph.outputs for name in seen)
        free = free and len(producer.nodes) + len(reader.nodes) <= MAX_NODES
        if free and _kind(work, producer, reader) is not None:
            return producer
    return None


def _kind(work: _Work, producer: _Group, reader: _Group) -> tuple[str, tuple[Expr, ...]] | None:
    """Kind and space of the two together; None where they stay apart."""
    parts = work.parts(producer.sink.name)
    shape = parts[0].shape if parts else producer.sink.shape
    if producer.kind == "contraction" and reader.kind == "elementwise" and same_shape(shape, reader.space):
        gathers = any(n.op == "gather" for n in reader.nodes)
        return None if gathers else ("contraction", shape)
    if producer.kind == reader.kind == "contraction":
        together = not parts and same_shape(shape, reader.space) and _share_operand(producer, reader)
        return ("contraction", shape) if together else None
    if producer.kind not in ("elementwise", "row"):
        return None
    if reader.kind in ("contraction", "attention"):
        # part of an epilogue, or of the scores: what is computed beside the contraction from what was stored, or from
        # parameters
        beside = producer.kind == "elementwise" and not any(n.op == "gather" for n in producer.nodes)
        feeds = any(n.name in c.args for n in producer.nodes for c in _contractions(reader))
        space = reader.space
        if reader.kind == "attention":
            (space,) = (n.shape for n in reader.nodes if n.op == "softmax")
            beside = beside and _arrays_as_large(work, producer) <= 1
        return (reader.kind, reader.space) if beside and not feeds and _within(shape, space) else None
    if reader.kind not in ("elementwise", "row") or not _rows_agree(producer, reader):
        return None
    kind = "row" if "row" in (producer.kind, reader.kind) else "elementwise"
    if same_shape(shape, producer.space) and _within(shape, reader.space):
        # a smaller producer is computed again for every row: for elementwise ops on parameters that costs nothing
        return (kind, reader.space) if producer.kind == "elementwise" or same_shape(shape, reader.space) else None
    if same_shape(shape, reader.space) and reader.kind == "elementwise":
        return kind, producer.space  # elementwise ops on what a reduction left of the rows
    if len(shape) == len(reader.space) and same_shape(producer.space, reader.space):
        return kind, reader.space  # a reduction that kept its axis, used on the rows that it came from
    return None


def _arrays_as_large(work: _Work, group: _Group) -> int:
    """How many arrays of its value's own shape the group reads; in attention each is a load for every score."""
    members = {n.name for n in group.nodes}
    arguments = {arg for n in group.nodes for arg in n.args} - members - work.unstored
    return sum(same_shape(work.graph.value(arg).shape, group.sink.shape) for arg in arguments)


def _share_operand(producer: _Group, reader: _Group) -> bool:
    """Whether the groups' contractions read one left operand, make values of one shape, and none feeds another."""
    found = [*_contractions(producer), *_contractions(reader)]
    first = found[0]
    alike = all(n.op == first.op and n.args[0] == first.args[0] and same_shape(n.shape, first.shape) for n in found)
    apart = not any(n.name in c.args for n in producer.nodes for c in _contractions(reader))
    return alike and apart and len(found) <= MAX_CONTRACTIONS


def _contractions(group: _Group) -> list[Node]:
    return [n for n in group.nodes if OPS[n.op].kind == "contraction"]


def _rows_agree(producer: _Group, reader: _Group) -> bool:
    """One norm or softmax a task, or any number of plain reductions: what a kernel can do in passes over a row."""
    ops = [OPS[n.op].kind for n in (*producer.nodes, *reader.nodes)]
    rows, reductions = ops.count("row"), ops.count("reduction")
    gathers = any(n.op == "gather" for n in (*producer.nodes, *reader.nodes))
    return rows + (1 if reductions else 0) <= 1 and not (gathers and (rows or reductions))


def _within(small: tuple[Expr, ...], large: tuple[Expr, ...]) -> bool:
    try:
        return same_shape(broadcast([small, large]), large)
    except ShapeError:
        return False


def _merge(work: _Work, groups: dict[str, _Group], producer: _Group, reader: _Group) -> None:
    found = _kind(work, producer, reader)
    assert found is not None
    reader.kind, reader.space = found
    reader.nodes = sorted((*producer.nodes, *reader.nodes), key=lambda n: work.place[n.name])
    for node in reader.nodes:
        groups[node.name] = reader


def _join_attention(work: _Work, groups: dict[str, _Group], softmax: Node) -> None:
    """scores -> elementwise … -> softmax -> product with values, each used once, as one group."""
    readers = work.reads(softmax.name)
    if len(readers) != 1 or readers[0].op != "matmul" or readers[0].args[0] != softmax.name:
        return
    if readers[0].args[1] == softmax.name or softmax.name in work.graph.outputs:
        return
    chain = [softmax]
    while chain[-1].op != "matmul":
        feeding = [a for a in dict.fromkeys(chain[-1].args) if _same_scores(work, a, softmax)]
        if len(chain) > MAX_NODES or len(feeding) != 1 or feeding[0] in work.graph.outputs:
            return
        value = work.graph.value(feeding[0])
        assert isinstance(value, Node)
        if any(n is not chain[-1] for n in work.reads(value.name)):
            return
        chain.append(value)
    if len(chain) > 1:
        nodes = [*reversed(chain), readers[0]]
        group = _Group(nodes, "attention", readers[0].shape)
        for node in nodes:
            groups[node.name] = group


def _same_scores(work: _Work, name: str, softmax: Node) -> bool:
    """Whether a value may lie on the way from the scores: a product of softmax' shape, or elementwise on one."""
    value = work.graph.value(name)
    if not isinstance(value, Node) or is_scalar(value) or not same_shape(value.shape, softmax.shape):
        return False
    return value.op == "matmul" or (OPS[value.op].kind == "elementwise" and name in work.from_products)


# ---------------------------------------------------------------------------------------------------- views, calls


def _calls(work: _Work, groups: list[_Group], together: bool) -> Iterable[Call]:
    """Places every view, then makes the calls in order; ``together``: several groups may be one task."""
    graph = work.graph
    stored = {g.sink.name: g for g in groups}
    for group in groups:
        group.stored = group.sink.name
    # what is stored by a task of its own, a view or positions that are an output -> the value it reads
    copies = {name: name for name in graph.outputs if work.is_source(name)}
    for name in _needed_views(work, groups):
        _place(work, stored, copies, name)
    buffers = {t.name for t in graph.inputs} | {g.stored for g in groups} | set(copies)
    tasks: list[tuple[int, tuple[str, ...]]] = [(work.place[name], (name,)) for name in copies]
    for members in _side_by_side(work, groups, copies.keys()) if together else [[g] for g in groups]:
        places = [max(work.place[n] for n in (g.stored, g.sink.name)) for g in members]
        tasks.append((min(places), tuple(g.stored for g in members)))
    for _, outputs in sorted(tasks):
        yield canonicalise(_piece(work, outputs, buffers)).call


def _side_by_side(work: _Work, groups: list[_Group], copies: Set[str]) -> list[list[_Group]]:
    """The groups, those together that are one task: contractions of one left operand that need nothing else computed.

    One launch serves all of them, and many small ones fill a GPU together.  copies: the views that tasks store.
    """
    found: dict[object, list[list[_Group]]] = {}
    for group in groups:
        contractions = _contractions(group)
        key: object = id(group)
        if group.kind == "contraction" and len(contractions) == 1 and _feeds_on_inputs(work, group, copies):
            (node,) = contractions
            key = (node.op, node.args[0], work.graph.value(node.args[1]).dtype)
        lists = found.setdefault(key, [[]])
        if len(lists[-1]) == MAX_SIDE_BY_SIDE or sum(len(g.nodes) for g in (*lists[-1], group)) > MAX_NODES:
            lists.append([])
        lists[-1].append(group)
    return [together for lists in found.values() for together in lists]


def _feeds_on_inputs(work: _Work, group: _Group, copies: Set[str]) -> bool:
    """Whether all that the group reads beside its only contraction's left operand are inputs, or views of them."""
    (node,) = _contractions(group)
    todo = [arg for n in group.nodes for arg in n.args if n is not node] + list(node.args[1:])
    members = {n.name for n in group.nodes}
    while todo:
        name = todo.pop()
        value = work.graph.value(name)
        if name not in members and (name in copies or work.is_computed(value)):
            return False
        if name not in members and isinstance(value, Node):
            todo += value.args
    return True


def _needed_views(work: _Work, groups: list[_Group]) -> list[str]:
    """Views that a task reads, or that are outputs, in order."""
    names = [arg for g in groups for n in g.nodes for arg in n.args if work.is_view(arg)]
    names += [name for name in work.graph.outputs if work.is_view(name)]
    return sorted(dict.fromkeys(names), key=lambda n: work.place[n])


def _place(work: _Work, stored: dict[str, _Group], copies: dict[str, str], name: str) -> None:
    """Sees to it that a task can read (or the caller gets) the view ``name``."""
    chain = [name]  # from the view back to what is stored
    while chain[-1] not in copies and work.is_view(chain[-1]):
        value = work.graph.value(chain[-1])
        assert isinstance(value, Node)
        chain.append(value.args[0])
    chain.reverse()
    group = stored.get(chain[0])
    if group is not None and group.stored in chain:
        chain = chain[chain.index(group.stored) :]
    is_output = name in work.graph.outputs
    last = len(chain) - 1
    # the shortest part of the chain that must be stored for the rest to be readable
    cut = last if is_output else next(i for i in range(len(chain)) if _steps(work.graph, chain[i:]))
    if cut == 0:
        return
    single = all(len(work.reads(n)) == 1 and n not in work.graph.outputs for n in chain[:cut])
    whole = all(work.graph.value(n).op not in ("select", "split") for n in chain[1 : cut + 1])  # type: ignore[union-attr]
    if group is not None and group.stored == chain[0] and single and whole:
        group.stored = chain[cut]
    else:
        copies[chain[cut]] = chain[0]


def _steps(graph: Graph, chain: list[str]) -> bool:
    """Whether each axis of the chain's last view steps evenly through the buffer that is its first value."""
    if len(chain) == 1:
        return True
    root = graph.value(chain[0])
    nodes = tuple(n for n in map(graph.value, chain[1:]) if isinstance(n, Node))
    alone = Graph(graph.dims, (Tensor(root.name, root.dtype, root.shape),), nodes, (chain[-1],))
    try:
        axes = sizes.infer(alone)
        counts = {name: [len(axis) for axis in axes.resolved(name)] for name in axes.of}
        cuts = {name: len(sizes.resolve(axis)) for name, axis in axes.cut.items()}
        read = views.reads(alone, counts, cuts, {})[chain[-1]]
    except (sizes.NotGeneral, views.NotOneAtom):
        return False
    return all(b == a + 1 for axis in read.axes for a, b in itertools.pairwise(axis))


def _piece(work: _Work, outputs: tuple[str, ...], buffers: set[str]) -> Graph:
    """The sub-graph that makes ``outputs`` from other buffers."""
    graph = work.graph
    needed: dict[str, Tensor | Node] = {}
    stack = list(outputs)
    while stack:
        name = stack.pop()
        if name not in needed:
            value = needed[name] = graph.value(name)
            if isinstance(value, Node) and (name in outputs or name not in buffers):
                stack.extend(value.args)
    values = sorted(needed.values(), key=lambda v: work.order[v.name])
    inputs = tuple(
        Tensor(v.name, v.dtype, v.shape, "weight" if v.name in work.weights else "input")
        for v in values
        if v.name in buffers and v.name not in outputs
    )
    taken = {t.name for t in inputs}
    nodes = tuple(v for v in values if isinstance(v, Node) and v.name not in taken)
    return Graph(graph.dims, inputs, nodes, outputs, graph.precision, graph.listed)
