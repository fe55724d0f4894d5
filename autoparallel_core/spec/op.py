"""The narrow waist: operators over named axes.

An operator says which axes its matrices and activations have; a strategy assigns mesh
dimensions to axis *names* (``autoparallel_core.ops.assignment``), and FLOPs, bytes, weights,
saved activations and collectives follow. Sizes are elements; nothing here knows a dtype's width,
a mesh or a GPU. Every quantity is *per token* unless it says otherwise.

Axis names with a meaning to the assignment (any other name is never sharded):

========================  =====================================================================
``hidden``                the residual stream; its *tokens* are sharded under sequence parallelism
``heads``                 query heads (units) of a width; tensor parallel
``kv_heads``              key/value heads; tensor parallel, replicated beyond their number
``ffn``                   width of a dense or shared-expert feed-forward; tensor parallel
``vocab``                 rows of the embedding and the head; tensor parallel
``experts``               routed experts; expert parallel
``expert_ffn``            width of one routed expert; expert-tensor parallel
``latent``                low-rank latents (MLA), indexer keys, router logits: replicated
========================  =====================================================================
"""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import field, frozen

Component = Literal[
    "embedding", "attention", "mlp", "experts", "shared_experts", "router", "norm", "head", "mtp", "tower", "other"
]


@frozen
class Axis:
    """A dimension of ``units`` indivisible pieces, each ``width`` elements wide (heads × head_dim)."""

    name: str
    units: int
    width: int = 1

    @property
    def size(self) -> int:
        return self.units * self.width


@frozen
class Weight:
    """One parameter tensor, under the name that the checkpoint's module has inside its layer."""

    module: str
    axes: tuple[Axis, ...]
    component: Component
    format: str | None = None
    """Storage format set by the checkpoint's quantisation (``fp8_block128``, ``nvfp4`` …); None: the model's dtype."""
    linear: bool = True
    """True for the matrices of GEMMs (what quantisation may touch), False for norms, biases, tables."""

    @property
    def size(self) -> int:
        n = 1
        for a in self.axes:
            n *= a.size
        return n


@frozen
class Op:
    """Base: a name unique in its block and the tensors it owns."""

    kind: ClassVar[str] = "op"
    name: str
    weights: tuple[Weight, ...] = field(default=(), kw_only=True)


@frozen
class Gemm(Op):
    """``tokens × k → tokens × (sum of n)``: fused projections share their input and are one GEMM.

    A sharded ``n`` makes it column-parallel (the input is gathered under sequence parallelism,
    its gradient reduced); a sharded ``k`` makes it row-parallel (the output is reduced).
    Saves its input for the backward pass.
    """

    kind: ClassVar[str] = "gemm"
    k: Axis = field(kw_only=True)
    n: tuple[Axis, ...] = field(kw_only=True)
    precise: bool = field(default=False, kw_only=True)
    """Stays in 16 bit (or wider) even when the run quantises GEMMs: routers, heads, low-rank gates."""
    tokens_fraction: float = field(default=1.0, kw_only=True)
    """Share of the tokens that pass through (block-sparse or compressed paths)."""


@frozen
class ExpertGemm(Op):
    """A grouped GEMM over routed experts: every token visits ``top_k`` of ``experts.units``.

    Saves its (dispatched) input.
    """

    kind: ClassVar[str] = "expert_gemm"
    experts: Axis = field(kw_only=True)
    top_k: int = field(kw_only=True)
    k: Axis = field(kw_only=True)
    n: tuple[Axis, ...] = field(kw_only=True)


@frozen
class TokenExchange(Op):
    """Dispatch of tokens to their experts, or combine of the results: an all-to-all of ``top_k × width``."""

    kind: ClassVar[str] = "token_exchange"
    direction: Literal["dispatch", "combine"] = field(kw_only=True)
    experts: Axis = field(kw_only=True)
    top_k: int = field(kw_only=True)
    width: Axis = field(kw_only=True)


@frozen
class Attention(Op):
    """Softmax attention of ``heads`` queries over ``kv_heads`` keys and values. Saves q, k and v.

    ``heads.width`` is the query/key width per head, ``v_width`` the value width.
    ``latent`` is the width that one cached token has when decode runs in the absorbed form
    (MLA: kv_lora_rank + rope), ``latent_v`` the part of it that is the value.
    ``top_k_keys`` limits each query to that many keys (sparse attention);
    ``tokens_per_key`` says how many tokens one (compressed) key stands for;
    ``v_width`` 0 means scores only (an indexer).
    """

    kind: ClassVar[str] = "attention"
    heads: Axis = field(kw_only=True)
    kv_heads: Axis = field(kw_only=True)
    v_width: int = field(kw_only=True)
    causal: bool = field(default=True, kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    """Sliding window in tokens, None for full attention."""
    chunk: int | None = field(default=None, kw_only=True)
    """Chunked local attention: a query sees only its own chunk of this many tokens."""
    top_k_keys: int | None = field(default=None, kw_only=True)
    tokens_per_key: int = field(default=1, kw_only=True)
    latent: int | None = field(default=None, kw_only=True)
    latent_v: int | None = field(default=None, kw_only=True)
    output_saved: bool = field(default=False, kw_only=True)
    query_saved: bool = field(default=True, kw_only=True)
    """False when another attention of the block keeps the same queries for backward."""


@frozen
class Scan(Op):
    """A linear-time mixer (Mamba, lightning, gated delta, KDA) in its chunked form.

    Per token and head it does ``4·key_width·value_width`` FLOPs for the state (read and update) and
    ``2·chunk·(key_width + value_width)`` inside the chunk.
    """

    kind: ClassVar[str] = "scan"
    algorithm: Literal["mamba1", "mamba2", "lightning", "gated_delta", "kda"] = field(kw_only=True)
    heads: Axis = field(kw_only=True)
    """Value heads × value width."""
    key_heads: Axis = field(kw_only=True)
    """Key heads (groups) × key (state) width."""
    chunk: int = field(default=64, kw_only=True)
    conv_width: int = field(default=0, kw_only=True)
    """Kernel width of the short causal convolution in front, 0 when there is none."""


@frozen
class Elementwise(Op):
    """A pass bound by memory: reads and writes whole axes per token; ``saved`` is kept for backward.

    An axis ``hidden`` is local to the sequence shard, every other axis follows its own sharding.
    ``top_k`` > 1 for passes over dispatched tokens.
    """

    kind: ClassVar[str] = "elementwise"
    role: Literal["norm", "residual", "rotary", "activation", "permute", "gate", "other"] = field(kw_only=True)
    reads: tuple[Axis, ...] = field(kw_only=True)
    writes: tuple[Axis, ...] = field(kw_only=True)
    saved: tuple[Axis, ...] = field(default=(), kw_only=True)
    top_k: int = field(default=0, kw_only=True)
    """0: plain tokens; k > 0: tokens dispatched to k experts each."""


@frozen
class Lookup(Op):
    """An embedding table: gathers ``width`` elements per token from ``rows``."""

    kind: ClassVar[str] = "lookup"
    rows: Axis = field(kw_only=True)
    width: Axis = field(kw_only=True)


@frozen
class Loss(Op):
    """Softmax cross-entropy over the vocabulary, parallel over its shards."""

    kind: ClassVar[str] = "loss"
    vocab: Axis = field(kw_only=True)


@frozen
class Bare(Op):
    """Parameters with no cost of their own (positions, sinks, scalars, towers counted but not priced)."""

    kind: ClassVar[str] = "bare"
