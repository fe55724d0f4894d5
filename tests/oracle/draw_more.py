"""Random configs of further softmax-attention families."""

from random import Random

from drawing import Config, base, family, free_head_dim, moe


def flip(r: Random) -> bool:
    return r.random() < 0.5


@family
def arcee(r: Random) -> Config:
    return base(r, model_type="arcee", hidden_act="relu2", mlp_bias=flip(r), attention_bias=flip(r))


@family
def nemotron(r: Random) -> Config:
    config = base(r, model_type="nemotron", hidden_act="relu2", attention_bias=flip(r), mlp_bias=flip(r))
    return config | {"norm_eps": 1e-5}


@family
def apertus(r: Random) -> Config:
    return base(r, model_type="apertus", hidden_act="xielu", attention_bias=flip(r))


@family
def seed_oss(r: Random) -> Config:
    return base(
        r, model_type="seed_oss", attention_bias=flip(r), attention_out_bias=flip(r), mlp_bias=flip(r), **free_head_dim(r)
    )


@family
def smollm3(r: Random) -> Config:
    return base(r, model_type="smollm3", attention_bias=flip(r), mlp_bias=flip(r))


@family
def cohere(r: Random) -> Config:
    return base(r, model_type="cohere", tie_word_embeddings=True, attention_bias=flip(r), use_qk_norm=flip(r))


@family
def cohere2(r: Random) -> Config:
    return base(r, model_type="cohere2", tie_word_embeddings=True, attention_bias=flip(r), sliding_window=8)


@family
def olmo(r: Random) -> Config:
    return base(r, model_type="olmo", attention_bias=flip(r))


@family
def olmo3(r: Random) -> Config:
    return base(r, model_type="olmo3", attention_bias=flip(r), sliding_window=8)


@family
def olmoe(r: Random) -> Config:
    return base(r, model_type="olmoe", num_experts=4, num_experts_per_tok=2, attention_bias=flip(r))


@family
def glm(r: Random) -> Config:
    return base(r, model_type="glm", attention_bias=flip(r), head_dim=16)


@family
def glm4(r: Random) -> Config:
    return base(r, model_type="glm4", attention_bias=flip(r), head_dim=16)


@family
def exaone4(r: Random) -> Config:
    return base(r, model_type="exaone4", sliding_window=8, sliding_window_pattern=r.choice((2, 4)), **free_head_dim(r))


@family
def exaone_moe(r: Random) -> Config:
    return base(
        r, model_type="exaone_moe", **free_head_dim(r), **moe(r), num_shared_experts=1, first_k_dense_replace=r.randint(0, 2),
        sliding_window=8, sliding_window_pattern=2,
    )  # fmt: skip


@family
def hunyuan_v1_dense(r: Random) -> Config:
    return base(r, model_type="hunyuan_v1_dense", attention_bias=flip(r), **free_head_dim(r))


@family
def ernie4_5(r: Random) -> Config:
    return base(r, model_type="ernie4_5", use_bias=flip(r), **free_head_dim(r))


@family
def ernie4_5_moe(r: Random) -> Config:
    return base(
        r, model_type="ernie4_5_moe", use_bias=False, moe_num_experts=4, moe_k=2, moe_intermediate_size=r.randint(4, 20),
        moe_num_shared_experts=r.randint(1, 2), moe_layer_start_index=r.randint(0, 1), moe_layer_interval=1,
    )  # fmt: skip


@family
def dots1(r: Random) -> Config:
    fields = moe(r)
    return base(
        r, model_type="dots1", n_routed_experts=fields.pop("num_experts"), **fields, n_shared_experts=r.randint(1, 2),
        n_group=1,
        topk_group=1, first_k_dense_replace=r.randint(0, 2), attention_bias=flip(r), **free_head_dim(r),
    )  # fmt: skip


@family
def mimo_v2_flash(r: Random) -> Config:
    config = base(r, model_type="mimo_v2_flash", hidden_size=48, head_dim=12, v_head_dim=8, sliding_window=8)
    config |= {"num_attention_heads": 8, "num_key_value_heads": 2}
    n = config["num_hidden_layers"]
    kinds = [r.choice(("full_attention", "sliding_attention")) for _ in range(n)]
    layers = ["dense" if i == 0 else "sparse" for i in range(n)]
    return config | {
        "layer_types": kinds, "mlp_layer_types": layers, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 9,
        "n_group": 1, "topk_group": 1,
    }  # fmt: skip


@family
def phimoe(r: Random) -> Config:
    return base(r, model_type="phimoe", num_local_experts=4, num_experts_per_tok=2, attention_bias=flip(r), lm_head_bias=flip(r))


@family
def phi(r: Random) -> Config:
    return base(r, model_type="phi", hidden_act="gelu_new", tie_word_embeddings=False)


@family
def stablelm(r: Random) -> Config:
    return base(r, model_type="stablelm", use_qkv_bias=flip(r), use_parallel_residual=flip(r))


@family
def starcoder2(r: Random) -> Config:
    return base(r, model_type="starcoder2", use_bias=flip(r), hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)


@family
def gpt2(r: Random) -> Config:
    heads = r.choice((2, 4))
    return {
        "model_type": "gpt2", "vocab_size": r.randint(50, 300), "n_positions": 64, "n_embd": heads * 16,
        "n_layer": r.randint(1, 4),
        "n_head": heads, "n_inner": r.choice((None, 40)), "activation_function": "gelu_new", "tie_word_embeddings": True,
    }  # fmt: skip


@family
def gpt_bigcode(r: Random) -> Config:
    return gpt2(r) | {"model_type": "gpt_bigcode", "multi_query": flip(r)}


@family
def opt(r: Random) -> Config:
    heads = r.choice((2, 4))
    return {
        "model_type": "opt", "vocab_size": r.randint(50, 300), "hidden_size": heads * 16,
        "num_hidden_layers": r.randint(1, 4),
        "num_attention_heads": heads, "ffn_dim": r.randint(8, 80), "max_position_embeddings": 64,
        "word_embed_proj_dim": heads * 16,
        "activation_function": "relu", "tie_word_embeddings": True, "do_layer_norm_before": True, "pad_token_id": 1,
    }  # fmt: skip


@family
def bloom(r: Random) -> Config:
    heads = r.choice((2, 4))
    return {
        "model_type": "bloom", "vocab_size": r.randint(50, 300), "hidden_size": heads * 16, "n_layer": r.randint(1, 4),
        "n_head": heads,
        "tie_word_embeddings": True,
    }  # fmt: skip


@family
def gemma4_text(r: Random) -> Config:
    config = base(r, model_type="gemma4_text", tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", sliding_window=8)
    n = config["num_hidden_layers"]
    kinds = [r.choice(("sliding_attention", "full_attention")) for _ in range(n - 1)] + ["full_attention"]
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": r.randint(4, 20)}
    return config | {
        "layer_types": kinds, "head_dim": 12, "global_head_dim": 20, "num_global_key_value_heads": 1,
        "attention_k_eq_v": flip(r),
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "hidden_size": 48, "vocab_size_per_layer_input": 50,
        **(experts if flip(r) else {}),
    }  # fmt: skip


@family
def minimax_m3_vl_text(r: Random) -> Config:
    config = base(r, model_type="minimax_m3_vl_text", **free_head_dim(r), tie_word_embeddings=False)
    n = config["num_hidden_layers"]
    dense = r.randint(0, 2)
    flags = [int(i >= dense) for i in range(n)]
    return config | {
        "dense_intermediate_size": r.randint(5, 60), "shared_intermediate_size": (w := config["intermediate_size"]),
        "n_shared_experts": 1,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_layer_freq": flags, "use_qk_norm": True,
        "intermediate_size": w,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 8, "sparse_num_index_heads": 2, "sparse_topk_blocks": 2,
            "sparse_block_size": 4, "sparse_attention_freq": flags,
        },
    }  # fmt: skip
