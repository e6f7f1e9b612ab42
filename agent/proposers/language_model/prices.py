"""What calls cost: by a file of the user's, else by the list of genai-prices, which knows endpoints by address."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from genai_prices import Usage, calc_price
from genai_prices.types import ModelPrice

from agent.proposers.access import Access
from knowledge_base.errors import UserError

# What a line of the file is called in genai-prices.
NAMES = {"input": "input_mtok", "output": "output_mtok", "cached": "cache_read_mtok"}
EXAMPLE = 'Write ["the-model"], then lines input = 0.5 and output = 2.0: US dollars per million tokens.'


@dataclass(frozen=True)
class Price:
    """A model's price where it is asked.  ``own``: the user's, before that of the list."""

    access: Access
    own: ModelPrice | None = None

    def usd(self, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
        """US dollars for so many tokens of prompts, ``cached`` of them read from the endpoint's cache, and answers."""
        usage = Usage(input_tokens=tokens_in, output_tokens=tokens_out, cache_read_tokens=min(cached, tokens_in))
        if self.own is not None:
            return float(self.own.calc_price(usage)["total_price"])
        return float(calc_price(usage, self.access.model, provider_api_url=self.access.address).total_price)


def price_of(access: Access, file: str | None = None) -> Price | None:
    """The price of the access's model; None where neither file nor list has one, as of a model of one's own.

    Raises UserError for a file that can't be read.
    """
    price = Price(access, _of_file(file, access.model) if file else None)
    try:
        price.usd(1, 1)
    except LookupError:
        return None
    return price


def _of_file(file: str, model: str) -> ModelPrice | None:
    try:
        entry = tomllib.loads(Path(file).read_text(encoding="utf-8")).get(model)
    except (OSError, ValueError) as error:
        raise UserError(f"--prices {file}: {getattr(error, 'strerror', None) or error}", EXAMPLE) from None
    if entry is None:
        return None
    numbers = entry if isinstance(entry, dict) else {}
    good = {"input", "output"} <= numbers.keys() <= NAMES.keys()
    if not good or not all(_is_price(value) for value in numbers.values()):
        raise UserError(f"--prices {file}: {model} needs input and output, and may have cached", EXAMPLE)
    return ModelPrice(**{NAMES[name]: Decimal(str(value)) for name, value in numbers.items()})


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6
