"""Predicted figures with a calibration's factors on them; no kernel gets faster than the hardware.

Every cause of time belongs to one group (what a plugin adds under a name of its own only takes the common scale). A
pipeline bubble and the wait for stragglers follow the time that they are a share of.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from attrs import evolve, fields
from numpy.typing import NDArray

from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.spec.calibration import Calibration
from autoparallel_core.spec.cluster import Efficiency, Gpu
from autoparallel_core.spec.problem import Constant, Problem

Array = NDArray[np.float64]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "kernels": (
        "gemm", "expert_gemm", "attention", "scan", "elementwise", "cast", "embedding", "loss", "recompute", "optimizer", "head",
        "draft",
    ),
    "collectives": (
        "tp_comm", "cp_comm", "ep_comm", "dp_comm", "fsdp_comm", "pp_p2p", "all_reduce", "all_to_all", "pipeline",
    ),
    "host": ("host", "layer"),
    "prefill": ("prefill_interference", "draining"),
}  # fmt: skip
"""Causes of time by the factor that is laid on them."""
SHARES = ("bubble", "straggler")
"""Causes that are a share of the others' sum."""
_GROUP_OF = {cause: group for group, causes in GROUPS.items() for cause in causes}
_IDEAL = Efficiency(compute=1.0, memory=1.0, source="the hardware's peak", origin="assumed")
_IDEAL_CONSTANTS = {
    "gemm_half_k": 0.0, "gemm_misaligned": 1.0, "attention_half_length": 0.0, "attention_small_head": 1.0,
    "attention_backward_efficiency": 1.0, "attention_unfused": 1.0, "elementwise_fused": 0.0, "elementwise_compiled": 0.0,
    "elementwise_partly_fused": 0.0, "elementwise_eager": 0.0, "elementwise_unfused": 0.0, "loss_bytes_per_logit": 0.0,
    "cast_bytes_per_element": 0.0, "wgrad_accumulate_bytes": 0.0, "optimizer_fixed_s": 0.0, "serving_fixed_share": 0.0,
    "serving_expert_fixed_share": 0.0, "serving_stream_share": 1.0, "serving_scan_share": 1.0, "serving_scan_s": 0.0,
    "serving_indexer_s": 0.0, "serving_expert_tile_rows": 0.0,
}  # fmt: skip


def group_of(cause: str) -> str | None:
    """The factor that a cause takes; None for shares of the rest and for a plugin's own causes."""
    return _GROUP_OF.get(cause)


def ideal(problem: Problem) -> Problem:
    """The same question on kernels that reach every peak: a bound below which no calibration goes."""
    gpu = problem.cluster.gpu
    best: Gpu = evolve(
        gpu,
        gemm=dict.fromkeys(gpu.gemm, _IDEAL),
        expert_gemm=dict.fromkeys(gpu.expert_gemm, _IDEAL),
        attention=dict.fromkeys(gpu.attention, _IDEAL),
        training={k: 1.0 if k == "hbm" or k.startswith(("gemm", "attention")) else v for k, v in gpu.training.items()},
        serving=dict.fromkeys(gpu.serving, 0.0),
        tables={},
    )
    constants = {
        name: Constant(_IDEAL_CONSTANTS[name], c.meaning, c.source, c.origin) if name in _IDEAL_CONSTANTS else c
        for name, c in problem.constants.items()
    }
    return evolve(problem, cluster=evolve(problem.cluster, gpu=best), constants=constants, calibration=None)


def scaled_seconds(seconds: Mapping[str, Array], factors: Calibration, least_kernels_s: Array | float = 0.0) -> dict[str, Array]:
    """Seconds by cause with the factors on them; the kernels' sum stays at or above ``least_kernels_s``."""
    by_group = {g: float(getattr(factors, g)) * factors.scale for g in GROUPS}
    out = {c: v * by_group[g] if (g := group_of(c)) else v * factors.scale for c, v in seconds.items() if c not in SHARES}
    kernels = [c for c in out if group_of(c) == "kernels"]
    if kernels:
        total = reduce(np.add, (out[c] for c in kernels))
        lift = np.maximum(1.0, np.divide(least_kernels_s, total, out=np.ones_like(total), where=total > 0))
        out |= {c: out[c] * lift for c in kernels}
    before = reduce(np.add, (v for c, v in seconds.items() if c not in SHARES))
    growth = np.divide(reduce(np.add, out.values()), before, out=np.ones_like(before), where=before > 0)
    return {c: out[c] if c in out else v * growth for c, v in seconds.items()}


def calibrated(problem: Problem, figures: Evaluation, bound: Evaluation) -> Evaluation:
    """The figures with ``problem.calibration`` on their times; memory stays. ``bound`` is the evaluation of ``ideal``."""
    factors = problem.calibration
    assert factors is not None, "asked for without a calibration"
    kernels = [v for c, v in bound.seconds.items() if group_of(c) == "kernels"]
    least = reduce(np.add, kernels) if kernels else 0.0
    seconds = scaled_seconds(figures.seconds, factors, least)
    total = reduce(np.add, seconds.values())
    if problem.mode == "training":
        rate = problem.training.tokens_per_step / total / problem.cluster.n_gpus
        return evolve(figures, seconds=seconds, total_s=total, tokens_per_s_per_gpu=rate)
    serving, slower = _serving(problem, figures, total, factors)
    rate = figures.tokens_per_s_per_gpu / slower
    return evolve(figures, seconds=seconds, total_s=total, serving=serving, tokens_per_s_per_gpu=rate)


def _serving(problem: Problem, figures: Evaluation, tpot: Array, factors: Calibration) -> tuple[dict[str, Array], Array]:
    """Latencies scaled; throughput falls with the time that a request takes, by the second result."""
    old = figures.serving
    osl = max(problem.inference.osl, 1)
    growth = np.divide(tpot, old["tpot_s"], out=np.ones_like(tpot), where=old["tpot_s"] > 0)
    first = factors.first_token
    new = {k: v * growth for k, v in old.items() if k.startswith("tpot_")}
    new |= {k: v * first for k, v in old.items() if k.startswith("ttft_") or k == "prefill_s"}
    new["e2e_tpot_s"] = (new["ttft_s"] + new["tpot_s"] * (osl - 1)) / osl
    request = np.divide(new["e2e_tpot_s"], old["e2e_tpot_s"], out=np.ones_like(tpot), where=old["e2e_tpot_s"] > 0)
    slower = growth if problem.inference.load == "offline" else request
    rates = ("output_tokens_per_s", "output_tokens_per_s_per_gpu", "requests_per_s")
    new |= {k: old[k] / slower for k in rates if k in old}
    return {**old, **new}, slower


assert {f.name for f in fields(Calibration)} >= set(GROUPS)
