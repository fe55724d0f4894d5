"""Legality rules that serving engines share, as factories like those of :mod:`autoparallel_core.search.common_rules`.

Columns when serving: one instance is tp·attn_dp·pp GPUs, experts split ep ways by expert and etp ways by width over
its tp·attn_dp ranks, dp counts instances. Engines write the same layouts in other words; their rules say which
layouts those words can express.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.cost.serving_policy import asked_format
from autoparallel_core.search.common_rules import instead, product_text, simple
from autoparallel_core.search.facts import is_moe, once_per_model
from autoparallel_core.spec.quantization import weight_format

if TYPE_CHECKING:
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.rule import Rule
    from autoparallel_core.spec.strategy import Strategy

SERVING = ("inference",)
Degree = Callable[[Any], Any]


def instances_fit(source: str, *, rule_id: str = "instances ≤ GPUs", **bounds: Any) -> Rule:
    """All instances together need no more GPUs than there are."""
    return simple(
        rule_id,
        lambda p, s: s.tp * s.attn_dp * s.pp * s.dp > p.cluster.n_gpus,
        lambda p, s: (
            f"{product_text(s, [c for c in ('tp', 'attn_dp', 'pp', 'dp') if c != 'attn_dp' or s.attn_dp > 1])} GPUs, "
            f"but the cluster has {p.cluster.n_gpus}"
        ),
        source,
        modes=SERVING,
        **bounds,
    )


def instances_fill_nodes(source: str, *, rule_id: str = "instance vs node", **bounds: Any) -> Rule:
    """An instance larger than a node fills whole nodes; a smaller one divides a node."""

    def bad(p: Problem, s: Any) -> Any:
        per_node, size = min(p.cluster.gpus_per_node, p.cluster.n_gpus), s.tp * s.attn_dp * s.pp
        return (size > per_node) & (size % per_node != 0)

    return simple(
        rule_id,
        bad,
        lambda p, s: (
            f"one instance of {s.tp * s.attn_dp * s.pp} GPUs is larger than a node of {p.cluster.gpus_per_node} "
            f"and no multiple of it"
        ),
        source,
        modes=SERVING,
        **bounds,
    )


def expert_grid(source: str, *, all_or_nothing: bool = False, rule_id: str = "ep etp = tp attn_dp", **bounds: Any) -> Rule:
    """Experts use all of a stage's ranks: ep·etp = tp·attn_dp; with ``all_or_nothing`` either ep or etp is 1."""

    def bad(p: Problem, s: Any) -> Any:
        off = s.ep * s.etp != s.tp * s.attn_dp
        if all_or_nothing:
            off = off | ((s.ep > 1) & (s.etp > 1))
        return off & is_moe(p.arch)

    def sentence(_p: Problem, s: Strategy) -> str:
        ranks = s.tp * s.attn_dp
        choice = f"ep {ranks} etp 1 or ep 1 etp {ranks}" if all_or_nothing else f"etp {ranks // s.ep if ranks % s.ep == 0 else 1}"
        return (
            f"ep {s.ep} × etp {s.etp} = {s.ep * s.etp} does not spread the experts over tp {s.tp} × attention dp {s.attn_dp} "
            f"= {ranks} ranks{' by expert or by width alone' if all_or_nothing else ''}; {choice} would do"
        )

    return simple(rule_id, bad, sentence, source, modes=SERVING, **bounds)


def attention_dp_needs_experts(source: str, *, rule_id: str = "attention dp needs experts", **bounds: Any) -> Rule:
    """Attention data parallelism shares experts between ranks; a dense model has none to share, so replicas are instances."""
    return simple(
        rule_id,
        lambda p, s: (s.attn_dp > 1) & (not is_moe(p.arch)),
        lambda p, s: (
            f"attention dp {s.attn_dp} shares experts between ranks, but {p.arch.name} has none; "
            f"use dp {s.dp * s.attn_dp} instances"
        ),
        source,
        modes=SERVING,
        **bounds,
    )


def columns_at_one(columns: Sequence[str], why: str, source: str, *, rule_id: str, **bounds: Any) -> Rule:
    """Columns that this engine has no words for."""

    def bad(_p: Problem, s: Any) -> Any:
        result: Any = False
        for c in columns:
            result = (getattr(s, c) > 1) | result
        return result

    return simple(
        rule_id,
        bad,
        lambda _p, s: f"{', '.join(f'{c} {getattr(s, c)}' for c in columns if getattr(s, c) > 1)}: {why}",
        source,
        modes=SERVING,
        **bounds,
    )


def speculation_without_pipeline(source: str, *, rule_id: str = "pp with speculation", **bounds: Any) -> Rule:
    """Speculative decoding runs on one pipeline stage only."""
    return simple(
        rule_id,
        lambda p, s: (s.pp > 1) & (p.inference.accepted_length > 1),
        lambda p, s: (
            f"pp {s.pp} with speculative decoding (mean accepted length {p.inference.accepted_length:g}); "
            "pp 1 would do, or no speculation"
        ),
        source,
        modes=SERVING,
        **bounds,
    )


# --- widths ---------------------------------------------------------------------------------------------------


@once_per_model
def sharded_widths(arch: ModelArch) -> tuple[tuple[str, int, str, bool], ...]:
    """``(axis, units, module, linear and quantisable)`` of every feed-forward width, once each."""
    found: dict[tuple[str, int, str, bool], None] = {}
    for layer in dict.fromkeys(arch.layers + arch.mtp):
        for w in layer.weights():
            for a in w.axes:
                if a.name in ("ffn", "expert_ffn") and w.linear:
                    found[a.name, a.size, w.module, w.format is None] = None
    return tuple(found)


def _cut(axis: str, s: Any, dense: Degree) -> Any:
    return s.etp if axis == "expert_ffn" else dense(s)


def widths_divisible(source: str, *, dense: Degree = lambda s: s.tp, rule_id: str = "widths % tp", **bounds: Any) -> Rule:
    """Feed-forward widths divide: dense and shared-expert ones by ``dense`` (tp), routed experts' by etp."""

    def bad(p: Problem, s: Any) -> Any:
        result: Any = False
        for axis, units, _, _ in sharded_widths(p.arch):
            result = (units % _cut(axis, s, dense) != 0) | result
        return result

    def sentence(p: Problem, s: Strategy) -> str:
        axis, units, module, _ = next(w for w in sharded_widths(p.arch) if w[1] % _cut(w[0], s, dense))
        d = _cut(axis, s, dense)
        column = "etp" if axis == "expert_ffn" else "tp"
        return f"{module} of width {units} cannot be divided over {d} ranks (remainder {units % d})" + (
            instead(column, d, lambda v: units % v == 0, limit=units) if d == getattr(s, column) else ""
        )

    return simple(rule_id, bad, sentence, source, modes=SERVING, **bounds)


def asked_precision_aligned(
    source: str, *, dense: Degree = lambda s: s.tp, rule_id: str = "asked precision % block", **bounds: Any
) -> Rule:
    """As ``quantised_width_aligned`` for a precision the user asks for instead of the checkpoint's."""

    def block(p: Problem) -> int:
        asked = asked_format(p)
        return 1 if asked is None else weight_format(asked).block or 1

    def hit(width: tuple[str, int, str, bool], p: Problem, s: Any) -> Any:
        d = _cut(width[0], s, dense)
        return (d > 1) & (width[1] % (d * block(p)) != 0)

    def bad(p: Problem, s: Any) -> Any:
        result: Any = False
        if block(p) > 1:
            for w in sharded_widths(p.arch):
                result = hit(w, p, s) | result
        return result

    def sentence(p: Problem, s: Strategy) -> str:
        w = next(w for w in sharded_widths(p.arch) if hit(w, p, s))
        d = _cut(w[0], s, dense)
        return (
            f"{w[2]} of width {w[1]} gives {w[1] / d:g} on each of {d} ranks, "
            f"not a multiple of the {asked_format(p)} block {block(p)}"
        )

    return simple(rule_id, bad, sentence, source, modes=SERVING, **bounds)


# --- linear-time mixers ---------------------------------------------------------------------------------------


def groups_divisible(fact: str, what: str, source: str, *, one_is_shared: bool = False, rule_id: str, **bounds: Any) -> Rule:
    """A count that the model states as a fact is a multiple of tp; ``one_is_shared``: a single group is replicated."""

    def bad(p: Problem, s: Any) -> Any:
        n = p.arch.fact(fact)
        return False if n is None or (one_is_shared and n == 1) else n % s.tp != 0

    def sentence(p: Problem, s: Strategy) -> str:
        n = p.arch.fact(fact) or 0
        return f"{n} {what} cannot be divided by tp {s.tp} (remainder {n % s.tp})" + instead(
            "tp", s.tp, lambda v: n % v == 0, limit=n
        )

    return simple(rule_id, bad, sentence, source, modes=SERVING, **bounds)
