"""torch.compile with products, what follows them, and attention by operators: what becomes one, and what must not."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._functorch import maybe_current_level

import kernels_generated
from evaluator import emulator
from kernels_generated import ops
from kernels_generated.patching import racing, tilewright, torch_backend, traced
from kernels_generated.patching.attending import attend
from kernels_generated.patching.joining import join
from kernels_generated.patching.racing import Race, like

BF16 = torch.bfloat16
K, N = 48, 32


@pytest.fixture
def chip() -> Iterator[emulator.Emulated]:
    torch._dynamo.reset()
    yield emulator.install()
    emulator.uninstall()
    torch._dynamo.reset()


def made(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, W, TURNED, BIAS = made(2, 3, K), made(N, K, seed=1) / 7, made(K, N, seed=2) / 7, made(N, seed=3)
R, UP = made(2, 3, N, seed=4), made(N, K, seed=5) / 7


def replaced(function: Callable[..., Any], *given: torch.Tensor, **how: Any) -> list[str]:
    """The operators in the function's graph after; it is called, and has to give what it gives by itself."""
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(attend(graph) + join(graph))
        return graph.forward

    twin = [one.clone() for one in given]
    expected = function(*twin)
    found = torch.compile(function, backend=backend, fullgraph=True, **how)(*given)
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
    for one, other in zip(given, twin, strict=True):  # what it changes in place
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.03)
    return names


def new_gelu(x: torch.Tensor) -> torch.Tensor:
    """As transformers writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def conv1d(x: torch.Tensor) -> torch.Tensor:
    """As transformers writes it."""
    return torch.addmm(BIAS, x.view(-1, x.size(-1)), TURNED).view(*x.shape[:-1], N)


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


JOINED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "linear": (lambda x: F.linear(x, W, BIAS), ["linear"]),
    "linear without bias": (lambda x: F.linear(x, W), ["linear_nobias"]),
    "linear, named": (lambda x: F.linear(x, weight=W, bias=None), ["linear_nobias"]),
    "an operator and GELU": (lambda x: tanh_gelu(ops.linear(x, W, BIAS)), ["linear_gelu"]),
    "two operators": (lambda x: ops.gelu(ops.linear(x, W, BIAS)), ["linear_gelu"]),
    "linear and GELU": (lambda x: tanh_gelu(F.linear(x, W, BIAS)), ["linear_gelu"]),
    "GELU in steps": (lambda x: new_gelu(F.linear(x, W, BIAS)), ["linear_gelu"]),
    "in float32": (lambda x: tanh_gelu(F.linear(x, W, BIAS).float()).to(BF16), ["linear_gelu"]),
    "a turned weight": (conv1d, ["dense"]),
    "a turned weight and GELU": (lambda x: new_gelu(conv1d(x)), ["dense_gelu"]),
    "a turned weight and a residual sum": (lambda x: conv1d(x) + R, ["dense_residual"]),
    "a residual sum": (lambda x: R + F.linear(x, W, BIAS), ["linear_residual"]),
    "a residual sum after dropout": (lambda x: F.dropout(F.linear(x, W, BIAS), 0.1, False) + R, ["linear_residual"]),
    "a sum with half of it": (lambda x: F.linear(x, W, BIAS) + 0.5 * R, ["linear_residual"]),
    "a residual sum, no bias": (lambda x: F.linear(x, W) + R, ["linear_add_4adc6a"]),
    "rows arranged otherwise": (lambda x: F.linear(x, W, BIAS).view(6, N) + R.view(6, N), ["linear_residual"]),
    "SwiGLU": (lambda x: F.silu(F.linear(x, W)) * F.linear(x, UP), ["linear_nobias", "linear_silu_mul_c0ad0d"]),
    "twice": (
        lambda x: F.linear(tanh_gelu(F.linear(x, W, BIAS)), TURNED, None) + x,
        ["linear_gelu", "linear_add_4adc6a"],
    ),
}


@pytest.mark.parametrize("name", JOINED)
@torch.no_grad()
def test_what_becomes_one_operator(name: str, chip: emulator.Emulated) -> None:
    function, expected = JOINED[name]
    assert replaced(function, X) == expected
    assert chip.launches >= len(expected)


def changed_between(x: torch.Tensor) -> torch.Tensor:
    y = ops.linear(x, W, BIAS)
    x.add_(1)
    return tanh_gelu(y)


def changed_by_an_activation(x: torch.Tensor) -> torch.Tensor:
    y = ops.linear(x, W, BIAS)
    F.silu(x, inplace=True)
    return tanh_gelu(y)


def changed_on_the_side(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU, but that one of its tensors is changed."""
    gate = F.linear(x, W)
    once = gate + 0.0
    return F.silu(gate, inplace=True) * F.linear(x, UP) + 0.0 * once + gate


def lies_otherwise(x: torch.Tensor) -> torch.Tensor:
    """A sum that lies as its first operand does, and is viewed so."""
    r = x[..., :N].transpose(1, 2).contiguous().transpose(1, 2)
    return (r + ops.linear(x, W, BIAS)).transpose(1, 2).view(2, 3 * N)


def changed_through_a_view(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    y = ops.linear(x, W, BIAS)
    z = y + r
    r.view(-1)[3] = 100.0
    return z * 1.0


def used_twice(x: torch.Tensor) -> Any:
    y = ops.linear(x, W, BIAS)
    return tanh_gelu(y), y.sum()


NOT_JOINED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "GELU by erf": (lambda x: F.gelu(F.linear(x, W, BIAS)), ["linear"]),
    "a scaled GELU": (lambda x: tanh_gelu(F.linear(x, W, BIAS) * 2), ["linear"]),
    "GELU, but for the factor": (lambda x: new_gelu(F.linear(x, W, BIAS) * 1.0001), ["linear"]),
    "ReLU": (lambda x: F.relu(F.linear(x, W, BIAS)), ["linear"]),
    "half a product": (lambda x: 0.5 * F.linear(x, W, BIAS) + R, ["linear"]),
    "a broadcast sum": (lambda x: F.linear(x, W, BIAS) + R[:1], ["linear"]),
    "a sum with itself": (lambda x: F.linear(x, W, BIAS).mul(2), ["linear"]),
    "over a row": (lambda x: tanh_gelu(F.softmax(ops.linear(x, W, BIAS), -1)), []),
    "another dtype": (lambda x: tanh_gelu(F.linear(x, W, BIAS).float()), ["linear"]),
    "rounded in between": (lambda x: tanh_gelu(ops.linear(x, W, BIAS).to(torch.float16).to(BF16)), []),
    "rows mixed": (lambda x: tanh_gelu(ops.linear(x, W, BIAS).view(2, N, 3).transpose(1, 2)), []),
    "bits read otherwise": (lambda x: ops.linear(x, W, BIAS).view(torch.float16) + 1, []),
    "used twice": (used_twice, []),
    "its input is changed in between": (changed_between, []),
    "its input is changed by an activation": (changed_by_an_activation, []),
    "a tensor is changed on the side": (changed_on_the_side, ["linear_nobias", "linear_nobias"]),
    "a sum that lies otherwise": (lies_otherwise, []),
    "a bias that is broadcast": (lambda x: torch.addmm(BIAS[:1], x.view(6, K), TURNED), []),
    "a weight that would be copied": (lambda x: F.linear(x, TURNED.t(), BIAS), []),
    "a scaled product": (lambda x: torch.addmm(BIAS, x.view(6, K), TURNED, beta=0.5), []),
    "a vector of weights": (lambda x: F.linear(x, W[0]), []),
}


@pytest.mark.parametrize("name", NOT_JOINED)
@torch.no_grad()
def test_what_stays_two(name: str, chip: emulator.Emulated) -> None:
    function, expected = NOT_JOINED[name]
    assert replaced(function, X.clone()) == expected


@torch.no_grad()
def test_a_tensor_that_is_changed_later_is_read_before(chip: emulator.Emulated) -> None:
    assert replaced(changed_through_a_view, X.clone(), R.clone()) == ["linear_residual"]


@torch.no_grad()
def test_dropout_in_training_is_no_residual_sum(chip: emulator.Emulated) -> None:
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        before = torch.get_rng_state()
        names.extend(join(graph))
        assert torch.equal(torch.get_rng_state(), before)
        return graph.forward

    torch.compile(lambda x: F.dropout(F.linear(x, W, BIAS), 0.5, True) + R, backend=backend)(X)
    assert names == ["linear"]


@torch.no_grad()
def test_float32_products_are_pytorchs_and_its_own_operators_are_joined(chip: emulator.Emulated) -> None:
    x, w, b = X.float(), W.float(), BIAS.float()
    assert replaced(lambda x: tanh_gelu(F.linear(x, w, b)), x) == []
    assert replaced(lambda x: tanh_gelu(ops.linear(x, w, b)), x) == ["linear_gelu"]


def test_nothing_is_replaced_where_gradients_are_recorded(chip: emulator.Emulated) -> None:
    w = W.clone().requires_grad_()
    assert replaced(lambda x: tanh_gelu(F.linear(x, w, BIAS)), X) == []
    with torch.no_grad():
        assert replaced(lambda x: tanh_gelu(F.linear(x, w, BIAS)), X) == ["linear_gelu"]


@torch.no_grad()
def test_nothing_is_replaced_where_there_are_no_kernels() -> None:
    torch._dynamo.reset()
    assert replaced(lambda x: tanh_gelu(F.linear(x, W, BIAS)), X) == []


@pytest.fixture
def raced(chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every kernel is raced as on a card; those that are put here lose.  Both have to give the same shape."""
    slow: set[str] = set()

    def both(device: Any, given: Any, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Race:
        made = [like(one) for one in given]
        assert ours(*made).shape[-1:] == theirs(*made).shape[-1:]
        assert ours(*made).numel() == theirs(*made).numel()
        return Race(ours=None, theirs=2.0)

    monkeypatch.setattr(racing, "_raced", Raced(slow))
    monkeypatch.setattr(racing, "is_raced", lambda device: True)
    monkeypatch.setattr(racing, "race", both)
    return slow


class Raced(dict[Any, Race]):
    """What was raced, by what names it; a race is won by what is not slow."""

    def __init__(self, slow: set[str]) -> None:
        super().__init__()
        self.slow = slow

    def __setitem__(self, key: Any, race: Race) -> None:
        super().__setitem__(key, dataclasses.replace(race, ours=2.1 if key[0][0] in self.slow else 1.9))


@pytest.mark.parametrize("name", JOINED)
@torch.no_grad()
def test_on_a_card_each_operator_is_raced(name: str, raced: set[str]) -> None:
    function, expected = JOINED[name]
    assert replaced(function, X) == expected
    joined = [one for one in expected if not (one == "linear" and "operator" in name)]
    assert [key[0][0] for key in racing._raced] == joined


@pytest.mark.parametrize(
    ("name", "slow", "expected"),
    [
        ("a residual sum", {"linear_residual"}, ["linear"]),
        ("a residual sum", {"linear_residual", "linear"}, []),
        ("attention", set(), ["attention_qkv"]),
        ("attention", {"attention_qkv"}, []),
        ("parts of one", set(), ["attention"]),
        ("parts of one", {"attention"}, []),
    ],
)
@torch.no_grad()
def test_what_pytorch_is_faster_at_stays_and_less_of_it_is_tried(
    name: str, slow: set[str], expected: list[str], raced: set[str]
) -> None:
    raced |= slow
    if name == "attention":
        found = replaced(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), made(1, 2, 16, 64))
    elif name == "parts of one":
        found = replaced(
            lambda x: F.scaled_dot_product_attention(
                *(one.view(2, 5, 2, 16).transpose(1, 2) for one in x.split(32, dim=2)), is_causal=True
            ),
            made(2, 5, 96),
        )
    else:
        found = replaced(JOINED[name][0], X)
    assert found == expected


@torch.no_grad()
def test_what_is_raced_lies_as_what_the_graph_has() -> None:
    lain = made(4, 6, 8)[:, ::2].transpose(0, 1)
    shared = made(1, 3).expand(5, 3)
    for one in (lain, shared, made(0, 3), torch.ones(())):
        twin = like(one)
        assert (twin.dtype, twin.shape, twin.stride()) == (one.dtype, one.shape, one.stride())
    assert not Race(None, None).won
    assert Race(1.01, 1.0).won
    assert not Race(1.1, 1.0).won


@torch.no_grad()
def test_sizes_may_be_symbols(chip: emulator.Emulated) -> None:
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(attend(graph) + join(graph))
        return graph.forward

    square = made(N, N, seed=9) / 7

    def function(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.linear(tanh_gelu(F.linear(x, W, BIAS)), square, BIAS) + r

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for batch in (2, 5, 9):
        x, r = made(batch, 3, K), made(batch, 3, N)
        torch.testing.assert_close(compiled(x, r), function(x, r), rtol=0.03, atol=0.03)
    assert names == ["linear_gelu", "linear_residual"]


# ---------------------------------------------------------------------------------------------------- attention

B, H, T, D = 2, 3, 16, 16
Q, KEYS, V = (made(B, H, T, D, seed=n) for n in (6, 7, 8))
sdpa = F.scaled_dot_product_attention


def lower(dtype: torch.dtype = torch.bool) -> torch.Tensor:
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    return seen if dtype is torch.bool else torch.zeros(T, T, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


def by_vmap() -> torch.Tensor:
    """As transformers builds it."""
    places = torch.arange(T)
    return torch.vmap(torch.vmap(lambda q, k: k <= q, (None, 0)), (0, None))(places, places + 0).expand(B, 1, T, T)


ATTENTION: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "causal": lambda q: sdpa(q, KEYS, V, is_causal=True),
    "its scale said": lambda q: sdpa(q, KEYS, V, None, 0.0, True, scale=D**-0.5),
    "a mask": lambda q: sdpa(q, KEYS, V, lower()),
    "a mask of numbers": lambda q: sdpa(q, KEYS, V, attn_mask=lower(BF16)[None, None]),
    "a mask of infinities": lambda q: sdpa(q, KEYS, V, attn_mask=torch.full((T, T), -math.inf, dtype=BF16).triu(1)),
    "a mask that is filled in place": lambda q: sdpa(q, KEYS, V, attn_mask=torch.ones(T, T, dtype=torch.bool).tril_()),
    "transformers' mask": lambda q: sdpa(q, KEYS, V, attn_mask=by_vmap()[:, :, :, :T]),
}


@pytest.mark.parametrize("name", ATTENTION)
@torch.no_grad()
def test_causal_attention_is_an_operator(name: str, chip: emulator.Emulated) -> None:
    assert replaced(ATTENTION[name], Q) == ["attention_qkv"]
    assert chip.launches == 1


@torch.no_grad()
def test_heads_that_share_keys(chip: emulator.Emulated) -> None:
    q, k, v = made(B, 4, T, 128), made(B, 2, T, 128, seed=1), made(B, 2, T, 128, seed=2)
    names = replaced(lambda q: sdpa(q, k, v, attn_mask=lower(), enable_gqa=True), q)
    assert names == ["matmul_div_add_softmax_2821c9"]


WHOLE = made(B, T, 3 * H * D, seed=9)


def parts(whole: torch.Tensor) -> list[torch.Tensor]:
    """As nanoGPT and transformers take them."""
    return [one.view(B, T, H, D).transpose(1, 2) for one in whole.split(H * D, dim=2)]


def joined_rows(y: torch.Tensor) -> torch.Tensor:
    return y.transpose(1, 2).reshape(B, T, H * D)


def from_parts(whole: torch.Tensor) -> torch.Tensor:
    return joined_rows(sdpa(*parts(whole), is_causal=True))


def by_an_empty_cache(whole: torch.Tensor) -> torch.Tensor:
    q, k, v = parts(whole)
    k, v = (torch.cat([torch.tensor([], dtype=BF16), one], dim=-2) for one in (k, v))
    return joined_rows(sdpa(q, k, v, attn_mask=by_vmap()))


def by_a_cache(whole: torch.Tensor) -> torch.Tensor:
    q, k, v = parts(whole)
    k = torch.cat([k[:, :, :1], k[:, :, 1:]], dim=-2)
    return joined_rows(sdpa(q, k, v, is_causal=True))


def in_another_order(whole: torch.Tensor) -> torch.Tensor:
    k, q, v = parts(whole)
    return joined_rows(sdpa(q, k, v, is_causal=True))


def of_heads_side_by_side(whole: torch.Tensor) -> torch.Tensor:
    """As GPT-NeoX has them."""
    q, k, v = whole.view(B, T, H, 3 * D).transpose(1, 2).chunk(3, dim=-1)
    return joined_rows(sdpa(q, k, v, is_causal=True))


def changed_after_a_copy(whole: torch.Tensor) -> torch.Tensor:
    q, k, v = parts(whole)
    k = torch.cat([torch.tensor([], dtype=BF16), k], dim=-2)
    whole.mul_(0.5)
    return joined_rows(sdpa(q, k, v, is_causal=True))


def viewed_at_once(whole: torch.Tensor) -> torch.Tensor:
    """Where PyTorch's result lies as its users want it."""
    y = sdpa(*parts(whole), is_causal=True)
    return y.transpose(1, 2).view(B, T, H * D) if y.stride()[1] == D else y.view(B, H * T, D)


PARTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "parts of one": (from_parts, "attention"),
    "an empty cache": (by_an_empty_cache, "attention"),
    "viewed at once": (viewed_at_once, "attention"),
    "a cache": (by_a_cache, "attention_qkv"),
    "in another order": (in_another_order, "attention_qkv"),
    "heads side by side": (of_heads_side_by_side, "attention_qkv"),
    "changed after a copy": (changed_after_a_copy, "attention_qkv"),
}


@pytest.mark.parametrize("name", PARTS)
@torch.no_grad()
def test_parts_of_one_tensor_are_read_from_there(name: str, chip: emulator.Emulated) -> None:
    function, operator = PARTS[name]
    assert replaced(function, WHOLE.clone()) == [operator]


@pytest.mark.parametrize("where", ["rows", "heads"])
@torch.no_grad()
def test_the_result_lies_as_what_follows_was_traced_with(where: str, chip: emulator.Emulated) -> None:
    """Else a view would fail when the graph is lowered."""

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        (node,) = (one for one in graph.graph.nodes if one.target is sdpa)
        y = node.meta["example_value"]
        strides = (T * H * D, D, H * D, 1) if where == "rows" else (H * T * D, T * D, D, 1)
        node.meta["example_value"] = y.as_strided(y.shape, strides)
        assert attend(graph)
        (made,) = (one for one in graph.graph.nodes if one.op == "output")
        made.args = ((made.args[0][0],),)
        graph.recompile()
        return graph.forward

    for function, given in (
        (lambda w: sdpa(*parts(w), is_causal=True), WHOLE),
        (lambda q: sdpa(q, KEYS, V, is_causal=True), Q),
    ):
        torch._dynamo.reset()
        y = torch.compile(function, backend=backend, fullgraph=True)(given)
        assert y.stride() == ((T * H * D, D, H * D, 1) if where == "rows" else (H * T * D, T * D, D, 1))


def filled_after(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    mask.fill_(True)
    return sdpa(q, KEYS, V, attn_mask=mask)


def filled_through_a_view(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    mask[0].fill_(True)
    return sdpa(q, KEYS, V, attn_mask=mask)


def filled_by_an_input(q: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(T, T, dtype=BF16).masked_fill(~lower(), -math.inf)
    mask[0, 5] = q[0, 0, 0, 0]
    return sdpa(q, KEYS, V, attn_mask=mask)


def filled_between(q: torch.Tensor) -> torch.Tensor:
    mask = lower()
    first = sdpa(q, KEYS, V, attn_mask=mask)
    mask.fill_(True)
    return first + sdpa(q, KEYS, V, attn_mask=mask)


ANOTHER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "not causal": lambda q: sdpa(q, KEYS, V),
    "a window": lambda q: sdpa(q, KEYS, V, attn_mask=lower() & ~torch.ones(T, T, dtype=torch.bool).tril(-5)),
    "one place less": lambda q: sdpa(q, KEYS, V, attn_mask=torch.ones(T, T, dtype=torch.bool).tril(1)),
    "a bias": lambda q: sdpa(q, KEYS, V, attn_mask=lower(BF16) + 0.5),
    "hidden by little": lambda q: sdpa(q, KEYS, V, attn_mask=torch.zeros(T, T, dtype=BF16).masked_fill(~lower(), -1.0)),
    "a mask of integers' kind": lambda q: sdpa(q, KEYS, V, attn_mask=lower().to(BF16)),
    "another scale": lambda q: sdpa(q, KEYS, V, is_causal=True, scale=0.1),
    "filled after": filled_after,
    "filled through a view": filled_through_a_view,
    "filled by an input": filled_by_an_input,
    "filled between two": filled_between,
    "a mask for each head": lambda q: sdpa(q, KEYS, V, attn_mask=torch.stack([lower(), lower(), ~lower() | lower()])),
}


@pytest.mark.parametrize("name", ANOTHER)
@torch.no_grad()
def test_other_attention_stays(name: str, chip: emulator.Emulated) -> None:
    assert replaced(ANOTHER[name], Q) == []
    assert chip.launches == 0


@torch.no_grad()
def test_a_given_mask_stays(chip: emulator.Emulated) -> None:
    assert replaced(lambda q, mask: sdpa(q, KEYS, V, attn_mask=mask), Q, lower()) == []


@torch.no_grad()
def test_a_random_mask_stays_and_nothing_is_drawn(chip: emulator.Emulated) -> None:
    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        assert attend(graph) == []
        return graph.forward

    def function(q: torch.Tensor) -> torch.Tensor:
        return sdpa(q, KEYS, V, attn_mask=(torch.rand(T, T) >= 0) & lower())

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    torch.manual_seed(3)
    compiled(Q)
    after = torch.rand(3)
    torch.manual_seed(3)
    function(Q)
    assert torch.equal(torch.rand(3), after)


# ---------------------------------------------------------------------------------------------------- the backend


class Block(nn.Module):
    """As nanoGPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(K) for _ in range(2))
        self.qkv, self.proj, self.fc, self.out = (
            nn.Linear(a, b) for a, b in ((K, 3 * K), (K, K), (K, 4 * K), (4 * K, K))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (one.view(batch, length, 3, 16).transpose(1, 2) for one in self.qkv(self.norms[0](x)).split(K, 2))
        y = sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, K)
        x = x + self.proj(y)
        return x + self.out(tanh_gelu(self.fc(self.norms[1](x))))


@torch.inference_mode()
def test_a_block_by_torch_inductor(chip: emulator.Emulated, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, x = Block().to(BF16).eval(), X
    expected = model(x)
    kernels_generated.patch(model, x)
    compiled = torch.compile(model, backend=tilewright, fullgraph=True, options={"max_autotune": False})
    with caplog.at_level("INFO"):
        found = compiled(x)
    assert [one.message for one in caplog.records if "tilewright" in one.name or "kernels_generated" in one.name] == [
        "1 attention, 2 linear_residual, 1 linear_gelu"
    ]
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    before = chip.launches
    compiled(x)
    assert chip.launches - before == 5


def test_the_backend_is_known_by_its_name() -> None:
    """Where the project is installed."""
    from importlib.metadata import entry_points

    (found,) = (one for one in entry_points(group="torch_dynamo_backends") if one.name == "tilewright")
    assert found.load() is tilewright


@torch.no_grad()
def test_what_is_wrong_here_is_said_and_the_model_is_compiled(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(module: torch.fx.GraphModule) -> list[str]:
        join(module)
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(torch_backend, "join", wrong)
    compiled = torch.compile(lambda x: F.linear(x, W, BIAS) + 1, backend=tilewright)
    with pytest.warns(RuntimeWarning, match="stay PyTorch's: ZeroDivisionError: by nothing"):
        torch.testing.assert_close(compiled(X), F.linear(X, W, BIAS) + 1, rtol=0.03, atol=0.03)
    assert chip.launches == 0


def test_a_function_without_a_module_is_a_stranger() -> None:
    """As PyTorch's own have none in 2.11."""
    graph = torch.fx.Graph()
    node = graph.call_function(dict.fromkeys, ((),))
    assert dict.fromkeys.__module__ is None
    assert not traced.is_harmless(node)


@torch.no_grad()
def test_a_mask_that_cannot_be_made_stays_and_leaves_nothing_behind(chip: emulator.Emulated) -> None:
    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            if node.target in ("le", operator.le):
                node.op, node.target = "call_method", "no_such_method"
        before = maybe_current_level()
        assert attend(graph) == []
        assert maybe_current_level() == before
        return lambda *_: (Q,)

    torch.compile(lambda q: sdpa(q, KEYS, V, attn_mask=by_vmap()), backend=backend, fullgraph=True)(Q)


def test_a_wrong_mode_is_said() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=tilewright, mode="fastest")
    with pytest.raises(Exception, match="Unrecognized mode=fastest"):
        compiled(X)
