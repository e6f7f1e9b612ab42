"""Text from GPT-2, token by token: ``python -m kernels_generated.gpt2 FOLDER --prompt TEXT``."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from kernels_generated.ops import ThroughPyTorch
from kernels_generated.runtime.backend import installed

from .checkpoints import CheckpointError, load

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the text as it comes.  Returns the exit status: 2 where it can't be done, 130 after Ctrl-C."""
    asked = _parser().parse_args(arguments)
    try:
        device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"--device {device}: PyTorch sees no GPU here")
        if device == "cpu" and installed("cpu") is None:
            print("on the CPU PyTorch computes: the kernels are for GPUs", file=sys.stderr)
            warnings.simplefilter("ignore", ThroughPyTorch)
        model = load(asked.model, dtype=_DTYPES[asked.dtype], device=device, n_head=asked.heads)
        encode, decode = _numbers() if asked.ids else _tokenizer(Path(asked.model))
        prompt = encode(asked.prompt)
        generator = torch.Generator(device).manual_seed(asked.seed) if asked.seed is not None else None
        idx = torch.tensor([prompt], dtype=torch.int64, device=device)
        drawn = model.stream(idx, asked.tokens, asked.temperature, asked.top_k, generator=generator)
        print(asked.prompt, end="", flush=True)
        for piece in _pieces(prompt, (int(one) for one in drawn), decode):
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print()
        return 130
    except (CheckpointError, ImportError, OSError, ValueError, RuntimeError, IndexError) as error:
        print(f"kernels_generated.gpt2: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels_generated.gpt2", description="Text from GPT-2.")
    parser.add_argument("model", help="folder of transformers' GPT-2, or a checkpoint of nanoGPT or minGPT")
    parser.add_argument("--prompt", required=True, help="what the text begins with")
    parser.add_argument("--ids", action="store_true", help="the prompt is token numbers (1,2,3), and so is the text")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="how many to write (100)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: always the likeliest (0.8)")
    parser.add_argument("--top-k", type=int, default=200, metavar="N", help="draw from that many (200)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16", help="of weights and activations (bf16)")
    parser.add_argument("--device", help="cuda, cuda:1, cpu (cuda where there is one)")
    parser.add_argument("--heads", type=int, metavar="N", help="of a file that does not say its number of heads")
    return parser


def _numbers() -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """For prompts that are numbers already."""

    def encode(text: str) -> list[int]:
        try:
            return [int(one) for one in text.replace(",", " ").split()]
        except ValueError:
            raise ValueError(f"--ids: {text!r} is no list of token numbers like 1,2,3") from None

    return encode, lambda ids: "".join(f",{one}" for one in ids)


def _tokenizer(model: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    folder = model if model.is_dir() else model.parent
    path = folder / "tokenizer.json"
    pair = folder / "vocab.json", folder / "merges.txt"
    if not path.is_file() and not all(one.is_file() for one in pair):
        missing = "neither tokenizer.json nor vocab.json and merges.txt"
        raise FileNotFoundError(f"{folder} has {missing}; with --ids the prompt is token numbers")
    try:
        from tokenizers import ByteLevelBPETokenizer, Tokenizer
    except ImportError:
        raise ImportError(f"{folder}: text needs the package tokenizers: pip install tokenizers") from None
    made = Tokenizer.from_file(str(path)) if path.is_file() else ByteLevelBPETokenizer(*map(str, pair))
    return lambda text: list(made.encode(text).ids), made.decode


def _pieces(prompt: list[int], tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """What each token adds to the text; a character that several tokens make up comes with the last of them."""
    ids, shown = list(prompt), len(decode(prompt))
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    yield decode(ids)[shown:]


if __name__ == "__main__":
    sys.exit(main())
