"""Writes docs/explanation/accuracy.md: how far predicted runs are from measured ones.

Usage: python benchmarks/accuracy.py TRAINING.jsonl [--crossvalidation FILE] [--out docs/explanation/accuracy.md]

``--crossvalidation`` takes the output of benchmarks/crossvalidate.py training, which runs for ten minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import autoparallel_core as ap
from autoparallel_core.records import RunRecord, read_records
from autoparallel_core.runs.stats import Compared, ErrorStats, Ranking, by_group, families, join, memory_pairs, verdicts
from autoparallel_core.runs.validate import predict_records

SPEED = "tokens_per_s_per_gpu"
GROUPS: tuple[tuple[str, Callable[[RunRecord], Any]], ...] = (
    ("GPU", lambda r: r.cluster.get("gpu")),
    ("engine", lambda r: r.engine),
    ("model", lambda r: r.kind),
    ("precision", lambda r: r.workload.get("precision")),
)
TOP = """# How accurate the training predictions are

Written by

    python benchmarks/crossvalidate.py training TRAINING.jsonl > crossvalidation.txt
    python benchmarks/accuracy.py TRAINING.jsonl --crossvalidation crossvalidation.txt

on run records that are not part of the project: 651 published runs from 1 to 16,384 GPUs, A100 to GB300 and MI355X, dense,
MoE and MLA models, bf16 to NVFP4. `autoparallel validate FILE` prints the same figures for your own runs
([format](../reference/run-records.md)). Errors are |predicted − measured| / measured of tokens per second and GPU, over
runs of high confidence that were not repeated or superseded; bias is the median signed error.

Read them against the noise: published repeats of one configuration differ by 3% in the median and 10% in the mean. Single
rows that the same source contradicts elsewhere (a configuration that doubles between releases) are counted here and not
chased.
"""
WHAT = """
## What the constants are worth out of sample

The constants of origin "fitted" are refitted without a share of the (model × GPU) groups and predict those:

"""


def percent(x: float) -> str:
    return f"{100 * x:.1f}%"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(r)} |" for r in rows)]) + "\n"


def cells(name: str, s: ErrorStats) -> list[str]:
    return [name, str(s.n), percent(s.median), percent(s.mean), percent(s.p90), f"{100 * s.bias:+.1f}%"]


def page(rows: Sequence[Compared], total: int, crossvalidation: str | None) -> str:
    trusted = [r for r in rows if r.trusted and not r.record.measured.get("oom")]
    everything = ErrorStats.of([p for r in trusted if (p := r.pair(SPEED))])
    assert everything is not None
    head = ("", "runs", "median", "mean", "90th percentile", "bias")
    out = [TOP, "## Speed\n", table(head, [cells("all", everything)])]
    for title, key in GROUPS:
        out.append(f"By {title}:\n")
        out.append(table(head, [cells(k, s) for k, s in by_group(trusted, SPEED, key).items()]))
    ranking = Ranking.of(families(rows, SPEED))
    if ranking:
        out.append("## Ranking\n")
        out.append(
            f"In {ranking.families} families of runs that differ only in the strategy the mean Kendall rank correlation is "
            f"{ranking.tau:.2f}; picking the run that is predicted best loses {percent(ranking.regret)} on average.\n"
        )
    out.append("## Memory\n")
    out.append("Allocated and unstated figures against the allocated bytes, others against the reserved ones.\n")
    memory = {k: s for k, pairs in memory_pairs(rows).items() if (s := ErrorStats.of(pairs))}
    out.append(table(head, [cells(k, s) for k, s in memory.items()]))
    counts = verdicts(rows)
    names = sorted({v for c in counts.values() for v in c})
    out.append(table(("", *names), [[k, *(str(c.get(n, 0)) for n in names)] for k, c in counts.items()]))
    out.append(f"{len(rows)} of {total} records say enough to be priced; the others come back with their reason.\n")
    if crossvalidation:
        out.append(WHAT + "".join(f"    {line}\n" for line in crossvalidation.splitlines()))
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="training run records, one JSON object a line")
    parser.add_argument("--crossvalidation", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "explanation" / "accuracy.md"
    )
    args = parser.parse_args()
    records = list(read_records(args.runs))
    predictions = predict_records(records, ap.host())
    rows = join([r for r in records if isinstance(r, RunRecord)], predictions)
    text = args.crossvalidation.read_text() if args.crossvalidation else None
    args.out.write_text(page(rows, len(records), text))


if __name__ == "__main__":
    main()
