"""Block-sparse attention over grouped keys: a small indexer scores keys, attention visits the best blocks."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from autoparallel_core.spec.arch import CacheTensor
from autoparallel_core.spec.blocks import head_norm, hidden_axis, linear
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention, Axis, Op


@frozen
class BlockIndexer:
    """What choosing the blocks adds to a layer, and how many keys are left per query."""

    ops: tuple[Op, ...]
    cache: tuple[CacheTensor, ...]
    top_k_keys: int


def block_indexer(config: ConfigView, layer: int) -> BlockIndexer | None:
    """The indexer of a layer by ``sparse_attention_config``; None where the layer is dense."""
    sparse = config.raw("sparse_attention_config")
    if not isinstance(sparse, Mapping) or sparse.get("use_sparse_attention") is False:
        return None
    where = sparse.get("sparse_attention_freq")
    if isinstance(where, list) and (layer >= len(where) or not where[layer]):
        return None
    heads, width, blocks, block = (
        config.positive(f"sparse_attention_config.{field}", sparse.get(field))
        for field in ("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
    )
    h = hidden_axis(config.size("hidden_size"))
    q, k = Axis("latent", heads * width), Axis("latent", width)
    one_head = Axis("latent", 1, width)
    ops: tuple[Op, ...] = (
        linear("indexer", h, [("self_attn.index_q_proj", q), ("self_attn.index_k_proj", k)], component="attention"),
        head_norm("self_attn.index_q_norm", one_head),
        head_norm("self_attn.index_k_norm", one_head),
        Attention("index_scores", heads=Axis("latent", heads, width), kv_heads=one_head, v_width=0),
    )
    return BlockIndexer(ops, (CacheTensor("index_k", k),), blocks * block)
