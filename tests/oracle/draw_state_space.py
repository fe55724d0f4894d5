"""Random configs of state-space hybrids."""

from random import Random

from drawing import Config, base, family


def mamba2(r: Random, hidden: int) -> Config:
    heads = r.choice((2, 4, 8))
    return {
        "mamba_n_heads": heads, "mamba_d_head": 2 * hidden // heads, "mamba_n_groups": r.choice((1, 2)),
        "mamba_d_state": r.choice((4, 8)),
        "mamba_d_conv": r.choice((2, 4)), "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": r.random() < 0.7,
        "mamba_proj_bias": r.random() < 0.3,
    }  # fmt: skip


@family
def nemotron_h(r: Random) -> Config:
    config = base(r, model_type="nemotron_h", tie_word_embeddings=False)
    pattern = "".join(r.choice("M*-E") for _ in range(r.randint(3, 9)))
    config |= {
        "hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern), "head_dim": r.choice((4, 8)),
        "mamba_num_heads": 4,
        "mamba_head_dim": r.choice((4, 6)), "n_groups": r.choice((1, 2)), "ssm_state_size": r.choice((4, 8)),
        "conv_kernel": r.choice((2, 4)),
        "chunk_size": 16, "use_conv_bias": r.random() < 0.7, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": r.randint(3, 20), "moe_shared_expert_intermediate_size": r.randint(3, 20),
        "moe_latent_size": r.choice((None, 12)), "mlp_bias": r.random() < 0.3,
        "mlp_hidden_act": "relu2", "use_bias": r.random() < 0.3,
    }  # fmt: skip
    del config["hidden_act"]
    return config


@family
def jamba(r: Random) -> Config:
    config = base(r, model_type="jamba", num_experts=r.choice((1, 4)), num_experts_per_tok=1)
    return config | {
        "attn_layer_period": (period := r.choice((2, 3))), "attn_layer_offset": r.randrange(period), "expert_layer_period": 2,
        "expert_layer_offset": r.randrange(2), "mamba_d_state": 4, "mamba_d_conv": r.choice((2, 4)), "mamba_expand": 2,
        "mamba_dt_rank": r.choice(("auto", 5)), "mamba_conv_bias": r.random() < 0.7, "mamba_proj_bias": r.random() < 0.3,
        "use_mamba_kernels": False,
    }  # fmt: skip


@family
def bamba(r: Random) -> Config:
    config = base(r, model_type="bamba")
    n = config["num_hidden_layers"]
    hidden = config["hidden_size"] = config["num_attention_heads"] * 16
    indices = sorted(r.sample(range(n), r.randint(0, n)))
    return (
        config
        | mamba2(r, hidden)
        | {"attn_layer_indices": indices, "attention_bias": r.random() < 0.3, "mlp_bias": r.random() < 0.3}
    )


@family
def granitemoehybrid(r: Random) -> Config:
    config = base(r, model_type="granitemoehybrid")
    n = config["num_hidden_layers"]
    hidden = config["hidden_size"] = config["num_attention_heads"] * 16
    return config | mamba2(r, hidden) | {
        "layer_types": [r.choice(("mamba", "attention")) for _ in range(n)], "num_local_experts": r.choice((0, 4)),
        "num_experts_per_tok": 2,
        "shared_intermediate_size": r.randint(3, 30), "attention_bias": r.random() < 0.3,
    }  # fmt: skip


@family
def falcon_h1(r: Random) -> Config:
    config = base(r, model_type="falcon_h1")
    hidden = config["hidden_size"] = config["num_attention_heads"] * 16
    inner = r.choice((None, 32))
    sizes = mamba2(r, hidden)
    if inner:
        sizes["mamba_d_head"] = inner // sizes["mamba_n_heads"]
    return config | sizes | {
        "mamba_d_ssm": inner, "mamba_rms_norm": r.random() < 0.5, "projectors_bias": r.random() < 0.3,
        "attention_bias": r.random() < 0.3,
        "mlp_bias": r.random() < 0.3,
    }  # fmt: skip


@family
def zamba2(r: Random) -> Config:
    heads = r.choice((2, 4))
    n = r.randint(4, 9)
    kinds = ["mamba"] + [r.choice(("mamba", "hybrid")) for _ in range(n - 3)] + ["hybrid", "mamba"]
    return {
        "model_type": "zamba2", "vocab_size": r.randint(50, 300), "hidden_size": 16 * heads, "num_hidden_layers": n,
        "layers_block_type": kinds, "mamba_d_state": 4, "mamba_d_conv": r.choice((2, 4)), "mamba_expand": 2,
        "mamba_ngroups": r.choice((1, 2)),
        "n_mamba_heads": r.choice((2, 4)), "num_attention_heads": heads, "intermediate_size": r.choice((None, 24)),
        "num_mem_blocks": r.choice((1, 2)),
        "use_shared_attention_adapter": r.random() < 0.5, "adapter_rank": r.randint(2, 6),
        "add_bias_linear": r.random() < 0.3,
        "tie_word_embeddings": True, "max_position_embeddings": 64,
    }  # fmt: skip
