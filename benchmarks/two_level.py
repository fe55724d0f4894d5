"""CPU seconds, peak memory and gain of the two-level planner on real models, each in a process of its own.

    python benchmarks/two_level.py

The gain is against the best plan of the grid on the same space: by events (both pipelines simulated) and by the
evaluator (both priced in closed form, which overrates interleaved chunks of unequal size). Exits with 1 when a limit is
exceeded, or a case that is to be strictly faster by both counts is not.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIXED = """
[[gpus]]
type = "H100"
nodes = 8
[[gpus]]
type = "A100"
nodes = 8
"""
FASTER = {"faster": True}
"""To be strictly faster than the best with the usual stages, by both counts."""
QWEN = {"model": "Qwen/Qwen3.5-397B-A17B", "n": 256} | FASTER
CASES: dict[str, dict[str, Any]] = {
    "DeepSeek-V3, 1,024 H100": {
        "model": "deepseek-ai/DeepSeek-V3", "gpu": "H100", "n": 1024, "batch": 8192, "limit_s": 10,
    } | FASTER,
    "Llama-3.1-405B, 512 H100": {"model": "meta-llama/Llama-3.1-405B", "gpu": "H100", "n": 512, "batch": 512, "limit_s": 15},
    "Gemma-3-27B, 64 H100, pp 4": {"model": "google/gemma-3-27b-it", "gpu": "H100", "n": 64, "batch": 512, "pp": (4,)} | FASTER,
    "Qwen3.5-397B, 256 H100": QWEN | {"gpu": "H100", "batch": 2048},
    "Qwen3.5-397B, 256 H200": QWEN | {"gpu": "H200", "batch": 1024},
    "Llama-3.1-70B, 64 H100 + 64 A100": {"model": "meta-llama/Llama-3.1-70B", "mixed": True, "batch": 1024} | FASTER,
    "Llama-2-7B per layer, 8 A100 of 36 GB": {
        "model": "meta-llama/Llama-2-7b-hf", "gpu": "A100", "n": 8, "batch": 64, "seq": 2048, "memory_gb": 36, "layer": True,
        "limit_s": 1,
    },
}  # fmt: skip


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case: the planner's CPU seconds, without loading plugins and the model."""
    from attrs import evolve

    from autoparallel_core.cluster import build_cluster, read_cluster_toml
    from autoparallel_core.host import host
    from autoparallel_core.models import load_model
    from autoparallel_core.planners.two_level.kinds import kinds_search
    from autoparallel_core.planners.two_level.layers import layer_search
    from autoparallel_core.planners.two_level.uneven import uneven_search
    from autoparallel_core.problem import make_problem
    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.spec.space import Space
    from autoparallel_core.spec.workload import TrainingWorkload

    h = host()
    if case.get("mixed"):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "cluster.toml"
            file.write_text(MIXED, encoding="utf-8")
            cluster = read_cluster_toml(file, h)
    else:
        cluster = build_cluster(h.gpu(case["gpu"]), case["n"], overrides={"gpu_memory_gb": case.get("memory_gb")})
    work = TrainingWorkload(seq_len=case.get("seq", 4096), global_batch_size=case["batch"])
    problem = make_problem(load_model(case["model"], h), cluster, work, engine="megatron", host=h)
    space = evolve(h.search_space(problem) or Space(), pp=tuple(case.get("pp", ())))
    started = time.process_time()
    if cluster.kinds:
        result = kinds_search(problem, space, host=h, top=3)
    elif case.get("layer"):
        result = layer_search(problem, space, rules_for(problem, h), host=h)
    else:
        result = uneven_search(problem, space, rules_for(problem, h), host=h, top=3)
    seconds = time.process_time() - started
    best, base = result.plans[0], result.baseline
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out = {"cpu_s": seconds, "peak_bytes": peak, "plan": best.notation, "layers": list(best.training.layers_per_stage)}
    if base is not None:
        out |= {"base": base.notation, "events": base.cost.total_s / best.cost.total_s - 1}
        if cluster.kinds:
            out["evaluator"] = stages_s(base) / stages_s(best) - 1
        elif not case.get("layer"):
            out["evaluator"] = closed_form_s(problem, h, base) / closed_form_s(problem, h, best) - 1
    return out


def closed_form_s(problem: Any, h: Any, plan: Any) -> float:
    """The evaluator's own step, with the plan's stages where it has some."""
    from autoparallel_core.cost.stages import laid_out
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch

    batch, s = StrategyBatch.of([plan.strategy]), plan.strategy
    if not plan.stages:
        return float(evaluate(problem, batch, h).total_s[0])
    layers = tuple(x.layers[c] for c in range(s.vpp) for x in plan.stages)
    kinds = [layer.kind for layer, _ in problem.arch.layer_classes()]
    if len(set(kinds)) < len(kinds):
        return float("nan")  # classes of one kind cannot be told apart in the plan
    full = tuple(tuple(x.recomputed.get(k, 0) for k in kinds) for x in plan.stages)
    return float(evaluate(problem, batch, h, layout=laid_out(problem.arch, s.pp, layers, full)).total_s[0])


def stages_s(plan: Any) -> float:
    """The closed form of 1F1B, interleaved or not, over the evaluator's stage times, for stages on GPUs of several kinds."""
    from autoparallel_core.planners.two_level.stage_model import PIPELINE_CAUSES

    rest = sum(s for c, s in plan.cost.seconds.items() if c not in PIPELINE_CAUSES)
    times = [s.time_s for s in plan.stages]
    sends = plan.cost.seconds.get("pp_p2p", 0.0)
    p, v, m = len(times), len(plan.stages[0].layers), plan.training.micro_batches
    fill = sum(times) - max(times) if v == 1 else (p - 1) * sum(times) / (p * v)
    return float(m * max(times) + fill + sends + rest)


def main() -> int:
    """Run every case on one thread and print a line for each; 1 when a limit is exceeded."""
    failed = 0
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for name, case in CASES.items():
        command = [sys.executable, __file__, json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **single})
        r = json.loads(done.stdout)
        limit = case.get("limit_s")
        late = limit is not None and r["cpu_s"] > limit
        slower = case.get("faster") and not (r["events"] > 0 and r["evaluator"] > 0)
        failed += late or bool(slower)
        print(f"{name}: {r['cpu_s']:.2f} CPU-s{f' (limit {limit})' if limit else ''}, peak {r['peak_bytes'] / 1e9:.2f} GB")
        print(f"  {r['plan']}, layers {r['layers']}")
        if "base" in r:
            closed = f", {r['evaluator']:+.2%} by the evaluator" if "evaluator" in r else ""
            counted = "by its layers' costs" if case.get("layer") else "by events"
            print(f"  {r['events']:+.2%} {counted}{closed} against {r['base']}{' (to be faster by both)' if slower else ''}")
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        sys.exit(main())
