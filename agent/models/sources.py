"""What a user names as a model, built: a file of Python, a folder of transformers, or one of GPT-2's sizes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_generated.gpt2 import PRESETS
from kernels_generated.runtime.plan import TORCH_NAMES
from knowledge_base.errors import EnvironmentLacks, UserError, nearest

FORMS = """the file gives them their values, or functions that return these:
  model = MyModel()               # a torch.nn.Module
  example = torch.randn(8, 768)   # what it is called with: a tensor, a tuple of arguments, or a dict of named ones"""
NAMES = tuple(name for name in PRESETS if name.startswith("gpt2"))
KINDS = f"It is a FILE.py, a folder of transformers, or {', '.join(NAMES)}."
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
# A batch of the example's tokens, and their number.
TOKENS = {"cuda": {"B": 8, "T": 1024}, "cpu": {"B": 1, "T": 16}}


@dataclass(frozen=True)
class Given:
    """A model, and what it is called with.  about: what is to be known of where it comes from."""

    model: nn.Module
    example: tuple[Any, ...]
    named: Mapping[str, Any]
    about: str


def given(name: str, device: str, dtype: str | None, sizes: Mapping[str, int]) -> Given:
    """The model called ``name`` on the device, in evaluation mode, and its example.

    sizes: B and T of an example of tokens; a file has its own example.

    Raises UserError for what is no model, EnvironmentLacks without the package transformers where it is needed.
    """
    torch.manual_seed(0)
    if Path(name).suffix == ".py":
        found = _of_file(Path(name), sizes)
    elif name in NAMES:
        found = _of_transformers(name, device, dtype, sizes)
    elif Path(name).is_dir():
        found = _of_transformers(Path(name), device, dtype, sizes)
    else:
        near = nearest(name, NAMES)
        there = "is a file, and no Python" if Path(name).is_file() else "is no file or folder"
        raise UserError(f"{name} {there}", f"Did you mean {' or '.join(near)}?" if near else KINDS)
    wanted = None if dtype is None else getattr(torch, TORCH_NAMES[dtype])
    with _as_users(f"moving the model to {device}"):
        found.model.to(device=device, dtype=wanted).eval()

    def moved(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return one.to(device=device, dtype=wanted if one.is_floating_point() else None)

    example, named = pytree.tree_map(moved, (found.example, dict(found.named)))
    return Given(found.model, example, named, found.about)


# ---------------------------------------------------------------------------------------------------- a file


def _of_file(path: Path, sizes: Mapping[str, int]) -> Given:
    if sizes:
        raise UserError(f"--shape: {path} has an example of its own", "Change the sizes there.")
    if not path.is_file():
        raise UserError(f"there is no file {path}", KINDS)
    sys.path.insert(0, str(path.resolve().parent))
    with _as_users("running it", path):
        held = _module(path)
    missing = [name for name in ("model", "example") if name not in held]
    if missing:
        raise UserError(f"{path} defines no {' and no '.join(missing)}", f"{FORMS[:1].upper()}{FORMS[1:]}")
    model, example = (_value(held[name], name, path) for name in ("model", "example"))
    if not isinstance(model, nn.Module):
        raise UserError(f"{path}: model is a {type(model).__name__}, no torch.nn.Module", FORMS)
    if isinstance(example, dict):
        return Given(model, (), example, str(path))
    return Given(model, tuple(example) if isinstance(example, tuple | list) else (example,), {}, str(path))


def _value(held: Any, name: str, path: Path) -> Any:
    """The value itself, or what the function gives."""
    if isinstance(held, nn.Module | torch.Tensor) or not callable(held):
        return held
    with _as_users(f"calling {name}", path):
        return held()


def _module(path: Path) -> dict[str, Any]:
    """What the file defines, as a module that its classes are found in."""
    spec = importlib.util.spec_from_file_location("compared", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["compared"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@contextmanager
def _as_users(doing: str, path: Path | None = None) -> Iterator[None]:
    """What the user's code raises in it is said as a UserError, with the line of the file where there is one."""
    try:
        yield
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:
        where = ""
        if path is not None:
            own = [at for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).name == path.name]
            line = own[-1].lineno if own else getattr(error, "lineno", None)
            where = f"{path}{f', line {line}' if line else ''}: "
        raise UserError(f"{where}{doing} raised {said(error)}") from None


def said(error: BaseException) -> str:
    """The exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"


# ---------------------------------------------------------------------------------------------------- transformers


def _of_transformers(source: str | Path, device: str, dtype: str | None, sizes: Mapping[str, int]) -> Given:
    """A causal language model: of a folder with its config.json, with the weights there, or of GPT-2's sizes.

    Where there are no weights they are random, and it is said.
    """
    if isinstance(source, Path) and not (source / "config.json").is_file():
        raise UserError(f"{source} has no config.json: it is no folder of transformers", KINDS)
    library = _transformers()
    with _as_users(f"loading {source} by transformers"):
        if isinstance(source, str):
            size = PRESETS[source]
            config = library.GPT2Config(n_layer=size.n_layer, n_head=size.n_head, n_embd=size.n_embd)
        else:
            config = library.AutoConfig.from_pretrained(str(source), local_files_only=True)
        if isinstance(source, Path) and any(any(source.glob(pattern)) for pattern in WEIGHTS):
            model = library.AutoModelForCausalLM.from_pretrained(str(source), local_files_only=True, dtype="auto")
            about = f"{source}"
        else:
            with torch.device(device):
                model = library.AutoModelForCausalLM.from_config(config)
            if dtype is None:
                model.to(getattr(config, "dtype", None) or torch.bfloat16)
            about = f"{source}, random weights"
    text = config.get_text_config()
    B, T = _tokens(sizes, device, getattr(text, "max_position_embeddings", None))
    # As a tokenizer gives them: without the mask transformers looks for several texts in one row, and attention has a
    # mask for that.
    named = {"input_ids": torch.randint(text.vocab_size, (B, T)), "attention_mask": torch.ones(B, T, dtype=torch.int64)}
    return Given(model, (), {**named, "use_cache": False}, about)


def _tokens(sizes: Mapping[str, int], device: str, most: int | None) -> tuple[int, int]:
    unknown = [name for name in sizes if name not in ("B", "T")]
    if unknown:
        raise UserError(f"--shape: there is no size {unknown[0]!r}", "Tokens have B and T: --shape B=1,T=128.")
    usual = TOKENS[device]
    B, T = sizes.get("B", usual["B"]), sizes.get("T", min(usual["T"], most or usual["T"]))
    if most is not None and most < T:
        raise UserError(f"--shape: T={T}, but the model looks at {most} tokens at most")
    return B, T


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        mend = "pip install transformers, or write a FILE.py with a model and an example."
        raise EnvironmentLacks(f"the package transformers is not there: {said(error)}", mend) from None
