"""Small, whole questions to try a plugin on: a GPU, models, clusters, problems and batches of strategies.

The GPU's figures are round and invented (its sources say so); the models are small but have every part.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve

from autoparallel_core.spec.arch import Layer, ModelArch
from autoparallel_core.spec.blocks import attention_block, embedding_block, head_block, mlp_block, moe_block
from autoparallel_core.spec.cluster import Efficiency, Gpu
from autoparallel_core.spec.strategy import StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.problem import Problem

Mode = Literal["training", "inference"]
INVENTED = "assumed: invented for tests"


def toy_gpu(name: str = "toy-gpu", **changes: Any) -> Gpu:
    """A made-up accelerator with round figures: 100 GB, 4 TB/s, 1 PFLOP/s bf16, eight to a node."""
    good = Efficiency(compute=0.7, memory=0.8, source=INVENTED, origin="assumed", fixed_s=3e-6)
    kernels = ("fused", "flash2", "unfused", "decode", "prefill", "mla_decode", "mla_prefill")
    training = {
        "gemm_bf16": 0.7, "gemm_fp8": 0.6, "attention_fused": 0.6, "attention_flash2": 0.5, "hbm": 0.8,
        "all_reduce_bytes_per_s": 300e9, "all_reduce_latency_s": 15e-6,
    }  # fmt: skip
    figures = (
        "memory_bytes", "marketing_memory_bytes", "hbm_bytes_per_s", "peak_flops", "scale_up_bytes_per_s", "scale_up_domain",
        "nic_bytes_per_s", "gpus_per_node", "host_memory_bytes_per_node", *(f"training.{key}" for key in training),
    )  # fmt: skip
    gpu = Gpu(
        name=name, vendor="toy", memory_bytes=100e9, marketing_memory_bytes=100e9, hbm_bytes_per_s=4e12,
        peak_flops={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "fp32": 5e13}, scale_up_bytes_per_s=450e9, scale_up_domain=8,
        nic_bytes_per_s=50e9, gpus_per_node=8, host_memory_bytes_per_node=2e12,
        gemm={"bf16": good, "fp8": good}, expert_gemm={"bf16": good, "fp8": good}, attention=dict.fromkeys(kernels, good),
        training=training, sources=dict.fromkeys(figures, INVENTED),
    )  # fmt: skip
    return evolve(gpu, **changes)


def toy_dense_arch(layers: int = 16) -> ModelArch:
    """A dense decoder: 32 query heads over 8 key/value heads, hidden 4096, gated feed-forward of 16384."""
    layer = Layer((
        attention_block(hidden=4096, heads=32, kv_heads=8, head_dim=128),
        mlp_block(hidden=4096, intermediate=16384),
    ))  # fmt: skip
    return _arch("toy-dense", (layer,) * layers)


def toy_moe_arch(layers: int = 16) -> ModelArch:
    """A mixture of experts: one dense layer, then 32 experts of width 2048, 4 per token, and a shared one."""
    attention = attention_block(hidden=4096, heads=32, kv_heads=8, head_dim=128)
    dense = Layer((attention, mlp_block(hidden=4096, intermediate=16384)))
    experts = moe_block(hidden=4096, experts=32, top_k=4, expert_intermediate=2048, shared_intermediate=2048)
    return _arch("toy-moe", (dense, *(Layer((attention, experts)),) * (layers - 1)), num_experts=32, top_k=4)


def _arch(name: str, layers: tuple[Layer, ...], **facts: Any) -> ModelArch:
    return ModelArch(
        name=name, model_type="toy", hidden_size=4096, vocab_size=32768, prologue=embedding_block(vocab=32768, hidden=4096),
        layers=layers, epilogue=head_block(vocab=32768, hidden=4096, tied=False), tied_embeddings=False,
        num_heads=32, num_kv_heads=8, max_position_embeddings=131072, **facts,
    )  # fmt: skip


def toy_problem(
    engine: str, mode: Mode, *, host: Host, arch: ModelArch | None = None, gpu: Gpu | None = None, n_gpus: int = 32
) -> Problem:
    """A training step of 256 sequences of 4096 tokens, or 64 requests of 1024 in and 256 out, on ``n_gpus`` toy GPUs."""
    from autoparallel_core.cluster import build_cluster
    from autoparallel_core.problem import make_problem

    workload = TrainingWorkload(seq_len=4096, global_batch_size=256) if mode == "training" else InferenceWorkload(1024, 256, 64)
    return make_problem(arch or toy_dense_arch(), build_cluster(gpu or toy_gpu(), n_gpus), workload, engine=engine, host=host)


def toy_batch(mode: Mode, n_gpus: int = 32, *, moe: bool = False) -> StrategyBatch:
    """Every strategy of a small grid that fills ``n_gpus``; legality is not asked."""
    powers = (1, 2, 4, 8)
    rows: list[dict[str, int]] = []
    for tp, pp, inner, ep in product(powers, (1, 2, 4), (1, 2), powers if moe else (1,)):
        if n_gpus % (tp * pp * inner):
            continue
        dp = n_gpus // (tp * pp * inner)
        if mode == "inference":
            rows.append({"tp": tp, "pp": pp, "attn_dp": inner, "ep": ep, "dp": dp})
            continue
        rows += [
            {
                "tp": tp, "sp": int(tp > 1), "pp": pp, "cp": inner, "ep": ep, "dp": dp, "zero": zero,
                "shard": dp * inner if zero else 1, "mbs": mbs, "recompute": recompute,
            }
            for zero, mbs, recompute in product((0, 1, 3), (1, 2), (0, 1, 2))
        ]  # fmt: skip
    columns = {c: [r[c] for r in rows] for c in rows[0]}
    return StrategyBatch.from_columns(len(rows), **columns)
