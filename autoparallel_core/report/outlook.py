"""The outlook of a serving answer in sentences, and as a JSON document."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from autoparallel_core.planners.reasons import largest_increase, title
from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, heading, put
from autoparallel_core.report.frontier import frontier_document, notation, point_document, print_frontier
from autoparallel_core.report.pools import pools_document
from autoparallel_core.search.outlook import Contrast, Outlook, UsableLoad, Without
from autoparallel_core.search.pools import Compared
from autoparallel_core.search.result import TIE, Plan, SearchResult, ServingFigures
from autoparallel_core.spec.problem import Problem


def print_outlook(console: Console, problem: Problem, best: Plan, found: Outlook, *, pareto: bool) -> None:
    """What lies beside the best deployment: other loads, other goals."""
    if said := [*goodput(problem, best, found), *trade_off(problem, best, found.contrast)]:
        heading(console, "At other loads")
        bullets(console, said)
    if pareto:
        print_frontier(console, problem, found.frontier)
    elif found.frontier.points:
        put(console, "--pareto shows every load; --disaggregate compares with prefill and decode pools", style="dim")


def goodput(problem: Problem, best: Plan, found: Outlook) -> list[str]:
    """The most requests per second within the limits, where there are any."""
    work, p = problem.inference, found.frontier.goodput
    limits = [
        f"{name} {fmt.seconds(v)}" for name, v in (("TTFT", work.ttft_limit_s), ("TPOT", work.tpot_limit_s)) if v is not None
    ]
    if not limits or p is None:
        return []
    who = "#1" if p.strategy == best.strategy else notation(p.strategy)
    rate, most = fmt.significant(p.output_tokens_per_s_per_gpu, 4), fmt.significant(p.requests_per_s)
    text = f"goodput within {' and '.join(limits)} (means): {most} requests/s, of {who} with {p.concurrency:,} in flight"
    return [text if who == "#1" else f"{text}, {rate} output tokens/s per GPU"]


def warning(best: Plan, usable: UsableLoad | None) -> list[str]:
    """That nobody can use the best deployment at the load it was priced at, and which load people could use."""
    if usable is None:
        return []
    f = _figures(best)
    slow = [f"{fmt.seconds(f.ttft_s)} to the first token"] if f.ttft_s > usable.ttft_limit_s else []
    slow += [f"{fmt.seconds(f.tpot_s)} between tokens"] if f.tpot_s > usable.tpot_limit_s else []
    text = f"too slow for people: with {f.concurrency:,.0f} requests in flight #1 takes {' and '.join(slow)}"
    if f.ttft_s > usable.ttft_limit_s:
        text += f", nearly all of it waiting (a prompt alone takes {fmt.seconds(f.prefill_s)})"
    limits = f"TTFT {fmt.seconds(usable.ttft_limit_s)} and TPOT {fmt.seconds(usable.tpot_limit_s)}"
    if usable.plan is None:
        text += f"; this layout keeps {limits} at no load"
    else:
        g = _figures(usable.plan)
        rate = fmt.significant(g.output_tokens_per_s_per_gpu, 4)
        text += f"; with {g.concurrency:,.0f} it keeps {limits}, at {rate} output tokens/s per GPU"
    p = usable.best
    if p is not None and p.strategy != best.strategy:
        rate = fmt.significant(p.output_tokens_per_s_per_gpu, 4)
        text += f". Most within these limits: {notation(p.strategy)} with {p.concurrency:,} in flight, {rate}"
    return [f"{text} (--ttft-ms and --tpot-ms rank within limits)"]


def trade_off(problem: Problem, best: Plan, contrast: Contrast | None) -> list[str]:
    """Which layout the opposite goal chooses, and why each wins where it does."""
    if contrast is None:
        return []
    for_latency = problem.inference.goal == "latency"
    # "wide" has the most throughput, "quick" is the fastest for one user; each at the load of both
    quick_low, wide_low = (best, contrast.other_here) if for_latency else (contrast.other, contrast.best_there)
    wide_high, quick_high = (contrast.other, contrast.best_there) if for_latency else (best, contrast.other_here)
    quick, wide = quick_low.notation, wide_high.notation
    low, high = _figures(quick_low), _figures(wide_high)
    in_flight = fmt.plural(round(low.concurrency), "request")
    first = (
        f"for one user {quick} is faster: with {in_flight} in flight {_user(low)} tokens/s per user against "
        f"{_user(_figures(wide_low))} of {wide}{_more(quick_low, wide_low, unit=True)}"
    )
    if (n := quick_low.strategy.tp) != (m := wide_low.strategy.tp) and _cause(quick_low, wide_low) in {"gemm", "expert_gemm"}:
        first += f": {n} GPUs read the weights side by side, not {m}"
    load = _figures(quick_high)
    full, other = (f.output_tokens_per_s / f.gpus for f in (high, load))
    if full <= other * (1 + TIE):
        return [first]
    used = " in use" if min(high.gpus, load.gpus) < problem.cluster.n_gpus else ""
    second = (
        f"under load {wide} gives more: {fmt.significant(full, 4)} output tokens/s per GPU{used} with {high.concurrency:,.0f} "
        f"requests in flight against {fmt.significant(other, 4)} of {quick} with {load.concurrency:,.0f}"
        f"{_more(wide_high, quick_high)}"
    )
    return [first, second] if for_latency else [second, first]


def layout_reasons(problem: Problem, best: Plan, without: tuple[Without, ...]) -> list[str]:
    """What the dimensions of the best layout are worth, by the same layout without one."""
    out = []
    for w in without:
        plan, other, mine = w.plan, _figures(w.plan), _figures(best)
        if w.dimension == "attn_dp":
            text = f"attention dp {best.strategy.attn_dp}: each rank attends to sequences of its own and keeps their cache whole"
            instead = f"with tp {plan.strategy.tp} in its place"
            if other.kv_tokens_per_instance < mine.kv_tokens_per_instance * 0.9:
                text += (
                    f"; {instead} every GPU would hold a copy of what tp cannot split, and an instance "
                    f"{other.kv_tokens_per_instance:,} KV tokens instead of {mine.kv_tokens_per_instance:,}"
                )
                instead = "there"
        else:
            experts = f"ep {best.strategy.ep}"
            text = f"{experts}: each rank keeps whole experts"
            instead = f"with experts cut {plan.strategy.etp} ways by width instead"
        out.append(f"{text}; {instead} {_change(problem, best, plan)}")
    return out


def _change(problem: Problem, best: Plan, other: Plan) -> str:
    """How the goal's figure changes."""
    if other.verdict == "does not fit":
        return "it would not fit"
    if problem.inference.goal == "latency":
        ratio = _figures(other).e2e_tpot_s / _figures(best).e2e_tpot_s
        what = "a request would take as long" if abs(ratio - 1) <= TIE else f"a request would take {fmt.change(ratio)} time"
    else:
        ratio = other.throughput / best.throughput
        what = "it would be as fast" if abs(ratio - 1) <= TIE else f"output tokens/s per GPU change by {fmt.change(ratio)}"
    return what


def _figures(plan: Plan) -> ServingFigures:
    assert plan.serving is not None, "a plan of serving holds its figures"
    return plan.serving


def _user(f: ServingFigures) -> str:
    return fmt.significant(1.0 / f.tpot_s) if f.tpot_s > 0 else "∞"


def _cause(fast: Plan, slow: Plan) -> str:
    return largest_increase(fast.cost.seconds, slow.cost.seconds)[1]


def _more(fast: Plan, slow: Plan, *, unit: bool = False) -> str:
    """The cause that costs the slower one most: of a token's time, or (under load) of all GPUs' time per token."""
    if unit:
        more, cause = largest_increase(fast.cost.seconds, slow.cost.seconds)
        return f", mostly by {fmt.seconds(more)} more per token for {title(cause)}" if cause else ""

    def per_token(plan: Plan) -> dict[str, float]:
        f = _figures(plan)
        return {c: s * f.gpus_per_instance / max(f.batch_per_instance, 1.0) for c, s in plan.cost.seconds.items()}

    before = per_token(fast)
    more, cause = largest_increase(before, per_token(slow))
    total = sum(before.values())
    return f", mostly by {more / total:.0%} more GPU time for {title(cause)}" if cause and total > 0 else ""


def surroundings(
    result: SearchResult, found: Outlook | None, pools: Compared | None = None, decode_gpu_hour_price: float | None = None
) -> dict[str, Any]:
    """The keys of a serving answer beside its strategies."""
    problem = result.problem
    out: dict[str, Any] = {}
    if pools is not None:
        out["disaggregated"] = pools_document(problem, pools, decode_gpu_hour_price)
    if found is None:
        return out
    best, price = result.plans[0], problem.inference.gpu_hour_price
    usable = found.usable
    return out | {
        "warnings": warning(best, usable),
        "frontier": frontier_document(problem, found.frontier),
        "usable": None
        if usable is None
        else {
            "ttft_limit_s": usable.ttft_limit_s,
            "tpot_limit_s": usable.tpot_limit_s,
            "same_layout": _point(usable.plan),
            "best": point_document(usable.best, price) if usable.best else None,
        },
        "trade_off": trade_off(problem, best, found.contrast),
        "layout_reasons": layout_reasons(problem, best, found.without),
    }


def _point(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    f = _figures(plan)
    names = ("concurrency", "ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")
    return {"strategy": plan.notation, **{n: getattr(f, n) for n in names}}
