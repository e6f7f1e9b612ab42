"""The kernels as PyTorch operators: on the emulator, on a GPU that is none, and through PyTorch."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from device_double import DeviceDouble
from operator_arguments import KERNELS, OPERATORS, SIZES, given, near, wide
from torch.autograd import forward_ad

from evaluator import emulator
from kernels_generated import ops
from kernels_generated.ops.dispatch import applicable
from kernels_generated.ops.gpu import Gpu
from kernels_generated.ops.interface import FLOATS
from kernels_generated.runtime import backend
from kernels_generated.runtime.assembler import assembled, located
from kernels_generated.runtime.bound import BoundPlan
from kernels_generated.runtime.driver import DriverError, LoadedKernel
from kernels_generated.runtime.manifest import Manifest
from knowledge_base.snf.everyday import NAMES


@pytest.fixture
def emulated() -> Iterator[emulator.Emulated]:
    yield emulator.install()
    emulator.uninstall()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.ThroughPyTorch)
        yield


def test_each_folder_of_winners_is_an_operator() -> None:
    assert set(NAMES) <= set(dir(ops))
    for name in OPERATORS:
        assert getattr(ops, name).__name__ == name
        assert hasattr(torch.ops.tilewright, name)
        assert re.search(r"h200 \(sm_90\), .*: \d+\.\d µs$", getattr(ops, name).__doc__, re.MULTILINE)
    assert list(inspect.signature(ops.linear_gelu).parameters) == ["x", "w", "b"]
    with pytest.raises(AttributeError, match="no attribute 'linear_glu': its operators are add, attention"):
        _ = ops.linear_glu


def test_everyday_operators_have_kernels_in_three_dtypes() -> None:
    assert {(name, dtype) for name in NAMES for dtype in FLOATS[:3]} <= set(KERNELS)


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
def test_its_kernel_gives_what_pytorch_gives(name: str, dtype: torch.dtype, emulated: emulator.Emulated) -> None:
    arguments = given(name, dtype)
    found = getattr(ops, name)(*arguments)
    assert emulated.launches
    near(found, OPERATORS[name].reference(*wide(arguments)))
    assert found.dtype == dtype
    assert found.is_contiguous()


@pytest.mark.parametrize("name", OPERATORS)
def test_pytorch_holds_it_for_an_operator(name: str) -> None:
    arguments = [one.requires_grad_(one.is_floating_point()) for one in given(name, torch.float32)]
    torch.library.opcheck(getattr(torch.ops.tilewright, name), arguments)


# ---------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("leading", [(), (7,), (2, 3), (1, 2, 1, 2), (1, 1)])
def test_any_leading_axes(leading: tuple[int, ...], emulated: emulator.Emulated) -> None:
    _, w, b = given("linear_gelu")
    x, r = torch.randn(*leading, 32).bfloat16(), torch.randn(*leading, 48).bfloat16()
    assert torch.equal(ops.linear_gelu(x, w, b).view(-1, 48), ops.linear_gelu(x.reshape(-1, 32), w, b))
    assert ops.linear_residual(x, w, b, r).shape == (*leading, 48)
    assert emulated.launches == 3


def test_arguments_that_are_not_contiguous_are_read_where_they_lie(
    emulated: emulator.Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, w, b = given("linear_gelu")
    wide = torch.randn(2, 5, 64).bfloat16()
    x = wide[..., 32:]
    expected = ops.linear_gelu(x.contiguous(), w, b)
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "clone", None)  # no copy is made
        assert torch.equal(ops.linear_gelu(x, w, b), expected)
        assert torch.equal(ops.linear_gelu(x, torch.cat([w, w], 1)[:, 32:], b), expected)
        assert torch.equal(ops.linear_gelu(x[0, ::2], w, b), expected[0, ::2])
        qkv = torch.randn(2, 20, 3, 3, 64).bfloat16()
        q, k, v = qkv.movedim(3, 1).unbind(3)  # of the kernel for D = 64
        heads = ops.attention_qkv(q, k, v)
    assert torch.equal(heads, ops.attention_qkv(*(one.contiguous() for one in (q, k, v))))
    a = torch.randn(4, 6, 32).bfloat16()
    assert torch.equal(ops.add(a[:, :, ::2].contiguous(), a[:, :, 16:]), ops.add(a[:, :, ::2], a[:, :, 16:]))


@pytest.mark.parametrize("name", OPERATORS)
def test_any_strides_give_the_same(name: str, emulated: emulator.Emulated) -> None:
    """In place or by a copy: with gaps between rows, axes turned round, elements that many places share, odd starts."""
    arguments = given(name)
    expected = getattr(ops, name)(*arguments)
    for turned in (_gaps, _turned, _odd):
        assert torch.equal(getattr(ops, name)(*map(turned, arguments)), expected)
    first = arguments[0][:1].expand_as(arguments[0])
    assert torch.equal(getattr(ops, name)(first, *arguments[1:]), getattr(ops, name)(first.clone(), *arguments[1:]))


def _gaps(one: torch.Tensor) -> torch.Tensor:
    room = torch.full([n + 8 for n in one.shape], torch.nan if one.is_floating_point() else 10**6, dtype=one.dtype)
    window = room[tuple(slice(0, n) for n in one.shape)]
    return window.copy_(one)


def _turned(one: torch.Tensor) -> torch.Tensor:
    return one.movedim(0, -1).contiguous().movedim(-1, 0)


def _odd(one: torch.Tensor) -> torch.Tensor:
    return torch.empty(one.numel() + 1, dtype=one.dtype)[1:].view_as(one).copy_(one)


def test_empty_tensors(emulated: emulator.Emulated) -> None:
    x, w, b = given("linear_gelu")
    assert ops.linear_gelu(x[:0], w, b).shape == (0, 48)
    assert ops.linear_gelu(x.view(1, 5, 32)[:, :0], w, b).shape == (1, 0, 48)
    assert torch.equal(ops.linear(x[:, :0], w[:, :0], b), b.expand(5, 48))
    heads = torch.zeros(2, 4, 3, 2, 0, requires_grad=True)  # the reference divides by the root of 0
    made = ops.attention(heads)
    assert made.shape == F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4)).transpose(1, 2).shape
    made.sum().backward()
    assert heads.grad is not None
    assert heads.grad.shape == heads.shape
    assert emulated.launches == 0


def test_what_speaks_dlpack() -> None:
    x, w, b = (one.numpy() for one in given("linear_gelu", torch.float32))  # through PyTorch: it is on the CPU
    expected = F.gelu(F.linear(*map(torch.from_numpy, (x, w, b))), approximate="tanh")
    assert torch.equal(ops.linear_gelu(x, w=w, b=torch.from_numpy(b)), expected)
    assert np.array_equal(np.from_dlpack(ops.linear_gelu(x, w, b)), expected.numpy())
    with pytest.raises(RuntimeError, match="an array with negative strides is no tensor"):
        ops.linear_gelu(x[:, ::-1], w, b)


X, W, B = given("linear_gelu")
WRONG = {
    r"expected w with shape \[48, 32\], but got shape \[48, 16\] \(x\[..., K\], w\[N, K\], b\[N\] -> y\[..., N\]\)": (
        X, W[:, :16], B,
    ),
    r"expected b with shape \[48\], but got shape \[3\]": (X, W, B[:3]),
    r"expected w with 2 axes, but got shape \[32\]": (X, W[0], B),
    r"expected x with at least 1 axis, but got shape \[\]": (X[0, 0], W, B),
    r"expected arguments of one floating-point dtype, but got x torch.bfloat16, w torch.float32, b torch.bfloat16": (
        X, W.float(), B,
    ),
    r"expected x of a floating-point dtype, but got torch.int64": (X.long(), W, B),
    r"expected b to be a tensor, but got None": (X, W, None),
    r"expected x to be a dense tensor, but got one of layout torch\.sparse_coo": (X.to_sparse(), W, B),
    r"expected all tensors on the same device, but got x on cpu, w on meta, b on cpu": (X, W.to("meta"), B),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(RuntimeError, match=f"linear_gelu\\(\\): {message}"):
        ops.linear_gelu(*WRONG[message])


def test_leading_axes_have_to_agree_and_constraints_to_hold() -> None:
    x, w, b, r = given("linear_residual")
    with pytest.raises(RuntimeError, match=r"expected r with the leading axes \[5\] of the arguments before it, but"):
        ops.linear_residual(x, w, b, r.view(1, 5, 48))
    x, cos, sin = given("rope_1da0a8", N3=15)
    with pytest.raises(RuntimeError, match=r"rope_1da0a8\(\): needs N3%2 == 0, but got 1 and 0"):
        ops.rope_1da0a8(x, cos, sin)
    with pytest.raises(RuntimeError, match="missing value for argument 'b'"):
        ops.linear_gelu(X, W)


# ---------------------------------------------------------------------------------------------------- who computes

THREE = "torch.bfloat16, torch.float16 and torch.float32"


def test_where_no_kernel_is_pytorch_computes_and_it_is_said_once(emulated: emulator.Emulated) -> None:
    arguments = given("softmax", torch.float64, seed=3)
    expected = arguments[0].softmax(-1)
    OPERATORS["softmax"]._said.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(ops.softmax(*arguments), expected)
        assert torch.equal(ops.softmax(arguments[0][1:]), expected[1:])
    assert [(str(one.message), one.filename) for one in said] == [
        (f"softmax runs through PyTorch: its kernels are for {THREE}, not torch.float64", __file__)
    ]


@pytest.mark.parametrize(
    ("chip", "sizes", "reason"),
    [
        ("b200", {}, "its kernels are for sm_120 and sm_90, this is sm_100"),
        ("h200", {"D": 48}, "no kernel of its is for B=2, T=9, H=3, D=48"),
        ("", {}, "its arguments are on cpu (evaluator.emulator.install() runs its kernels there)"),
    ],
)
def test_why_there_is_none(chip: str, sizes: Mapping[str, int], reason: str) -> None:
    dims = {**SIZES, **sizes}
    qkv = torch.randn(dims["B"], dims["T"], 3, dims["H"], dims["D"]).bfloat16()
    OPERATORS["attention"]._said.clear()
    try:
        if chip:
            emulator.install(chip)
        with pytest.warns(ops.ThroughPyTorch) as said:
            found = ops.attention(qkv)
    finally:
        emulator.uninstall()
    assert str(said[0].message) == f"attention runs through PyTorch: {reason}"
    q, k, v = qkv.permute(2, 0, 3, 1, 4).float()
    near(found, F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"M": 2048, "N": 50257, "K": 768}, (1024, 50257)),  # not (2048, 50304), whose rows are aligned
        ({"M": 2000, "N": 50304, "K": 768}, (2048, 50304)),
        ({"M": 9, "N": 50258, "K": 768}, (8, 50257)),
        ({"M": 5000, "N": 51200, "K": 768}, (8192, 50304)),
        ({"M": 8192, "N": 50257, "K": 768}, (8192, 50257)),
    ],
)
def test_a_kernel_is_chosen_that_was_fast_at_sizes_like_these(
    sizes: Mapping[str, int], expected: tuple[int, int]
) -> None:
    (manifest,) = (one for one in OPERATORS["linear_nobias"].manifests if one.dtypes[0] == "bf16")
    winner, plan = next(applicable(manifest, "sm_90", 132, sizes))
    assert (winner.shape["M"], winner.shape["N"]) == expected
    assert plan.applies({**sizes, "num_sms": 132})


def test_what_pytorch_gives_is_new_and_contiguous() -> None:
    """As a kernel's result is: never an argument, nor a view of one."""
    x = torch.randn(4, 8)
    made = ops.gelu(x)
    made.zero_()
    assert x.abs().sum() > 0
    assert ops.attention(torch.randn(1, 4, 3, 2, 16)).is_contiguous()


def test_installing_changes_who_computes_at_once(emulated: emulator.Emulated) -> None:
    x = given("gelu")[0]
    ops.gelu(x)
    emulator.uninstall()
    ops.gelu(x)
    assert emulated.launches == 1


@contextlib.contextmanager
def on(device: backend.Backend) -> Iterator[None]:
    backend.install("cpu", device)
    yield
    backend.install("cpu", None)


class Doubled:
    """A GPU that is none, which is told where tensors lie."""

    def __init__(self, driver: DeviceDouble, arch: str = "sm_90", num_sms: int = 132) -> None:
        self.driver, self.gpu = driver, Gpu(driver, arch, num_sms, lambda: 1)
        self.arch, self.num_sms = self.gpu.arch, self.gpu.num_sms

    def prepare(self, bound: BoundPlan, manifest: Manifest) -> Any:
        run = self.gpu.prepare(bound, manifest)

        def known(tensors: Sequence[torch.Tensor]) -> None:
            for tensor in tensors:
                self.driver.adopt(tensor)
            run(tensors)

        return known


@pytest.mark.parametrize("name", ["linear_gelu", "attention"])
def test_on_a_gpu_the_cubins_that_ship_are_launched(name: str, emulated: emulator.Emulated) -> None:
    arguments = given(name, seed=5)
    expected = getattr(ops, name)(*arguments)
    shipped = {}
    for winner in OPERATORS[name].manifests[0].winners:
        for path, digest in winner.cubins.items():
            kernel = path.removeprefix("cubins/").split(".")[0]
            shipped[digest] = OPERATORS[name].manifests[0].bytecode(kernel)
            assert hashlib.sha256(OPERATORS[name].manifests[0].folder.joinpath(path).read_bytes()).hexdigest() == digest
    double = Doubled(DeviceDouble(shipped, {}))
    with on(double):
        launched = getattr(ops, name)(*arguments)
    assert double.driver.launches == 1
    assert torch.equal(launched, expected)


BLACKWELL = ("sm_120", 48)


def test_for_a_chip_without_cubins_tile_ir_is_assembled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for it are modelled ones: they come as Tile IR."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (manifest,) = [one for one in OPERATORS["gelu"].manifests if one.dtypes == ("bf16",)]
    kernels = {
        kernel for winner in manifest.winners for digest in winner.plans for kernel in manifest.plan(digest).kernels
    }
    told = {hashlib.sha256(_blackwell(manifest, kernel)).hexdigest(): manifest.bytecode(kernel) for kernel in kernels}
    double = Doubled(DeviceDouble(told, {}), *BLACKWELL)
    arguments = given("gelu")
    with on(double), warnings.catch_warnings():
        warnings.simplefilter("error")
        near(ops.gelu(*arguments), F.gelu(arguments[0].double(), approximate="tanh"))
    assert double.driver.launches == 1


def _blackwell(manifest: Manifest, kernel: str) -> bytes:
    tileiras = located("tileiras")
    assert tileiras is not None
    return assembled(kernel, manifest.bytecode(kernel), "sm_120", tileiras)


class Old:
    """A driver that reads no Tile IR."""

    def load(self, cubin: bytes, symbol: str) -> LoadedKernel:
        raise DriverError("CUDA_ERROR_INVALID_IMAGE", "cuLibraryLoadData")


def test_without_assembler_the_driver_is_asked_and_then_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels_generated.ops.gpu.located", lambda name: None)
    OPERATORS["gelu"]._said.clear()
    with on(Gpu(Old(), *BLACKWELL, lambda: 1)), pytest.warns(ops.ThroughPyTorch) as said:  # type: ignore[arg-type]
        assert ops.gelu(X).dtype == torch.bfloat16
    assert (
        "the driver does not load its Tile IR (no cubin for sm_120 ships, and no tileiras is installed): cuLib"
        in str(said[0].message)
    )


# ---------------------------------------------------------------------------------------------------- gradients


def test_gradients_are_those_of_float32(emulated: emulator.Emulated) -> None:
    arguments = [one.requires_grad_() for one in given("linear_gelu")]
    weights = torch.randn(5, 48)
    found = torch.autograd.grad(ops.linear_gelu(*arguments), arguments, weights.bfloat16())
    plain = [one.detach().float().requires_grad_() for one in arguments]
    wanted = torch.autograd.grad(F.gelu(F.linear(*plain), approximate="tanh"), plain, weights.bfloat16().float())
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(found, wanted, strict=True))


def test_of_what_needs_no_gradient_none_is_made() -> None:
    x, w, b = given("linear_gelu", torch.float32)
    ops.linear_gelu(x, w.requires_grad_(), b).sum().backward()
    assert w.grad is not None
    assert x.grad is b.grad is None


def test_gradients_have_gradients() -> None:
    arguments = [one[:2, ..., :4].contiguous().requires_grad_() if one.dim() > 1 else one[:4].requires_grad_()
                 for one in given("layernorm", torch.float64)]  # fmt: skip
    assert torch.autograd.gradcheck(ops.layernorm, arguments)
    assert torch.autograd.gradgradcheck(ops.layernorm, arguments)


def test_gradients_of_attention_have_gradients() -> None:
    """PyTorch's own attention has none: its products and softmax do."""
    qkv = torch.randn(1, 3, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(ops.attention, qkv)
    plain = qkv.detach()[0, :, :, 0].unbind(1)

    def in_steps(q: torch.Tensor) -> torch.Tensor:
        scores = (q @ plain[1].T / 2).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
        return (scores.softmax(-1) @ plain[2]).square().sum()

    def of_ours(q: torch.Tensor) -> torch.Tensor:
        return ops.attention(torch.stack([q, *plain[1:]], 1)[None, :, :, None]).square().sum()  # type: ignore[no-any-return]

    for twice in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        torch.testing.assert_close(twice(of_ours)(plain[0]), twice(in_steps)(plain[0]))


def test_gradients_are_the_same_wherever_they_are_asked_for() -> None:
    """``backward()`` under autocast computes what the forward pass before it tells."""
    arguments = [one.requires_grad_() for one in given("linear_gelu", torch.float32)]
    found = torch.autograd.grad(ops.linear_gelu(*arguments).square().sum(), arguments)
    made = ops.linear_gelu(*arguments).square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = torch.autograd.grad(made, arguments)
    assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))


def _dual(f: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.cos(x)), w, b)).tangent


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, x, w, b: torch.func.jvp(lambda x: f(x, w, b), (x,), (torch.cos(x),))[1],
        lambda f, x, w, b: torch.func.jacfwd(f, argnums=1)(x, w, b),
        lambda f, x, w, b: torch.func.grad(lambda w: f(x, w, b).sum())(w),
        lambda f, x, w, b: torch.func.vmap(torch.func.grad(lambda x: f(x, w, b).sum()))(x),
        lambda f, x, w, b: torch.func.hessian(lambda b: f(x, w, b).sum())(b),
        lambda f, x, w, b: torch.func.vmap(lambda w: f(x, w, b))(torch.stack([w, 2 * w])),
        _dual,
    ],
    ids=["jvp", "jacfwd", "grad", "vmap of grad", "hessian", "vmap", "dual numbers"],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functions_of_functions_are_those_of_pytorch(transformed: Any) -> None:
    """Also forward-mode derivatives, which an operator without a rule for them would make 0."""
    x, w, b = given("linear_gelu", torch.float32, M=3, N=5, K=8)
    plain = transformed(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), x, w, b)
    assert plain.abs().max() > 0.01
    torch.testing.assert_close(transformed(ops.linear_gelu, x, w, b), plain)


# ---------------------------------------------------------------------------------------------------- torch.compile


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_graph_break(dynamic: bool, emulated: emulator.Emulated) -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.layernorm(ops.linear_gelu(x, w, b), b, b) + 1

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (5, 3):
        x, w, b = (one.requires_grad_() for one in given("linear_gelu", M=rows))
        emulated.launches = 0
        found = compiled(x, w, b)
        assert emulated.launches == 2
        expected = block(x, w, b)
        assert torch.equal(found, expected)
        gradients = (torch.autograd.grad(y.float().square().sum(), (x, w, b)) for y in (found, expected))
        assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_automatic_mixed_precision(emulated: emulator.Emulated) -> None:
    x, w, b = given("linear_gelu", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = ops.linear_gelu(x, w, b)
        assert made.dtype == torch.bfloat16
        assert emulated.launches == 1
        assert ops.layernorm(made, b, b).dtype == torch.float32  # no product: the widest dtype of its arguments
        assert ops.linear_gelu(x.double(), w, b).dtype == torch.float64  # which automatic mixed precision leaves alone
    near(made, F.gelu(F.linear(x, w, b), approximate="tanh"))
