"""Compressed sparse attention with hyper-connections (DeepSeek-V4).

One key that is also the value serves all query heads (multi-query). Every layer sees a short sliding window;
``compress_ratios`` says how many tokens one further, compressed key stands for: 0 none, a small ratio (4) with
an indexer that selects ``index_topk`` of them, a large ratio (128) without one. The residual stream is
``hc_mult`` hidden states wide and is mixed around each sub-layer (manifold-constrained hyper-connections).
Source: DeepSeek-V4 technical report, sections 2.2 and 2.3, and the layout of its checkpoint.
"""

from __future__ import annotations

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block, CacheTensor, Layer
from autoparallel_core.spec.blocks import head_block, hidden_axis, linear, moe_block, norm
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention, Axis, Bare, Component, Elementwise, Gemm, Op, Weight

SPECIFICITY = 10
INDEXED_RATIO = 4
"""The ratio whose compressed keys are selected by an indexer; larger ratios attend to all of them."""
INDEX_SCALE_BYTES = 4
KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def ratio(config: ConfigView, layer: int) -> int:
    """Tokens per compressed key of a layer (0: window only), from ``compress_ratios`` or ``layer_types``."""
    config.read.update(("layer_types", "compress_rates"))
    ratios = config.get("compress_ratios")
    if ratios is None:
        kinds = config.get("layer_types")
        if kinds is None:
            raise SpecError(f"{config.name}: config field 'compress_ratios' is missing (also looked for layer_types)")
        unknown = sorted({str(k) for k in kinds if k not in KINDS})
        if unknown:
            raise SpecError(f"{config.name}: config field 'layer_types' has {unknown}; known: {', '.join(KINDS)}")
        rates = config.get("compress_rates", default={})
        ratios = [rates.get(k, KINDS[k]) for k in kinds]
    if not isinstance(ratios, list) or not all(isinstance(r, int) and r >= 0 for r in ratios):
        raise SpecError(f"{config.name}: config field 'compress_ratios' must be a list of whole numbers, not {ratios!r}")
    if layer >= len(ratios):
        raise SpecError(
            f"{config.name}: config field 'compress_ratios' has {len(ratios)} entries, but there is a layer {layer + 1}"
        )
    return int(ratios[layer])


def mixer(config: ConfigView, layer: int) -> Block:
    """The attention of one layer with its norm, compressor, indexer and hyper-connection."""
    r = ratio(config, layer)
    h = hidden_axis(config.size("hidden_size"))
    heads, width = config.size("num_attention_heads"), config.size("head_dim")
    config.read.update(("num_key_value_heads", "qk_rope_head_dim", "attention_bias"))
    q_rank, o_rank, groups = config.size("q_lora_rank"), config.size("o_lora_rank"), config.size("o_groups")
    if heads % groups:
        raise SpecError(f"{config.name}: num_attention_heads {heads} is not a multiple of o_groups {groups}")
    window = config.size("sliding_window")
    q, kv, rank = Axis("heads", heads, width), Axis("kv_heads", 1, width), Axis("latent", q_rank)
    group_out = Axis("heads", groups, o_rank)
    ops: list[Op] = [*hyper_connection(config, "hc_attn"), norm("attn_norm", h)]
    ops += [
        linear("qkv_down", h, [("attn.wq_a", rank), ("attn.wkv", kv)], component="attention"),
        norm("attn.q_norm", rank),
        norm("attn.kv_norm", kv),
        linear("q_up", rank, [("attn.wq_b", q)], component="attention"),
        Elementwise("rotary", role="rotary", reads=(q, kv), writes=(q, kv)),
        Bare("sinks", weights=(Weight("attn.attn_sink", (Axis("heads", heads),), "attention", linear=False),)),
    ]
    cache = [CacheTensor("kv_window", kv, limit_tokens=window)]
    if r:
        ops += _compressor(h, kv, r, indexed=r == INDEXED_RATIO, module="attn.compressor")
        cache.append(CacheTensor("kv_compressed", kv, tokens_per_entry=r))
    top_k = None
    if r == INDEXED_RATIO:
        top_k = config.size("index_topk")
        found, keys = _indexer(config, rank=rank, r=r)
        ops += found
        cache.append(keys)
    config.read.update(("index_topk", "index_n_heads", "index_head_dim"))
    ops.append(Attention("window_attention", heads=q, kv_heads=kv, v_width=width, window=window, latent=width, latent_v=width))
    if r:
        ops.append(
            Attention(
                "compressed_attention", heads=q, kv_heads=kv, v_width=width, tokens_per_key=r, top_k_keys=top_k,
                latent=width, latent_v=width, query_saved=False,
            )
        )  # fmt: skip
    ops += [
        # Each group of heads has its own block of this matrix: the FLOPs of heads · width × o_rank.
        linear("out_down", q, [("attn.wo_a", Axis("latent", o_rank))], component="attention"),
        linear("out", group_out, [("attn.wo_b", h)], component="attention"),
        *hyper_mix(config, "attention_residual"),
    ]
    return Block("csa" if top_k else "hca" if r else "window", tuple(ops), tuple(cache), specificity=SPECIFICITY)


def ffn(config: ConfigView, layer: int) -> Block:
    """The MoE of one layer; the first ``num_hash_layers`` route by a fixed table of token ids instead of scores."""
    if "mlp_layer_types" in config:
        hashed = config.per_layer("mlp_layer_types", layer=layer) == "hash_moe"
    else:
        hashed = layer < config.count("num_hash_layers")
    inter = config.size("moe_intermediate_size")
    config.read.add("expert_dtype")
    return moe_block(
        hidden=config.size("hidden_size"),
        experts=config.size("num_experts"),
        top_k=config.size("num_experts_per_tok"),
        expert_intermediate=inter,
        shared_intermediate=inter * config.count("n_shared_experts"),
        kind="moe-hash" if hashed else "moe",
        module="ffn",
        expert_names=("w1", "w3", "w2"),
        norms=(*hyper_connection(config, "hc_ffn"), norm("ffn_norm", hidden_axis(config.size("hidden_size")))),
        with_residual=False,
        extra=hyper_mix(config, "moe_residual"),
        specificity=SPECIFICITY,
    )


def epilogue(config: ConfigView, *, tied: bool) -> Block:
    """The head, with the mix of the hyper-connected streams into one in front."""
    h = config.size("hidden_size")
    block = head_block(vocab=config.size("vocab_size"), hidden=h, tied=tied)
    return Block(block.kind, (*stream_head(config, component="other"), *block.ops))


def mtp_layers(config: ConfigView) -> tuple[Layer, ...]:
    """Prediction blocks: two h × h projections, norms, one decoder layer and an own mix of the streams; the head is shared."""
    n_layers = config.size("num_hidden_layers")
    h = hidden_axis(config.size("hidden_size"))
    layers = []
    for i in range(config.count("num_nextn_predict_layers")):
        ratios = config.get("compress_ratios")
        at = n_layers + i if isinstance(ratios, list) and len(ratios) > n_layers + i else n_layers - 1
        first = Block(
            "mtp-in",
            (
                norm("enorm", h),
                norm("hnorm", h),
                linear("mtp_embedding", h, [("e_proj", h)], component="mtp"),
                linear("mtp_hidden", h, [("h_proj", h)], component="mtp"),
            ),
        )
        last = Block("mtp-head", (*stream_head(config, component="mtp"), norm("norm", h)))
        layers.append(Layer((first, mixer(config, at), ffn(config, n_layers), last)))
    return tuple(layers)


def hyper_connection(config: ConfigView, module: str) -> tuple[Elementwise, Gemm]:
    """Norm of the wide stream and the small projection that yields its mixing matrices: hc·(hc + 2) values per token."""
    hc = config.size("hc_mult")
    config.read.update(("hc_sinkhorn_iters", "hc_eps"))
    h = hidden_axis(config.size("hidden_size"))
    wide, mixes = Axis("hidden", hc * h.size), Axis("latent", hc * (hc + 2))
    weights = (
        Weight(f"{module}_fn", (wide, mixes), "other", linear=False),
        Weight(f"{module}_base", (mixes,), "other", linear=False),
        Weight(f"{module}_scale", (Axis("latent", 3),), "other", linear=False),
    )
    gather = Elementwise(f"{module}_in", role="other", reads=(wide, wide), writes=(h,), saved=(wide,))
    return gather, Gemm(f"{module}_mix", k=wide, n=(mixes,), precise=True, weights=weights)


def hyper_mix(config: ConfigView, name: str) -> tuple[Elementwise, ...]:
    """The sub-layer's output spread over the mixed streams."""
    h = hidden_axis(config.size("hidden_size"))
    wide = Axis("hidden", config.size("hc_mult") * h.size)
    return (Elementwise(name, role="residual", reads=(wide, h), writes=(wide,), saved=(h,)),)


def stream_head(config: ConfigView, *, component: Component) -> tuple[Gemm]:
    """Weights of the streams' final mix into one hidden state."""
    hc = config.size("hc_mult")
    wide, mixes = Axis("hidden", hc * config.size("hidden_size")), Axis("latent", hc)
    weights = (
        Weight("hc_head_fn", (wide, mixes), component, linear=False),
        Weight("hc_head_base", (mixes,), component, linear=False),
        Weight("hc_head_scale", (Axis("latent", 1),), component, linear=False),
    )
    return (Gemm("hc_head", k=wide, n=(mixes,), precise=True, weights=weights),)


def _compressor(h: Axis, key: Axis, r: int, *, indexed: bool, module: str) -> tuple[Op, ...]:
    """Gated pooling of ``r`` tokens into one key; the small ratio pools over two overlapping windows (twice the width)."""
    wide = Axis("latent", key.size * (2 if indexed else 1))
    return (
        linear(f"{module}.in", h, [(f"{module}.wkv", wide), (f"{module}.wgate", wide)], component="attention", precise=True),
        Elementwise(
            f"{module}.pool", role="other", reads=(wide, wide), writes=(Axis("latent", max(1, wide.size // r)),),
            saved=(wide, wide),
            weights=(
                Weight(f"{module}.ape", (Axis("latent", r), wide), "attention", linear=False),
                Weight(f"{module}.norm", (Axis("latent", key.size),), "norm", linear=False),
            ),
        ),
    )  # fmt: skip


def _indexer(config: ConfigView, *, rank: Axis, r: int) -> tuple[tuple[Op, ...], CacheTensor]:
    h = hidden_axis(config.size("hidden_size"))
    heads, width = config.size("index_n_heads"), config.size("index_head_dim")
    queries, key = Axis("latent", heads, width), Axis("latent", 1, width)
    module = "attn.indexer"
    ops = (
        *_compressor(h, key, r, indexed=True, module=f"{module}.compressor"),
        linear("indexer_q", rank, [(f"{module}.wq_b", queries)], component="attention"),
        linear("indexer_weights", h, [(f"{module}.weights_proj", Axis("latent", heads))], component="attention", precise=True),
        Attention("indexer_scores", heads=queries, kv_heads=key, v_width=0, tokens_per_key=r),
    )
    return ops, CacheTensor("index_key", Axis("latent", width + INDEX_SCALE_BYTES), dtype="fp8", tokens_per_entry=r)
