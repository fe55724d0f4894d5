"""Which values each axis of a search takes when the engine's Space leaves it open, and why the others are left out.

Three limits are choices rather than laws, and an engine widens them by naming values in its Space:

* tp stays inside the scale-up domain (or the node, if that is larger): two collectives per layer over the slower
  network lose to pipeline and data parallelism. Serving may use up to four nodes, for models that one cannot hold.
* a context-parallel rank keeps at least ``MIN_TOKENS_PER_CP_RANK`` tokens of each sequence.
* a micro-batch has at most ``MAX_TOKENS_PER_MICRO_BATCH`` tokens per rank. By the shape efficiency of a matrix
  product, rows/(rows + 94), more rows gain less than 0.1%, while activations and the bubble grow in proportion.

The rest loses nothing: values that divide, and one representative of strategies that are the same run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from autoparallel_core.search.facts import routed_experts
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import RECOMPUTE

MIN_TOKENS_PER_CP_RANK = 1024
MAX_TOKENS_PER_MICRO_BATCH = 131_072
SERVING_TP_NODES = 4
MAX_ATTENTION_DP = 512
EVERY_INSTANCE_COUNT = 64
"""Numbers of instances up to this are all tried, larger ones in steps of three percent."""
PARTIAL_RECOMPUTE = (0.25, 0.5, 0.75)
"""Shares of a stage's layers under full recompute, between none and all of them."""


def divisors(n: int) -> tuple[int, ...]:
    """Ascending divisors of a positive integer."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(small + [n // d for d in reversed(small) if d * d != n])


def _chosen(values: Iterable[int], default: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values))) or tuple(sorted(set(default)))


def domain_ranks(problem: Problem) -> int:
    """GPUs that talk over the fast fabric: the scale-up domain, or a node where that is larger (PCIe boxes)."""
    return max(problem.cluster.gpu.scale_up_domain, problem.cluster.gpus_per_node)


def stage_slots(problem: Problem) -> int:
    """Most pipeline chunks a stack can be cut into: its layers, and the embedding and the loss as chunks of their own."""
    return problem.arch.num_layers + 2


def training_tp(problem: Problem, space: Space) -> tuple[int, ...]:
    limit = domain_ranks(problem)
    return _chosen(space.tp, (d for d in divisors(problem.cluster.n_gpus) if d <= limit))


def training_pp(problem: Problem, space: Space) -> tuple[int, ...]:
    limit = problem.arch.num_layers
    return _chosen(space.pp, (d for d in divisors(problem.cluster.n_gpus) if d <= limit))


def training_cp(problem: Problem, space: Space) -> tuple[int, ...]:
    seq = problem.training.seq_len
    default = (
        d
        for d in divisors(problem.cluster.n_gpus)
        if d == 1 or (seq % d == 0 and seq // d >= MIN_TOKENS_PER_CP_RANK)
    )  # fmt: skip
    return _chosen(space.cp, default)


def expert_parallel(problem: Problem, space: Space) -> tuple[int, ...]:
    """Divisors of the number of routed experts (of all their numbers, where layers differ)."""
    experts = routed_experts(problem.arch)
    return _chosen(space.ep, divisors(math.gcd(*experts)) if experts else (1,))


def instance_counts(most: int) -> tuple[int, ...]:
    """Numbers of instances up to ``most``: all the small ones, then steps of three percent."""
    counts = [*range(1, min(most, EVERY_INSTANCE_COUNT) + 1)]
    while counts[-1] < most:
        counts.append(min(math.ceil(counts[-1] * 1.03), most))
    return tuple(counts)


def virtual_pipeline(problem: Problem, space: Space, pp: int) -> tuple[int, ...]:
    """Chunks per rank of an interleaved schedule over ``pp`` stages.

    More chunks help only by making the largest chunk smaller, so for each size of it the smallest number of chunks
    stands for all (fewer sends, same bubble). Embedding and loss count as layers where the software splits so.
    """
    if pp == 1:
        return (1,)
    if space.vpp:
        return tuple(v for v in sorted(set(space.vpp)) if v == 1 or pp * v <= stage_slots(problem))
    layers = problem.arch.num_layers + 2 * problem.software.embedding_as_layer
    values = {-(-layers // (pp * largest)) for largest in range(1, -(-layers // pp) + 1)}
    return tuple(sorted(v for v in values if pp * v <= stage_slots(problem)))


def micro_batch_sizes(problem: Problem, space: Space) -> tuple[int, ...]:
    """Divisors of the global batch under the token limits; which of them fit a dp is for the product to decide."""
    w = problem.training
    limit = w.max_tokens_per_micro_batch
    default = divisors(w.global_batch_size)
    return tuple(m for m in _chosen(space.mbs, default) if limit is None or m * w.seq_len <= limit)


def recompute_options(problem: Problem, space: Space, stage_layers: int) -> tuple[tuple[int, int], ...]:
    """Pairs (recompute, recompute_layers); partial full recompute on a coarse grid of the stage's layers."""
    names = space.recompute or RECOMPUTE
    if not problem.training.recompute_allowed:
        names = ("none",)
    out: list[tuple[int, int]] = []
    for code, name in enumerate(RECOMPUTE):
        if name not in names:
            continue
        out.append((code, 0))
        if name == "full" and space.partial_recompute:
            some = {round(stage_layers * f) for f in PARTIAL_RECOMPUTE}
            out += [(code, n) for n in sorted(some) if 0 < n < stage_layers]
    return tuple(out)


def sharding_options(space: Space, ranks: int) -> tuple[tuple[int, int], ...]:
    """Pairs (zero, shard) for ``ranks`` = dp·cp. On one rank every stage is stage 0, which is kept alone."""
    stages = sorted(set(space.zero)) or [0, 1, 2, 3]
    if ranks == 1:
        return ((0, 1),)
    groups = [d for d in divisors(ranks) if d > 1] if space.hsdp else [ranks]
    return tuple((z, s) for z in stages for s in ([1] if z == 0 else groups))


def offload_options(problem: Problem, space: Space) -> tuple[int, ...]:
    """Where the optimizer state lives: as the user says, else as the engine can, else both."""
    wanted = problem.training.optimizer_cpu_offload
    able = _chosen(space.offload, (0, 1))
    if wanted is None:
        return able
    return tuple(v for v in able if v == int(wanted))
