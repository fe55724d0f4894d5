"""How an engine version lays its memory out when it serves: data that engine plugins register.

Bytes that depend on the strategy (activation peaks, communication buffers, captured graphs) come through the
``memory`` hook under the cause names of :data:`CAUSES`; the arithmetic is the core's.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from autoparallel_core.spec.op import Component

Budget = Literal["share_of_device", "share_of_free", "share_after_weights"]
"""What the engine's memory fraction is a fraction of.

``share_of_device``: fraction × device, minus weights, activations, non-torch and graphs, is KV cache.
``share_of_free``: fraction × (device − non-torch), minus weights, is KV cache; the rest serves activations and graphs.
``share_after_weights``: fraction × (device − weights − activations − non-torch − graphs) is KV cache.
"""

CAUSES: tuple[str, ...] = ("weights", "activation", "non_torch", "cuda_graph")
"""First words of the causes a ``memory`` hook may return when it serves; ``activation: logits`` is of the second kind.

``@first`` or ``@last`` behind a cause limits it to that pipeline stage. A cause of no known kind is kept from the
KV cache like non-torch memory.
"""


@frozen
class Alignment:
    """A kernel stores matrices of one format with a local width rounded up to a multiple.

    ``axis`` names the axis it concerns, or ``side`` the contracted (``in``) or produced (``out``) width of the matrix.
    """

    format: str
    multiple: int
    source: str
    axis: str | None = None
    side: Literal["in", "out"] | None = None
    experts_only: bool = True
    architectures: tuple[str, ...] = ()
    """GPU generations it holds for; empty: all."""


@frozen
class SchedulerDefaults:
    """Batch limits an engine takes when the user gives none, for GPUs of at least ``min_memory_bytes``."""

    max_num_seqs: int
    max_num_batched_tokens: int
    min_memory_bytes: float = 0.0
    not_architectures: tuple[str, ...] = ()
    """GPU generations that do not get these."""


@frozen
class ServingPolicy:
    """Memory layout of one engine over a range of versions (``since`` inclusive, ``until`` exclusive)."""

    source: str
    budget: Budget
    since: str | None = None
    until: str | None = None
    memory_fraction: float | None = None
    """Default of the engine's memory flag. None: one minus what its memory hook reserves for activations and graphs."""
    scheduler: tuple[SchedulerDefaults, ...] = ()
    """Tried in order."""
    page_tokens: int = 16
    layer_split: Literal["first", "inner", "trailing", "last"] = "first"
    """Which pipeline stages get the layers that do not divide: one each the first ones, the last but one and those
    before it, or the trailing ones; or all of them the last."""
    pad_vocabulary_to: int = 1
    """Rows of embedding and head are padded to a multiple of this, and of this times tp where tp would not divide it."""
    spread_over_attention_dp: tuple[Component, ...] = ()
    """Dense parts that are sharded over tp and attention dp together instead of replicated per attention rank."""
    absorbed_copies: Literal["none", "split", "fused"] = "split"
    """What latent attention keeps beside its up-projection for absorbed decoding.

    split: the two per-head halves, in the model's dtype; fused: their products with the query and output projections,
    stored like those.
    """
    towers_sharded: bool = True
    """Vision and audio towers are split over tp; otherwise every rank holds them whole."""
    rotary_cache: bool = True
    """A table of sines and cosines over all positions is kept per GPU."""
    mixed_cache: Literal["grouped", "pools", "uniform"] = "uniform"
    """How layers with and without a window share the cache.

    grouped: pages belong to groups of equally many layers, short groups are padded; window layers free what they passed.
    pools: one pool per kind, the window's being ``window_pool_ratio`` of the full one in tokens.
    uniform: every layer keeps every token.
    """
    mixed_cache_models: tuple[str, ...] = ()
    """Model types for which it does that, the others being uniform; empty: all."""
    window_pool_ratio: float = 1.0
    state_pool_ratio: float = 0.0
    """Share of the cache memory set aside for per-sequence states, relative to the tokens' share (0: shared pages)."""
    sparse_latent_scaled: bool = False
    """An FP8 cache of sparsely attended latents keeps the rotary part in 16 bit, and one fp32 scale per 128 values."""
    alignments: tuple[Alignment, ...] = ()
    fp8_cache_formats: tuple[str, ...] = ()
    """Weight formats whose checkpoints, as this engine takes them, ask for an FP8 cache."""
    throughput_attention_dp: bool = False
    """The engine's documented recipe for maximum throughput runs MoE models with attention data parallelism."""
    benchmark_requests: int | None = None
    """Requests of an offline run in the engine's benchmark documentation."""
    notes: tuple[str, ...] = field(default=())
