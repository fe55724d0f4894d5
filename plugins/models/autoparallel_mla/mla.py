"""Multi-head latent attention with an optional sparse indexer, from a config's fields.

Sources: DeepSeek-V2 (arXiv 2405.04434, section 2.1) for the latent cache; DeepSeek-V3.2 (technical report,
section 2, "lightning indexer") for the sparse selection of keys.
"""

from __future__ import annotations

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.blocks import hidden_axis, linear, mla_block, norm
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention, Axis, Op

INDEX_SCALE_BYTES = 4
"""Every indexer key of up to 128 fp8 values carries one fp32 scale."""


def latent_attention(config: ConfigView, layer: int, *, specificity: int, module: str = "self_attn") -> Block:
    """The MLA block of one layer, with its indexer when ``index_topk`` is set.

    ``head_dim`` of such configs is the rotary or the non-rotary part, never what is cached; it is ignored.

    Raises:
        SpecError: a width is missing.
    """
    config.read.update(("head_dim", "qk_head_dim", "num_key_value_heads", "index_share_for_mtp_iteration"))
    if "index_topk" in config or config.get("mlp_layer_types") is not None:  # lists that repeat what other fields say
        config.read.update(("layer_types", "first_k_dense_replace", "moe_layer_freq"))
    q_rank = config.count("q_lora_rank")
    top_k = config.count("index_topk")
    extra: tuple[Op, ...] = ()
    cache: tuple[CacheTensor, ...] = ()
    kind = "mla"
    if top_k:
        if not q_rank:
            raise SpecError(f"{config.name}: config field 'q_lora_rank' is missing; the sparse indexer (index_topk) projects it")
        kind = "mla-sparse-shared"
        if owns_indexer(config, layer):
            kind = "mla-sparse"
            extra, cache = _indexer(config, q_rank=q_rank, module=f"{module}.indexer")
    return mla_block(
        hidden=config.size("hidden_size"),
        heads=config.size("num_attention_heads"),
        q_lora_rank=q_rank or None,
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        kind=kind,
        module=module,
        bias=config.flag("attention_bias"),
        extra=extra,
        extra_cache=cache,
        top_k_keys=top_k or None,
        specificity=specificity,
    )


def owns_indexer(config: ConfigView, layer: int) -> bool:
    """Whether the layer selects keys itself; a ``shared`` layer reuses the selection of the last ``full`` one.

    The list ``indexer_types`` (or the string ``index_topk_pattern`` of F and S) wins; without it, every
    ``index_topk_freq``-th layer is full, counted so that the first ``index_skip_topk_offset`` ones are.
    """
    freq = config.count("index_topk_freq", default=1) or 1
    offset = config.count("index_skip_topk_offset", default=2)
    kinds = config.get("indexer_types", "index_topk_pattern")
    if kinds is None:
        return max(layer - offset + 1, 0) % freq == 0
    if not isinstance(kinds, list | str) or not set(kinds) <= {"full", "shared", "F", "S"}:
        raise SpecError(f"{config.name}: config field 'indexer_types' must list 'full' or 'shared' per layer, not {kinds!r}")
    if layer >= len(kinds):
        raise SpecError(f"{config.name}: config field 'indexer_types' has {len(kinds)} entries, but there is a layer {layer + 1}")
    return kinds[layer] in {"full", "F"}


def _indexer(config: ConfigView, *, q_rank: int, module: str) -> tuple[tuple[Op, ...], tuple[CacheTensor, ...]]:
    """Queries from the query latent, one key per token, a weight per head; scores every earlier token.

    Engines hold it whole on every tensor-parallel rank and cache its keys in fp8 with one fp32 scale each.
    """
    hidden = hidden_axis(config.size("hidden_size"))
    heads, width = config.size("index_n_heads"), config.size("index_head_dim")
    queries, key = Axis("latent", heads, width), Axis("latent", 1, width)
    ops = (
        linear("indexer_q", Axis("latent", q_rank), [(f"{module}.wq_b", queries)], component="attention"),
        linear(
            "indexer_k", hidden, [(f"{module}.wk", key), (f"{module}.weights_proj", Axis("latent", heads))],
            component="attention", precise=True,
        ),
        norm(f"{module}.k_norm", Axis("latent", width), bias=True),
        Attention("indexer_scores", heads=queries, kv_heads=key, v_width=0),
    )  # fmt: skip
    cached = CacheTensor("index_key", Axis("latent", width + INDEX_SCALE_BYTES), dtype="fp8")
    return ops, (cached,)
