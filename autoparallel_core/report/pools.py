"""Aggregated and disaggregated deployments side by side: a table, what it comes to, and a JSON document."""

from __future__ import annotations

from typing import Any

from attrs import asdict, frozen
from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import bullets, heading
from autoparallel_core.report.frontier import notation, point_document
from autoparallel_core.report.layout import Column, print_bands
from autoparallel_core.search.disaggregated import Disaggregated, Pool
from autoparallel_core.search.pools import Compared
from autoparallel_core.search.price import price_per_million_tokens
from autoparallel_core.search.result import TIE
from autoparallel_core.spec.problem import Problem


@frozen
class _Row:
    name: str
    gpus: int
    """In use."""
    n_gpus: int
    """Of the clusters it is compared on."""
    ttft_s: float
    tpot_s: float
    requests_per_s: float
    output_tokens_per_s: float
    hourly: float | None
    layout: str
    transfer_s: float | None = None
    bound: str = ""


def print_pools(console: Console, problem: Problem, found: Compared, decode_gpu_hour_price: float | None = None) -> None:
    """The deployments, best pools behind the aggregated ones, and which of them is ahead."""
    heading(console, "Aggregated against disaggregated: one kind of instance, or a pool for prefill and a pool for decode")
    rows = _rows(problem, found, decode_gpu_hour_price)
    if rows:
        print_bands(console, _columns(rows))
        console.print()
    bullets(console, conclusion(problem, found))


def conclusion(problem: Problem, found: Compared) -> list[str]:
    """Sentences: who is ahead, under what condition, and what bounds the pools."""
    if not found.deployments:
        return ["no prefill and decode pools keep the limits" if found.aggregated else "no two pools keep the limits, either"]
    best = found.deployments[0]
    out = []
    if found.gain is None:
        out.append("no aggregated deployment keeps the limits; pools do")
    else:
        under = "at the same time per token" if found.at_same_speed else "for the same question"
        what = {
            "latency": "a request's latency",
            "cost": "output tokens/s per GPU in use",
            "throughput": "output tokens/s",
        }[problem.inference.goal]
        ratio = 1 / found.gain if problem.inference.goal == "latency" else found.gain
        if abs(found.gain - 1) <= TIE:
            out.append(f"two pools are as good as aggregated instances in {what} {under}")
        else:
            who = "two pools are ahead" if found.gain > 1 else "aggregated instances are ahead"
            out.append(f"{who}: {what} of the pools {fmt.change(ratio)} {under}")
    if found.steps_waited > 1:
        out.append(
            f"both look for new requests at every step here; the aggregated answer above lets them wait {found.steps_waited:g} "
            "decode steps, as the runs behind it did"
        )
    bounds = {
        "prefill": "the prefill pool",
        "decode": "the decode pool",
        "TTFT limit": "the wait for prefill, which the limit on TTFT bounds",
        "request rate": "the request rate asked for",
        "requests in flight": "the requests in flight",
    }
    out.append(
        f"the rate of the best pools is bound by {bounds[best.bound]}; moving a prompt's KV cache takes "
        f"{fmt.seconds(best.transfer_s)} of its {fmt.seconds(best.ttft_s)} to the first token"
    )
    return out


def _rows(problem: Problem, found: Compared, decode_price: float | None) -> list[_Row]:
    price = problem.inference.gpu_hour_price
    other = price if decode_price is None else decode_price
    clusters = [problem.cluster, *([found.decode.cluster] if found.decode else [])]
    total = sum(c.n_gpus for c in clusters)
    rows = []
    for plan in found.aggregated:
        f = plan.serving
        assert f is not None, "a plan of serving holds its figures"
        here = clusters[0] if plan is found.aggregated[0] else clusters[-1]
        where = f" on {here.gpu.name}" if found.decode else ""
        paid = _hourly([(f.gpus, price if here is clusters[0] else other)])
        rows.append(
            _Row(
                f"aggregated{where}", f.gpus, here.n_gpus, f.ttft_s, f.tpot_s, f.requests_per_s, f.output_tokens_per_s,
                paid, plan.notation,
            )
        )  # fmt: skip
    for point, here in zip(found.at_same_speed, clusters, strict=False):
        where = f" on {here.gpu.name}" if found.decode else ""
        paid = _hourly([(point.gpus, price if here is clusters[0] else other)])
        rows.append(
            _Row(
                f"… as fast as the pools{where}", point.gpus, here.n_gpus, point.ttft_s, point.tpot_s, point.requests_per_s,
                point.output_tokens_per_s, paid, notation(point.strategy),
            )
        )  # fmt: skip
    for d in found.deployments:
        paid = _hourly([(d.prefill.gpus, price), (d.decode.gpus, other if found.decode else price)])
        rows.append(
            _Row(
                "two pools", d.gpus, total, d.ttft_s, d.tpot_s, d.requests_per_s, d.output_tokens_per_s, paid, pools_in_words(d),
                d.transfer_s, d.bound,
            )
        )  # fmt: skip
    return rows


def _hourly(paid: list[tuple[int, float | None]]) -> float | None:
    """Price of an hour."""
    return sum(n * p for n, p in paid if p is not None) if all(p is not None for _, p in paid) else None


def _columns(rows: list[_Row]) -> list[Column]:
    columns = [
        Column("deployment", [r.name for r in rows], right=False),
        Column("output\ntok/s/GPU", [fmt.significant(r.output_tokens_per_s / r.n_gpus, 4) for r in rows]),
        Column("output\ntok/s", [fmt.significant(r.output_tokens_per_s, 4) for r in rows]),
        Column("tok/s\n/user", [fmt.significant(1 / r.tpot_s) if r.tpot_s > 0 else "" for r in rows]),
        Column("TTFT", [fmt.seconds(r.ttft_s) for r in rows]),
        Column("TPOT", [fmt.seconds(r.tpot_s) for r in rows]),
        Column("requests\n/s", [fmt.significant(r.requests_per_s) for r in rows]),
        Column("GPUs\nin use", [f"{r.gpus:,}" for r in rows]),
    ]
    if any(r.hourly is not None for r in rows):
        prices = ["" if r.hourly is None else fmt.significant(_price(r)) for r in rows]
        columns.append(Column("price per 1M\noutput tokens", prices))
    return [
        *columns,
        Column("KV\ntransfer", ["" if r.transfer_s is None else fmt.seconds(r.transfer_s) for r in rows]),
        Column("bound by", [r.bound for r in rows], right=False),
        Column("layout", [r.layout for r in rows], right=False, starts=True),
    ]


def _price(row: _Row) -> float:
    return price_per_million_tokens(row.output_tokens_per_s, 1, row.hourly or 0.0)


def pools_in_words(d: Disaggregated) -> str:
    """``prefill 2 × tp4, decode 1 × tp8 with 260 together``."""

    def pool(p: Pool) -> str:
        one = notation(p.strategy).replace(f" dp{p.strategy.dp}", "").replace("pp1", "").replace("  ", " ").strip()
        where = f" on {p.gpu}" if d.prefill.gpu != d.decode.gpu else ""
        return f"{p.strategy.dp} × {one}{where}"

    return f"prefill {pool(d.prefill)} | decode {pool(d.decode)}, {d.decode.batch_per_instance:,.0f} together"


def pools_document(problem: Problem, found: Compared, decode_gpu_hour_price: float | None = None) -> dict[str, Any]:
    price = problem.inference.gpu_hour_price
    rows = _rows(problem, found, decode_gpu_hour_price)[len(found.aggregated) + len(found.at_same_speed) :]
    work = problem.inference
    deployments = []
    for d, row in zip(found.deployments, rows, strict=True):
        plain = asdict(d, recurse=False) | {
            "gpus": d.gpus,
            "prefill": _pool_document(d.prefill),
            "decode": _pool_document(d.decode),
            "price_per_million_output_tokens": None if row.hourly is None else _price(row),
            "price_per_million_tokens": None if row.hourly is None else _price(row) * work.osl / work.context_tokens,
        }
        deployments.append(plain)
    return {
        "deployments": deployments,
        "aggregated_at_same_speed": [point_document(p, price) for p in found.at_same_speed],
        "gain": found.gain,
        "conclusion": conclusion(problem, found),
    }


def _pool_document(pool: Pool) -> dict[str, Any]:
    plain = asdict(pool, recurse=False)
    return plain | {"strategy": notation(pool.strategy), "instances": pool.strategy.dp}
