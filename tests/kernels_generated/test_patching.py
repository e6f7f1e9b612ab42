"""Models whose modules are replaced by operators: which, that they compute the same in whatever way they are used."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernels_generated
from evaluator import emulator
from kernels_generated import ops, patching
from kernels_generated.patching import attended, patched, replaced

BF16 = torch.bfloat16
WIDTH = 48


@pytest.fixture
def chip() -> Iterator[emulator.Emulated]:
    yield emulator.install()
    emulator.uninstall()


class NanoNorm(nn.Module):
    """As nanoGPT writes it."""

    def __init__(self, n: int = WIDTH) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class LlamaNorm(nn.Module):
    """As transformers writes it."""

    def __init__(self, n: int = WIDTH, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))
        self.variance_epsilon = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.scale * (hidden * torch.rsqrt(variance + self.variance_epsilon)).to(dtype)


class NewGELU(nn.Module):
    """As minGPT writes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Applies(nn.Module):
    """An activation that is kept as a function."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


class OnMatrix(nn.Module):
    """x w + b, or x wᵀ + b, as a module that is no Linear."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.nf, self.turned = 32, turned
        self.weight = nn.Parameter(torch.randn((WIDTH, 32) if turned else (32, WIDTH)) / 7)
        self.bias = nn.Parameter(torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.turned else self.weight.t()
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), weight).view(x.size()[:-1] + (self.nf,))


RECOGNISED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "Linear": (lambda: nn.Linear(WIDTH, 32), "linear"),
    "Linear, square": (lambda: nn.Linear(WIDTH, WIDTH), "linear"),
    "Linear without bias": (lambda: nn.Linear(WIDTH, 32, bias=False), "linear_nobias"),
    "LayerNorm": (lambda: nn.LayerNorm(WIDTH), "layernorm"),
    "RMSNorm": (lambda: nn.RMSNorm(WIDTH, eps=1e-5), "rmsnorm_43ef8d"),
    "GELU": (lambda: nn.GELU(approximate="tanh"), "gelu"),
    "nanoGPT's norm": (NanoNorm, "layernorm"),
    "Llama's norm": (LlamaNorm, "rmsnorm_43ef8d"),
    "minGPT's GELU": (NewGELU, "gelu"),
    "a matrix": (lambda: OnMatrix(turned=False), "linear"),
    "a turned matrix": (lambda: OnMatrix(turned=True), "dense"),  # transformers' Conv1D
    "Gemma's GELU": (lambda: Applies(functools.partial(F.gelu, approximate="tanh")), "gelu"),
    "softmax": (lambda: Applies(functools.partial(torch.softmax, dim=-1)), "softmax"),
}


@pytest.mark.parametrize("made", RECOGNISED)
@torch.no_grad()
def test_a_module_is_recognised_by_what_it_does(chip: emulator.Emulated, made: str) -> None:
    make, operator = RECOGNISED[made]
    torch.manual_seed(0)
    module = make().to(BF16)
    for parameter in module.parameters():
        parameter.normal_()
    x = torch.randn(2, 5, WIDTH, dtype=BF16)
    expected = module(x)
    report = kernels_generated.patch(module, x)
    assert [(one.name, one.operator, one.reason) for one in report.modules] == [("", operator, "")]
    before = chip.launches
    torch.testing.assert_close(module(x), expected, rtol=2e-2, atol=1e-2)
    assert chip.launches > before
    assert module(x[0, 0]).shape == expected[0, 0].shape
    assert module(x[:, :0]).shape == expected[:, :0].shape


class Changed(LlamaNorm):
    """Llama's norm, but for one thing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.how)(hidden)  # type: ignore[no-any-return]

    def _norm(self, hidden: torch.Tensor, axis: int = -1, eps: float = 1e-5) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(axis, keepdim=True) + eps)

    def plus_one(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.scale) * self._norm(x)

    def middle_axis(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x, 1)

    def first_axis(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x, 0)

    def small_eps(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x, eps=1e-6)

    def clamped(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x).clamp(-1e4, 1e4)

    def in_training(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x) * (2 if self.training else 1)

    def few_rows(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x) if x.shape[0] < 100 else x

    def in_place(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)).mul_(self.scale)

    def written_to(self, x: torch.Tensor) -> torch.Tensor:
        made = self.scale * self._norm(x)
        x += 1
        return made

    def wide_only(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x) if self.scale.shape[0] < 40 else x

    def to_half(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self._norm(x.to(torch.float16).to(x.dtype))

    def counts(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.scale * self._norm(x) * self.calls

    def single_precision(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale.float() * self._norm(x.float())

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(self.scale * self._norm(x))

    def a_tuple(self, x: torch.Tensor) -> Any:
        return (self.scale * self._norm(x),)


FACTOR = 1.0


class Global(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * FACTOR


class Constants:
    factor = 1.0


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def enclosed() -> type[nn.Module]:
    factor = 1.0

    class Enclosing(LlamaNorm):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden) * factor

    return Enclosing


class OfObject(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * Constants.factor


class ByFunction(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return scaled(super().forward(hidden))


class ByLambda(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return (lambda x: x * FACTOR)(super().forward(hidden))


class ByMembers(LlamaNorm):
    """By a property, a method of the class, and a static one."""

    @staticmethod
    def third() -> float:
        return FACTOR

    @classmethod
    def second(cls) -> float:
        return cls.third()

    @property
    def first(self) -> float:
        return self.second()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * self.first


class SetsGlobal(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        global FACTOR
        FACTOR = 2.0
        return super().forward(hidden)


class InInference(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made = super().forward(hidden)
        return made * 2 if torch.is_inference_mode_enabled() else made


class ByHelper(LlamaNorm):
    """Reads a variable where its forward does not."""

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    def extra_repr(self) -> str:
        return f"{FACTOR}"

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.helper(super().forward(hidden))


class Counts(LlamaNorm):
    calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(hidden)


class Keeps(LlamaNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(hidden)
        return self.last


class NoProxy(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * (2 if isinstance(input, torch.Tensor) else 1)


class Autocast(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(input)


class SafeSoftmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) + 1e-7


class WideSoftmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1, dtype=torch.float64)


class Elsewhere(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).to("cpu")


class TwoInputs(LlamaNorm):
    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(hidden if residual is None else hidden + residual)


NO_OTHER_EPS = "no operator computes the same with eps="


def with_state(**state: Any) -> nn.Module:
    module = LlamaNorm()
    vars(module).update(state)
    return module


def buffered() -> nn.Module:
    module = LlamaNorm()
    module.register_buffer("shift", torch.zeros(1))
    return module


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "GELU by erf": (nn.GELU, "no operator computes the same"),
    "SiLU": (nn.SiLU, "no operator computes the same"),
    "ReLU": (nn.ReLU, "no operator computes its relu"),
    "LayerNorm over two axes": (lambda: nn.LayerNorm((5, WIDTH)), f"{NO_OTHER_EPS}1e-05"),
    "LayerNorm with another eps": (
        lambda: nn.LayerNorm(WIDTH, eps=1e-12),
        f"{NO_OTHER_EPS}1e-12",
    ),
    "LayerNorm without bias": (lambda: nn.LayerNorm(WIDTH, bias=False), f"{NO_OTHER_EPS}1e-05"),
    "LayerNorm without parameters": (
        lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
        f"{NO_OTHER_EPS}1e-05",
    ),
    "RMSNorm whose eps is the dtype's": (lambda: nn.RMSNorm(WIDTH), ""),
    "a global variable": (Global, "it reads the global variable FACTOR"),
    "a variable of an object": (OfObject, "it reads the global variable Constants"),
    "a global variable in a function": (ByFunction, "it reads the global variable FACTOR"),
    "a global variable in a lambda": (ByLambda, "it reads the global variable FACTOR"),
    "a global variable in its members": (ByMembers, "it reads the global variable FACTOR"),
    "a global variable that it sets": (SetsGlobal, "it sets the global variable FACTOR"),
    "an enclosing variable": (enclosed(), "it reads the enclosing variable factor"),
    "another in inference mode": (InInference, "it computes something else in inference mode"),
    "a count of calls": (Counts, "it keeps something from one call to the next"),
    "its last output": (Keeps, "it keeps something from one call to the next"),
    "a branch that the trace does not show": (lambda: NoProxy(4, 5), "no operator computes the same"),
    "a context": (lambda: Autocast(4, 5), "no operator computes the same"),
    "a softmax that is never 0": (SafeSoftmax, "no operator computes the same"),
    "a softmax in float64": (WideSoftmax, "no operator computes its softmax"),
    "another device": (lambda: Elsewhere(4, 5), "no operator computes its to"),
    "an LSTM": (lambda: nn.LSTM(4, 4), ""),
    "a script": (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4))), "it is a ScriptModule"),
    "two inputs": (TwoInputs, "its forward takes more than one tensor"),
    "a forward of its own": (lambda: with_state(forward=lambda x: x), "its forward was replaced, on this module alone"),
    "an object": (lambda: with_state(config={"eps": 1e-5}), "its attribute config is a dict"),
    "buffers": (buffered, "it has buffers"),
    "complex": (lambda: LlamaNorm().to(torch.complex64), "its parameters are complex64"),
    **{
        how: (lambda how=how: Changed(how), "")
        for how, member in vars(Changed).items()
        if not how.startswith("_") and how != "forward" and callable(member)
    },
}


@pytest.mark.parametrize("made", LEFT)
def test_a_module_that_is_alike_is_left(chip: emulator.Emulated, made: str) -> None:
    make, reason = LEFT[made]
    module = make()
    before = dict(vars(module))
    report = kernels_generated.patch(module, check=False)
    (one,) = report.modules
    assert not one.operator
    assert one.reason
    assert not reason or one.reason == reason
    assert vars(module) == before
    assert type(module) is type(make())


# ---------------------------------------------------------------------------------------------------- at each call


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = BF16) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.wte = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), NewGELU(), nn.Dropout(0.5), nn.Linear(96, WIDTH))
            for _ in range(2)
        )
        self.norm = LlamaNorm()
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.to(dtype)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.wte(idx)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def tokens(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 50, (batch, 7), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_a_model(chip: emulator.Emulated) -> None:
    model, idx = Model().eval(), tokens()
    expected = model(idx)
    keys, hash_of = list(model.state_dict()), [id(one) for one in model.parameters()]
    report = kernels_generated.patch(model, idx)
    before = chip.launches
    found = model(idx)
    assert chip.launches - before == len(report.replaced) == 10
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert list(model.state_dict()) == keys
    assert [id(one) for one in model.parameters()] == hash_of
    kernels_generated.unpatch(model)
    before = chip.launches
    assert torch.equal(model(idx), expected)
    assert chip.launches == before


REPORT = """\
Model: 10 of 13 modules have generated kernels in their place
     2 LayerNorm → layernorm: blocks.0-1.0; error …
     4 Linear → linear: blocks.0-1.1, blocks.0-1.4; error …
     2 NewGELU → gelu: blocks.0-1.2; error …
     1 LlamaNorm → rmsnorm_43ef8d: norm; error …
     1 Linear → linear_nobias: head; error …
left as they are:
     1 Embedding: wte; no operator computes its embedding
     2 Dropout: blocks.0-1.3; it computes something else in training
its outputs differ by … from before (at most 5e-02)"""


def test_the_report_says_what_was_replaced_what_not_and_why(chip: emulator.Emulated) -> None:
    model = Model()
    report = kernels_generated.patch(model, tokens())
    gelu = max(one.error or 0.0 for one in report.replaced if one.kind == "NewGELU")
    whole = max(report.errors.values())
    shown = str(report)
    assert f"error {gelu:.0e}" in shown
    assert f"differ by {whole:.1e}" in shown
    assert re.sub(r"error \S+|no error", "error …", shown).replace(f"{whole:.1e}", "…") == REPORT
    assert [one.name for one in report.left] == ["wte", "blocks.0.3", "blocks.1.3"]


def test_what_the_example_does_not_reach_is_said(chip: emulator.Emulated) -> None:
    model = nn.ModuleDict({"used": nn.Linear(8, 8), "other": nn.Linear(8, 8), "kept": nn.Linear(8, 8)}).to(BF16)
    model.forward = lambda x: model["kept"](input=model["used"](x))
    report = kernels_generated.patch(model, torch.randn(2, 8, dtype=BF16))
    assert {one.name: one.reason for one in report.modules} == {
        "used": "",
        "other": "the example did not call it",
        "kept": "it was called with other arguments than one tensor",
    }
    assert "the model itself" not in str(report)
    assert all(len(line) <= 80 for line in str(report).splitlines())


def linear(**changes: Any) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH, **changes).to(BF16)


def x_of(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)


class Doubled(torch.Tensor):
    pass


def eps_changed(module: Any) -> None:
    module.variance_epsilon = 1.0


def weight_changed(module: Any) -> None:
    module.scale.data = module.scale.data[:1]  # broadcasts


def halved(module: Any) -> None:
    parametrize.register_parametrization(module, "scale", torch.nn.Hardtanh(-0.5, 0.5))


def attribute_set(module: Any) -> None:
    module.forward_scale = 3.0


def child_set(module: Any) -> None:
    module.child = nn.Identity()


class PerClass(LlamaNorm):
    """Whose eps is its class's, which may look for more."""

    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        del self.variance_epsilon

    variance_epsilon = 1e-5

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made = super().forward(hidden)
        if hasattr(self, "child"):
            made = made + self.child(hidden)
        return made * 3 if hasattr(self, "forward_scale") else made


CHANGES = {
    "another attribute": attribute_set,
    "a child": child_set,
    "another setting": eps_changed,
    "a weight that broadcasts": weight_changed,
    "another dtype": lambda module: module.to(torch.float64),
    "a parametrization": halved,
    "pruning": lambda module: prune.l1_unstructured(module, "scale", 0.5),
    "a forward of its own": lambda module: vars(module).update(forward=lambda x: x * 2),
    "a hook before": lambda module: module.register_forward_pre_hook(lambda _, given: (given[0] * 2,)),
    "a hook after": lambda module: module.register_forward_hook(lambda _, given, made: made * 2),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_module_that_is_changed_later_computes_what_it_then_is(chip: emulator.Emulated, change: str) -> None:
    plain, module = PerClass(), PerClass()
    for one in (plain, module):
        one.scale.copy_(torch.linspace(-2, 2, WIDTH))
        one.to(BF16)
    kernels_generated.patch(module, x_of(3))
    for one in (plain, module):
        CHANGES[change](one)
    x = x_of(3, dtype=plain.scale.dtype)
    torch.testing.assert_close(module(x), plain(x), rtol=2e-2, atol=1e-2)


@torch.no_grad()
def test_a_setting_of_the_class_is_held_too(chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, module = PerClass().to(BF16), PerClass().to(BF16)
    assert kernels_generated.patch(module, x_of(3)).replaced
    monkeypatch.setattr(PerClass, "variance_epsilon", 1.0)
    assert torch.equal(module(x_of(3)), plain(x_of(3)))


@torch.no_grad()
def test_an_output_lies_in_memory_as_before(chip: emulator.Emulated) -> None:
    for make in (NewGELU, LlamaNorm, lambda: nn.LayerNorm(WIDTH), lambda: nn.Linear(WIDTH, 8), lambda: nn.GELU("tanh")):
        module = make().to(BF16)
        inputs = [x_of(4, 3), x_of(4, 3).transpose(0, 1), torch.randn(3, WIDTH, 2).to(BF16).transpose(1, 2)]
        expected = [module(x).stride() for x in inputs]
        kernels_generated.patch(module, inputs[0])
        assert [module(x).stride() for x in inputs] == expected


def test_a_class_whose_forward_is_changed_later(chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    module = LlamaNorm().to(BF16)
    kernels_generated.patch(module, x_of(3))
    monkeypatch.setattr(LlamaNorm, "forward", lambda self, hidden: hidden * 3)
    assert torch.equal(module(x_of(3)), x_of(3) * 3)


def test_a_class_whose_other_members_are_changed_later(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ByHelper().to(BF16)
    (one,) = kernels_generated.patch(module, x_of(3)).modules
    assert one.operator
    own = LlamaNorm().to(BF16)(x_of(3))
    monkeypatch.setattr(ByHelper, "helper", lambda self, x: x * 3)
    assert torch.equal(module(x_of(3)), own * 3)


def test_nested_tensors_are_pytorchs_own(chip: emulator.Emulated) -> None:
    linear = nn.Linear(WIDTH, 8).to(BF16)
    nested = torch.nested.nested_tensor([x_of(3), x_of(2)])
    with torch.no_grad():
        expected = [one.clone() for one in linear(nested).unbind()]
        kernels_generated.patch(linear, x_of(3))
        assert all(torch.equal(a, b) for a, b in zip(linear(nested).unbind(), expected, strict=True))


INPUTS = {
    "float32": x_of(3, dtype=torch.float32),
    "no axis": torch.tensor(1.0, dtype=BF16),
    "too narrow": x_of(3)[:, 1:],
    "a class of its own": x_of(3).as_subclass(Doubled),
    "sparse": x_of(3).to_sparse(),
    "meta": x_of(3).to("meta"),
    "no tensor": 3,
}


@pytest.mark.parametrize("given", INPUTS)
@torch.no_grad()
def test_what_is_no_input_of_the_operator_is_the_modules_own_affair(chip: emulator.Emulated, given: str) -> None:
    """Also what is wrong with it is said in PyTorch's words."""
    module = linear()
    expected = outcome(module, INPUTS[given])
    kernels_generated.patch(module, x_of(3))
    before = chip.launches
    assert outcome(module, INPUTS[given]) == expected
    assert chip.launches == before


def outcome(module: nn.Module, x: Any) -> Any:
    try:
        made = module(x)
    except Exception as error:
        return type(error), str(error)
    return type(made), made.dtype, made.shape, None if made.is_meta else made.tolist()


def test_inputs_in_any_place(chip: emulator.Emulated) -> None:
    module = linear().requires_grad_(False)
    wide = x_of(3, 4)
    inputs = [wide.transpose(0, 1), wide[:, ::2], wide.expand(2, 3, 4, WIDTH), wide[:0], torch.view_as_complex(
        torch.stack([x_of(3).float()] * 2, -1)).conj().imag]  # fmt: skip
    inputs[-1] = inputs[-1].to(BF16)
    expected = [module(x) for x in inputs]
    kernels_generated.patch(module, wide)
    for x, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(module(x), wanted, rtol=2e-2, atol=1e-2)


# ---------------------------------------------------------------------------------------------------- attention


class Attention(nn.Module):
    """Heads of 16; ``said`` are arguments of scaled_dot_product_attention."""

    def __init__(self, heads: int = 2, shared: int = 2, **said: Any) -> None:
        super().__init__()
        self.heads, self.shared, self.said, self.dropout, self.calls = (
            heads,
            shared,
            {"is_causal": True, **said},
            0.0,
            0,
        )
        self.q, self.kv = nn.Linear(WIDTH, heads * 16), nn.Linear(WIDTH, 2 * shared * 16)
        self.proj = nn.Linear(heads * 16, WIDTH)
        self.to(BF16)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        self.calls += 1
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.heads, 16).transpose(1, 2)
        k, v = (one.view(B, T, self.shared, 16).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        if cache is not None:
            cache.append(k)
        dropout = self.dropout if self.training else 0.0
        made = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, **self.said)
        return self.proj(made.transpose(1, 2).reshape(B, T, -1))


GROUPED = "matmul_div_add_softmax_2821c9"
ATTENTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "causal": ({}, "attention_qkv", ""),
    "its scale said": ({"scale": 0.25}, "attention_qkv", ""),
    "grouped": ({"heads": 4, "enable_gqa": True}, GROUPED, ""),
    "one head of keys": ({"shared": 1, "enable_gqa": True}, GROUPED, ""),
    "another scale": ({"scale": 0.5}, "", "its attention is scaled by 0.5"),
    "not causal": ({"is_causal": False}, "", "its attention is not causal"),
    "a mask": ({"is_causal": False, "attn_mask": torch.ones(5, 5, dtype=torch.bool)}, "", "its attention takes a mask"),
}


@pytest.mark.parametrize("case", ATTENTIONS)
@torch.no_grad()
def test_attention_in_a_forward(chip: emulator.Emulated, case: str) -> None:
    named, operator, reason = ATTENTIONS[case]
    torch.manual_seed(2)
    model, x = nn.Sequential(Attention(**named), LlamaNorm().to(BF16)), x_of(2, 5)
    expected, calls = model(x), model[0].calls
    report = kernels_generated.patch(model, x)
    assert model[0].calls == calls + 2  # as it was, and patched; no third time, which would fill a cache twice
    (one,) = [one for one in report.modules if one.kind == "Attention"]
    assert (one.operator, one.reason) == (operator, reason)
    assert report.left == (() if operator else (one,))
    before = chip.launches
    found = model(x)
    assert chip.launches - before == (5 if operator else 4)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=2e-2)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(other(x), found)
    kernels_generated.unpatch(other)
    assert type(other[0]) is Attention
    assert torch.equal(other(x), expected)


class Packed(nn.Module):
    """Queries, keys and values are parts of what one product gives, as GPT-2 has it; ``order``: which part is which."""

    def __init__(self, order: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        self.order, self.qkv = order, nn.Linear(WIDTH, 3 * 32).to(BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        parts = [one.view(B, T, 2, 16).transpose(1, 2) for one in self.qkv(x).split(32, dim=2)]
        made = F.scaled_dot_product_attention(*(parts[place] for place in self.order), is_causal=True)
        return made.transpose(1, 2).reshape(B, T, 32)


@pytest.mark.parametrize(("batch", "length"), [(2, 5), (1, 5), (2, 1), (1, 1)])
@torch.no_grad()
def test_attention_reads_parts_of_one_tensor_where_they_lie(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch, batch: int, length: int
) -> None:
    model, x = Packed(), x_of(batch, length)
    expected = model(x)
    report = kernels_generated.patch(model, x)
    assert [one.operator for one in report.replaced] == ["attention", "linear"]
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "clone", None)  # no copy is made
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (0, 0, 0)])
@torch.no_grad()
def test_parts_in_another_order_are_read_each_by_itself(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int, int]
) -> None:
    model, x = Packed(order), x_of(2, 5)
    expected = model(x)
    report = kernels_generated.patch(model, x)
    assert [one.operator for one in report.replaced] == ["attention_qkv", "linear"]
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "clone", None)
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=2e-2)


@torch.no_grad()
def test_parts_of_other_tensors_that_lie_alike_are_no_parts_of_one(chip: emulator.Emulated) -> None:
    """The same strides and offsets, in three memories."""
    tensors = [torch.randn(2, 5, 3, 2, 16).to(BF16) for _ in range(3)]
    parts = [one[:, :, place].transpose(1, 2) for place, one in enumerate(tensors)]
    call = attended.attention(*parts, is_causal=True)
    assert isinstance(call, attended.AttentionCall)
    assert call.operator == "attention_qkv"
    expected = F.scaled_dot_product_attention(*parts, is_causal=True)
    torch.testing.assert_close(call.run(), expected, rtol=5e-2, atol=2e-2)


@torch.no_grad()
def test_attention_that_is_another_at_a_call_is_pytorchs_own(chip: emulator.Emulated) -> None:
    plain = Attention()
    model = copy.deepcopy(plain)
    report = kernels_generated.patch(model, x_of(2, 5), cache=[])
    assert next(one for one in report.replaced if one.kind == "Attention").error is not None

    def equal(x: torch.Tensor, **named: Any) -> bool:
        torch.manual_seed(0)
        expected = plain(x, **named)
        torch.manual_seed(0)
        return torch.allclose(model(x, **named), expected, rtol=5e-2, atol=2e-2)

    assert equal(x_of(1, 3), cache=[])
    for changes in (
        {"is_causal": False},
        {"is_causal": True, "scale": 2.0},
        {"attn_mask": torch.eye(5) > 0, "is_causal": False},
    ):
        plain.said, model.said = changes, changes
        assert equal(x_of(2, 5))
    plain.said = model.said = {"is_causal": True}
    plain.dropout = model.dropout = 0.5
    plain.train()
    model.train()
    before = chip.launches
    assert equal(x_of(2, 5))
    assert chip.launches - before == 3


def test_attention_whose_gradients_are_recorded_is_pytorchs_own(chip: emulator.Emulated) -> None:
    plain = Attention()
    model = copy.deepcopy(plain)
    kernels_generated.patch(model, x_of(2, 5))
    for one in (plain, model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ops.ThroughPyTorch)
            one(x_of(2, 5)).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_attention_that_is_not_asked_for_by_an_example_is_left(chip: emulator.Emulated) -> None:
    report = kernels_generated.patch(Attention(), check=False)
    assert [one.kind for one in report.modules] == ["Linear"] * 3


# ---------------------------------------------------------------------------------------------------- with PyTorch


def test_gradients_are_pytorchs_own(chip: emulator.Emulated) -> None:
    plain, model, idx = Model().eval(), Model().eval(), tokens()
    kernels_generated.patch(model, idx)
    replaced._warn_of_gradients.cache_clear()
    before = chip.launches
    plain(idx).square().sum().backward()
    with pytest.warns(ops.ThroughPyTorch, match=r"gradients are recorded: call .* torch\.inference_mode") as said:
        model(idx).square().sum().backward()
    assert len(said) == 1
    assert said[0].filename == __file__
    assert chip.launches == before
    for wanted, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(found.grad, wanted.grad)
    model.requires_grad_(False)
    model(idx)
    assert chip.launches > before


@torch.no_grad()
def test_autocast_is_pytorchs_own(chip: emulator.Emulated) -> None:
    plain, model, idx = Model().eval(), Model().eval(), tokens()
    kernels_generated.patch(model, idx)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(idx), plain(idx))


@torch.no_grad()
def test_copies_and_pickles_are_patched_too(chip: emulator.Emulated) -> None:
    model, idx = Model().eval(), tokens()
    kernels_generated.patch(model, idx)
    expected = model(idx)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        before = chip.launches
        assert torch.equal(other(idx), expected)
        assert chip.launches - before == 10
        other.head.weight.zero_()
        assert not other(idx).any()
        kernels_generated.unpatch(other)
        assert type(other.head) is nn.Linear
    assert torch.equal(model(idx), expected)
    replica = model.head._replicate_for_data_parallel()
    assert type(replica) is type(model.head)


@torch.no_grad()
def test_functional_calls_take_the_parameters_that_they_are_given(chip: emulator.Emulated) -> None:
    model, idx = Model().eval(), tokens()
    kernels_generated.patch(model, idx)
    zeros = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    assert not torch.func.functional_call(model, zeros, (idx,)).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_torch_compile_sees_products_as_operators_without_a_break(chip: emulator.Emulated) -> None:
    """Norms and GELU it sees as the model has them: it makes one kernel of them and of what is around them."""
    model, idx = Model().eval(), tokens()
    expected = model(idx)
    report = kernels_generated.patch(model, idx)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if "tilewright" in str(node.target))
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(idx), expected, rtol=0.05, atol=0.05)
    products = [one.operator for one in report.replaced if one.kind == "Linear"]
    assert [name.split(".")[1] for name in seen] == products
    kernels_generated.unpatch(model)
    torch._dynamo.reset()


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def by_a_mode(kind: Any, module: nn.Module, x: torch.Tensor) -> list[str]:
    with kind() as mode:
        module(x)
    return mode.seen  # type: ignore[no-any-return]


def by_the_profiler(module: nn.Module, x: torch.Tensor) -> list[str]:
    with torch.profiler.profile() as profile:
        module(x)
    return [event.key.replace("::", ".") for event in profile.key_averages()]


def by_a_trace(module: nn.Module, x: torch.Tensor) -> list[str]:
    return [str(torch.jit.trace(module, x, check_trace=False).graph).replace("::", ".")]


FOLLOWED = {
    "a function mode": functools.partial(by_a_mode, Functions),
    "a dispatch mode": functools.partial(by_a_mode, Dispatched),
    "the profiler": by_the_profiler,
    "a trace": by_a_trace,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", FOLLOWED.values(), ids=FOLLOWED)
@torch.no_grad()
def test_who_follows_pytorchs_operators_sees_a_modules(chip: emulator.Emulated, how: Any) -> None:
    module, x = nn.Linear(WIDTH, 32).to(BF16), x_of(3)
    kernels_generated.patch(module, x)
    module(x)
    assert any("tilewright.linear" in name for name in how(module, x))


@torch.no_grad()
def test_transforms_take_the_rules_of_an_operator(chip: emulator.Emulated) -> None:
    module, x = nn.LayerNorm(WIDTH).to(BF16), x_of(3)
    kernels_generated.patch(module, x)
    expected = module(x)
    torch.testing.assert_close(torch.func.vmap(module)(x), expected, rtol=0.02, atol=0.02)
    made, change = torch.func.jvp(module, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(made, expected, rtol=0.02, atol=0.02)
    assert change.abs().max() < 0.02  # of all elements by as much


@torch.no_grad()
def test_a_negative_view_is_read_as_what_it_says(chip: emulator.Emulated) -> None:
    module, x = nn.LayerNorm(WIDTH).to(BF16), x_of(3)
    kernels_generated.patch(module, x)
    before = chip.launches
    assert torch.equal(module(torch._neg_view(x)), module(-x))
    module.bias = nn.Parameter(torch._neg_view(torch.ones(WIDTH, dtype=BF16)), requires_grad=False)
    found = module(x)
    assert chip.launches == before + 3
    module.bias = nn.Parameter(torch.full((WIDTH,), -1.0, dtype=BF16), requires_grad=False)
    assert torch.equal(found, module(x))


@torch.no_grad()
def test_a_weight_whose_memory_was_freed_is_refused(chip: emulator.Emulated) -> None:
    """As FSDP frees them between calls."""
    module, x = nn.Linear(WIDTH, 32).to(BF16), x_of(3)
    kernels_generated.patch(module, x)
    module(x)
    module.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        module(x)


@torch.no_grad()
def test_patched_modules_in_one_that_attends_are_not_followed(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attribute of a tensor that is looked at under a mode takes microseconds."""
    model, x = Attention().eval(), x_of(1)[None]
    kernels_generated.patch(model, x)
    told: list[str] = []
    own = attended.AttentionMode.__torch_function__

    def counted(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        told.append(str(func))
        return own(self, func, types, args, kwargs)

    inside: list[bool] = []

    class Handled(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inside.append(torch._C._is_torch_function_enabled())
            return func(*args, **(kwargs or {}))

    with Handled():
        model(x)
    assert all(inside)
    monkeypatch.setattr(attended.AttentionMode, "__torch_function__", counted)
    expected = model(x)
    assert "scaled_dot_product_attention" in " ".join(told)
    assert not [name for name in told if "data_ptr" in name or "stride" in name]
    seen = by_a_mode(Functions, model, x)
    assert sum("tilewright.linear" in name for name in seen) == 3
    assert torch.equal(model(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("given", [[1.0], 3, None, "x"], ids=str)
def test_what_is_no_tensor_is_for_the_module_to_refuse(chip: emulator.Emulated, given: Any) -> None:
    module, x = nn.LayerNorm(WIDTH).to(BF16), x_of(3)
    kernels_generated.patch(module, x)
    for _ in range(2):
        with pytest.raises(TypeError, match="must be Tensor"):
            module(given)


class Viewed(nn.Module):
    """A view of what attention gives, as its memory lies."""

    def __init__(self, shaped: Callable[..., torch.Tensor] = torch.Tensor.view) -> None:
        super().__init__()
        self.shaped = shaped
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.to(BF16)

    def forward(self, x: torch.Tensor, turned: bool = False) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = (one.view(B, T, 3, 16).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q * 1 if turned else q, k, v, is_causal=True)
        return self.shaped(made.transpose(1, 2), (B, T, -1))


@torch.no_grad()
def test_what_attention_gives_lies_as_pytorchs(chip: emulator.Emulated) -> None:
    model, x = Viewed(), x_of(2, 5)
    expected = model(x)
    kernels_generated.patch(model, x)
    for turned in (False, True):
        before = chip.launches
        torch.testing.assert_close(model(x, turned), expected, rtol=0.05, atol=0.05)
        assert chip.launches == before + 2
    kernels_generated.patch(model, x, turned=True)
    torch.testing.assert_close(model(x), expected, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_transforms_and_traces_of_one_that_attends_are_pytorchs_own(chip: emulator.Emulated) -> None:
    model, x = Viewed(torch.Tensor.reshape), x_of(1, 5)
    expected = model(x)
    kernels_generated.patch(model, x)
    torch.testing.assert_close(torch.func.vmap(model)(x[None])[0], expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(torch.func.functionalize(model)(x), expected, rtol=0.05, atol=0.05)
    q, k, v = (one.transpose(1, 2) for one in x_of(1, 5, 3, 2).unbind(2))
    with attended.AttentionMode():
        made = F.scaled_dot_product_attention(torch._neg_view(q), k, v, is_causal=True)
    torch.testing.assert_close(made, F.scaled_dot_product_attention(-q, k, v, is_causal=True), rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_compiled_helper_of_one_that_attends_is_compiled_whole(chip: emulator.Emulated) -> None:
    helper = torch.compile(
        functools.partial(F.scaled_dot_product_attention, is_causal=True), backend="eager", fullgraph=True
    )
    x = x_of(1, 2, 5)
    with attended.AttentionMode():
        made = helper(x, x, x)
    torch.testing.assert_close(made, F.scaled_dot_product_attention(x, x, x, is_causal=True))
    torch._dynamo.reset()


class Helped(nn.Linear):
    """Its forward reads a method, which an attribute may come in place of."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.helper(input)

    def helper(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


@torch.no_grad()
def test_torch_compile_sees_what_was_put_in_a_methods_place(chip: emulator.Emulated) -> None:
    module, x = Helped(WIDTH, 32).to(BF16), x_of(3)
    assert kernels_generated.patch(module, x).replaced
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    before = chip.launches
    compiled(x)
    assert chip.launches == before + 1
    torch._dynamo.reset()
    module.helper = torch.neg
    assert torch.equal(compiled(x), -x)
    assert torch.equal(module(x), -x)
    assert chip.launches == before + 1
    torch._dynamo.reset()


def test_gradients_under_torch_compile_are_pytorchs_own(chip: emulator.Emulated) -> None:
    plain, model, idx = Model().eval(), Model().eval(), tokens()
    kernels_generated.patch(model, idx)
    before = chip.launches
    torch.compile(model, backend="aot_eager", fullgraph=True)(idx).sum().backward()
    plain(idx).sum().backward()
    assert chip.launches == before
    torch.testing.assert_close(model.head.weight.grad, plain.head.weight.grad, rtol=1e-2, atol=1e-2)
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------------------------- the check


def test_the_check_leaves_no_trace(chip: emulator.Emulated) -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.noise, self.batch = LlamaNorm(8), nn.Dropout(0.5), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            x = self.norm(x)
            cache[0].add_(1)
            cache.append(x)
            return self.batch(self.noise(x)).float() + torch.rand(3, 8)

    model = Drawing().to(BF16)
    model.noise.eval()
    x, cache = torch.randn(3, 8, dtype=BF16), [torch.zeros(2)]
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(4)
    drawn = torch.rand(3)
    torch.manual_seed(4)
    report = kernels_generated.patch(model, x, cache=cache)
    assert torch.equal(torch.rand(3), drawn)
    assert max(report.errors.values()) < 1e-2
    assert [one.training for one in model.modules()] == [True, True, False, True]
    assert len(cache) == 1
    assert not cache[0].any()
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert not any(one._forward_hooks for one in model.modules())


@pytest.mark.parametrize("wrong", ["norm", "head"])
def test_a_module_that_differs_from_its_operator_stays_as_it_is(
    chip: emulator.Emulated, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """What recognition should have seen, the check sees."""
    model, idx = Model(), tokens()
    expected = Model().eval()(idx)
    own = replaced.Computed._known

    def known(self: Any, module: nn.Module, *arguments: Any) -> Any:
        found = own(self, module, *arguments)
        if module is getattr(model, wrong) and not isinstance(found, str):
            (x, weight), _ = found
            operands = [x, weight[:-1] if wrong == "head" else weight * 1.1]
            found = operands, ops.signature(operands)
        return found

    monkeypatch.setattr(replaced.Computed, "_known", known)
    report = kernels_generated.patch(model, idx)
    (left,) = [one for one in report.left if one.name == wrong]
    assert re.fullmatch(r"\w+ differs from it by (inf|[\d.]+e-02|1\.0e-01), and rounding is at most 1e-02", left.reason)
    assert len(report.replaced) == 9
    assert not any(one._forward_hooks for one in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(idx), expected, rtol=0.05, atol=0.05)


def test_outputs_that_differ_are_named(chip: emulator.Emulated) -> None:
    class Chaotic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.calls = NewGELU(), 0

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.calls += 1
            return {"hidden": self.act(x), "logits": x * self.calls}

    message = r"the model's output \['logits'\] differs by 1\.0e\+00 from what it was, where rounding is at most 5e-02"
    with pytest.raises(RuntimeError, match=message):
        kernels_generated.patch(Chaotic(), torch.randn(3, 8, dtype=BF16))


def test_values_that_are_not_finite_are_compared_too() -> None:
    nan, inf = math.nan, math.inf
    for before, after, same in [
        ([1.0, nan], [1.0, nan], True), ([1.0, nan], [1.0, 0.0], False), ([1.0, nan], [1.0, inf], False),
        ([1.0, inf], [1.0, -inf], False), ([1.0, -inf], [1.0, -inf], True), ([1.0, 0.0], [1.0, nan], False),
        ([0.0, 0.0], [0.0, 0.0], True), ([0.0, 0.0], [0.0, 1.0], False),
    ]:  # fmt: skip
        found = patched.difference(torch.tensor(before), torch.tensor(after))
        assert (found == 0.0) if same else (found == math.inf), (before, after)
    assert patched.difference(torch.ones(3), torch.ones(3, dtype=BF16)) == math.inf
    assert patched.difference(torch.ones(3), torch.ones(4)) == math.inf
    assert patched.difference(torch.ones(3), None) == math.inf
    assert patched.difference(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(0.1)


# ---------------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_patched_is_said() -> None:
    model, idx = Model(), tokens()
    cases: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
        (model, (), TypeError, r"patch\(model, \*example\): give what the model is called with"),
        (F.gelu, (idx,), TypeError, r"expected a torch\.nn\.Module, but got builtin_function_or_method"),
        (torch.compile(model), (idx,), TypeError, "this model is compiled: patch the one that was"),
        (nn.Embedding(50, 4), (idx.float(),), RuntimeError, "Expected tensor for argument"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        cases.append((torch.jit.script(nn.Linear(4, 4)), (idx,), TypeError, "a ScriptModule runs no Python"))
    for one, example, kind, message in cases:
        with pytest.raises(kind, match=message):
            kernels_generated.patch(one, *example)

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x > 0).sum()

    with pytest.raises(ValueError, match="outputs on this example are not finite"):
        kernels_generated.patch(nn.Linear(4, 4), torch.full((2, 4), math.nan))
    with pytest.raises(ValueError, match="outputs on this example are empty"):
        kernels_generated.patch(nn.Linear(4, 4), torch.ones(0, 4))
    with pytest.raises(TypeError, match="the example cannot be copied, as each run has to have its own"):
        kernels_generated.patch(model, (one for one in [idx]))
    with pytest.raises(TypeError, match=r"unpatch\(\): expected a torch\.nn\.Module, but got int"):
        kernels_generated.unpatch(3)
    with pytest.raises(ValueError, match="returns no floating-point tensors that could be compared, but Tensor"):
        kernels_generated.patch(Counting(), torch.ones(3))


def test_a_module_that_was_parametrized_since_is_named(chip: emulator.Emulated) -> None:
    model, idx = Model(), tokens()
    kernels_generated.patch(model, idx)
    parametrize.register_parametrization(model.head, "weight", nn.Hardtanh())
    with pytest.raises(TypeError, match="head became a ParametrizedPatchedLinear since it was patched: take"):
        kernels_generated.unpatch(model)
    assert hasattr(type(model.norm), "tilewright")
    parametrize.remove_parametrizations(model.head, "weight")
    kernels_generated.unpatch(model)
    assert type(model.head) is nn.Linear


def test_without_a_device_that_has_kernels_everything_is_left() -> None:
    report = kernels_generated.patch(Model(), tokens())
    assert not report.replaced
    assert "its arguments are on cpu (evaluator.emulator.install() runs its kernels there)" in " ".join(
        str(report).split()
    )
    assert "differ by 0.0e+00" in str(report)


def test_products_in_float32_and_what_no_kernel_is_for_are_left(chip: emulator.Emulated) -> None:
    report = kernels_generated.patch(Model(torch.float32), tokens())
    reasons = {one.kind: one.reason for one in report.modules}
    assert reasons["Linear"] == "PyTorch multiplies float32 faster"
    assert reasons["LlamaNorm"] == "its kernels are for torch.bfloat16, not torch.float32"
    assert {one.operator for one in report.replaced} == {"layernorm", "gelu"}
    assert not kernels_generated.patch(LlamaNorm().to(torch.float64), check=False).replaced


def test_patching_again_patches_anew_and_parts_may_be_taken_back(chip: emulator.Emulated) -> None:
    model, idx = Model(), tokens()
    first = kernels_generated.patch(model, idx)
    second = kernels_generated.patch(model, idx)
    assert first == second
    kernels_generated.unpatch(model.blocks)
    assert type(model.blocks[0][1]) is nn.Linear
    assert type(model.head) is not nn.Linear
    assert isinstance(model.head, nn.Linear)


def test_names_are_short_and_whole() -> None:
    def said(*names: str) -> str:
        modules = tuple(patching.PatchedModule(name, "Linear", "linear", "") for name in names)
        return str(patching.Patched("M", modules, {}, 0.0)).splitlines()[1].partition(": ")[2]

    assert said("h.0.a", "h.1.a", "h.3.a", "lm_head") == "h.0-1,3.a, lm_head"
    assert said("0", "2", "") == "0, 2, the model itself"
    assert said("a.0.b.0.q", "a.1.b.0.q", "a.1.b.1.q") == "a.0-1.b.0.q, a.1.b.1.q"


@torch.no_grad()
def test_any_container_of_outputs_and_default_device(chip: emulator.Emulated) -> None:
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        cache: list[torch.Tensor]
        text: str = ""

    class Boxed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = linear()

        def forward(self, x: torch.Tensor) -> Output:
            return Output(self.head(x), [x, self.head(x[:1])])

    report = kernels_generated.patch(Boxed(), x_of(3))
    assert list(report.errors) == [".logits", ".cache[0]", ".cache[1]"]
    torch.set_default_device("meta")
    try:
        assert len(kernels_generated.patch(linear().to_empty(device="cpu"), check=False).replaced) == 1
    finally:
        torch.set_default_device(None)


def test_the_door_is_open_without_torch() -> None:
    assert patching.patch is kernels_generated.patch
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = kernels_generated.nonsense
