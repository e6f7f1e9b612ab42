"""GPT-2 on generated kernels: on the emulator, and through PyTorch."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_gpt2 import DIALECTS, PlainGPT2
from torch.fx.experimental.proxy_tensor import make_fx

from evaluator import emulator
from kernels_generated import gpt2, ops
from kernels_generated.gpt2.__main__ import main

NANO = gpt2.PRESETS["nano"]
A_TOKEN = 3 + 7 * NANO.n_layer  # launches: embedding, last norm, projection, and seven in a block


@pytest.fixture
def emulated() -> Iterator[emulator.Emulated]:
    yield emulator.install()
    emulator.uninstall()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.ThroughPyTorch)
        yield


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(NANO.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt())


# ---------------------------------------------------------------------------------------------------- the model


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_logits_are_as_right_as_those_of_the_model_whose_weights_it_has(
    dialect: str, dtype: torch.dtype, emulated: emulator.Emulated
) -> None:
    plain, idx = PlainGPT2(dialect).to(dtype), tokens(2, 37)
    exact = copy.deepcopy(plain).double()(idx)
    found = gpt2.load(plain)(idx)
    assert found.dtype == dtype
    assert error(found, exact) <= 1.1 * error(plain(idx), exact)
    # nanoGPT's exact GELU has no kernel: PyTorch computes it between two of ours
    assert emulated.launches == A_TOKEN


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_logits_that_are_made_longer_hold_the_same(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, idx = gpt2.GPT(replace(NANO, tied=tied), dtype=torch.float64), tokens(3, 37)
    plain = model(idx)
    plain.square().sum().backward()
    expected = [one.grad for one in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr(gpt2.gpt, "_worth_aligning", lambda x, vocab: vocab == 65)
    logits = model(idx)
    assert logits.shape == (3, 37, 65)
    assert logits.stride() == (37 * 128, 128, 1)
    torch.testing.assert_close(logits, plain)
    logits.view(-1, 65).square().sum().backward()
    torch.testing.assert_close([one.grad for one in model.parameters()], expected)
    assert gpt2.GPT(replace(NANO, vocab_size=128))(idx).is_contiguous()


def test_twenty_tokens_come_from_generated_kernels_alone(emulated: emulator.Emulated) -> None:
    model = gpt2.GPT(NANO, dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ops.ThroughPyTorch)
        assert model.generate(tokens(1, 5), 20, top_k=10).shape == (1, 25)
    assert emulated.launches == 20 * A_TOKEN


@torch.no_grad()
@pytest.mark.parametrize("prompt", [1, 9, 63, 64, 80])
def test_what_is_cached_changes_no_token(prompt: int) -> None:
    """Also where the text outgrows what the model looks at."""
    model, idx = gpt2.load(PlainGPT2("nanogpt"), dtype=torch.float64), tokens(2, prompt)
    expected = idx
    for _ in range(70):
        logits = model(expected[:, -NANO.block_size :])
        expected = torch.cat([expected, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(idx, 70, temperature=0), expected)
    assert torch.equal(model.generate(idx, 70, top_k=1), expected)
    assert torch.equal(torch.stack(list(model.stream(idx, 70, temperature=0)), 1), expected[:, prompt:])


@torch.no_grad()
def test_a_decoded_token_is_the_forward_passs_last(emulated: emulator.Emulated) -> None:
    model, idx = gpt2.load(PlainGPT2("transformers")), tokens(3, 20)
    cache = gpt2.KVCache(model.config, 3, 64, model.wte.weight)
    model._blocks(idx[:, :-1], cache)
    decoded = model._next(idx[:, -1:], cache)
    torch.testing.assert_close(decoded, model(idx)[:, -1], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_tokens_work_can_be_replayed_for_the_next_token() -> None:
    """What a CUDA graph needs, seen without a GPU: of a token's work no number is the processor's."""
    model, idx = gpt2.load(PlainGPT2("transformers")), tokens(2, 20)
    cache = gpt2.KVCache(model.config, 2, 64, model.wte.weight)
    model._blocks(idx[:, :10], cache)
    kept = cache.kv.clone(), cache.last.clone()
    recorded = make_fx(lambda token: model._next(token, cache))(idx[:, 10:11])
    for mine, before in zip((cache.kv, cache.last), kept, strict=True):  # recording it was a step, too
        mine.copy_(before)
    for place in range(10, 20):
        torch.testing.assert_close(
            recorded(idx[:, place : place + 1]), model(idx[:, : place + 1])[:, -1], rtol=1e-4, atol=1e-4
        )


def test_tokens_are_drawn_by_temperature_and_top_k() -> None:
    model, idx = gpt2.load(PlainGPT2("mingpt")), tokens(1, 4)

    def drawn(seed: int, **how: Any) -> list[int]:
        return model.generate(idx, 30, generator=torch.Generator().manual_seed(seed), **how)[0, 4:].tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1, temperature=1e-4) == drawn(2, temperature=0)
    with torch.no_grad():
        two = set(model(idx)[0, -1].topk(2).indices.tolist())
    assert {drawn(seed, top_k=2, temperature=50.0)[0] for seed in range(30)} == two
    assert model.generate(idx, 0).tolist() == idx.tolist()


def test_a_text_goes_on_where_another_mode_began_it() -> None:
    """What inference mode makes may not be written to outside it."""
    model, idx = gpt2.GPT(NANO), tokens(1, 5)
    with torch.inference_mode():
        stream = model.stream(idx, 4, temperature=0)
        first = next(stream)
    whole = torch.cat([idx[0], first, *stream])
    assert torch.equal(whole, model.generate(idx, 4, temperature=0)[0])


def test_no_text_has_no_tokens_and_hardly_any_temperature_is_none() -> None:
    model, idx = gpt2.GPT(NANO), tokens(3, 5)
    assert model.generate(idx[:0], 4).shape == (0, 9)
    for temperature in (1e-45, 1e-320):
        assert torch.equal(model.generate(idx, 4, temperature), model.generate(idx, 4, 0))


@pytest.mark.parametrize(
    "through",
    [
        lambda model, idx: torch.compile(model, fullgraph=True, backend="aot_eager")(idx),
        lambda model, idx: torch.export.export(model, (idx,)).module()(idx),
        lambda model, idx: torch.func.vmap(model)(idx[None])[0],
    ],
    ids=["compile", "export", "vmap"],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_follows_a_computation_follows_the_models(through: Any) -> None:
    """Numbers that nobody knows yet aren't looked at."""
    model, idx = gpt2.GPT(NANO).requires_grad_(False), tokens(2, 12)
    torch.testing.assert_close(through(model, idx), model(idx))


def test_presets_have_as_many_parameters_as_the_models() -> None:
    counted = {
        name: sum(one.numel() for one in gpt2.GPT(config, device="meta").parameters())
        for name, config in gpt2.PRESETS.items()
        if name.startswith("gpt2")
    }
    # transformers' GPT2LMHeadModel of the four sizes
    known = {"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200}
    assert counted == known


def test_random_weights_are_gpt2s() -> None:
    model = gpt2.GPT(replace(NANO, n_embd=384, n_head=6, tied=False))
    assert float(model.h[0].mlp["c_fc"].weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(model.h[0].mlp["c_proj"].weight.detach().std()) == pytest.approx(0.02 / 6**0.5, rel=0.02)
    assert model.lm_head.weight is not model.wte.weight
    assert torch.equal(model.ln_f.weight, torch.ones(384))
    tied = gpt2.GPT(NANO).to(torch.bfloat16)
    assert tied.lm_head.weight is tied.wte.weight


def test_gradients_reach_all_weights() -> None:
    model = gpt2.GPT(NANO)
    model(tokens(2, 10)).logsumexp(-1).sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize(
    ("idx", "kind", "says"),
    [
        (torch.zeros(1, 3), TypeError, "idx is torch.float32: token numbers are torch.int64"),
        (torch.zeros(3, dtype=torch.int64), RuntimeError, r"idx has the shape \[3\], expected \[B, T\]"),
        (torch.zeros(1, 0, dtype=torch.int64), RuntimeError, "idx has 0 tokens, the model takes 1 to 64"),
        (torch.zeros(1, 3, dtype=torch.int64, device="meta"), RuntimeError, "idx is on meta, the model on cpu"),
        (torch.tensor([[3, 65]]), IndexError, "idx has numbers from 3 to 65, the vocabulary is 0 to 64"),
        (torch.tensor([[3, -1]]), IndexError, "idx has numbers from -1 to 3, the vocabulary is 0 to 64"),
    ],
)
def test_what_is_no_text_is_refused(idx: torch.Tensor, kind: type[Exception], says: str) -> None:
    model = gpt2.GPT(NANO)
    with pytest.raises(kind, match=says):
        model(idx)
    with pytest.raises(kind, match=says):
        model.stream(idx, 1)


def test_a_text_that_is_too_long_is_refused_and_bad_drawing_too() -> None:
    model = gpt2.GPT(NANO)
    with pytest.raises(RuntimeError, match="idx has 65 tokens, the model takes 1 to 64"):
        model(tokens(1, 65))
    with pytest.raises(ValueError, match="temperature is -1: it is 0 or above"):
        model.generate(tokens(1, 2), 1, temperature=-1)
    with pytest.raises(ValueError, match="top_k is 0"):
        model.generate(tokens(1, 2), 1, top_k=0)
    with pytest.raises(ValueError, match="max_new_tokens is -3"):
        model.generate(tokens(1, 2), -3)


def test_decoding_under_automatic_mixed_precision() -> None:
    model = gpt2.load(PlainGPT2("transformers"))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.generate(tokens(1, 5), 4, temperature=0).shape == (1, 9)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"n_head": 5}, "n_embd = 48 is not a multiple of n_head = 5"),
        ({"n_layer": 0}, "n_layer is 0: sizes are integers from 1 on"),
        ({"n_head": "3"}, "n_head is '3': sizes are integers from 1 on"),
        ({"activation": "relu"}, "activation is 'relu', not gelu_tanh or gelu"),
    ],
)
def test_sizes_that_no_model_has_are_refused(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(NANO, **sizes)


# ---------------------------------------------------------------------------------------------------- weights


def written(folder: Path, plain: PlainGPT2, form: str) -> Path:
    """A folder as transformers writes it."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(plain.settings))
    state = {name: one for name, one in plain.state_dict().items() if name != "lm_head.weight"}
    if form == "bin":
        torch.save(plain.state_dict(), folder / "pytorch_model.bin")
    elif form == "whole":  # as the first GPT-2 lies on the hub: without the prefix, with masks
        save_file({n.removeprefix("transformer."): one for n, one in state.items()}, folder / "model.safetensors")
    else:
        parts = {"a.safetensors": list(state)[::2], "b.safetensors": list(state)[1::2]}
        for name, some in parts.items():
            save_file({n: state[n] for n in some}, folder / name)
        index = {"weight_map": {n: name for name, some in parts.items() for n in some}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@torch.no_grad()
@pytest.mark.parametrize("form", ["whole", "parts", "bin"])
def test_weights_of_a_folder_of_transformers(tmp_path: Path, form: str) -> None:
    plain, idx = PlainGPT2("transformers"), tokens(2, 12)
    model = gpt2.load(written(tmp_path, plain, form))
    assert model.config == NANO
    assert torch.equal(model(idx), gpt2.load(plain)(idx))
    assert gpt2.load(tmp_path, dtype=torch.bfloat16)(idx).dtype == torch.bfloat16


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
def test_weights_of_nanogpts_checkpoint(tmp_path: Path, prefix: str) -> None:
    plain, idx = PlainGPT2("nanogpt"), tokens(2, 12)
    state = {prefix + name: one for name, one in plain.state_dict().items()}
    held = {"model": state, "model_args": {"n_head": 3, "bias": True}, "optimizer": {"state": {}}, "iter_num": 5}
    torch.save(held, tmp_path / "ckpt.pt")
    model = gpt2.load(tmp_path / "ckpt.pt")
    assert model.config == replace(NANO, activation="gelu")
    assert torch.equal(model(idx), gpt2.load(plain)(idx))
    without = {name: one for name, one in state.items() if not name.endswith(".bias")}
    torch.save({**held, "model": without}, tmp_path / "ckpt.pt")
    with pytest.raises(gpt2.CheckpointError, match=r"missing: h\.0\.attn\.c_attn\.bias, "):
        gpt2.load(tmp_path / "ckpt.pt")
    torch.save({"model": without, "model_args": {"n_head": 3, "bias": False}}, tmp_path / "ckpt.pt")
    model = gpt2.load(tmp_path / "ckpt.pt")
    assert not any(one.any() for name, one in model.named_parameters() if name.endswith("bias"))


@torch.no_grad()
def test_weights_of_mingpts_state_dict(tmp_path: Path) -> None:
    plain, idx = PlainGPT2("mingpt"), tokens(2, 12)
    expected = gpt2.load(plain)(idx)
    torch.save(plain.state_dict(), tmp_path / "model.pt")
    for source in (plain.state_dict(), tmp_path / "model.pt"):
        model = gpt2.load(source, n_head=3)
        assert model.config == replace(NANO, tied=False)
        assert torch.equal(model(idx), expected)
        with pytest.raises(gpt2.CheckpointError, match=r"does not say its number of heads: give n_head=…"):
            gpt2.load(source)


@torch.no_grad()
def test_weights_of_a_live_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    plain = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=3, n_head=3, n_embd=48, vocab_size=65, n_positions=64)
    ).eval()
    idx = tokens(2, 12)
    model = gpt2.load(plain)
    torch.testing.assert_close(model(idx), plain(idx).logits, rtol=1e-5, atol=1e-6)
    expected = plain.generate(idx, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(idx, 20, temperature=0), expected)


def test_a_live_model_that_does_not_say_its_number_of_heads_is_told_it() -> None:
    plain = PlainGPT2("mingpt")
    expected = gpt2.load(plain).config
    for block in plain.transformer["h"]:
        block.attn.n_head = None
    with pytest.raises(gpt2.CheckpointError, match=r"the PlainGPT2 does not say its number of heads: give n_head=…"):
        gpt2.load(plain)
    assert gpt2.load(plain, n_head=3).config == expected


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_weights_of_a_model_of_ours(activation: str) -> None:
    model, idx = gpt2.GPT(replace(NANO, activation=activation)), tokens(2, 12)
    again = gpt2.load(model)
    assert again.config == model.config
    assert torch.equal(again(idx), model(idx))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"n_layer": 4}, "says n_layer = 4, but its weights are those of n_layer = 3"),
        ({"n_positions": 128}, "says n_positions = 128, but its weights are those of n_positions = 64"),
        ({"vocab_size": 66}, "says vocab_size = 66, but its weights are those of vocab_size = 65"),
        ({"n_inner": 96}, "says n_inner = 96, but its weights are those of n_inner = 192"),
    ],
)
def test_weights_are_those_that_the_settings_tell_of(tmp_path: Path, said: dict[str, int], says: str) -> None:
    """Layers that are missing at the end leave nothing else that tells."""
    plain = PlainGPT2("transformers")
    plain.settings |= said
    with pytest.raises(gpt2.CheckpointError, match=says):
        gpt2.load(written(tmp_path, plain, "whole"))
    state = PlainGPT2("nanogpt").state_dict()
    ours = {"block_size" if name == "n_positions" else name: size for name, size in said.items()}
    torch.save({"model": state, "model_args": {"n_head": 3} | ours}, tmp_path / "ckpt.pt")
    with pytest.raises(gpt2.CheckpointError, match=says.replace("n_positions", "block_size")):
        gpt2.load(tmp_path / "ckpt.pt")


def lacking(state: dict[str, torch.Tensor]) -> None:
    del state["transformer.h.1.ln_2.weight"]


def surplus(state: dict[str, torch.Tensor]) -> None:
    state["transformer.h.0.attn.rotary"] = torch.zeros(3)


def misshapen(state: dict[str, torch.Tensor]) -> None:
    state["transformer.h.2.mlp.c_fc.bias"] = torch.zeros(7)


def quantised(state: dict[str, torch.Tensor]) -> None:
    state["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(192, 48, dtype=torch.int8)


def deep(state: dict[str, torch.Tensor]) -> None:
    state["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(2, 192, 48)


def unnamed(state: dict[Any, torch.Tensor]) -> None:
    state[7] = torch.zeros(3)


def foreign(state: dict[str, torch.Tensor]) -> None:
    del state["transformer.wpe.weight"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lacking, r"missing: h\.1\.ln_2\.weight"),
        (surplus, r"not expected: h\.0\.attn\.rotary"),
        (misshapen, r"h\.2\.mlp\.c_fc\.bias has the shape \[7\], expected \[192\]"),
        (quantised, r"h\.0\.mlp\.c_fc\.weight is torch\.int8, expected floating-point weights"),
        (deep, r"h\.0\.mlp\.c_fc\.weight has the shape \[2, 192, 48\], expected \[\d+, 48\]"),
        (unnamed, r"7 is a int, expected a parameter's name"),
        (foreign, r"has no matrix wpe\.weight: these are no weights of GPT-2"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Any, says: str) -> None:
    state = dict(PlainGPT2("nanogpt").state_dict())
    change(state)
    with pytest.raises(gpt2.CheckpointError, match=says):
        gpt2.load(state, n_head=3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model_type": "llama"}, "model_type is llama, kernels here are for gpt2"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, kernels here are for 1e-05"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"activation_function": "relu"}, "activation_function is relu, expected one of gelu_new"),
        ({"n_head": 5}, "n_embd = 48 is not a multiple of n_head = 5"),
    ],
)
def test_settings_that_no_kernel_is_for_are_refused(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    plain = PlainGPT2("transformers")
    plain.settings |= settings
    with pytest.raises(gpt2.CheckpointError, match=says):
        gpt2.load(written(tmp_path, plain, "whole"))


class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_a_pickle_that_is_more_than_weights_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Harm()}, "harm.pt")
    with pytest.raises(gpt2.CheckpointError, match=r"harm\.pt holds more than weights, or no weights at all"):
        gpt2.load("harm.pt")
    assert not Path("harmed").exists()
    torch.save(Harm, "class.pt")
    torch.save([torch.zeros(3)], "list.pt")
    Path("text.pt").write_text("no weights")
    Path("other.pt").write_text("hello world\n")
    torch.save({"model": {}, "model_args": None}, "none.pt")
    Path("cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    torch.save({"wte.weight": 3}, "number.pt")
    for name, says in (
        ("class.pt", "holds more than weights"),
        ("list.pt", "holds a list, expected a state dict"),
        ("text.pt", "holds more than weights, or no weights at all"),
        ("other.pt", "is no checkpoint of PyTorch: KeyError: 101"),
        ("none.pt", "model_args is a NoneType, expected nanoGPT's settings"),
        ("cut.safetensors", "is no file of safetensors"),
        ("number.pt", "wte.weight is a int, expected a tensor"),
    ):
        with pytest.raises(gpt2.CheckpointError, match=says):
            gpt2.load(name)
    with pytest.raises(FileNotFoundError, match="no such folder or file; weights are read from this machine"):
        gpt2.load("gpt2")
    with pytest.raises(gpt2.CheckpointError, match=r"has no config\.json"):
        gpt2.load(tmp_path)
    Path("config.json").write_text("{")
    with pytest.raises(gpt2.CheckpointError, match="is no JSON"):
        gpt2.load(tmp_path)
    Path("config.json").write_text("[]")
    with pytest.raises(gpt2.CheckpointError, match="holds a list, expected an object"):
        gpt2.load(tmp_path)


# ---------------------------------------------------------------------------------------------------- the command


def test_the_command_writes_tokens_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(written(tmp_path, PlainGPT2("transformers"), "whole"))
    asked = [folder, "--ids", "--prompt", "1,2,3", "--tokens", "9", "--dtype", "f32", "--device", "cpu"]
    assert main([*asked, "--temperature", "0"]) == 0
    shown, said = capsys.readouterr()
    expected = gpt2.load(folder).generate(torch.tensor([[1, 2, 3]]), 9, temperature=0)
    assert shown == ",".join(map(str, expected[0].tolist())) + "\n"
    assert said == "on the CPU PyTorch computes: the kernels are for GPUs\n"
    for _ in range(2):
        assert main([*asked, "--seed", "3"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "hi"], "FOLDER has neither tokenizer.json nor vocab.json and merges.txt; with --ids"),
        (["--ids", "--prompt", "hi"], "--ids: 'hi' is no list of token numbers like 1,2,3"),
        (["--ids", "--prompt", "99"], "idx has numbers from 99 to 99, the vocabulary is 0 to 64"),
        (["--ids", "--prompt", ""], "idx has 0 tokens"),
        (["--ids", "--prompt", "1", "--temperature", "-1"], "temperature is -1.0"),
    ],
)
def test_the_command_says_what_it_can_not_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    folder = str(written(tmp_path, PlainGPT2("transformers"), "whole"))
    assert main([folder, "--device", "cpu", *arguments]) == 2
    shown, said = capsys.readouterr()
    says = says.replace("FOLDER", folder)
    assert shown == ""
    assert f"\nkernels_generated.gpt2: {says}" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_command_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["anywhere", "--prompt", "hi", "--device", "cuda:1"]) == 2
    assert capsys.readouterr().err == "kernels_generated.gpt2: --device cuda:1: PyTorch sees no GPU here\n"


def test_the_command_writes_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["Grüße, Welt"], vocab_size=300)
    plain = PlainGPT2("transformers", vocab=made.get_vocab_size())
    made.save_model(str(written(tmp_path, plain, "whole")))
    asked = [str(tmp_path), "--prompt", "Grüße", "--tokens", "40", "--dtype", "f32", "--device", "cpu", "--seed", "1"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    generator = torch.Generator().manual_seed(1)
    idx = gpt2.load(tmp_path).generate(torch.tensor([made.encode("Grüße").ids]), 40, 0.8, 200, generator=generator)
    assert shown == made.decode(idx[0].tolist()) + "\n"
