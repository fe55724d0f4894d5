"""A model as data: layers made of blocks, blocks made of operators, operators over named axes.

Model plugins build these; everything after them (parameter counts, memory, time, search)
reads them and needs to know no model family.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, field, frozen

from autoparallel_core.spec.op import Axis, Op, Weight
from autoparallel_core.spec.quantization import Quantization


@frozen
class CacheTensor:
    """Something decode keeps per token or per sequence, for one layer.

    ``axis`` gives the elements (its size) and how they shard; ``kv_heads`` replicates when
    the tensor-parallel degree exceeds its units, an axis named ``latent`` is held whole by every rank.
    """

    name: str
    axis: Axis
    dtype: str | None = None
    """Fixed dtype, or None when it follows the KV-cache dtype of the deployment."""
    limit_tokens: int | None = None
    """Sliding window or attention chunk: at most this many tokens are kept."""
    tokens_per_entry: int = 1
    """Compression: one entry is kept for this many tokens."""


@frozen(cache_hash=True)
class Block:
    """One sub-layer (a mixer, a feed-forward, an embedding, …) already lowered to operators."""

    kind: str
    """Short lower-case name shown to users: ``gqa``, ``mla``, ``dense``, ``moe``, ``mamba2`` …"""
    ops: tuple[Op, ...]
    cache_per_token: tuple[CacheTensor, ...] = ()
    cache_per_sequence: tuple[CacheTensor, ...] = ()
    specificity: int = field(default=0, eq=False)
    """How sure the plugin is (0 field shape, 10 model type recognised); the highest claim wins, a tie is a conflict."""

    def weights(self) -> Iterator[Weight]:
        for op in self.ops:
            yield from op.weights


@frozen(cache_hash=True)
class Layer:
    """One position of the decoder stack. Layers that compare equal are priced once."""

    blocks: tuple[Block, ...]

    @property
    def kind(self) -> str:
        return "+".join(b.kind for b in self.blocks) or "empty"

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for b in self.blocks for op in b.ops)

    def weights(self) -> Iterator[Weight]:
        for b in self.blocks:
            yield from b.weights()


@frozen(cache_hash=True)
class ModelArch:
    """A whole model, parsed once from its config and never changed.

    ``prologue`` is the embedding, ``epilogue`` the final norm, head and loss; ``mtp`` are the
    multi-token-prediction layers (on the last pipeline stage in training), ``towers`` the
    vision or audio encoders, counted and reported apart.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    prologue: Block
    layers: tuple[Layer, ...]
    epilogue: Block
    tied_embeddings: bool
    mtp: tuple[Layer, ...] = ()
    towers: tuple[Layer, ...] = ()
    num_heads: int = 0
    num_kv_heads: int = 0
    num_experts: int = 0
    top_k: int = 0
    max_position_embeddings: int | None = None
    weight_dtype: str = "bf16"
    kv_dtype: str | None = None
    """KV-cache dtype that the checkpoint asks for, None when it says nothing."""
    quantization: Quantization | None = None
    rules: tuple[tuple[str, int], ...] = ()
    """Divisibility facts engines ask about, by name (``mamba_groups``, ``linear_key_heads`` …)."""
    unknown_fields: tuple[str, ...] = ()
    """Config fields that no plugin read and that are not known to be harmless."""
    notes: tuple[str, ...] = ()
    """Assumptions made while reading the config, shown with every answer."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer_classes(self) -> tuple[tuple[Layer, tuple[int, ...]], ...]:
        """Distinct layers in order of first appearance, each with the positions where it occurs."""
        seen: dict[Layer, list[int]] = {}
        for i, layer in enumerate(self.layers):
            seen.setdefault(layer, []).append(i)
        return tuple((layer, tuple(where)) for layer, where in seen.items())

    @property
    def longest_context(self) -> int | None:
        """Positions that the config allows, stretched by its rotary scaling; None when it says nothing."""
        return self.fact("rotary_positions") or self.max_position_embeddings

    def fact(self, name: str) -> int | None:
        return dict(self.rules).get(name)

    def renamed(self, name: str) -> ModelArch:
        return evolve(self, name=name)
