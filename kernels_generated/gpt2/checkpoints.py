"""Weights of GPT-2 models that were trained elsewhere: transformers, nanoGPT, minGPT.

Only tensors are read.  Nothing of a pickle is run: PyTorch's ``weights_only`` refuses what is more than weights.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .config import GPTConfig
from .gpt import GPT

# Prefixes that torch.compile, DataParallel and the models themselves put before a parameter's name.
_PREFIXES = ("_orig_mod.", "module.", "transformer.")
# Masks that transformers and minGPT keep beside the weights.
_BUFFERS = (".attn.bias", ".attn.masked_bias")
_MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_EPS = 1e-5  # of every layer normalisation here
# transformers' names
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
# Settings of transformers that change what is computed, and the only value that is computed here.
_SETTINGS: dict[str, Any] = {
    "model_type": "gpt2", "layer_norm_epsilon": _EPS, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
}  # fmt: skip


# Sizes as transformers' settings and nanoGPT's call them, and as GPTConfig does.
_SIZES = {
    "n_layer": "n_layer", "n_embd": "n_embd", "n_positions": "block_size", "block_size": "block_size",
    "vocab_size": "vocab_size", "n_inner": "n_inner",
}  # fmt: skip


class CheckpointError(RuntimeError):
    """Weights that are none of a GPT-2 model, or not all of them; the message says which."""


@dataclass(frozen=True)
class _Found:
    """What a source holds.  n_head, activation: None where it does not say.

    settings: what it says of the weights' sizes, under its own names, which they have to have.  biases: whether it says
    that there are some.
    """

    state: Mapping[str, Any]
    n_head: int | None = None
    activation: str | None = None
    where: str = "the state dict"
    settings: Mapping[str, Any] = field(default_factory=dict)
    biases: bool = False


def load(
    source: str | Path | Mapping[str, torch.Tensor] | nn.Module,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    n_head: int | None = None,
    activation: str | None = None,
) -> GPT:
    """The model with the weights of ``source``:

    - a folder as transformers writes it: config.json beside model.safetensors, its parts, or pytorch_model.bin;
    - a file: nanoGPT's checkpoint, a state dict that torch.save wrote, or one in safetensors;
    - a state dict, of a model of transformers, nanoGPT or minGPT; a live one of these.

    dtype, device: of the model; those of the weights unless given.  Weights that are taken as they are share their
    memory with the source.  n_head, activation (gelu_tanh or gelu, the exact one): a state dict does not say them; the
    number of heads has to be given then, the activation is GPT-2's unless given.

    Raises CheckpointError for keys that are missing or too many, shapes that do not fit, settings that no kernel here
    is for, and files that are more than weights; FileNotFoundError; ImportError where safetensors is needed and not
    installed.
    """
    found = _read(source)
    if n_head is not None:
        found = replace(found, n_head=n_head)
    if activation is not None:
        found = replace(found, activation=activation)
    state = _plain(found)
    config = _config(state, found)
    model = GPT(config, device="meta")
    _fitted(state, model, found)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie()
    return model.to(device=device, dtype=dtype or state["wte.weight"].dtype)


# ---------------------------------------------------------------------------------------------------- reading


def _read(source: str | Path | Mapping[str, torch.Tensor] | nn.Module) -> _Found:
    if isinstance(source, nn.Module):
        return _live(source)
    if isinstance(source, Mapping):
        return _Found(source)
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such folder or file; weights are read from this machine, not downloaded")
    if path.suffix == ".safetensors":
        return _Found(_safetensors(path), where=str(path))
    held = _pickled(path)
    state = held.get("model")
    if not isinstance(state, Mapping):
        return _Found(held, where=str(path))
    if "model_args" in held:  # nanoGPT's, whose GELU is the exact one
        said = held["model_args"]
        if not isinstance(said, Mapping):
            raise CheckpointError(f"{path}: model_args is a {type(said).__name__}, expected nanoGPT's settings")
        return _Found(state, said.get("n_head"), "gelu", str(path), said, bool(said.get("bias")))
    return _Found(state, where=str(path))


def _folder(folder: Path) -> _Found:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json: it is no folder of transformers' GPT-2")
    return replace(_settled(_json(path), str(path)), state=_weights(folder), where=str(folder))


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from None
    if not isinstance(held, dict):
        raise CheckpointError(f"{path} holds a {type(held).__name__}, expected an object")
    return held


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return _safetensors(folder / "model.safetensors")
    if index.is_file():
        parts = sorted(set(_json(index).get("weight_map", {}).values()))
        return {name: one for part in parts for name, one in _safetensors(folder / part).items()}
    if (folder / "pytorch_model.bin").is_file():
        return dict(_pickled(folder / "pytorch_model.bin"))
    raise CheckpointError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ImportError(f"{path} is read by the package safetensors: pip install safetensors") from None
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is no file of safetensors: {error}") from None


def _pickled(path: Path) -> Mapping[str, Any]:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{path} holds more than weights, or no weights at all: {reason}") from None
    except OSError:
        raise
    except Exception as error:  # whatever bytes that are none of its files make it raise: KeyError, AssertionError, …
        raise CheckpointError(f"{path} is no checkpoint of PyTorch: {type(error).__name__}: {error}") from None
    if not isinstance(held, Mapping):
        raise CheckpointError(f"{path} holds a {type(held).__name__}, expected a state dict")
    return held


def _settled(settings: Mapping[str, Any], where: str) -> _Found:
    """Heads and activation of transformers' settings.  Raises CheckpointError for those that no kernel is for."""
    for name, only in _SETTINGS.items():
        if settings.get(name, only) != only:
            raise CheckpointError(f"{where}: {name} is {settings[name]}, kernels here are for {only}")
    name = settings.get("activation_function", "gelu_new")
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"{where}: activation_function is {name}, expected one of {', '.join(_ACTIVATIONS)}")
    return _Found({}, settings.get("n_head"), _ACTIVATIONS[name], where, settings, biases=True)


def _live(model: nn.Module) -> _Found:
    """A model of transformers or of ours (which say what they are), nanoGPT or minGPT (whose modules say it)."""
    where = f"the {type(model).__name__}"
    if isinstance(model, GPT):
        return _Found(model.state_dict(), model.config.n_head, model.config.activation, where)
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    if "model_type" in settings:
        return replace(_settled(settings, where), state=model.state_dict(), where=where)
    heads = {n for n in (getattr(m, "n_head", None) for m in model.modules()) if isinstance(n, int)}
    exact = any(isinstance(m, nn.GELU) and m.approximate == "none" for m in model.modules())
    for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        if norm.eps != _EPS:
            raise CheckpointError(f"{where}: the eps of a LayerNorm is {norm.eps}, kernels here are for {_EPS}")
    n_head = heads.pop() if len(heads) == 1 else None
    return _Found(model.state_dict(), n_head, "gelu" if exact else "gelu_tanh", where)


# ---------------------------------------------------------------------------------------------------- names and shapes


def _plain(found: _Found) -> dict[str, torch.Tensor]:
    """The weights under this package's names, matrices as [out, in]: transformers keeps them turned round."""
    state: dict[str, torch.Tensor] = {}
    for name, one in found.state.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{found.where}: {name!r} is a {type(name).__name__}, expected a parameter's name")
        while name.startswith(_PREFIXES):
            name = name.split(".", 1)[1]
        if not isinstance(one, torch.Tensor):
            raise CheckpointError(f"{found.where}: {name} is a {type(one).__name__}, expected a tensor")
        if name.endswith(_BUFFERS):
            continue
        if not one.is_floating_point():
            raise CheckpointError(f"{found.where}: {name} is {one.dtype}, expected floating-point weights")
        state[name] = one.detach()
    for name in ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight"):
        if name not in state or state[name].dim() != 2:
            raise CheckpointError(f"{found.where} has no matrix {name}: these are no weights of GPT-2")
    rows, columns = state["h.0.attn.c_attn.weight"].shape
    if columns == 3 * rows:
        for name in (n for n in state if n.endswith(_MATRICES) and state[n].dim() == 2):
            state[name] = state[name].t().contiguous()
    return state


def _config(state: Mapping[str, torch.Tensor], found: _Found) -> GPTConfig:
    if found.n_head is None:
        raise CheckpointError(f"{found.where} does not say its number of heads: give n_head=…")
    layers = {int(name.split(".")[1]) for name in state if name.startswith("h.") and name.split(".")[1].isdigit()}
    (vocab, width), (block, _) = state["wte.weight"].shape, state["wpe.weight"].shape
    inner = state.get("h.0.mlp.c_fc.weight", state["wte.weight"]).shape[0]
    head = state.get("lm_head.weight")
    tied = head is None or (head.shape == state["wte.weight"].shape and torch.equal(head, state["wte.weight"]))
    try:
        config = GPTConfig(
            max(layers) + 1, found.n_head, width, block, vocab, inner, found.activation or "gelu_tanh", tied
        )
    except ValueError as error:
        raise CheckpointError(f"{found.where}: {error}") from None
    for name, field_name in _SIZES.items():
        said, held = found.settings.get(name), getattr(config, field_name)
        if said is not None and said != held:
            raise CheckpointError(f"{found.where} says {name} = {said}, but its weights are those of {name} = {held}")
    return config


def _fitted(state: dict[str, torch.Tensor], model: GPT, found: _Found) -> None:
    """Sees to it that the weights are all that the model has, and no more.  Biases that nanoGPT may leave out are 0."""
    expected = dict(model.state_dict())
    if model.config.tied:
        expected.pop("lm_head.weight")
        state.pop("lm_head.weight", None)
    if not found.biases and not any(name.endswith(".bias") for name in state):
        like = state["wte.weight"]
        state.update({n: like.new_zeros(t.shape) for n, t in expected.items() if n.endswith(".bias")})
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    faults = [f"{what}: {', '.join(some)}" for what, some in (("missing", missing), ("not expected", extra)) if some]
    faults += [
        f"{name} has the shape {list(state[name].shape)}, expected {list(one.shape)}"
        for name, one in expected.items()
        if name in state and state[name].shape != one.shape
    ]
    if faults:
        raise CheckpointError(f"{found.where} does not fit {model.config}:\n  " + "\n  ".join(faults))
