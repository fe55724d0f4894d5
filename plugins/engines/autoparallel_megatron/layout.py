"""How Megatron-Core can spread a decoder stack over pipeline stages, and which of its options says so.

In order of preference: evenly; with the embedding and the loss counted as layers; with explicit layer
counts for the first and last rank; with a free layout string.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from attrs import frozen

Kind = Literal["even", "account_for_ends", "first_last", "layout"]


@frozen
class PipelineSplit:
    """One way to split; ``chunks`` counts decoder layers of each virtual stage, first to last (stage = chunk mod pp)."""

    kind: Kind
    chunks: tuple[int, ...]
    account_for_embedding: bool = False
    account_for_loss: bool = False
    first: int | None = None
    last: int | None = None


@frozen
class Abilities:
    """What a version can do. Uneven counts came with 0.9, with interleaving 0.11, the layout string with 0.13."""

    first_last: bool = True
    first_last_interleaved: bool = True
    account_for_ends: bool = True
    layout: bool = True


@lru_cache(maxsize=65536)
def pipeline_split(layers: int, pp: int, vpp: int, abilities: Abilities = Abilities()) -> PipelineSplit | None:
    """The simplest legal split of ``layers`` over pp·vpp virtual stages, or None when this version has none.

    Sources: TransformerConfig.__post_init__ (divisibility of first, last and middle ranks) and
    PipelineParallelLayerLayout (free layouts, empty stages allowed) of Megatron-Core.
    """
    n = pp * vpp
    if layers % n == 0:
        return PipelineSplit("even", (layers // n,) * n)
    if pp == 1:
        return None
    if abilities.account_for_ends and (split := _accounted(layers, n)):
        return split
    if abilities.first_last and (vpp == 1 or abilities.first_last_interleaved) and (split := _first_last(layers, pp, vpp)):
        return split
    if abilities.layout and n <= layers + 2:
        return _layout(layers, n)
    return None


def _accounted(layers: int, n: int) -> PipelineSplit | None:
    for embedding, loss in ((False, True), (True, False), (True, True)):
        total = layers + embedding + loss
        if total % n == 0:
            per = total // n
            chunks = [per] * n
            chunks[0] -= embedding
            chunks[-1] -= loss
            return PipelineSplit("account_for_ends", tuple(chunks), account_for_embedding=embedding, account_for_loss=loss)
    return None


def _first_last(layers: int, pp: int, vpp: int) -> PipelineSplit | None:
    """First and last rank hold fewer layers than the middle ones, as balanced as the divisibility rules allow."""
    if pp == 2:
        first = -(-layers // (2 * vpp)) * vpp
        last = layers - first
        if last > 0 and last % vpp == 0:
            return PipelineSplit("first_last", _chunks(first, 0, last, pp, vpp), first=first, last=last)
        return None
    best: tuple[int, PipelineSplit] | None = None
    for middle in range(vpp, layers // (pp - 2) + 1, vpp):
        rest = layers - middle * (pp - 2)
        # The last rank has the head and the loss: give the first the larger half.
        first = -(-rest // (2 * vpp)) * vpp
        last = rest - first
        if first > 0 and last > 0 and last % vpp == 0:
            largest = max(first, middle, last)
            if best is None or largest < best[0]:
                best = largest, PipelineSplit("first_last", _chunks(first, middle, last, pp, vpp), first=first, last=last)
    return best[1] if best else None


def _chunks(first: int, middle: int, last: int, pp: int, vpp: int) -> tuple[int, ...]:
    row = (first // vpp, *([middle // vpp] * (pp - 2)), last // vpp)
    return row * vpp


def _layout(layers: int, n: int) -> PipelineSplit:
    """As even as possible; the ends, which also hold the embedding and the loss, get the smaller counts."""
    low, extra = divmod(layers, n)
    chunks = [low] * n
    order = [*range(1, n - 1), 0, n - 1]
    for i in order[:extra]:
        chunks[i] += 1
    return PipelineSplit("layout", tuple(chunks))


def layout_string(split: PipelineSplit, *, mtp_layers: int = 0) -> str:
    """Megatron's ``--pipeline-model-parallel-layout``: E embedding, t decoder layer, m MTP layer, L loss, | between stages."""
    stages = ["t" * n for n in split.chunks]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    out: list[str] = []
    i = 0
    while i < len(stages):
        run = 1
        while i + run < len(stages) and stages[i + run] == stages[i]:
            run += 1
        out.append(f"({stages[i]}|)*{run}" if run > 1 else f"{stages[i]}|")
        i += run
    return "".join(out).rstrip("|")
