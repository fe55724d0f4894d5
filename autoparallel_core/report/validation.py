"""The report of ``validate``: errors by group, ranking, memory, verdicts, a plot, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, make_console, put
from autoparallel_core.report.scatter import scatter
from autoparallel_core.runs.record import RunRecord
from autoparallel_core.runs.stats import (
    KEYS,
    Compared,
    ErrorStats,
    Ranking,
    by_group,
    families,
    join,
    memory_pairs,
    verdicts,
)
from autoparallel_core.runs.validate import Prediction

QUANTITIES: dict[str, tuple[tuple[str, str], ...]] = {
    "training": (("tokens_per_s_per_gpu", "tokens/s/GPU"),),
    "inference": (("tpot_ms", "TPOT"), ("ttft_ms", "TTFT"), ("output_tok_s", "output tokens/s")),
}
"""Speeds by mode: key and title; the one measured most often is plotted and grouped."""
SERVING_MEMORY = (
    ("weights_gib_per_gpu", "weights"), ("kv_cache_gib_per_gpu", "KV cache"), ("kv_tokens", "KV tokens"),
    ("activation_peak_gib", "activation peak"), ("non_torch_gib", "non-torch"),
)  # fmt: skip
NAME_WIDTH = 34


def print_validation(
    records: Sequence[RunRecord], predictions: Sequence[Prediction], *, worst: int = 5, console: Console | None = None
) -> None:
    """Print the whole report; readable at 80 columns and without colour."""
    out = console or make_console()
    status = Counter(p.status for p in predictions)
    unread = len(predictions) - len(records)
    counts = [f"{status['ok']:,} predicted", f"{status['refused']:,} refused" if status["refused"] else ""]
    counts.append(f"{fmt.plural(failed, 'error')}" if (failed := status["error"] - unread) else "")
    counts.append(f"{fmt.plural(unread, 'line')} that could not be read" if unread else "")
    put(out, f"{fmt.plural(len(records), 'run')}: {', '.join(filter(None, counts))}", "bold")
    rows = join(records, predictions)
    for mode in ("training", "inference"):
        of_mode = [r for r in rows if r.record.mode == mode]
        if of_mode:
            _mode(out, mode, of_mode, worst)
    _refusals(out, predictions)


def _mode(out: Console, mode: str, rows: Sequence[Compared], worst: int) -> None:
    trusted = [r for r in rows if r.trusted and not r.record.measured.get("oom")]
    left_out = len(rows) - len(trusted)
    note = f" ({left_out} repeats, superseded, out-of-memory or less certain runs left out)" if left_out else ""
    speeds = [(key, title, [p for r in trusted if (p := r.pair(key))]) for key, title in QUANTITIES[mode]]
    heading(out, f"{mode.capitalize()}: error of the predictions{note}")
    table = _table("quantity")
    for _, title, pairs in speeds:
        _row(table, title, ErrorStats.of(pairs))
    if mode == "inference":
        for key, title in SERVING_MEMORY:
            _row(table, title, ErrorStats.of([p for r in trusted if (p := r.pair(key))]))
    else:
        for kind, pairs in sorted(memory_pairs(rows).items(), key=lambda m: -len(m[1])):
            _row(table, f"memory, {kind}", ErrorStats.of(pairs))
    out.print(table)
    quantity, title, pairs = max(speeds, key=lambda s: len(s[2]))
    if pairs:
        for name, of_record in KEYS.items():
            _grouped(out, trusted, quantity, title, name, of_record)
    _ranking(out, rows, "tokens_per_s_per_gpu" if mode == "training" else "output_tok_s")
    _verdicts(out, rows)
    if pairs:
        heading(out, f"Predicted (up) against measured (right), {title}")
        for line in scatter(pairs, width=min(out.width, 80) - 16):
            out.print(Text(line), soft_wrap=True)
        put(out, ". one run  o two to four  @ more  / where they agree", "dim")
        _worst(out, trusted, quantity, worst)


def _table(first: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column(first, min_width=NAME_WIDTH, max_width=NAME_WIDTH, overflow="fold")
    for title in ("runs", "median", "mean", "p90", "bias"):
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _row(table: Table, name: str, stats: ErrorStats | None) -> None:
    if stats:
        shares = [f"{x:.1%}" for x in (stats.median, stats.mean, stats.p90)]
        table.add_row(Text(name), str(stats.n), *shares, f"{stats.bias:+.1%}")


def _grouped(
    out: Console, rows: Sequence[Compared], quantity: str, title: str, name: str, key: Callable[[RunRecord], object]
) -> None:
    groups = by_group(rows, quantity, key)
    if len(groups) < 2:
        return
    out.print()
    table = _table(f"{title} by {name}")
    for group, stats in groups.items():
        _row(table, group, stats)
    out.print(table)


def _ranking(out: Console, rows: Sequence[Compared], quantity: str) -> None:
    if ranking := Ranking.of(families(rows, quantity)):
        heading(out, "Ranking inside families of runs that differ in the strategy only")
        put(
            out,
            f"{ranking.families} families: Kendall tau {ranking.tau:.2f}; the run predicted best loses {ranking.regret:.1%} "
            "against the one that was best",
        )


def _verdicts(out: Console, rows: Sequence[Compared]) -> None:
    counts = {k: v for k, v in verdicts(rows).items() if v}
    if counts:
        heading(out, "Verdicts")
        for what, found in counts.items():
            put(
                out,
                f"runs that {what if what == 'ran' else 'ran out of memory'}: " + ", ".join(f"{n} {v}" for v, n in found.items()),
            )


def _worst(out: Console, rows: Sequence[Compared], quantity: str, worst: int) -> None:
    off = sorted(((abs(p[0] / p[1] - 1), r, p) for r in rows if (p := r.pair(quantity))), key=lambda x: -x[0])[:worst]
    if off:
        heading(out, "Largest errors")
        for _, row, (predicted, measured) in off:
            put(
                out,
                f"{predicted / measured - 1:+7.1%}  predicted {predicted:.5g}, measured {measured:.5g}  {row.record.id}",
                indent=2,
            )


def _refusals(out: Console, predictions: Sequence[Prediction]) -> None:
    reasons = Counter((p.status, p.reason) for p in predictions if p.status != "ok")
    if reasons:
        heading(out, "Not predicted")
        for (status, reason), n in reasons.most_common():
            put(out, f"{n} × {status}: {reason}", indent=2)
