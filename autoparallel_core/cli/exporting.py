"""From a plan to files on disk, for the commands that export."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.strategy import RECOMPUTE

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.result import Plan, SearchResult
    from autoparallel_core.spec.problem import Problem


def export_plan(args: argparse.Namespace, problem: Problem, plan: Plan, host: Host, directory: str) -> list[Path]:
    """Write the launch files of one plan; their paths.

    Raises:
        SpecError: the engine writes none, cannot run the plan's stages, or files are in the way.
    """
    from autoparallel_core.launch.write import write_files

    if problem.mode == "training" and problem.training.task == "lora":
        raise SpecError(f"{problem.engine.name}: launch files of --task lora are not written; its adapters are set up in code")
    options: dict[str, Any] = {**model_options(args, host), "figures": figures(problem, plan)}
    options["question"] = _question(args, problem)
    if plan.stages:
        options |= _stage_options(problem, plan)
    files = host.export(problem, plan.strategy, options)
    if files is None:
        raise SpecError(f"engine {problem.engine.name} writes no launch files")
    if plan.verdict == "does not fit":
        print(f"autoparallel: warning: {plan.strategy} does not fit; 'autoparallel check' says why", file=sys.stderr)
    return write_files(Path(directory).expanduser(), files, force=args.force)


def _stage_options(problem: Problem, plan: Plan) -> dict[str, Any]:
    """``chunks``: layers of every virtual stage; ``recompute_first``: first layers of every chunk that recompute, by stage.

    Raises:
        SpecError: the engine cannot run such stages.
    """
    if len({s.strategy for s in plan.stages}) > 1:
        raise SpecError(f"{problem.engine.name} runs one strategy for all layers; plan without --granularity to export")
    if "uneven_stages" not in problem.engine.abilities and len({s.n_layers for s in plan.stages}) > 1:
        raise SpecError(f"{problem.engine.name} cuts pipeline stages evenly, so stages chosen one by one cannot be written")
    out: dict[str, Any] = {"chunks": tuple(s.layers[c] for c in range(len(plan.stages[0].layers)) for s in plan.stages)}
    if plan.stages[0].offloaded:
        return {"offloaded_layers": plan.stages[0].offloaded}
    if plan.strategy.recompute == RECOMPUTE.index("full"):
        out["recompute_first"] = tuple(_first(s.layers, sum(s.recomputed.values())) for s in plan.stages)
    return out


def _first(layers: Sequence[int], total: int) -> int:
    """First layers of every chunk that make up ``total``."""
    return next(n for n in range(max(layers) + 1) if sum(min(n, c) for c in layers) >= total)


def export_ranked(args: argparse.Namespace, result: SearchResult, host: Host) -> None:
    """Write the files of ``--export`` for the plan of ``--export-plan``, and list them.

    Raises:
        SpecError: there are fewer plans.
    """
    k = args.export_plan or 1
    if k > len(result.plans):
        raise SpecError(f"--export-plan {k}: the answer holds {len(result.plans)} strategies; --top {k} would hold more")
    paths = export_plan(args, result.problem, result.plans[k - 1], host, args.export)
    out = sys.stderr if args.json else sys.stdout
    print(f"\nLaunch files of {result.plans[k - 1].strategy}:", file=out)
    for path in paths:
        print(f"  {path}", file=out)


def model_options(args: argparse.Namespace, host: Host) -> dict[str, Any]:
    """``model`` and ``config`` for the export hook: what the engine loads, and the fields of its config file."""
    from autoparallel_core.reading.source import from_catalogue, looks_like_path, read_config_files

    source = args.model_path or args.model
    if not source:
        return {"model": None, "config": {}}
    if args.model_path or looks_like_path(source):
        path = Path(source).expanduser().resolve()
        _, config, _ = read_config_files(path)
        directory = path if path.is_dir() else path.parent if path.name == "config.json" else None
        return {"model": str(directory or path.stem), "config": config}
    name, config = from_catalogue(source, host.catalogue())
    return {"model": name, "config": config}


def figures(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The prediction in a sentence, for the head of every file."""
    per_gpu = f"{plan.memory.reserved_bytes / 1e9:,.1f} of {plan.memory.capacity_bytes / 1e9:,.1f} GB per GPU"
    if plan.training is not None:
        f = plan.training
        what = f"step {f.step_s:.3g} s, {f.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU {100 * f.mfu:.1f}%"
        batch = f"{problem.training.global_batch_size:,} sequences of {problem.training.seq_len:,} tokens per step"
        return (
            f"Predicted: {what}; {per_gpu} ({plan.verdict}). {batch}, {f.micro_batches:,} micro-batches.",
            *_nodes_by_kind(problem, plan),
        )
    assert plan.serving is not None, "a plan holds figures of one mode"
    s = plan.serving
    what = f"{s.output_tokens_per_s_per_gpu:,.0f} output tokens/s per GPU, TTFT {s.ttft_s:.3g} s, TPOT {1e3 * s.tpot_s:.3g} ms"
    return (f"Predicted: {what}; KV cache of {s.kv_tokens_per_instance:,} tokens per instance ({plan.verdict}).",)


def _nodes_by_kind(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Which node ranks must be of which kind of GPU: stages are runs of ranks, in order."""
    kinds = [(s.gpu, s.gpus) for s in plan.stages]
    if len({gpu for gpu, _ in kinds}) < 2:
        return ()
    runs, at = [], 0
    for gpu, run in groupby(kinds, key=lambda x: x[0]):
        n = sum(gpus for _, gpus in run)
        first, last = at // problem.cluster.gpus_per_node, (at + n - 1) // problem.cluster.gpus_per_node
        runs.append(f"{first} to {last} are {gpu}" if last > first else f"{first} is {gpu}")
        at += n
    return (f"Give nodes their rank by kind of GPU: {', '.join(runs)}.",)


def _question(args: argparse.Namespace, problem: Problem) -> str:
    from autoparallel_core.cli.asked import restated

    return restated(args, problem)
