"""What tokens cost at a price per GPU and hour. The GPUs in use are paid for; idle ones are not."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


def price_per_million_tokens(tokens_per_s: float, gpus: int, gpu_hour_price: float) -> float:
    """Price of a million tokens, in the currency of ``gpu_hour_price``."""
    return gpus * gpu_hour_price / SECONDS_PER_HOUR / tokens_per_s * MILLION
