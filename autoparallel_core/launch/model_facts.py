"""Sizes of a model as trainers want them stated: read off its operators, with the rest from its config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from autoparallel_core.reading.source import language_fields
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention, Elementwise, ExpertGemm, Gemm

USUAL = ("gqa", "mha", "mqa", "mla", "dense", "moe")
"""Kinds of block that a flag or field of every trainer describes."""


@frozen
class Latent:
    """Multi-head latent attention."""

    kv_rank: int
    q_rank: int | None
    nope: int
    rope: int
    value: int


@frozen
class ModelFacts:
    """What launch files repeat about a model. ``None`` is unknown."""

    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of the dense feed-forward; of one expert where there is no dense layer and the config states none."""
    gated: bool
    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    dense_layers: tuple[bool, ...]
    """Per decoder layer, whether its feed-forward is dense."""
    latent: Latent | None
    mtp: int
    tied: bool
    positions: int | None
    norm: str
    """``rms`` or ``layer``."""
    norm_eps: float | None
    rope_theta: float | None
    rope_scaling: Mapping[str, Any] | None
    qkv_bias: bool
    qk_norm: bool
    activation: str
    unusual: tuple[str, ...]
    """Kinds of block that need the trainer's own model code."""

    @property
    def all_dense(self) -> bool:
        return self.experts == 0

    @property
    def leading_dense(self) -> int | None:
        """Dense layers in front of the sparse ones; None when they are not a prefix."""
        n = sum(self.dense_layers)
        return n if all(self.dense_layers[:n]) else None


def model_facts(arch: ModelArch, config: Mapping[str, Any]) -> ModelFacts:
    """Collect them; ``config`` may be empty."""
    view = ConfigView(language_fields(config), name=arch.name) if config else ConfigView({}, name=arch.name)
    ops = [op for layer in dict.fromkeys(arch.layers) for op in layer.ops]
    attention = next((op for op in ops if isinstance(op, Attention) and op.v_width), None)
    experts = next((op for op in ops if isinstance(op, ExpertGemm) and op.n and op.n[0].name == "expert_ffn"), None)
    dense = [op for op in ops if isinstance(op, Gemm) and op.n and op.n[0].name == "ffn"]
    width = max((op.n[0].size for op in dense if _component(op) != "shared_experts"), default=0)
    shared = max((op.n[0].size for op in dense if _component(op) == "shared_experts"), default=0)
    up = next((op for op in [*dense, experts] if op is not None), None)
    modules = {w.module for layer in dict.fromkeys(arch.layers) for w in layer.weights()}
    expert_ffn = experts.n[0].size if experts else 0
    stated = view.get("intermediate_size")
    return ModelFacts(
        layers=arch.num_layers,
        hidden=arch.hidden_size,
        vocab=arch.vocab_size,
        heads=attention.heads.units if attention else arch.num_heads,
        kv_heads=attention.kv_heads.units if attention else arch.num_kv_heads,
        head_dim=attention.heads.width if attention else 0,
        ffn=width or (stated if isinstance(stated, int) else expert_ffn),
        gated=up is not None and len(up.n) > 1,
        experts=arch.num_experts,
        top_k=arch.top_k,
        expert_ffn=expert_ffn,
        shared_ffn=shared,
        dense_layers=tuple(not any(isinstance(op, ExpertGemm) for op in layer.ops) for layer in arch.layers),
        latent=_latent(arch, attention, view),
        mtp=len(arch.mtp),
        tied=arch.tied_embeddings,
        positions=arch.max_position_embeddings,
        norm="layer" if any(_biased_norm(op) for op in ops) else "rms",
        norm_eps=_number(view.get("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")),
        rope_theta=_rope_theta(view),
        rope_scaling=_mapping(view.get("rope_scaling")),
        qkv_bias=any(m.endswith(("q_proj.bias", "qkv_proj.bias", "query_key_value.bias", "c_attn.bias")) for m in modules),
        qk_norm=any("q_norm" in m or ("q_layernorm" in m and "q_a_" not in m) for m in modules),
        activation=str(view.get("hidden_act") or ""),
        unusual=tuple(sorted({b.kind for layer in arch.layers for b in layer.blocks} - set(USUAL))),
    )


def _component(op: Gemm) -> str:
    return op.weights[0].component if op.weights else ""


def _biased_norm(op: Any) -> bool:
    return isinstance(op, Elementwise) and op.role == "norm" and any(w.module.endswith(".bias") for w in op.weights)


def _latent(arch: ModelArch, attention: Attention | None, view: ConfigView) -> Latent | None:
    if attention is None or attention.latent is None or attention.latent_v is None:
        return None
    rope = attention.latent - attention.latent_v
    q_rank = next(
        (op.k.size for layer in arch.layers for op in layer.ops if isinstance(op, Gemm) and op.name == "q_up"),
        view.get("q_lora_rank"),
    )
    return Latent(attention.latent_v, q_rank, attention.heads.width - rope, rope, attention.v_width)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _rope_theta(view: ConfigView) -> float | None:
    stated = _number(view.get("rope_theta", "rotary_emb_base"))
    parameters = _mapping(view.get("rope_parameters"))
    return stated if stated is not None or parameters is None else _number(parameters.get("rope_theta"))
