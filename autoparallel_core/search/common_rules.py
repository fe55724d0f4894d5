"""Legality rules that several engines share, as factories: an engine names the source and the versions.

One expression serves a batch and a single strategy alike, because :class:`Strategy` and
:class:`StrategyBatch` have the same column names: ``lambda s: s.tp * s.cp`` is an int64[S] for the
one and an int for the other. A rule whose fact the model lacks (experts of a dense model) never breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.search.facts import (
    SHARDED_BY,
    QuantisedWidth,
    is_moe,
    kv_heads,
    quantised_widths,
    query_heads,
    routed_experts,
)
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from packaging.version import Version

    from autoparallel_core.spec.strategy import Strategy, StrategyBatch

Facts = Callable[[Problem], Sequence[int]]
"""The numbers that must divide; empty when the rule does not concern the model."""
Degree = Callable[[Any], Any]
"""A product of columns of a Strategy (int) or a StrategyBatch (int64[S])."""
Condition = Callable[[Problem, Any], Any]
"""True where something holds, for a Strategy (bool) or a StrategyBatch (bool[S])."""

COLUMN_TITLES = {"mbs": "micro-batch", "sp": "sequence parallelism", "attn_dp": "attention dp"}


# --- versions -------------------------------------------------------------------------------------------------


def parse_version(text: str) -> Version:
    """Read an engine version. Raises SpecError when it is not one."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        raise SpecError(f"engine version '{text}' is not a version number such as 0.12.1") from None


def holding(rules: Iterable[Rule], version: str) -> tuple[Rule, ...]:
    """The rules that hold for an engine version: ``since`` is inclusive, ``until`` exclusive."""
    v = parse_version(version)
    return tuple(
        r for r in rules if (r.since is None or v >= parse_version(r.since)) and (r.until is None or v < parse_version(r.until))
    )


# --- sentences ------------------------------------------------------------------------------------------------


def neighbours(value: int, legal: Callable[[int], bool], *, limit: int | None = None) -> list[int]:
    """The nearest legal values below and above ``value``, nearest first (up to ``limit``, 64 times the value without one)."""
    below = next((n for n in range(value - 1, 0, -1) if legal(n)), None)
    above = next((n for n in range(value + 1, (limit or 64 * value) + 1) if legal(n)), None)
    found = [n for n in (below, above) if n is not None]
    return sorted(found, key=lambda n: abs(n - value))


def instead(column: str, value: int, legal: Callable[[int], bool], *, limit: int | None = None) -> str:
    """``; tp 4 or 8 would do``, or nothing when no value would."""
    found = neighbours(value, legal, limit=limit)
    return f"; {column} {' or '.join(map(str, found))} would do" if found else ""


def product_text(strategy: Strategy, columns: Sequence[str]) -> str:
    """``tp 8 x cp 2 = 16``."""
    parts = [f"{COLUMN_TITLES.get(c, c)} {getattr(strategy, c)}" for c in columns]
    if len(parts) == 1:
        return parts[0]
    return f"{' × '.join(parts)} = {math.prod(getattr(strategy, c) for c in columns)}"


# --- factories ------------------------------------------------------------------------------------------------


def simple(
    rule_id: str,
    condition: Condition,
    sentence: Callable[[Problem, Strategy], str],
    source: str,
    *,
    since: str | None = None,
    until: str | None = None,
    modes: tuple[str, ...] = ("training", "inference"),
) -> Rule:
    """A rule from one expression that is true where the strategy is illegal (scalar results are broadcast to S)."""

    def broken(problem: Problem, batch: StrategyBatch) -> NDArray[np.bool_]:
        import numpy as np

        return np.ascontiguousarray(np.broadcast_to(np.asarray(condition(problem, batch), dtype=bool), (len(batch),)))

    return Rule(rule_id, broken, sentence, source, since=since, until=until, modes=modes)


def divisible(
    rule_id: str,
    what: str,
    facts: Facts,
    columns: Sequence[str],
    source: str,
    *,
    when: Condition | None = None,
    **bounds: Any,
) -> Rule:
    """Every fact is a multiple of the product of ``columns`` (where ``when`` holds)."""

    def degree(s: Any) -> Any:
        d = getattr(s, columns[0])
        for c in columns[1:]:
            d = d * getattr(s, c)
        return d

    def condition(problem: Problem, s: Any) -> Any:
        numbers = facts(problem)
        if not numbers:
            return False
        bad = math.gcd(*numbers) % degree(s) != 0
        return bad & when(problem, s) if when else bad

    def sentence(problem: Problem, s: Strategy) -> str:
        d = degree(s)
        n = next((n for n in facts(problem) if n % d), 0)
        first = columns[0]
        rest = d // getattr(s, first)
        hint = instead(first, getattr(s, first), lambda v: math.gcd(*facts(problem)) % (v * rest) == 0, limit=n)
        return f"{n} {what} cannot be divided by {product_text(s, columns)} (remainder {n % d}){hint}"

    return simple(rule_id, condition, sentence, source, **bounds)


def heads_divisible(source: str, columns: Sequence[str] = ("tp",), *, rule_id: str = "heads % tp", **bounds: Any) -> Rule:
    """Query heads are split over tp."""
    return divisible(rule_id, "query heads", lambda p: query_heads(p.arch), columns, source, **bounds)


def norm_groups_divisible(source: str, *, rule_id: str = "norm groups % tp", **bounds: Any) -> Rule:
    """A group norm over the heads (linear attention) stays inside one rank: its groups are split over tp whole."""

    def groups(problem: Problem) -> tuple[int, ...]:
        n = problem.arch.fact("norm_groups")
        return () if n is None else (n,)

    return divisible(rule_id, "groups of the output norm", groups, ("tp",), source, **bounds)


def kv_heads_divisible(source: str, *, rule_id: str = "kv heads % tp", facts: Facts | None = None, **bounds: Any) -> Rule:
    """Key/value heads are split over tp, never replicated."""
    return divisible(rule_id, "key/value heads", facts or (lambda p: kv_heads(p.arch)), ("tp",), source, **bounds)


def kv_heads_divisible_or_replicated(source: str, *, rule_id: str = "kv heads vs tp", **bounds: Any) -> Rule:
    """Key/value heads are a multiple of tp, or tp a multiple of them (then each head is held by several ranks)."""

    def bad(n: int, tp: Any) -> Any:
        return (n % tp != 0) & (tp % n != 0)

    def condition(problem: Problem, s: Any) -> Any:
        result: Any = False
        for n in kv_heads(problem.arch):
            result = bad(n, s.tp) | result
        return result

    def sentence(problem: Problem, s: Strategy) -> str:
        n = next((n for n in kv_heads(problem.arch) if bad(n, s.tp)), 0)
        hint = instead("tp", s.tp, lambda v: not any(bad(k, v) for k in kv_heads(problem.arch)))
        return f"{n} key/value heads are neither a multiple nor a divisor of tp {s.tp}{hint}"

    return simple(rule_id, condition, sentence, source, **bounds)


def experts_divisible(source: str, columns: Sequence[str] = ("ep",), *, rule_id: str = "experts % ep", **bounds: Any) -> Rule:
    """Routed experts are split over ep."""
    return divisible(rule_id, "routed experts", lambda p: routed_experts(p.arch), columns, source, **bounds)


def ep_needs_experts(source: str, *, rule_id: str = "ep needs experts", **bounds: Any) -> Rule:
    """A degree ep or etp above 1 has nothing to shard in a dense model."""
    return simple(
        rule_id,
        lambda p, s: (s.ep * s.etp > 1) & (not is_moe(p.arch)),
        lambda p, s: f"ep {s.ep} etp {s.etp} is set but {p.arch.name} has no routed experts; use ep 1 and etp 1",
        source,
        **bounds,
    )


def world_product(source: str, *, rule_id: str = "world size", **bounds: Any) -> Rule:
    """tp·cp·pp·dp (·attention dp) is the number of GPUs."""
    return simple(
        rule_id,
        lambda p, s: s.tp * s.cp * s.pp * s.dp * s.attn_dp != p.cluster.n_gpus,
        lambda p, s: (
            f"{product_text(s, [c for c in ('tp', 'cp', 'pp', 'dp', 'attn_dp') if c in ('tp', 'pp', 'dp') or getattr(s, c) > 1])}"
            f" GPUs, but the cluster has {p.cluster.n_gpus}{_dp_hint(p, s)}"
        ),
        source,
        **bounds,
    )


def _dp_hint(problem: Problem, s: Strategy) -> str:
    others = s.world // s.dp
    n = problem.cluster.n_gpus
    return f"; dp {n // others} would do" if n % others == 0 else f"; {n} % {others} = {n % others}, so no dp makes up for it"


def expert_grid(source: str, *, rule_id: str = "world % (etp ep pp)", **bounds: Any) -> Rule:
    """Experts live on a second grid over the same ranks: etp·ep·pp divides the world, the rest is expert-dp."""
    return simple(
        rule_id,
        lambda p, s: ((s.tp * s.cp * s.dp) % (s.etp * s.ep) != 0) & is_moe(p.arch),
        lambda _p, s: (
            f"etp {s.etp} × ep {s.ep} × pp {s.pp} = {s.etp * s.ep * s.pp} does not divide the {s.world} GPUs of "
            f"tp {s.tp} × cp {s.cp} × pp {s.pp} × dp {s.dp}"
            + instead("ep", s.ep, lambda v: (s.tp * s.cp * s.dp) % (s.etp * v) == 0, limit=s.world)
        ),
        source,
        **bounds,
    )


def batch_divisible(source: str, *, rule_id: str = "batch % (mbs dp)", **bounds: Any) -> Rule:
    """The global batch is a multiple of micro-batch × dp."""
    bounds.setdefault("modes", ("training",))
    what = "sequences of the global batch"
    return divisible(rule_id, what, lambda p: (p.training.global_batch_size,), ("mbs", "dp"), source, **bounds)


def sequence_divisible(
    source: str,
    degree: Degree,
    text: Callable[[Strategy], str],
    *,
    rule_id: str = "sequence % (2 cp tp)",
    **bounds: Any,
) -> Rule:
    """The sequence length is a multiple of ``degree``; ``text`` writes the product with its numbers."""
    bounds.setdefault("modes", ("training",))
    return simple(
        rule_id,
        lambda p, s: p.training.seq_len % degree(s) != 0,
        lambda p, s: (
            f"sequence length {p.training.seq_len} is not a multiple of {text(s)} (remainder {p.training.seq_len % degree(s)})"
        ),
        source,
        **bounds,
    )


def sequence_degree_text(strategy: Strategy) -> str:
    """``2 × cp 4 × tp 8 = 64``: what context parallelism with causal balancing and sequence parallelism split."""
    s = strategy
    parts = ([f"2 × cp {s.cp}"] if s.cp > 1 else []) + ([f"tp {s.tp}"] if s.sp and s.tp > 1 else [])
    degree = (2 * s.cp if s.cp > 1 else 1) * (s.tp if s.sp else 1)
    text = " × ".join(parts)
    return f"{text} = {degree}" if "×" in text else text


def shard_group(source: str, *, with_cp: bool = True, rule_id: str = "shard group", **bounds: Any) -> Rule:
    """The group that one copy of sharded state is spread over divides dp·cp, and holds whole cp groups if ``with_cp``."""

    def legal(s: Strategy, shard: int) -> bool:
        return (s.dp * s.cp) % shard == 0 and (not with_cp or shard % s.cp == 0)

    def condition(_problem: Problem, s: Any) -> Any:
        bad = (s.dp * s.cp) % s.shard != 0
        if with_cp:
            bad = bad | (s.shard % s.cp != 0)
        return (s.zero > 0) & bad

    def sentence(_problem: Problem, s: Strategy) -> str:
        ranks = s.dp * s.cp
        why = (
            f"does not divide dp {s.dp} × cp {s.cp} = {ranks}" if ranks % s.shard else f"does not hold whole groups of cp {s.cp}"
        )
        return f"shard group {s.shard} {why}{instead('shard', s.shard, lambda v: legal(s, v), limit=ranks)}"

    return simple(rule_id, condition, sentence, source, **bounds)


def stages_at_most_layers(source: str, *, rule_id: str = "pp ≤ layers", **bounds: Any) -> Rule:
    """Every pipeline (virtual) stage holds at least one layer."""
    return simple(
        rule_id,
        lambda p, s: s.pp * s.vpp > p.arch.num_layers,
        lambda p, s: f"pp {s.pp} × vpp {s.vpp} = {s.pp * s.vpp} stages, but {p.arch.name} has {p.arch.num_layers} layers",
        source,
        **bounds,
    )


def only_value(column: str, value: int, why: str, source: str, *, rule_id: str | None = None, **bounds: Any) -> Rule:
    """``column`` has one legal value; ``why`` completes "column is N, but ..."."""
    return simple(
        rule_id or f"{column} = {value}",
        lambda _p, s: getattr(s, column) != value,
        lambda _p, s: f"{COLUMN_TITLES.get(column, column)} is {getattr(s, column)}, but {why}; {column} {value} would do",
        source,
        **bounds,
    )


# --- quantised widths -----------------------------------------------------------------------------------------


def quantised_width_aligned(
    source: str,
    degrees: dict[str, Degree] | None = None,
    *,
    padded_experts: Sequence[str] = (),
    rule_id: str = "quantised width % block",
    **bounds: Any,
) -> Rule:
    """Every sharded width per rank is a multiple of the checkpoint's quantisation block.

    ``degrees`` says by which degree each axis name is cut when it differs from tp (dense axes) and etp (experts).
    Key/value heads beyond their number are replicated, so that a rank keeps at least one whole head.
    ``padded_experts`` names formats whose expert kernels take whole blocks per rank and pad the last one.
    """
    cut: dict[str, Degree] = {name: _column(col) for name, col in SHARDED_BY.items()} | (degrees or {})

    def degree(w: QuantisedWidth, s: Any) -> Any:
        import numpy as np

        d = cut[w.axis](s)
        return np.minimum(d, w.units) if w.axis == "kv_heads" else d

    def bad(w: QuantisedWidth, s: Any) -> Any:
        if w.axis == "expert_ffn" and w.format in padded_experts:
            return False
        d = degree(w, s)
        return (d > 1) & (w.size % (d * w.block) != 0)

    def condition(problem: Problem, s: Any) -> Any:
        result: Any = False
        for w in quantised_widths(problem.arch):
            result = bad(w, s) | result
        return result

    def sentence(problem: Problem, s: Strategy) -> str:
        cuts: dict[tuple[str, int, int, str, int], list[str]] = {}
        for w in quantised_widths(problem.arch):
            if bad(w, s):
                modules = cuts.setdefault((SHARDED_BY[w.axis], w.size, int(degree(w, s)), w.format, w.block), [])
                modules.extend({w.module} - set(modules))
        return "; ".join(
            f"{_listed(modules)} of width {size} over {column} {'give' if len(modules) > 1 else 'gives'} "
            f"{size / d:g} on each of {d} ranks, not a multiple of the {fmt} block {block}"
            for (column, size, d, fmt, block), modules in cuts.items()
        )

    return simple(rule_id, condition, sentence, source, **bounds)


def _listed(names: Sequence[str], most: int = 3) -> str:
    """``a``, ``a and b``, ``a, b, c and 2 more matrices``."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more matrices"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _column(name: str) -> Degree:
    return lambda s: getattr(s, name)
