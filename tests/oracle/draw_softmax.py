"""Random configs of the common softmax-attention families."""

from random import Random

from drawing import Config, base, family, free_head_dim, moe


@family
def llama(r: Random) -> Config:
    return base(r, model_type="llama", attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5, **free_head_dim(r))


@family
def mistral(r: Random) -> Config:
    return base(r, model_type="mistral", sliding_window=16, **free_head_dim(r))


@family
def mixtral(r: Random) -> Config:
    return base(r, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)


@family
def qwen2(r: Random) -> Config:
    return base(r, model_type="qwen2")


@family
def qwen2_moe(r: Random) -> Config:
    return base(
        r, model_type="qwen2_moe", **moe(r), shared_expert_intermediate_size=r.randint(4, 30),
        decoder_sparse_step=r.choice((1, 2)), mlp_only_layers=r.choice(([], [0])),
    )  # fmt: skip


@family
def qwen3(r: Random) -> Config:
    return base(r, model_type="qwen3", **free_head_dim(r))


@family
def qwen3_moe(r: Random) -> Config:
    return base(
        r, model_type="qwen3_moe", **free_head_dim(r), **moe(r), decoder_sparse_step=r.choice((1, 2)),
        mlp_only_layers=r.choice(([], [0])),
    )  # fmt: skip


@family
def gemma(r: Random) -> Config:
    return base(r, model_type="gemma", tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", **free_head_dim(r))


@family
def gemma2(r: Random) -> Config:
    return base(r, model_type="gemma2", tie_word_embeddings=True, sliding_window=16, query_pre_attn_scalar=16, head_dim=12)


@family
def gemma3_text(r: Random) -> Config:
    return base(r, model_type="gemma3_text", tie_word_embeddings=True, sliding_window=16, **free_head_dim(r))


@family
def gpt_oss(r: Random) -> Config:
    return base(
        r, model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=16, **free_head_dim(r)
    )  # fmt: skip


@family
def glm4_moe(r: Random) -> Config:
    fields = moe(r)
    return base(
        r, model_type="glm4_moe", n_routed_experts=fields.pop("num_experts"), **fields, n_shared_experts=r.randint(1, 2),
        first_k_dense_replace=r.randint(0, 2), use_qk_norm=r.random() < 0.5, attention_bias=r.random() < 0.5, n_group=1,
        topk_group=1, **free_head_dim(r),
    )  # fmt: skip


@family
def minimax_m2(r: Random) -> Config:
    return base(r, model_type="minimax_m2", num_local_experts=4, num_experts_per_tok=2, use_qk_norm=True, **free_head_dim(r))


@family
def phi3(r: Random) -> Config:
    return base(r, model_type="phi3", pad_token_id=0)


@family
def olmo2(r: Random) -> Config:
    return base(r, model_type="olmo2", attention_bias=r.random() < 0.5)


@family
def granite(r: Random) -> Config:
    return base(r, model_type="granite", attention_bias=r.random() < 0.5, mlp_bias=r.random() < 0.5)


@family
def falcon(r: Random) -> Config:
    config = base(r, model_type="falcon", alibi=False, bias=False, parallel_attn=True)
    style = r.choice(("multi_query", "grouped"))
    extra = {"multi_query": True, "new_decoder_architecture": style == "grouped"}
    config |= extra | {"num_kv_heads": config.pop("num_key_value_heads")}
    config.pop("intermediate_size")
    return config


@family
def gptj(r: Random) -> Config:
    heads = r.choice((2, 4))
    return {
        "model_type": "gptj", "vocab_size": r.randint(50, 300), "n_positions": 64, "n_embd": heads * 16,
        "n_layer": r.randint(1, 4),
        "n_head": heads, "rotary_dim": 8, "n_inner": r.choice((None, 40)), "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    }  # fmt: skip


@family
def gpt_neox(r: Random) -> Config:
    config = base(r, model_type="gpt_neox", hidden_act="gelu", tie_word_embeddings=False, attention_bias=True)
    del config["num_key_value_heads"]
    return config


@family
def llama4_text(r: Random) -> Config:
    return base(
        r, model_type="llama4_text", num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=r.randint(5, 60),
        interleave_moe_layer_step=r.choice((1, 2)), attention_bias=r.random() < 0.5, tie_word_embeddings=False,
        **free_head_dim(r),
    )  # fmt: skip
