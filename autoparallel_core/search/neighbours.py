"""What one change would do: every strategy that differs from a given one along a single axis, priced in one batch.

A degree cannot change alone, the number of GPUs being fixed: another degree makes up for it, the data-parallel
one where it can, else the pipeline (training) or the attention's data-parallel one (inference).

Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autoparallel_core.cost.layer_sum import CAUSES
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.search.facts import routed_experts
from autoparallel_core.search.rules import apply_rules, rules_for
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy, StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

_TRAINING_DEGREES = ("tp", "pp", "cp")
STAGE_CAUSES = frozenset({*CAUSES, "recompute", "pp_p2p"})
"""Causes of the step that are the slowest stage's own work."""
_SERVING_DEGREES = ("tp", "pp", "attn_dp")


@frozen
class Neighbour:
    """One change and its effect, against the strategy it starts from."""

    change: str
    """``tp 8→4, dp 2→4``."""
    strategy: Strategy
    throughput_ratio: float
    """Tokens per second and GPU over those of the start; above 1 is faster."""
    seconds_change: Mapping[str, float]
    """By cause, seconds that the change adds (negative: saves); what stays the same is left out.

    Causes of a pipeline are those of its slowest stage. Where another stage becomes the slowest they do not compare, and
    their sum is the one cause ``slowest_stage``.
    """
    memory_change_bytes: float
    """Reserved bytes on the deciding stage."""
    fits: bool
    shortfall_bytes: float = 0.0
    """Device memory missing per GPU; 0 when that is not what is missing."""
    host_shortfall_bytes: float = 0.0
    """Host memory missing per node."""
    slowest: str = ""
    """Which stage is the slowest after the change, where that is another than before."""


def neighbours(problem: Problem, start: Strategy, host: Host) -> list[Neighbour]:
    """All legal single changes of ``start``, fastest first.

    Raises:
        SpecError: the problem cannot be priced.
    """
    changed = [(what, s) for what, s in dict(_changes(problem, start)).items() if s != start and _possible(problem, start, s)]
    if not changed:
        return []
    batch = StrategyBatch.of([start, *(s for _, s in changed)])
    legal, _ = apply_rules(problem, batch.take(slice(1, None)), rules_for(problem, host))
    kept = [i + 1 for i, ok in enumerate(legal) if ok]
    whats = [changed[i - 1][0] for i in kept]
    priced = evaluate(problem, batch.take([0, *kept]), host)
    base = float(priced.tokens_per_s_per_gpu[0])
    out = []
    for row, what in enumerate(whats, start=1):
        delta, slowest = _compared(priced, row)
        reserved = float(priced.reserved_bytes[row])
        over = reserved - priced.capacity_bytes
        host_over = float(priced.host_bytes_per_node[row]) - problem.cluster.host_memory_bytes_per_node
        out.append(
            Neighbour(
                change=what,
                strategy=priced.batch[row],
                throughput_ratio=float(priced.tokens_per_s_per_gpu[row]) / base if base else 0.0,
                seconds_change=delta,
                memory_change_bytes=reserved - float(priced.reserved_bytes[0]),
                fits=bool(priced.fits[row]),
                shortfall_bytes=max(over, 0.0),
                host_shortfall_bytes=max(host_over, 0.0),
                slowest=slowest,
            )
        )
    return sorted(out, key=lambda n: (-n.throughput_ratio, n.change))


def _compared(priced: Evaluation, row: int) -> tuple[dict[str, float], str]:
    """Seconds that ``row`` adds to row 0 by cause, and the stage that is the slowest now, where it is another."""
    delta = {cause: float(v[row] - v[0]) for cause, v in priced.seconds.items() if v[row] != v[0]}
    if priced.training is None or (now := _role(priced, row)) == _role(priced, 0):
        return delta, ""
    moved = sum(delta.pop(cause) for cause in tuple(delta) if cause in STAGE_CAUSES)
    words = {(True, True): "the only one", (True, False): "the first", (False, True): "the last"}
    return {"slowest_stage": moved, **delta}, words.get(now, "an inner one")


def _role(priced: Evaluation, row: int) -> tuple[bool, bool]:
    """Whether the slowest stage holds the embedding, and whether it holds the loss."""
    first, last = (bool(priced.seconds[c][row] > 0) if c in priced.seconds else False for c in ("embedding", "loss"))
    return first, last


def _changes(problem: Problem, start: Strategy) -> Iterator[tuple[str, Strategy]]:
    degrees = _TRAINING_DEGREES if problem.mode == "training" else _SERVING_DEGREES
    makeup = ("dp", "pp") if problem.mode == "training" else ("dp", "attn_dp", "pp")
    for axis in degrees:
        for value in _around(getattr(start, axis)):
            for other in makeup:
                if other != axis and (s := _traded(start, axis, value, other)) is not None:
                    yield _named(start, s, (axis, other)), s
                    break
    for axis in ("ep", "etp") if problem.mode == "training" else ("ep",):
        for value in _around(getattr(start, axis)):
            yield _named(start, s := evolve(start, **{axis: value}), (axis,)), s
    if problem.mode == "inference":
        return
    for vpp in sorted({start.vpp // 2, start.vpp * 2, start.vpp - 1, start.vpp + 1, 1} - {0}):
        yield _named(start, s := evolve(start, vpp=vpp), ("vpp",)), s
    for mbs in _around(start.mbs):
        yield _named(start, s := evolve(start, mbs=mbs), ("mbs",)), s
    for zero in range(4 if start.dp * start.cp > 1 else 0):  # one rank has nobody to share with
        yield _named(start, s := evolve(start, zero=zero, shard=start.dp * start.cp if zero else 1), ("zero",)), s
    yield from _recompute(problem, start)
    if problem.training.optimizer_cpu_offload is None:
        yield f"optimizer offload {'off' if start.offload else 'on'}", evolve(start, offload=1 - start.offload)
    if start.tp > 1:
        yield f"sequence parallel {'off' if start.sp else 'on'}", evolve(start, sp=1 - start.sp)


def _around(value: int) -> list[int]:
    return [value * 2] + ([value // 2] if value % 2 == 0 else [])


def _traded(start: Strategy, axis: str, value: int, other: str) -> Strategy | None:
    """``axis`` set to ``value`` with ``other`` making up for it; None where that does not divide."""
    product = getattr(start, axis) * getattr(start, other)
    if product % value:
        return None
    s = evolve(start, **{axis: value, other: product // value})
    if s.tp == 1:
        s = evolve(s, sp=0)
    elif start.tp == 1:
        s = evolve(s, sp=1)
    if start.zero and start.shard == start.dp * start.cp:
        s = evolve(s, shard=s.dp * s.cp)
    if s.pp == 1:
        s = evolve(s, vpp=1)
    return s


def _recompute(problem: Problem, start: Strategy) -> Iterator[tuple[str, Strategy]]:
    if not problem.training.recompute_allowed:
        return
    here = _recompute_name(start)
    per_stage = -(-problem.arch.num_layers // start.pp)
    partial = (2, max(1, per_stage // 2)) if per_stage > 1 else (2, 0)
    for code, layers in ((0, 0), (1, 0), (2, 0), partial):
        s = evolve(start, recompute=code, recompute_layers=layers)
        yield f"recompute {here}→{_recompute_name(s)}", s


def _recompute_name(s: Strategy) -> str:
    return RECOMPUTE[s.recompute] + (f" for {s.recompute_layers} layers of a stage" if s.recompute_layers else "")


def _named(start: Strategy, s: Strategy, axes: Sequence[str]) -> str:
    return ", ".join(f"{a} {getattr(start, a)}→{getattr(s, a)}" for a in axes)


def _possible(problem: Problem, start: Strategy, s: Strategy) -> bool:
    """Divisibility that no engine can lift; the engine's rules are asked afterwards."""
    if s.world != start.world or s.shard < 1:
        return False
    experts = routed_experts(problem.arch)
    if any(e % s.ep for e in experts) or (not experts and s.ep * s.etp > 1):
        return False
    if problem.mode == "inference":
        return s.pp <= problem.arch.num_layers
    w = problem.training
    limit = w.max_tokens_per_micro_batch
    return (
        w.global_batch_size % (s.mbs * s.dp) == 0
        and s.world % (s.etp * s.ep * s.pp) == 0
        and s.pp * s.vpp <= problem.arch.num_layers + 2
        and (limit is None or s.mbs * w.seq_len <= limit)
        and (s.shard == 1 or (s.dp * s.cp) % s.shard == 0)
    )
