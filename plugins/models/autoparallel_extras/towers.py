"""Vision and audio encoders: how many parameters they hold, by the layout of each family's checkpoint.

Towers are counted and reported apart; what connects them to the language model (a projector with its own module) counts
with the language model, as checkpoints and the reference library group it. Each function maps a ``vision_config`` to
the parameters of its modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autoparallel_core.errors import SpecError

Sizes = dict[str, int]


@frozen
class Tower:
    """Parameters by module of one encoder, and of its projector into the language model."""

    kind: str
    modules: Sizes
    projector: Sizes = field(factory=dict)


class Part:
    """A sub-config whose sizes must be positive integers. Raises SpecError naming the field otherwise."""

    def __init__(self, fields: Mapping[str, Any], *, where: str) -> None:
        self.fields, self.where = fields, where

    def size(self, *names: str, default: int | None = None) -> int:
        for n in names:
            v = self.fields.get(n)
            if v is not None:
                if isinstance(v, bool) or not isinstance(v, int) or v < 1:
                    raise SpecError(f"{self.where}.{n} must be a positive integer, not {v!r}")
                return v
        if default is None:
            raise SpecError(f"{self.where}.{names[0]} is missing")
        return default

    def flag(self, name: str, *, default: bool = False) -> bool:
        return bool(self.fields.get(name, default))


def linear(k: int, n: int, *, bias: bool = True) -> int:
    return k * n + (n if bias else 0)


def encoder_layer(h: int, inter: int, *, gated: bool = False, bias: bool = True, norm_vectors: int = 4) -> int:
    """A transformer layer: four square projections, a feed-forward, and ``norm_vectors`` vectors of norms."""
    up = (2 if gated else 1) * linear(h, inter, bias=bias)
    return 4 * linear(h, h, bias=bias) + up + linear(inter, h, bias=bias) + norm_vectors * h


def qwen3_vl(v: Part, text_hidden: int) -> Tower:
    """Qwen3-VL, Qwen3.5: learned positions, fused qkv, a merger, and one more merger per deepstack layer."""
    h, inter = v.size("hidden_size"), v.size("intermediate_size")
    patch = v.size("patch_size") ** 2 * v.size("temporal_patch_size") * v.size("in_channels", default=3)
    merged = h * v.size("spatial_merge_size") ** 2
    out = v.size("out_hidden_size", default=text_hidden)
    into = linear(merged, merged) + linear(merged, out)
    deep = v.fields.get("deepstack_visual_indexes") or []
    return Tower(
        "vision",
        {
            "visual.patch_embed": linear(patch, h),
            "visual.pos_embed": v.size("num_position_embeddings") * h,
            "visual.blocks": v.size("depth") * encoder_layer(h, inter),
            "visual.merger": 2 * h + into,
            "visual.deepstack_merger_list": len(deep) * (2 * merged + into),
        },
    )


def qwen2_vl(v: Part, text_hidden: int) -> Tower:
    """Qwen2-VL: rotary positions; ``hidden_size`` is the language model's, ``embed_dim`` the tower's."""
    h = v.size("embed_dim")
    patch = v.size("patch_size") ** 2 * v.size("temporal_patch_size", default=2) * v.size("in_channels", "in_chans", default=3)
    merged = h * v.size("spatial_merge_size", default=2) ** 2
    inter = int(h * float(v.fields.get("mlp_ratio", 4)))
    out = v.size("hidden_size", default=text_hidden)
    return Tower(
        "vision",
        {
            "visual.patch_embed": patch * h,
            "visual.blocks": v.size("depth") * encoder_layer(h, inter),
            "visual.merger": 2 * h + linear(merged, merged) + linear(merged, out),
        },
    )


def qwen2_5_vl(v: Part, text_hidden: int) -> Tower:
    """Qwen2.5-VL: RMS norms and a gated feed-forward with biases."""
    h, inter = v.size("hidden_size"), v.size("intermediate_size")
    patch = v.size("patch_size") ** 2 * v.size("temporal_patch_size", default=2) * v.size("in_channels", "in_chans", default=3)
    merged = h * v.size("spatial_merge_size", default=2) ** 2
    out = v.size("out_hidden_size", default=text_hidden)
    return Tower(
        "vision",
        {
            "visual.patch_embed": patch * h,
            "visual.blocks": v.size("depth") * encoder_layer(h, inter, gated=True, norm_vectors=2),
            "visual.merger": h + linear(merged, merged) + linear(merged, out),
        },
    )


def _siglip(v: Part) -> Sizes:
    h = v.size("hidden_size")
    patch = v.size("patch_size")
    return {
        "vision_tower.embeddings": linear(patch**2 * v.size("num_channels", default=3), h)
        + (v.size("image_size") // patch) ** 2 * h,
        "vision_tower.encoder": v.size("num_hidden_layers") * encoder_layer(h, v.size("intermediate_size")),
        "vision_tower.post_layernorm": 2 * h,
    }


def gemma3(v: Part, text_hidden: int) -> Tower:
    """Gemma-3: SigLIP without its pooling head; the projector is one matrix and a norm."""
    h = v.size("hidden_size")
    return Tower("vision", _siglip(v), {"multi_modal_projector": h * text_hidden + h})


def gemma4(v: Part, text_hidden: int) -> Tower:
    """Gemma-4: two position tables, per-head norms, four norms per layer, gated feed-forward without biases."""
    h, heads = v.size("hidden_size"), v.size("num_attention_heads")
    width, inter = v.size("head_dim", default=h // heads), v.size("intermediate_size")
    kv = v.size("num_key_value_heads", default=heads) * width
    q = heads * width
    layer = 2 * h * q + 2 * h * kv + 2 * width + 3 * h * inter + 4 * h
    return Tower(
        "vision",
        {
            "vision_tower.patch_embedder": 2 * v.size("position_embedding_size") * h + v.size("patch_size") ** 2 * 3 * h,
            "vision_tower.encoder": v.size("num_hidden_layers") * layer,
            "embed_vision": h * text_hidden,
        },
    )


def moonvit(v: Part, text_hidden: int) -> Tower:
    """Kimi-VL and Kimi-K2.5 (MoonViT): a learned two-dimensional position table, merged patches, a two-layer projector."""
    h = v.size("vt_hidden_size", "hidden_size")
    merge = v.fields.get("merge_kernel_size") or [2, 2]
    merged = h * int(merge[0]) * int(merge[1])
    table = v.size("init_pos_emb_height", "pos_emb_height") * v.size("init_pos_emb_width", "pos_emb_width") * h
    inter = v.size("vt_intermediate_size", "intermediate_size")
    return Tower(
        "vision",
        {
            "vision_tower.patch_embed": linear(v.size("patch_size") ** 2 * 3, h) + table,
            "vision_tower.encoder": v.size("vt_num_hidden_layers", "num_hidden_layers") * encoder_layer(h, inter),
            "vision_tower.final_layernorm": 2 * h,
        },
        {"mm_projector": 2 * h + linear(merged, merged) + linear(merged, text_hidden)},
    )


def minimax_m3(v: Part, text_hidden: int, whole: Mapping[str, Any]) -> Tower:
    """MiniMax-M3: a CLIP-like tower with rotary positions and a projector of two stages."""
    h = v.size("hidden_size")
    pack = Part(v.fields.get("img_token_compression_config") or {}, where=f"{v.where}.img_token_compression_config")
    temporal, merge = pack.size("temporal_patch_size", default=2), pack.size("spatial_merge_size", default=2)
    patch = v.size("patch_size") ** 2 * v.size("num_channels", default=3) * temporal
    inner = Part(whole, where="config").size("projector_hidden_size", default=text_hidden)
    first = linear(h, inner) + linear(inner, text_hidden)
    second = linear(text_hidden * merge**2, inner) + linear(inner, text_hidden)
    return Tower(
        "vision",
        {
            "vision_tower.embeddings": patch * h,
            "vision_tower.pre_layrnorm": 2 * h,
            "vision_tower.layers": v.size("num_hidden_layers") * encoder_layer(h, v.size("intermediate_size")),
        },
        {"multi_modal_projector": first + second},
    )


STEP3P7_VISION: dict[str, int] = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 47, "patch_size": 14, "num_channels": 3,
    "image_size": 728,
}  # fmt: skip
"""The released tower, which the language config does not repeat."""


def step3p7(v: Part, text_hidden: int) -> Tower:
    """Step-3.7: layer scales, learned positions, two strided convolutions in front of a plain projector."""
    h = v.size("hidden_size", "width")
    patch, channels = v.size("patch_size"), v.size("num_channels", default=3)
    inter = v.size("intermediate_size")
    return Tower(
        "vision",
        {
            "vision_model.embeddings": h * channels * patch**2 + (v.size("image_size") // patch) ** 2 * h,
            "vision_model.pre_layernorm": 2 * h,
            "vision_model.layers": v.size("num_hidden_layers", "layers") * (encoder_layer(h, inter) + 2 * h),
            "vision_model.downsampler": linear(9 * h, 2 * h) + linear(18 * h, 4 * h),
        },
        {"multi_modal_projector": 4 * h * text_hidden},
    )


def llama4(v: Part, text_hidden: int) -> Tower:
    """Llama-4: class token, learned positions, pixel shuffle with its own two matrices."""
    h, inter, patch = v.size("hidden_size"), v.size("intermediate_size"), v.size("patch_size")
    positions = (v.size("image_size") // patch) ** 2 + 1
    wide, out = v.size("projector_input_dim"), v.size("projector_output_dim")
    return Tower(
        "vision",
        {
            "vision_model.patch_embedding": patch**2 * v.size("num_channels", default=3) * h + h + positions * h,
            "vision_model.model": v.size("num_hidden_layers") * encoder_layer(h, inter),
            "vision_model.layernorm": 4 * h,
            "vision_model.vision_adapter": inter * wide + out * out,
        },
        {"multi_modal_projector": v.size("vision_output_dim") * text_hidden},
    )


def pixtral(v: Part, text_hidden: int, whole: Mapping[str, Any]) -> Tower:
    """Pixtral in Mistral-Small-3: RMS norms, gated feed-forward, no biases; patches merged by one matrix."""
    h, inter = v.size("hidden_size"), v.size("intermediate_size")
    merge = Part(whole, where="config").size("spatial_merge_size", default=2)
    bias = bool(whole.get("multimodal_projector_bias", False))
    patch = v.size("patch_size") ** 2 * v.size("num_channels", default=3)
    layer = encoder_layer(h, inter, gated=True, bias=False, norm_vectors=2)
    return Tower(
        "vision",
        {"vision_tower": patch * h + h + v.size("num_hidden_layers") * layer},
        {
            "multi_modal_projector": h + merge**2 * h * h + linear(h, text_hidden, bias=bias)
            + linear(text_hidden, text_hidden, bias=bias)
        },
    )  # fmt: skip


def generic(v: Part, kind: str) -> Tower:
    """An encoder of unknown layout, from its depth and widths: attention and a plain feed-forward per layer."""
    h = v.size("hidden_size", "embed_dim", "d_model", "vt_hidden_size", "width")
    n = v.size("num_hidden_layers", "depth", "encoder_layers", "n_layers", "layers", "vt_num_hidden_layers")
    inter = v.size("intermediate_size", "encoder_ffn_dim", "mlp_dim", "vt_intermediate_size", default=4 * h)
    return Tower(kind, {f"{kind}_tower (estimated)": n * encoder_layer(h, inter)})
