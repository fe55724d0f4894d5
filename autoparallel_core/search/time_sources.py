"""One strategy's time by where the numbers behind it come from.

Each cause of time rests on one leading figure: the efficiency of its kernel, the curve of its collective, a constant of
the host. What the user's own measurement replaced is ``measured``, ``interpolated`` or ``extrapolated`` by the points
that were used; a preset's figure is ``preset``, one that nobody states ``assumed``. Bubbles, stragglers and
recomputation are shares of the rest and are split like it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autoparallel_core.ops.ledger import Ledger, recording
from autoparallel_core.search.calibrated import GROUPS
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

ORIGINS = ("measured", "interpolated", "extrapolated", "preset", "assumed")
_MIXED = ("bubble", "straggler", "recompute", "draining", "prefill_interference")
_TRAINING = {
    "gemm": "training.gemm_{low}", "expert_gemm": "training.gemm_{low}", "scan": "training.gemm_bf16",
    "attention": "training.attention_{kernel}", "elementwise": "training.hbm", "cast": "training.hbm", "loss": "training.hbm",
    "embedding": "training.hbm", "optimizer": "training.hbm", "host": "constant host_launch_s",
}  # fmt: skip
_SERVING = {
    "gemm": "gemm", "head": "gemm", "expert_gemm": "expert_gemm", "attention": "attention", "scan": "attention",
    "elementwise": "constant serving_stream_share", "all_reduce": "collectives.all_reduce", "pipeline": "tier",
    "all_to_all": "collectives.all_to_all", "host": "constant serving_step_s", "layer": "constant serving_layer_s",
    "draft": "gemm",
}  # fmt: skip


def time_by_source(problem: Problem, strategy: Strategy, host: Host | None = None) -> dict[str, float]:
    """Seconds by origin (one of ORIGINS); they sum to the step, or to the time of an output token."""
    with recording() as ledger:
        figures = evaluate(problem, StrategyBatch.of([strategy]), host)
    seconds = {c: float(v[0]) for c, v in figures.seconds.items() if v[0]}
    split = {c: _shares(problem, c, ledger, strategy) for c in seconds if c not in _MIXED}
    out = dict.fromkeys(ORIGINS, 0.0)
    for cause, shares in split.items():
        for origin, share in shares.items():
            out[origin] += share * seconds[cause]
    known = sum(out.values())
    whole = sum(seconds.values())
    return {o: s * whole / known for o, s in out.items() if s} if known else {"assumed": whole}


def _shares(problem: Problem, cause: str, ledger: Ledger, strategy: Strategy) -> Mapping[str, float]:
    if shares := ledger.shares("gemm" if cause in ("head", "expert_gemm") and problem.mode == "training" else cause):
        return shares
    figure = _figure_behind(problem, cause, strategy)
    if figure in problem.cluster.gpu.replaced:
        return {"interpolated": 1.0}
    if figure.startswith("constant "):
        constant = problem.constants.get(figure.removeprefix("constant "))
        return {"assumed" if constant is None or constant.origin == "assumed" else "preset": 1.0}
    return {_origin(problem, figure): 1.0}


def _figure_behind(problem: Problem, cause: str, strategy: Strategy) -> str:
    if problem.mode == "inference":
        return _SERVING.get(cause, cause)
    if cause in GROUPS["collectives"]:
        inside = {"tp_comm": strategy.tp, "ep_comm": strategy.ep * strategy.etp}.get(cause, strategy.world)
        return "training.all_reduce_bytes_per_s" if inside <= problem.cluster.tiers[0].ranks else "tier"
    precision = problem.training.precision
    low = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}.get(precision, "bf16")
    return _TRAINING.get(cause, cause).format(low=low, kernel=problem.software.attention_kernel)


def _origin(problem: Problem, figure: str) -> str:
    """``preset`` or ``assumed``, by what the GPU's data says of the figure."""
    gpu = problem.cluster.gpu
    if figure == "tier":
        source = problem.cluster.tiers[-1].source
        return "assumed" if source.casefold().startswith("assumed") else "preset"
    if figure.startswith("training."):
        return "assumed" if gpu.sources.get(figure, gpu.sources.get("training", "assumed")).startswith("assumed") else "preset"
    table, _, kind = figure.partition(".")
    entries = getattr(gpu, table, None) if table in ("gemm", "expert_gemm", "attention", "collectives") else None
    if not entries:
        return "assumed"
    found = entries.get(kind) if kind else next(iter(entries.values()))
    first = found[0] if isinstance(found, tuple) and found else found
    return "assumed" if first is None or first.origin == "assumed" else "preset"
