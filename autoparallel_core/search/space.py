"""Every strategy of a problem, as batches: divisibility first, then the engine's rules, then the rest of the product.

A strategy is a *layout* (degrees, virtual stages, micro-batch size) times *options* (ZeRO stage and shard group,
recompute, offload). Layouts are few, options many, and most rules speak of layouts only: those are asked once per
layout, before its options are multiplied out. A rule that reads an option is asked on whole strategies.

Axis legend: S strategies, R layouts, O options of one layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.search import axes
from autoparallel_core.search.facts import is_moe
from autoparallel_core.search.product import IntArray, Table, cross, cross_by, rows_where, unit
from autoparallel_core.search.rules import ReadsOptions, apply_rules, first_broken
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import COLUMNS, StrategyBatch

OPTIONS = ("shard", "zero", "recompute", "recompute_layers", "offload")
LAYOUT = tuple(c for c in COLUMNS if c not in OPTIONS)
CHUNK = 32_768
"""Strategies per batch: long enough to hide numpy's call overhead, short enough for the cache."""
LAYOUT_SLICE = 65_536


@define
class Tally:
    """What became of the space while it was enumerated."""

    enumerated: int = 0
    """Strategies after divisibility."""
    refused: dict[str, int] = field(factory=dict)
    """Strategies refused, by the first rule each breaks (rules on layouts come first)."""
    total: int = 0
    """Strategies that passed the rules on layouts, known before the first batch (for a progress bar)."""

    def refuse(self, counts: dict[str, int]) -> None:
        for rule, n in counts.items():
            self.refused[rule] = self.refused.get(rule, 0) + n


def enumerate_space(
    problem: Problem,
    space: Space,
    rules: Sequence[Rule] = (),
    *,
    tally: Tally | None = None,
    chunk: int = CHUNK,
) -> Iterator[StrategyBatch]:
    """Batches of the strategies of ``space`` that break none of ``rules`` (pass () for all of them).

    Args:
        problem: the question; its world, batch, model and workload decide what divides.
        space: values per axis; an empty axis takes the core's choice (:mod:`autoparallel_core.search.axes`).
        rules: legality rules; what they refuse is counted in ``tally``.
        tally: filled while iterating.
        chunk: about how many strategies a batch holds.

    Raises:
        PluginContract: a rule returned something other than bool[S].
    """
    tally = tally if tally is not None else Tally()
    table = layouts(problem, space)
    groups = _option_groups(problem, space, table)
    tally.enumerated = sum(len(rows) * len(options["zero"]) for rows, options in groups)
    layout_rules, option_rules, first = _refused_layouts(problem, table, rules)
    survivors: list[tuple[Table, Table]] = []
    for rows, options in groups:
        n_options = len(options["zero"])
        by_rule = np.bincount(first[rows] + 1, minlength=len(layout_rules) + 1)[1:]
        tally.refuse({r.id: int(n) * n_options for r, n in zip(layout_rules, by_rule, strict=True) if n})
        kept_rows = rows[first[rows] < 0]
        tally.total += len(kept_rows) * n_options
        survivors.append((rows_where(table, kept_rows), options))
    for batch in _batches(survivors, chunk):
        legal, refused = apply_rules(problem, batch, option_rules)
        tally.refuse(refused)
        kept = batch if legal.all() else batch.take(legal)
        if len(kept):
            yield kept


def count_space(problem: Problem, space: Space) -> int:
    """Strategies of the space after divisibility, without making them."""
    table = layouts(problem, space)
    return sum(len(rows) * len(options["zero"]) for rows, options in _option_groups(problem, space, table))


# --- layouts --------------------------------------------------------------------------------------------------


def layouts(problem: Problem, space: Space) -> Table:
    """Every layout that divides: int64[R] per column of LAYOUT."""
    return training_layouts(problem, space) if problem.mode == "training" else inference_layouts(problem, space)


def training_layouts(problem: Problem, space: Space) -> Table:
    """Every (tp, sp, pp, vpp, cp, ep, etp, dp, mbs): int64[R] per column.

    The world is tp·cp·pp·dp; experts fold over the same ranks, so etp·ep must divide tp·cp·dp.
    """
    t = _data_parallel(problem, space)
    t = rows_where(t, problem.training.global_batch_size % t["dp"] == 0)
    t = cross(t, "mbs", axes.micro_batch_sizes(problem, space), lambda t: _micro_batch_ok(problem, space, t))
    t = cross_by(t, "vpp", "pp", lambda pp: axes.virtual_pipeline(problem, space, pp))
    t = cross(t, "sp", space.sp or (0, 1), lambda t: (t["sp"] == 0) | (t["tp"] > 1), fallback=0)
    if is_moe(problem.arch):
        t = cross(t, "ep", axes.expert_parallel(problem, space), lambda t: (t["tp"] * t["cp"] * t["dp"]) % t["ep"] == 0)
        t = cross_by(t, "etp", "tp", lambda tp: tuple(v for v in space.etp or axes.divisors(tp) if tp % v == 0))
        t = rows_where(t, (t["tp"] * t["cp"] * t["dp"]) % (t["ep"] * t["etp"]) == 0)
        if problem.engine.moe_grid == "tp_or_ep":
            t = rows_where(t, (t["ep"] == 1) | (t["etp"] == 1))
    return _complete(t)


def _data_parallel(problem: Problem, space: Space) -> Table:
    """Every (tp, pp, cp) whose product divides the world, with the dp that fills it."""
    world = problem.cluster.n_gpus
    t = cross(unit(), "tp", axes.training_tp(problem, space), lambda t: world % t["tp"] == 0)
    t = cross(t, "pp", axes.training_pp(problem, space), lambda t: world % (t["tp"] * t["pp"]) == 0)
    t = cross(t, "cp", axes.training_cp(problem, space), lambda t: world % (t["tp"] * t["pp"] * t["cp"]) == 0)
    return t | {"dp": world // (t["tp"] * t["pp"] * t["cp"])}


def inference_layouts(problem: Problem, space: Space) -> Table:
    """Every (tp, pp, attn_dp, ep) of one instance, with as many instances (dp) as the cluster holds: int64[R].

    Where the cheapest deployment for a request rate is asked for, with every number of instances up to that.

    An instance is tp·attn_dp·pp GPUs; experts split over its tp·attn_dp ranks, ep ways by expert and the rest by
    width (etp). GPUs left over by whole instances stay idle.
    """
    n = problem.cluster.n_gpus
    tp_limit = axes.SERVING_TP_NODES * axes.domain_ranks(problem)
    steps = sorted({*axes.divisors(n), *(1 << i for i in range(n.bit_length()))})
    t = cross(unit(), "tp", space.tp or [d for d in steps if d <= tp_limit], lambda t: t["tp"] <= n)
    moe = is_moe(problem.arch)
    default_dp = [d for d in steps if d <= axes.MAX_ATTENTION_DP] if moe else [1]
    t = cross(t, "attn_dp", space.attn_dp or default_dp, lambda t: t["tp"] * t["attn_dp"] <= n)
    stages = space.pp or [d for d in steps if d <= problem.arch.num_layers]
    t = cross(t, "pp", stages, lambda t: t["tp"] * t["attn_dp"] * t["pp"] <= n)
    t["dp"] = n // (t["tp"] * t["attn_dp"] * t["pp"])
    if problem.inference.goal == "cost" and problem.inference.paced:  # fewer instances may do
        t = cross_by(t | {"most": t["dp"]}, "dp", "most", axes.instance_counts)
    if moe:
        t = cross(t, "ep", axes.expert_parallel(problem, space), lambda t: (t["tp"] * t["attn_dp"]) % t["ep"] == 0)
        t["etp"] = t["tp"] * t["attn_dp"] // t["ep"]
        if problem.engine.moe_grid == "tp_or_ep":
            t = rows_where(t, (t["ep"] == 1) | (t["etp"] == 1))
        if space.etp:
            t = rows_where(t, np.isin(t["etp"], space.etp))
    t["sp"] = (t["tp"] > 1).astype(np.int64)
    return _complete(t)


def _micro_batch_ok(problem: Problem, space: Space, t: Table) -> NDArray[np.bool_]:
    """mbs·dp divides the batch; the core's own choice also keeps to the token limit and, in a pipeline, to 2^a and 3·2^a."""
    work = problem.training
    ok: NDArray[np.bool_] = work.global_batch_size % (t["mbs"] * t["dp"]) == 0
    if space.mbs:
        return ok
    ok &= (t["mbs"] == 1) | (t["mbs"] * work.seq_len <= axes.MAX_TOKENS_PER_MICRO_BATCH * t["cp"])
    third = np.where(t["mbs"] % 3 == 0, t["mbs"] // 3, t["mbs"])
    return np.asarray(ok & ((t["pp"] == 1) | (third & (third - 1) == 0)))


def _complete(t: Table) -> Table:
    """All layout columns, the missing ones at 1 (sequence parallelism at 0)."""
    n = len(t["tp"])
    return {c: t[c] if c in t else np.full(n, 0 if c == "sp" else 1, dtype=np.int64) for c in LAYOUT}


# --- options --------------------------------------------------------------------------------------------------


def _option_groups(problem: Problem, space: Space, t: Table) -> list[tuple[IntArray, Table]]:
    """Rows of the layout table that share their options, each group with its options (int64[O] per column)."""
    n = len(t["tp"])
    if problem.mode == "inference":
        return [(np.arange(n), _option_table([(0, 1)], [(0, 0)], [0]))]
    ranks = t["dp"] * t["cp"]
    layers = -(-problem.arch.num_layers // t["pp"])
    width = problem.arch.num_layers + 1
    keys, inverse = np.unique(ranks * width + layers, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(len(keys) + 1))
    offload = axes.offload_options(problem, space)
    out = []
    for i, key in enumerate(keys):
        shards = axes.sharding_options(space, int(key) // width)
        recompute = axes.recompute_options(problem, space, int(key) % width)
        out.append((order[bounds[i] : bounds[i + 1]], _option_table(shards, recompute, offload)))
    return out


def _option_table(
    shards: Sequence[tuple[int, int]], recompute: Sequence[tuple[int, int]], offload: Sequence[int]
) -> Table:  # fmt: skip
    rows = [(z, s, r, n, o) for z, s in shards for r, n in recompute for o in offload]
    a = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
    names = ("zero", "shard", "recompute", "recompute_layers", "offload")
    return {c: np.ascontiguousarray(a[:, i]) for i, c in enumerate(names)}


def _refused_layouts(
    problem: Problem, t: Table, rules: Sequence[Rule]
) -> tuple[list[Rule], list[Rule], NDArray[np.int16]]:  # fmt: skip
    """Rules that read layouts only, the other rules, and the first of the former that each row breaks (-1: none)."""
    on_layouts, on_options = list(rules), list[Rule]()
    n = len(t["tp"])
    while True:
        first = np.full(n, -1, dtype=np.int16)
        try:
            for start in range(0, n, LAYOUT_SLICE):
                part = StrategyBatch({c: v[start : start + LAYOUT_SLICE] for c, v in t.items()})
                first[start : start + LAYOUT_SLICE] = first_broken(problem, part, on_layouts)
        except ReadsOptions as e:
            on_layouts = [r for r in on_layouts if r is not e.rule]
            on_options = [r for r in rules if not any(r is o for o in on_layouts)]
        else:
            return on_layouts, on_options, first


def _batches(groups: Sequence[tuple[Table, Table]], chunk: int) -> Iterator[StrategyBatch]:
    """Multiply layouts with their options and cut the result into batches of about ``chunk``."""
    waiting: list[StrategyBatch] = []
    size = 0
    for layouts, options in groups:
        n_options = len(options["zero"])
        if not n_options:
            continue
        rows = max(1, chunk // n_options)
        for start in range(0, len(layouts["tp"]), rows):
            part = {c: v[start : start + rows] for c, v in layouts.items()}
            n = len(part["tp"])
            columns = {c: np.repeat(v, n_options) for c, v in part.items()} | {c: np.tile(v, n) for c, v in options.items()}
            waiting.append(StrategyBatch({c: columns[c] for c in COLUMNS}))
            size += n * n_options
            if size >= chunk:
                yield StrategyBatch.concat(waiting) if len(waiting) > 1 else waiting[0]
                waiting, size = [], 0
    if waiting:
        yield StrategyBatch.concat(waiting)


def require_some(problem: Problem, space: Space, tally: Tally) -> None:
    """Raise SpecError when nothing at all divides: the batch or the axes' values cannot fill the cluster."""
    if tally.enumerated:
        return
    n = problem.cluster.n_gpus
    if problem.mode == "training":
        batch = problem.training.global_batch_size
        if not len(_data_parallel(problem, space)["dp"]):
            raise SpecError(f"{n} GPUs cannot be split by the degrees that {problem.engine.name} offers for this model")
        raise SpecError(
            f"no split of {n} GPUs gives a data-parallel size that divides the global batch of {batch} sequences; "
            f"a batch of {-(-batch // n) * n} would do"
        )
    raise SpecError(f"no instance layout of {problem.engine.name} fits on {n} GPUs")
