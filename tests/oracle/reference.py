"""The independent count: models as the transformers library builds them on the meta device, without weights."""

import re
from collections import Counter

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

transformers.logging.set_verbosity_error()

RULES = (
    ("tower", r"visual\.|vision_tower\.|vision_model\.|embed_vision"),
    ("other", r"projector|hc\.|hc_head|_hc\b"),
    ("embedding", r"embed_tokens|embed_positions|wte\b|word_embeddings\.weight|embed_in\b|model\.embeddings\.weight|wpe\b"),
    ("head", r"lm_head|embed_out"),
    ("shared_experts", r"shared_expert|shared_mlp"),
    ("experts", r"\.experts\."),
    ("norm", r"norm|\.ln_|\.ln\d|ln_f"),
    ("router", r"mlp\.gate\.|router|block_sparse_moe\.gate|mixer\.gate\.|feed_forward\.router"),
    ("mlp", r"\.mlp\.|feed_forward|\.fc1|\.fc2|mixer\.(up|down)_proj|fc[12]_latent_proj"),
    ("attention", r"attn|attention|mamba|mixer|conv|layers\.\d+\.linear\b"),
)
"""Component of a parameter by the first pattern that its name has."""


def component(name: str) -> str:
    for kind, pattern in RULES:
        if re.search(pattern, name):
            return kind
    raise AssertionError(f"no rule for parameter {name}")


def build(config: dict) -> torch.nn.Module:
    """The model of a config, on the meta device."""
    cfg = CONFIG_MAPPING[config["model_type"]].from_dict({k: v for k, v in config.items() if k != "quantization_config"})
    text_only = "vision_config" not in config
    with torch.device("meta"):
        return (AutoModelForCausalLM if text_only else AutoModelForImageTextToText).from_config(cfg)


def components(config: dict) -> Counter:
    """Parameters by component; tied tensors count once, under the first name."""
    found: Counter = Counter()
    for name, p in build(config).named_parameters():
        found[component(name)] += p.numel()
    if "experts" not in found and "shared_experts" in found:  # a shared expert without routed ones is a dense layer
        found["mlp"] += found.pop("shared_experts")
    return found
