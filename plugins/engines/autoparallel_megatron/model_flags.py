"""A model in the flags of ``pretrain_gpt.py``, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autoparallel_core.launch.batch import whole
from autoparallel_core.launch.flags import Parsed
from autoparallel_core.launch.model_facts import ModelFacts
from autoparallel_core.launch.write import Group, group

# --- writing --------------------------------------------------------------------------------------------------


def model_groups(f: ModelFacts, seq_len: int, config: Mapping[str, Any]) -> list[Group]:
    """The model, as far as flags describe it."""
    groups = [
        group(
            "Model: size.",
            ("--num-layers", f.layers), ("--hidden-size", f.hidden), ("--ffn-hidden-size", f.ffn), ("--num-attention-heads",
            f.heads),
            *(() if f.latent else _grouped(f)),
        ),
        group(
            "Model: kind."
            + ("" if f.rope_theta else " Its rotary base is not known here: add --rotary-base unless it is 10000.")
            + (f" Not described by flags, needs a model provider: {', '.join(f.unusual)}." if f.unusual else ""),
            "--use-mcore-models", ("--normalization", "RMSNorm" if f.norm == "rms" else "LayerNorm"), ("--norm-epsilon",
            f.norm_eps),
            "--swiglu" if f.gated else None, "--disable-bias-linear", "--add-qkv-bias" if f.qkv_bias else None,
            "--qk-layernorm" if f.qk_norm or f.latent else None,
            None if f.tied else "--untie-embeddings-and-output-weights",
            ("--position-embedding-type", "rope"), ("--rotary-base", None if f.rope_theta is None else int(f.rope_theta)),
            *_rope_scaling(f),
            ("--attention-dropout", "0.0"), ("--hidden-dropout", "0.0"),
        ),
        group("Tokens of one sequence.", ("--seq-length", seq_len),
              ("--max-position-embeddings", max(f.positions or 0, seq_len))),
    ]  # fmt: skip
    if f.latent:
        v = f.latent
        groups.append(group(
            "Multi-head latent attention.", "--multi-latent-attention", ("--q-lora-rank", v.q_rank), ("--kv-lora-rank",
            v.kv_rank),
            ("--qk-head-dim", v.nope), ("--qk-pos-emb-head-dim", v.rope), ("--v-head-dim", v.value),
        ))  # fmt: skip
    if f.experts:
        groups.append(_experts(f, config))
    if f.mtp:
        groups.append(group("Multi-token prediction.", ("--mtp-num-layers", f.mtp), ("--mtp-loss-scaling-factor", 0.1)))
    return groups


def _grouped(f: ModelFacts) -> list[Any]:
    out: list[Any] = [("--kv-channels", f.head_dim)]
    if f.kv_heads and f.kv_heads != f.heads:
        out = ["--group-query-attention", ("--num-query-groups", f.kv_heads), *out]
    return out


def _rope_scaling(f: ModelFacts) -> list[Any]:
    kind = str((f.rope_scaling or {}).get("rope_type") or (f.rope_scaling or {}).get("type") or "")
    if kind != "llama3":
        return []
    return ["--use-rope-scaling", ("--rope-scaling-factor", (f.rope_scaling or {}).get("factor"))]


def _experts(f: ModelFacts, config: Mapping[str, Any]) -> Group:
    where: str | None = None
    if any(f.dense_layers):
        n = f.leading_dense
        where = f"([0]*{n}+[1]*{f.layers - n})" if n is not None else str([int(not d) for d in f.dense_layers]).replace(" ", "")
    sigmoid = config.get("scoring_func") == "sigmoid"
    groups, top = config.get("n_group"), config.get("topk_group")
    limited = isinstance(groups, int) and groups > 1 and isinstance(top, int)
    return group(
        "Experts.",
        ("--num-experts", f.experts), ("--moe-router-topk", f.top_k), ("--moe-ffn-hidden-size", f.expert_ffn),
        ("--moe-shared-expert-intermediate-size", f.shared_ffn or None), ("--moe-layer-freq", where), "--moe-grouped-gemm",
        ("--moe-router-score-function", "sigmoid" if sigmoid else None),
        "--moe-router-enable-expert-bias" if config.get("topk_method") == "noaux_tc" else None,
        ("--moe-router-num-groups", groups if limited else None), ("--moe-router-group-topk", top if limited else None),
        ("--moe-router-topk-scaling-factor", config.get("routed_scaling_factor") if sigmoid else None),
        ("--moe-router-load-balancing-type", "seq_aux_loss" if sigmoid else "aux_loss"), ("--moe-aux-loss-coeff", "1e-4"),
        "--moe-router-pre-softmax" if f.top_k == 1 and not sigmoid else None,
    )  # fmt: skip


# --- reading --------------------------------------------------------------------------------------------------


def model_fields(p: Parsed) -> dict[str, int]:
    """The sizes that the flags state, by the names of the command's own model flags; {} when they state no model."""
    if not (p.given("num_layers") and p.given("hidden_size")):
        return {}
    hidden, heads = p.get("hidden_size"), p.get("num_attention_heads")
    ffn = p.get("ffn_hidden_size") or (int(8 * hidden / 3 / 64) * 64 if p.get("swiglu", default=False) else 4 * hidden)
    out: dict[str, Any] = {
        "hidden_size": hidden,
        "num_layers": p.get("num_layers"),
        "num_heads": heads,
        "num_kv_heads": p.get("num_query_groups") if p.get("group_query_attention", default=False) else None,
        "head_dim": p.get("kv_channels"),
        "intermediate_size": ffn,
        "vocab_size": vocabulary(p),
    }
    if p.get("num_experts"):
        width = p.get("moe_ffn_hidden_size") or ffn
        shared = p.get("shared_ffn") or 0
        out |= {
            "num_experts": p.get("num_experts"),
            "num_experts_per_tok": p.get("topk", 2),
            "expert_intermediate_size": width,
            "n_shared_experts": shared // width if shared and shared % width == 0 else None,
            "first_k_dense_replace": leading_dense(str(p.get("moe_layer_freq", "1")), p.get("num_layers")),
        }
    if p.get("mla", default=False):
        out |= {
            "kv_lora_rank": p.get("kv_lora_rank", 512),
            "q_lora_rank": p.get("q_lora_rank"),
            "qk_nope_head_dim": p.get("qk_head_dim", 128),
            "qk_rope_head_dim": p.get("qk_pos_emb_head_dim", 64),
            "v_head_dim": p.get("v_head_dim", 128),
            "num_kv_heads": None,
            "head_dim": None,
        }
    return {k: v for k, v in out.items() if v is not None}


def vocabulary(p: Parsed) -> int | None:
    """Rows of the embedding before padding, where the flags tell."""
    size = p.get("vocab_size")
    if size is not None and str(p.get("tokenizer_type", "")) == "NullTokenizer":
        return int(size) + 1  # the end-of-document token
    return whole(size if size is not None else p.get("padded_vocab_size"))


def leading_dense(pattern: str, layers: int | None) -> int | None:
    """Dense layers in front, from ``--moe-layer-freq``: ``([0]*3+[1]*58)`` or a list."""
    flags = layer_flags(pattern, layers)
    if not flags or 0 not in flags:
        return None
    first = flags.index(1) if 1 in flags else len(flags)
    return first if first and 0 not in flags[first:] else None


def layer_flags(pattern: str, layers: int | None) -> list[int]:
    """1 for each sparse layer, 0 for each dense one; [] when the pattern is something else."""
    text = pattern.replace(" ", "")
    if text.isdigit():
        n = int(text)
        return [int(i % n == 0) for i in range(layers or 0)] if n else []
    out: list[int] = []
    for m in re.finditer(r"(\[[01](?:,[01])*\])(?:\*(\d+))?", text):
        out += [int(x) for x in m[1].strip("[]").split(",")] * int(m[2] or 1)
    return out
