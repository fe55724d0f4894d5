"""Random small configs of vision-language models: a vision tower, its projector and a small language model."""

from collections.abc import Callable
from random import Random

from draw_latent import deepseek_v3
from draw_linear import qwen3_5_moe_text, qwen3_5_text
from draw_more import gemma4_text, minimax_m3_vl_text
from draw_softmax import gemma3_text, llama4_text, mistral, qwen2, qwen3, qwen3_moe
from drawing import Config

TOWERS: dict[str, Callable[[Random], Config]] = {}


def towered(draw: Callable[[Random], Config]) -> Callable[[Random], Config]:
    TOWERS[draw.__name__] = draw
    return draw


def whole(name: str, text: Config, vision: Config, **fields: object) -> Config:
    config = {"model_type": name, "text_config": text, "vision_config": vision}
    return config | {"tie_word_embeddings": text["tie_word_embeddings"]} | fields


def sizes(r: Random) -> Config:
    return {"num_attention_heads": 2, "hidden_size": 2 * r.choice((6, 8)), "intermediate_size": r.randint(5, 50)} | {
        "num_hidden_layers": r.randint(1, 4)
    }


def qwen_vit(r: Random, out: int) -> Config:
    depth = r.randint(1, 5)
    return {
        "depth": depth, "hidden_size": 24, "intermediate_size": r.randint(5, 50), "num_heads": 2, "in_channels": 3,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": out, "num_position_embeddings": 16,
    }  # fmt: skip


def qwen(r: Random, name: str, text: Config, *, deep: bool) -> Config:
    text |= {"model_type": f"{name}_text"}
    vision = qwen_vit(r, text["hidden_size"])
    return whole(name, text, vision | {"deepstack_visual_indexes": list(range(r.randint(0, vision["depth"]))) if deep else []})


@towered
def qwen3_vl(r: Random) -> Config:
    return qwen(r, "qwen3_vl", qwen3(r), deep=True)


@towered
def qwen3_vl_moe(r: Random) -> Config:
    return qwen(r, "qwen3_vl_moe", qwen3_moe(r), deep=True)


@towered
def qwen3_5(r: Random) -> Config:
    return qwen(r, "qwen3_5", qwen3_5_text(r), deep=False)


@towered
def qwen3_5_moe(r: Random) -> Config:
    return qwen(r, "qwen3_5_moe", qwen3_5_moe_text(r), deep=False)


@towered
def qwen2_vl(r: Random) -> Config:
    text = qwen2(r) | {"model_type": "qwen2_vl_text"}
    vision = {"depth": r.randint(1, 4), "embed_dim": 24, "hidden_size": text["hidden_size"], "mlp_ratio": r.choice((2, 4))}
    return whole("qwen2_vl", text, vision | {"num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2})


@towered
def qwen2_5_vl(r: Random) -> Config:
    text = qwen2(r) | {"model_type": "qwen2_5_vl_text"}
    return whole("qwen2_5_vl", text, qwen_vit(r, text["hidden_size"]))


@towered
def gemma3(r: Random) -> Config:
    vision = sizes(r) | {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 4, "vision_use_head": False}
    return whole("gemma3", gemma3_text(r), vision, mm_tokens_per_image=4)


@towered
def gemma4(r: Random) -> Config:
    vision = sizes(r) | {
        "model_type": "gemma4_vision", "head_dim": 8, "num_key_value_heads": 2, "patch_size": 4, "position_embedding_size": 9,
        "use_clipped_linears": False, "standardize": r.random() < 0.5,
    }  # fmt: skip
    return whole("gemma4", gemma4_text(r), vision, audio_config=None)


@towered
def kimi_k25(r: Random) -> Config:
    text = deepseek_v3(r)
    vision = sizes(r) | {"patch_size": 4, "pos_emb_height": 3, "pos_emb_width": 5, "pos_emb_time": 2, "merge_kernel_size": [2, 2]}
    return whole("kimi_k25", text, vision, projection_hidden_size=vision["hidden_size"])


@towered
def minimax_m3_vl(r: Random) -> Config:
    text = minimax_m3_vl_text(r)
    vision = sizes(r) | {"patch_size": 4, "num_channels": 3, "model_type": "clip_vision_model", "image_size": 16}
    pack = {"img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2}}
    return whole("minimax_m3_vl", text, vision | pack, **pack, projector_hidden_size=text["hidden_size"])


@towered
def llama4(r: Random) -> Config:
    out = r.choice((8, 12))
    vision = sizes(r)
    vision["intermediate_size"] = 4 * vision["hidden_size"]
    vision |= {
        "image_size": 16, "patch_size": 4, "num_channels": 3, "pixel_shuffle_ratio": 0.5, "projector_input_dim": out,
        "projector_output_dim": out, "vision_output_dim": out,
    }  # fmt: skip
    return whole("llama4", llama4_text(r), vision)


@towered
def mistral3(r: Random) -> Config:
    vision = sizes(r) | {"model_type": "pixtral", "image_size": 16, "patch_size": 4, "num_channels": 3, "head_dim": 8}
    return whole("mistral3", mistral(r), vision, spatial_merge_size=2, multimodal_projector_bias=r.random() < 0.5)
