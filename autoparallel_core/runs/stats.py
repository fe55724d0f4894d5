"""Figures of agreement between predicted and measured runs: errors by group, ranking inside families, verdicts."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from attrs import frozen

from autoparallel_core.runs.record import RunRecord
from autoparallel_core.runs.validate import Prediction

Pair = tuple[float, float]
"""(predicted, measured)."""
INDISTINGUISHABLE = 0.005
"""Measured values closer than this share say nothing about order."""
FAMILY = 3
"""Fewest runs of a family that is ranked."""


@frozen
class ErrorStats:
    """Relative errors of predicted against measured values."""

    n: int
    median: float
    mean: float
    p90: float
    bias: float
    """Median signed error; above zero: predicted too high."""

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> ErrorStats | None:
        """None when there is nothing to compare."""
        if not pairs:
            return None
        errors = sorted(abs(p - m) / m for p, m in pairs)
        return cls(
            n=len(errors),
            median=statistics.median(errors),
            mean=sum(errors) / len(errors),
            p90=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
            bias=statistics.median((p - m) / m for p, m in pairs),
        )


@frozen
class Ranking:
    """Order inside families of runs that differ in the strategy only."""

    families: int
    tau: float
    """Mean Kendall rank correlation."""
    regret: float
    """Mean loss of picking the run that is predicted best instead of the one that was."""

    @classmethod
    def of(cls, groups: Iterable[Sequence[Pair]]) -> Ranking | None:
        """Groups of throughput pairs; those of fewer than three, or without a measurable order, do not count."""
        taus, regrets = [], []
        for group in groups:
            if len(group) < FAMILY:
                continue
            agree = against = 0
            for (p1, m1), (p2, m2) in combinations(group, 2):
                if abs(m1 - m2) > INDISTINGUISHABLE * max(m1, m2):
                    sign = (p1 - p2) * (m1 - m2)
                    agree, against = agree + (sign > 0), against + (sign < 0)
            if agree + against:
                taus.append((agree - against) / (agree + against))
                regrets.append(1 - max(group)[1] / max(m for _, m in group))
        if not taus:
            return None
        return cls(len(taus), sum(taus) / len(taus), sum(regrets) / len(regrets))


@frozen
class Compared:
    """One record with its prediction."""

    record: RunRecord
    prediction: Prediction

    def pair(self, key: str) -> Pair | None:
        """Predicted and measured value of one quantity, None where either is missing or not positive."""
        predicted, measured = self.prediction.predicted.get(key), measured_value(self.record, key)
        if isinstance(predicted, int | float) and measured and predicted > 0:
            return float(predicted), measured
        return None

    @property
    def trusted(self) -> bool:
        """High confidence, and neither a repeat of another record nor beaten by one of the same configuration."""
        marks = ("duplicate", "superseded")
        return self.record.confidence == "high" and not any(m in f for f in self.record.flags for m in marks)


def measured_value(record: RunRecord, key: str) -> float | None:
    """A measured quantity; throughput follows from the step time when only that was printed."""
    m = record.measured
    value = m.get(key)
    if value is None and key == "tokens_per_s_per_gpu" and m.get("step_time_s"):
        w, n = record.workload, record.cluster.get("n_gpus")
        if n and w.get("seq_len") and w.get("global_batch_size"):
            value = w["seq_len"] * w["global_batch_size"] / m["step_time_s"] / n
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return float(value)


def join(records: Sequence[RunRecord], predictions: Sequence[Prediction]) -> list[Compared]:
    """Records with their predictions, those that were priced."""
    by_id = {p.id: p for p in predictions}
    return [Compared(r, by_id[r.id]) for r in records if r.id in by_id and by_id[r.id].status == "ok"]


KEYS: Mapping[str, Callable[[RunRecord], Any]] = {
    "GPU": lambda r: r.cluster.get("gpu") or "not stated",
    "engine": lambda r: r.engine,
    "model": lambda r: r.kind,
    "precision": lambda r: r.workload.get("precision") or r.settings.get("weights") or "as the checkpoint",
}
"""What runs are grouped by."""


def by_group(rows: Iterable[Compared], quantity: str, key: Callable[[RunRecord], Any]) -> dict[str, ErrorStats]:
    """Error statistics per value of ``key``, largest group first."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        if pair := row.pair(quantity):
            groups[str(key(row.record))].append(pair)
    found = {name: ErrorStats.of(pairs) for name, pairs in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0]))}
    return {name: s for name, s in found.items() if s}


def families(rows: Iterable[Compared], quantity: str) -> list[list[Pair]]:
    """Pairs by ``rank_family``."""
    out: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        if row.record.rank_family and (pair := row.pair(quantity)):
            out[row.record.rank_family].append(pair)
    return list(out.values())


def memory_pairs(rows: Iterable[Compared]) -> dict[str, list[Pair]]:
    """Training memory by what was measured: allocated and unstated figures against the peak, others against reserved."""
    out: dict[str, list[Pair]] = defaultdict(list)
    for row in rows:
        kind = str(row.record.measured.get("memory_kind") or "unstated")
        measured = measured_value(row.record, "memory_gb")
        predicted = row.prediction.predicted.get("memory_gb" if kind in {"allocated", "unstated"} else "memory_reserved_gb")
        if measured and predicted and not row.record.measured.get("oom") and row.record.confidence != "low":
            out[kind].append((float(predicted), measured))
    return dict(out)


def verdicts(rows: Iterable[Compared]) -> dict[str, dict[str, int]]:
    """Counts of each verdict among runs that ran and runs that ran out of memory."""
    out: dict[str, dict[str, int]] = {"ran": defaultdict(int), "out of memory": defaultdict(int)}
    for row in rows:
        verdict = row.prediction.predicted.get("verdict")
        oom = row.record.measured.get("oom")
        if verdict and (oom or any(row.record.measured.get(k) for k in ("tokens_per_s_per_gpu", "step_time_s"))):
            out["out of memory" if oom else "ran"][verdict] += 1
    return {k: dict(v) for k, v in out.items()}
