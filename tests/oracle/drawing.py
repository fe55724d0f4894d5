"""What the drawers of random small configs share; each drawer is named after the model type that it draws."""

from collections.abc import Callable
from random import Random

Config = dict
DRAWERS: dict[str, Callable[[Random], Config]] = {}


def family(draw: Callable[[Random], Config]) -> Callable[[Random], Config]:
    DRAWERS[draw.__name__] = draw
    return draw


def base(r: Random, **fields: object) -> Config:
    """Fields that all decoders share; widths are odd on purpose where nothing forbids it."""
    head_dim = r.choice((8, 16, 24))
    kv = r.choice((1, 2, 4))
    heads = kv * r.choice((1, 2, 3))
    config = {
        "vocab_size": r.randint(50, 300),
        "hidden_size": heads * head_dim,
        "intermediate_size": r.randint(5, 90),
        "num_hidden_layers": r.randint(1, 7),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "tie_word_embeddings": r.random() < 0.5,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
    }
    return config | fields


def moe(r: Random) -> Config:
    experts = r.choice((4, 6, 8))
    return {"num_experts": experts, "num_experts_per_tok": r.randint(1, 3), "moe_intermediate_size": r.randint(3, 40)}


def free_head_dim(r: Random) -> Config:
    return {"head_dim": r.choice((4, 12, 20)), "hidden_size": r.choice((48, 96, 144))}


def latent(r: Random, *, q_rank: bool | None = None) -> Config:
    use = r.random() < 0.7 if q_rank is None else q_rank
    return {
        "num_attention_heads": (heads := r.choice((2, 4))),
        "num_key_value_heads": heads,
        "hidden_size": r.choice((40, 56)),
        "q_lora_rank": r.choice((12, 20)) if use else None,
        "kv_lora_rank": r.choice((8, 24)),
        "qk_nope_head_dim": r.choice((8, 16)),
        "qk_rope_head_dim": 8,
        "v_head_dim": r.choice((8, 12)),
        "attention_bias": r.random() < 0.5,
    }


def deepseek_experts(r: Random) -> Config:
    return {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": r.randint(3, 30),
        "n_shared_experts": r.randint(1, 2), "first_k_dense_replace": r.randint(0, 3), "n_group": 2, "topk_group": 1,
    }  # fmt: skip
