"""What decoding keeps: bytes per token by window, bytes per sequence, pages, and how many tokens a budget holds.

Axis legend: U strategy keys, P pipeline stages.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from autoparallel_core.cost.serving_policy import kv_dtype, model_dtype
from autoparallel_core.spec.dtypes import dtype_bytes
from autoparallel_core.spec.op import Attention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoparallel_core.cost.serving_mesh import Array, ServingMesh
    from autoparallel_core.spec.arch import Block, CacheTensor, Layer
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.serving import ServingPolicy

UNLIMITED = 0
"""Key of layers that keep every token."""


@frozen(eq=False)
class StageCache:
    """Cache of one rank of each stage, float64[U, P], as the engine lays it out.

    ``token_bytes`` holds bytes per token by window (:data:`UNLIMITED` for none), group padding included;
    ``state_bytes`` are per sequence, page padding included; ``page`` is the page length in tokens.
    """

    token_bytes: Mapping[int, Array]
    state_bytes: Array
    page: Array
    policy: ServingPolicy

    @property
    def per_token(self) -> Array:
        """Bytes per token while every window still grows (for pools: of the mixture the engine reserves)."""
        pooled = self.policy.mixed_cache == "pools" and UNLIMITED in self.token_bytes
        ratio = self.policy.window_pool_ratio if pooled else 1.0
        return sum(
            (b * (ratio if w != UNLIMITED else 1.0) for w, b in self.token_bytes.items()), start=np.zeros_like(self.state_bytes)
        )

    def per_sequence(self, context: Array | float) -> Array:
        """Bytes of one sequence of ``context`` tokens: pages in use times their size, plus state."""
        total = self.state_bytes.copy()
        for window, b in self.token_bytes.items():
            kept = np.asarray(context, dtype=np.float64)
            if window != UNLIMITED and self.policy.mixed_cache != "uniform":
                kept = np.minimum(kept, window + self.page)  # a window starts anywhere in its oldest page
            total += np.ceil(kept / self.page) * self.page * b
        return total

    def tokens(self, budget: Array, context: float) -> Array:
        """Tokens that ``budget`` bytes hold; with per-sequence state, those of as many sequences of ``context`` as fit."""
        budget = np.maximum(budget, 0.0)
        per_token = self.per_token
        if self.policy.state_pool_ratio and self.state_bytes.any():
            share = np.where(self.state_bytes > 0, 1.0 + self.policy.state_pool_ratio, 1.0)
            return _pages(budget / share, per_token, self.page)
        with np.errstate(divide="ignore", invalid="ignore"):
            sequences = np.floor(budget / self.per_sequence(context) * 100.0) / 100.0
        return np.where(self.state_bytes > 0, np.floor(sequences * context), _pages(budget, per_token, self.page))


def _pages(budget: Array, per_token: Array, page: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.floor(budget / (per_token * page)) * page
    return np.where(per_token > 0, n, np.inf)


def layer_cache(problem: Problem, mesh: ServingMesh, layer: Layer) -> tuple[dict[int, Array], Array]:
    """One layer's bytes per token by window, and its bytes per sequence, on one rank: float64[U] each."""
    tokens: dict[int, Array] = defaultdict(lambda: np.zeros(len(mesh)))
    state = np.zeros(len(mesh))
    for block in layer.blocks:
        for c in block.cache_per_token:
            entry = _bytes(mesh, c, kv_dtype(problem)) + _scaled_extra(problem, mesh, block, c)
            tokens[c.limit_tokens or UNLIMITED] += entry / c.tokens_per_entry
        for c in block.cache_per_sequence:
            state += _bytes(mesh, c, model_dtype(problem))
    return dict(tokens), state


def _bytes(mesh: ServingMesh, c: CacheTensor, default: str) -> Array:
    return mesh.local(c.axis) * dtype_bytes(c.dtype or default)


def _scaled_extra(problem: Problem, mesh: ServingMesh, block: Block, c: CacheTensor) -> float:
    """Bytes per entry beyond one per element of a scaled FP8 latent: rotary part in 16 bit, fp32 scale per 128 values."""
    if not (mesh.policy.sparse_latent_scaled and kv_dtype(problem).startswith("fp8") and c.dtype is None):
        return 0.0
    for op in block.ops:
        if isinstance(op, Attention) and op.top_k_keys and op.latent == c.axis.size and op.latent_v:
            return float(op.latent - op.latent_v) + 4.0 * op.latent_v / 128
    return 0.0


def stage_cache(problem: Problem, mesh: ServingMesh, sizes: tuple[int, ...]) -> StageCache:
    """The cache layout of every stage of ``sizes`` layers under the engine's policy."""
    U, P = len(mesh), len(sizes)
    edges = np.cumsum((0, *sizes))
    kinds: dict[int, Array] = {}
    number: dict[int, Array] = {}
    state, state_layers, largest = np.zeros((U, P)), np.zeros(P), np.zeros(U)
    for layer, where in problem.arch.layer_classes():
        counts = np.histogram(where, bins=edges)[0].astype(np.float64)
        tokens, s = layer_cache(problem, mesh, layer)
        for window, b in tokens.items():
            kinds[window] = kinds.get(window, np.zeros((U, P))) + b[:, None] * counts
            number[window] = number.get(window, np.zeros(P)) + counts
        if s.any():
            state += s[:, None] * counts
            state_layers += counts
            largest = np.maximum(largest, s)
    policy = mesh.policy
    page = np.full((U, P), float(policy.page_tokens))
    if policy.mixed_cache == "grouped" and len(kinds) + bool(state_layers.any()) > 1:
        return _grouped(policy, kinds, number, state_layers, largest, page)
    return StageCache(kinds, state, page, policy)


def _grouped(
    policy: ServingPolicy,
    kinds: dict[int, Array],
    number: dict[int, Array],
    state_layers: Array,
    largest: Array,
    page: Array,
) -> StageCache:
    """Pages shared between groups of g layers: g is the smallest kind's number of layers, or the largest's where all
    kinds are within a quarter of each other; kinds are padded to whole groups. A state takes one page, so pages grow
    until the largest state fits.
    """
    n = {w: float(c.sum()) for w, c in number.items()}
    states = float(state_layers.sum())
    every = [*n.values(), *([states] if states else [])]
    g = max(every) if max(every) < 1.25 * min(every) else min(every)
    tokens = {w: b * (np.ceil(n[w] / g) * g) / n[w] for w, b in kinds.items()}
    state = np.zeros_like(page)
    if states:
        # bytes per token of one attention layer, the same on every stage
        one = np.max([b.sum(axis=1) / n[w] for w, b in kinds.items()], axis=0)
        page = np.broadcast_to((np.ceil(largest / (one * policy.page_tokens)) * policy.page_tokens)[:, None], page.shape)
        page = np.maximum(page, float(policy.page_tokens))
        state = page * one[:, None] * state_layers * (np.ceil(states / g) * g / states)
    return StageCache(tokens, state, page, policy)
