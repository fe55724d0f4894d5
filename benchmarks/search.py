"""Speed of the search: strategies per second and seconds per search, on one core.

Usage: python benchmarks/search.py [--engine NAME] [--profile] [CASE …]; cases are numbered in CASES.
Set OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 for a single core.
"""

from __future__ import annotations

import argparse
import resource
import time

import autoparallel_core as ap
from autoparallel_core.planners.exhaustive import grid_search
from autoparallel_core.search.rules import rules_for
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space

CASES = (
    ("meta-llama/Llama-3.1-70B", 64, 8192, 512),
    ("deepseek-ai/DeepSeek-V3", 1024, 4096, 8192),
    ("deepseek-ai/DeepSeek-V3", 16384, 4096, 16384),
)
"""Model, GPUs, tokens per sequence, sequences per step."""


def problem_of(model: str, n_gpus: int, seq_len: int, batch: int, *, gpu: str, engine: str) -> Problem:
    host = ap.host()
    work = ap.TrainingWorkload(seq_len=seq_len, global_batch_size=batch)
    return ap.make_problem(ap.load_model(model, host), ap.build_cluster(host.gpu(gpu), n_gpus), work, engine=engine, host=host)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=int, help="numbers of CASES (default: all)")
    parser.add_argument("--engine", default="megatron")
    parser.add_argument("--gpu", default="H100-SXM-80GB")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by cProfile")
    args = parser.parse_args()
    host = ap.host()
    head = (("enumerated", 12), ("priced", 12), ("fit", 10), ("wall s", 8), ("CPU s", 8), ("decided/CPU s", 15))
    print(f"{'case':<26}" + "".join(f"{name:>{w}}" for name, w in (*head, ("priced/CPU s", 14), ("peak MB", 9))))
    for i in args.cases or range(len(CASES)):
        model, n_gpus, seq_len, batch = CASES[i]
        problem = problem_of(model, n_gpus, seq_len, batch, gpu=args.gpu, engine=args.engine)
        space, rules = host.search_space(problem) or Space(), rules_for(problem, host)
        if args.profile:
            profiled(problem, space, rules)
        started, started_cpu = time.perf_counter(), time.process_time()
        result = grid_search(problem, space, rules, host=host)
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        name = f"{model.split('/')[1]} on {n_gpus:,}"
        print(
            f"{name:<26}{result.enumerated:>12,}{result.evaluated:>12,}{result.fitting:>10,}{wall:>8.2f}{cpu:>8.2f}"
            f"{result.enumerated / cpu:>15,.0f}{result.evaluated / cpu:>14,.0f}{peak_mb:>9.0f}"
        )
        if result.plans:
            print(f"  best: {result.plans[0].strategy}  {result.plans[0].throughput:,.0f} tokens/s/GPU")


def profiled(problem: Problem, space: Space, rules: tuple[ap.Rule, ...]) -> None:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(grid_search, problem, space, rules, host=ap.host())
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
