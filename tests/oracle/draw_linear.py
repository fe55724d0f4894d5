"""Random configs of linear-attention hybrids."""

from random import Random

from drawing import Config, base, family, free_head_dim, latent, moe


def gated_delta(r: Random) -> Config:
    keys = r.choice((2, 4))
    return {
        "linear_num_key_heads": keys, "linear_num_value_heads": keys * r.choice((1, 2, 3)),
        "linear_key_head_dim": r.choice((4, 8)),
        "linear_value_head_dim": r.choice((4, 12)), "linear_conv_kernel_dim": r.choice((2, 4)),
        "full_attention_interval": r.choice((2, 3)),
        "attention_bias": r.random() < 0.3,
    }  # fmt: skip


@family
def qwen3_next(r: Random) -> Config:
    config = base(r, model_type="qwen3_next") | gated_delta(r) | free_head_dim(r) | moe(r)
    return config | {
        "shared_expert_intermediate_size": r.randint(3, 30), "decoder_sparse_step": r.choice((1, 2)),
        "mlp_only_layers": r.choice(([], [0])),
    }  # fmt: skip


@family
def qwen3_5_text(r: Random) -> Config:
    return base(r, model_type="qwen3_5_text") | gated_delta(r) | free_head_dim(r)


@family
def qwen3_5_moe_text(r: Random) -> Config:
    return (
        base(r, model_type="qwen3_5_moe_text")
        | gated_delta(r)
        | free_head_dim(r)
        | moe(r)
        | {"shared_expert_intermediate_size": 7}
    )


@family
def kimi_linear(r: Random) -> Config:
    config = base(r, model_type="kimi_linear", tie_word_embeddings=False) | latent(r, q_rank=False) | {"attention_bias": False}
    n = config["num_hidden_layers"]
    full = sorted(r.sample(range(1, n + 1), r.randint(0, n)))
    sub = {
        "full_attn_layers": full, "kda_layers": [i for i in range(1, n + 1) if i not in full], "head_dim": r.choice((4, 8)),
        "num_heads": r.choice((2, 3)), "short_conv_kernel_size": r.choice((2, 4)),
    }  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": r.randint(3, 30)}
    return config | experts | {"linear_attn_config": sub, "first_k_dense_replace": r.randint(0, 2), "moe_layer_freq": 1}


@family
def bailing_hybrid(r: Random) -> Config:
    config = base(r, model_type="bailing_hybrid", tie_word_embeddings=False) | latent(r)
    group = r.choice((2, 3))
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": r.randint(3, 30)}
    return config | experts | {
        "num_hidden_layers": group * r.randint(1, 3), "layer_group_size": group, "head_dim": 8,
        "short_conv_kernel_size": r.choice((2, 4)),
        "first_k_dense_replace": r.randint(0, 2), "n_group": 1, "topk_group": 1,
    }  # fmt: skip


@family
def minimax(r: Random) -> Config:
    config = base(r, model_type="minimax", num_local_experts=4, num_experts_per_tok=2, **free_head_dim(r))
    n = config["num_hidden_layers"]
    listed = {"layer_types": [r.choice(("linear_attention", "full_attention")) for _ in range(n)]}
    return config | (listed if r.random() < 0.5 else {})
