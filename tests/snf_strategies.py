"""Hypothesis strategies for SNF texts, and inputs for their graphs: what users write, at sizes that fit no tile.

``elementwise_texts``, ``reduction_texts``, ``epilogue_texts``, ``attention_texts``, ``network_texts`` draw texts;
``texts()`` draws any of the first four.  ``knowledge_base.snf.parse`` makes graphs of them.
"""

from __future__ import annotations

from hypothesis import strategies as st

from kernels_generated.runtime.expr import evaluate
from knowledge_base.snf.graph import FLOATS, Graph, shape_at

UNARY = ("-{0}", "abs({0})", "exp({0})", "tanh({0})", "sigmoid({0})", "erf({0})", "GELU({0})", "SiLU({0})",
         "ReLU({0})", "square({0})", 'GELU({0}, approximate="none")', "sqrt(abs({0}))",
         "rsqrt(square({0}) + 1.0)", "log(abs({0}) + 1)")  # fmt: skip
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / (abs({1}) + 1.0)", "Minimum({0}, {1})", "Maximum({0}, {1})",
          "Where({0} > {1}, {0}, {1} * 0.5)", "Where({0} <= 0.25, {1}, {0})", "{0} * 0.125 + {1}")  # fmt: skip
ACTIVATIONS = (
    "GELU({0})",
    "ReLU({0})",
    "SiLU({0})",
    "tanh({0})",
    "square(ReLU({0}))",
    "{0} * sigmoid({0})",
    "{0} * 0.5",
)
REDUCTIONS = ("Softmax({0})", "LayerNorm({0}, θ.n)", "RMSNorm({0}, θ.n)", "RMSNorm({0}, θ.n, eps=1e-6)", "Sum({0})",
              "Mean({0})", "Max({0})", "Var({0})", "{0} - Mean({0}, keepdims=True)",
              "{0} / (Sum(square({0}), keepdims=True) + 1.0)",
              "{0} * rsqrt(Mean(square({0}), keepdims=True) + 1e-5)", "exp({0} - Max({0}, keepdims=True))")  # fmt: skip


def sizes(most: int = 300) -> st.SearchStrategy[int]:
    """A dimension: small ones, primes and neighbours of powers of two come up often."""
    near = [n for n in (1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200, 257) if n <= most]
    return st.one_of(st.sampled_from(near), st.integers(1, most))


def dtypes() -> st.SearchStrategy[str]:
    return st.sampled_from(FLOATS)


@st.composite
def _operands(draw: st.DrawFn, names: list[str], dtype: str, count: int, lines: list[str]) -> list[str]:
    """So many inputs that broadcast to ``names``: whole, one row, one column, one element, with fewer axes or all."""
    found = []
    for i in range(draw(st.integers(0, count))):
        shape = [name if draw(st.integers(0, 2)) else "1" for name in names[draw(st.integers(0, len(names) - 1)) :]]
        lines.append(f"x{i}: {dtype}[{', '.join(shape)}]")
        found.append(f"x{i}")
    return found


@st.composite
def _chain(draw: st.DrawFn, values: list[str], steps: int, lines: list[str], prefix: str = "e") -> str:
    """Lines that combine ``values`` elementwise; returns the last name."""
    last = values[0]
    for i in range(steps):
        if draw(st.booleans()):
            right = draw(st.sampled_from(values))
            text = draw(st.sampled_from(BINARY)).format(last, right)
        else:
            text = draw(st.sampled_from(UNARY)).format(last)
        last = f"{prefix}{i}"
        lines.append(f"{last} = {text}")
        values.append(last)
    return last


@st.composite
def elementwise_texts(draw: st.DrawFn, most: int = 300) -> str:
    """A DAG of elementwise ops on one to three inputs, some of them broadcast."""
    rank = draw(st.integers(1, 3))
    names = ["B", "M", "N"][-rank:]
    dtype = draw(dtypes())
    lines = [f"{name} = {draw(sizes(most if name != 'B' else 5))}" for name in names]
    lines.append(f"x: {dtype}[{', '.join(names)}]")
    values = ["x", *draw(_operands(names, dtype, 2, lines))]
    last = draw(_chain(values, draw(st.integers(1, 6)), lines))
    lines.append(f"y = {last} + x")
    return "\n".join(lines)


@st.composite
def reduction_texts(draw: st.DrawFn, most: int = 300) -> str:
    """Elementwise ops, one norm, softmax or reduction over the last axis, elementwise ops."""
    rank = draw(st.integers(1, 3))
    names = ["B", "M", "N"][-rank:]
    lines = [f"{name} = {draw(sizes(most if name != 'B' else 5))}" for name in names]
    dtype = draw(dtypes())
    lines.append(f"x: {dtype}[{', '.join(names)}]")
    beside = draw(_operands(names, dtype, 2, lines))
    before = draw(_chain(["x", *beside], draw(st.integers(0, 2)), lines, "a"))
    # The difference of one number with itself is exactly 0 in PyTorch alone: a multiply-add rounds once less.
    reduction = draw(st.sampled_from([r for r in REDUCTIONS if "exp" not in r or "N = 1" not in lines]))
    lines.append(f"r = {reduction.format(before)}")
    rows = reduction.split("(")[0] in ("Sum", "Mean", "Max", "Var")
    after = draw(_chain(["r", *([] if rows else beside)], draw(st.integers(0, 2)), lines, "b"))
    lines.append(f"outputs = {after}")
    return "\n".join(lines)


@st.composite
def epilogue_texts(draw: st.DrawFn, most: int = 300) -> str:
    """A linear layer or product with bias, activation and residual, each there or not."""
    batch = draw(st.booleans())
    rows = "B, M" if batch else "M"
    dtype = draw(dtypes())
    lines = [f"{name} = {draw(sizes(most if name != 'B' else 3))}" for name in ("B", "M", "N", "K")]
    lines.append(f"x: {dtype}[{rows}, K]")
    product = draw(st.sampled_from(["one", "two", "split", "matmul"]))
    bias = draw(st.booleans())
    if product == "one":
        lines.append(f"h = Linear(x, N, θ.p, bias={bias})")
    elif product == "two":
        lines.append(f"h = SiLU(Linear(x, N, θ.p, bias={bias})) * Linear(x, N, θ.q, bias={draw(st.booleans())})")
    elif product == "split":
        lines += [f"g, u = Linear(x, 2*N, θ.p, bias={bias}).split(2)", "h = g + SiLU(u)"]
    else:
        lines += [f"θ.w: {dtype}[K, N]", "h = x @ θ.w"]
    if draw(st.booleans()):
        lines.append(f"h = {draw(st.sampled_from(ACTIVATIONS)).format('h')}")
    if draw(st.booleans()):
        shape = draw(st.sampled_from([f"{rows}, N", "N", "M, N", f"{rows}, 1", "M, 1", "1, N", "1, 1", "1"]))
        lines += [f"r: {dtype}[{shape}]", f"h = {draw(st.sampled_from(['h + r', 'r + h', 'h * r']))}"]
    if dtype == "f32" and draw(st.booleans()):
        lines.append("precision: tf32")
    return "\n".join(lines)


@st.composite
def attention_texts(draw: st.DrawFn, most: int = 300) -> str:
    """Attention on a QKV buffer, on separate projections or on q, k, v; causal or not."""
    dims = {"B": draw(st.integers(1, 3)), "H": draw(st.integers(1, 4)), "T": draw(sizes(most)),
            "D": draw(st.sampled_from([16, 32, 64]))}  # fmt: skip
    dtype = draw(dtypes())
    lines = [f"{name} = {size}" for name, size in dims.items()]
    mask = draw(st.sampled_from(["", " + Mask_Causal"]))
    layout = draw(st.sampled_from(["qkv", "heads", "rows"]))
    if layout == "heads":
        lines += [f"{name}: {dtype}[B, H, T, D]" for name in "qkv"]
        q, k, v, merge = "q", "k", "v", "{0}"
    else:
        if layout == "qkv":
            lines += [f"qkv: {dtype}[B, T, 3*H*D]", "q, k, v = qkv.split(3)"]
        else:
            lines += [f"{name}: {dtype}[B, T, H*D]" for name in "qkv"]
        q, k, v, merge = "Heads(q, H)", "Heads(k, H)", "Heads(v, H)", "Merge({0})"
    scores = draw(st.sampled_from(["{0} @ {1}.T / sqrt(D)", "{0} @ {1}.T * 0.25"])).format(q, k)
    shape = draw(st.sampled_from(["", "", "H, T, T", "T, T", "T, 1", "1, T", "T", "H, 1, 1", "1"]))
    if shape:
        lines.append(f"m: {dtype}[{shape}]")
        scores = f"{scores} + m"
    result = merge.format(f"att @ {v}")
    lines += [f"att = Softmax({scores}{mask})", f"y = {result}"]
    return "\n".join(lines)


def texts(most: int = 300) -> st.SearchStrategy[str]:
    """Any one task's text."""
    return st.one_of(
        elementwise_texts(most), reduction_texts(most), epilogue_texts(most), attention_texts(min(most, 80))
    )


@st.composite
def network_texts(draw: st.DrawFn, most: int = 24) -> str:
    """A few layers on a residual stream: norms, linears, attention, gates, parts split and joined."""
    heads, width = draw(st.integers(1, 3)), draw(st.sampled_from([2, 4, 6]))
    lines = [f"B, T, H, D = {draw(st.integers(1, 3))}, {draw(sizes(most))}, {heads}, {width}", "C = H*D",
             f"h: {draw(dtypes())}[B, T, C]"]  # fmt: skip
    layers = {
        "norm": ["h = LayerNorm(h, θ.n{0})"],
        "rms": ["h = h * rsqrt(Mean(square(h), keepdims=True) + 1e-6)"],
        "mlp": ["m = GELU(Linear(h, 2*C, θ.a{0}))", "h = h + Linear(m, C, θ.b{0})"],
        "gate": ["g, u = Linear(h, 4*C, θ.g{0}, bias=False).split(2)", "h = h + Linear(SiLU(g) * u, C, θ.u{0})"],
        "attention": [
            "q, k, v = Linear(h, 3*C, θ.qkv{0}).split()",
            "att = Softmax(Heads(q, H) @ Heads(k, H).T / sqrt(D) + Mask_Causal)",
            "h = h + Linear(Merge(att @ Heads(v, H)), C, θ.o{0})",
        ],
        "implicit": [
            "q, k, v = Linear(h).split()",
            "att = Softmax(q @ k.T / sqrt(D) + Mask_Causal)",
            "h = h + Linear(att @ v)",
        ],
        "linear": ["h = Linear(ReLU(h), C, θ.l{0})"],
        "turn": ["h = Merge(Heads(h, H) * 0.5)"],
        "join": ["s, t = Concat(h, h * 2.0, axis=-1).split(2)", "h = s - t"],
        "mean": ["h = h - Mean(h, axis=1, keepdims=True)"],
    }  # fmt: skip
    for i in range(draw(st.integers(1, 4))):
        lines += [line.format(i) for line in layers[draw(st.sampled_from(sorted(layers)))]]
    lines.append("outputs = h")
    text = "\n".join(lines)
    return text if any("h = " in line for line in lines) else text + "\nh = ReLU(h)"


def values(graph: Graph, seed: int = 0) -> dict[str, object]:
    """Normal inputs in their stored dtypes; indices within the tables that they index."""
    import torch

    from knowledge_base.snf.reference import torch_dtype

    generator = torch.Generator().manual_seed(seed)
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "gather":
            limits[node.args[1]] = evaluate(graph.value(node.args[0]).shape[0], graph.sizes)
    out: dict[str, object] = {}
    for tensor in graph.inputs:
        shape = shape_at(tensor.shape, graph.sizes)
        if tensor.dtype in FLOATS:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            out[tensor.name] = drawn.to(torch_dtype(tensor.dtype))
        else:
            high = limits.get(tensor.name, 5)
            out[tensor.name] = torch.randint(0, high, shape, generator=generator).to(torch_dtype(tensor.dtype))
    return out
