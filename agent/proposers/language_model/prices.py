"""What calls cost: by the price list of the package genai-prices, which knows endpoints by their addresses."""

from __future__ import annotations

from genai_prices import Usage, calc_price


def cost_usd(model: str, address: str, tokens_in: int, tokens_out: int, cached: int = 0) -> float | None:
    """US dollars for a call; None where the endpoint or the model has no price there, as a model of one's own.

    tokens_in: of the prompt, ``cached`` of them read from the endpoint's cache.
    """
    usage = Usage(input_tokens=tokens_in, output_tokens=tokens_out, cache_read_tokens=min(cached, tokens_in))
    try:
        return float(calc_price(usage, model, provider_api_url=address).total_price)
    except LookupError:
        return None
