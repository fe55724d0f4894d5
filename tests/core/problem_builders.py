"""Small and real problems built by hand, so that search tests need no plugin."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoparallel_core.cost.constants import core_constants
from autoparallel_core.spec.arch import Layer, ModelArch
from autoparallel_core.spec.blocks import attention_block, embedding_block, head_block, mla_block, mlp_block, moe_block
from autoparallel_core.spec.cluster import Cluster, Gpu, Tier
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload


def dense(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, name: str = "dense") -> ModelArch:
    layer = Layer(
        (
            attention_block(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads),
            mlp_block(hidden=hidden, intermediate=ffn),
        )
    )
    return _model(name, (layer,) * layers, hidden, vocab, heads, kv_heads)


def mla_moe(layers: int, first_dense: int, hidden: int, heads: int, experts: int, top_k: int, name: str = "moe") -> ModelArch:
    mixer = mla_block(
        hidden=hidden, heads=heads, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    plain = Layer((mixer, mlp_block(hidden=hidden, intermediate=18432)))
    sparse = Layer(
        (mixer, moe_block(hidden=hidden, experts=experts, top_k=top_k, expert_intermediate=2048, shared_intermediate=2048))
    )
    return _model(name, (plain,) * first_dense + (sparse,) * (layers - first_dense), hidden, 129280, heads, heads, experts, top_k)


def _model(
    name: str, layers: tuple[Layer, ...], hidden: int, vocab: int, heads: int, kv_heads: int, experts: int = 0, top_k: int = 0
) -> ModelArch:
    return ModelArch(
        name=name,
        model_type=name,
        hidden_size=hidden,
        vocab_size=vocab,
        prologue=embedding_block(vocab=vocab, hidden=hidden),
        layers=layers,
        epilogue=head_block(vocab=vocab, hidden=hidden, tied=False),
        tied_embeddings=False,
        num_heads=heads,
        num_kv_heads=kv_heads,
        num_experts=experts,
        top_k=top_k,
    )


def llama_70b() -> ModelArch:
    return dense(80, 8192, 64, 8, 28672, 128256, "llama-3.1-70b")


def llama_405b() -> ModelArch:
    return dense(126, 16384, 128, 8, 53248, 128256, "llama-3.1-405b")


def deepseek_v3() -> ModelArch:
    return mla_moe(61, 3, 7168, 128, 256, 8, "deepseek-v3")


def glm_5() -> ModelArch:
    return mla_moe(78, 3, 6144, 64, 256, 8, "glm-5.1")


def gpu(**changes: Any) -> Gpu:
    fields: dict[str, Any] = {
        "name": "T-80",
        "vendor": "acme",
        "memory_bytes": 80e9,
        "marketing_memory_bytes": 80e9,
        "hbm_bytes_per_s": 3.35e12,
        "peak_flops": {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12},
        "scale_up_bytes_per_s": 450e9,
        "scale_up_domain": 8,
        "nic_bytes_per_s": 50e9,
        "gpus_per_node": 8,
        "host_memory_bytes_per_node": 2e12,
        "training": {"hbm": 0.84, "gemm_bf16": 0.75, "attention_fused": 0.57},
    }
    return Gpu(**fields | changes)


def cluster(n_gpus: int, *, per_node: int | None = None, **changes: Any) -> Cluster:
    g = gpu(**changes)
    node = min(per_node or g.gpus_per_node, n_gpus)
    tiers = [Tier("scale-up", min(g.scale_up_domain, n_gpus), g.scale_up_bytes_per_s, 3e-6, "test")]
    if n_gpus > tiers[0].ranks:
        tiers.append(Tier("network", n_gpus, g.nic_bytes_per_s, 8e-6, "test"))
    return Cluster(g, n_gpus, node, tuple(tiers), g.host_memory_bytes_per_node)


ENGINE = EngineSpec(name="test", modes=("training", "inference"), default_version="1.0", summary="An engine for tests.")


def training(
    arch: ModelArch, n_gpus: int, *, seq: int = 4096, batch: int = 1024, engine: EngineSpec = ENGINE, **workload: Any
) -> Problem:
    work = TrainingWorkload(seq_len=seq, global_batch_size=batch, **workload)
    return Problem(arch, cluster(n_gpus), work, engine, engine.default_version, constants=core_constants())


def inference(
    arch: ModelArch, n_gpus: int, *, isl: int = 1024, osl: int = 256, engine: EngineSpec = ENGINE, **workload: Any
) -> Problem:
    return Problem(arch, cluster(n_gpus), InferenceWorkload(isl, osl, **workload), engine, engine.default_version)


def rule(rule_id: str, condition: Any, sentence: str = "is broken", **bounds: Any) -> Rule:
    """A rule from an expression over (problem, batch)."""

    def broken(problem: Problem, batch: Any) -> Any:
        return np.broadcast_to(np.asarray(condition(problem, batch), dtype=bool), (len(batch),))

    return Rule(rule_id, broken, lambda _p, s: f"{s} {sentence}", "test", **bounds)
