"""Random configs of families with latent or compressed attention."""

from random import Random

from drawing import Config, base, deepseek_experts, family, latent


@family
def deepseek_v2(r: Random) -> Config:
    return base(r, model_type="deepseek_v2") | latent(r) | deepseek_experts(r)


@family
def deepseek_v3(r: Random) -> Config:
    return base(r, model_type="deepseek_v3") | latent(r) | deepseek_experts(r)


@family
def deepseek_v32(r: Random) -> Config:
    index = {"index_n_heads": r.choice((2, 4)), "index_head_dim": 16, "index_topk": 4}
    return base(r, model_type="deepseek_v32") | latent(r, q_rank=True) | deepseek_experts(r) | index


@family
def glm_moe_dsa(r: Random) -> Config:
    config = base(r, model_type="glm_moe_dsa") | latent(r, q_rank=True) | deepseek_experts(r)
    config |= {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
    if r.random() < 0.6:
        config |= {"index_topk_freq": r.choice((2, 3)), "index_skip_topk_offset": r.choice((0, 2, 3))}
    return config


@family
def glm4_moe_lite(r: Random) -> Config:
    config = base(r, model_type="glm4_moe_lite") | latent(r) | deepseek_experts(r)
    first = config.pop("first_k_dense_replace")
    n = config["num_hidden_layers"]
    return config | {"mlp_layer_types": ["dense" if i < first else "sparse" for i in range(n)]} if r.random() < 0.5 else config


@family
def deepseek_v4(r: Random) -> Config:
    config = base(r, model_type="deepseek_v4")
    heads = r.choice((4, 8))
    n = config["num_hidden_layers"]
    del config["intermediate_size"]
    return config | {
        "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 16, "qk_rope_head_dim": 8,
        "hidden_size": r.choice((32, 40)),
        "q_lora_rank": 12, "o_lora_rank": 6, "o_groups": r.choice((2, 4)), "sliding_window": 8, "hc_mult": r.choice((2, 4)),
        "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "moe_intermediate_size": r.randint(3, 30), "num_hash_layers": r.randint(0, 2),
        "compress_ratios": [r.choice((0, 4, 128)) for _ in range(n + 1)], "tie_word_embeddings": False,
    }  # fmt: skip


@family
def minicpm3(r: Random) -> Config:
    return base(r, model_type="minicpm3") | latent(r, q_rank=True)


@family
def youtu(r: Random) -> Config:
    return base(r, model_type="youtu") | latent(r)
