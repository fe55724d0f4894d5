"""Measurements held against the hardware: nothing beats a peak, and more work does not take less time.

Every refusal names the entry. A GEMM faster than the dense peak, a copy faster than the memory and a collective faster
than the link are no measurements of this device, whoever made them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.tables import TABLES, Array, Table
from autoparallel_core.profiles.work import link_bytes, work_of
from autoparallel_core.spec.cluster import Gpu

BOUND_SHARE = 0.2
"""A row that needs so much of its time at the hardware's peak is bound by it, not by launches and latency."""
BOUND_DIP, LATENCY_DIP = 0.75, 0.5
"""A larger shape may take at least this share of a smaller one's time: kernels change with size, noise adds to it."""


@frozen
class Implausible:
    """One entry that cannot be right."""

    table: str
    row: int
    sentence: str
    slower: int | None = None
    """The smaller shape that takes longer, where that is the complaint."""


def check(tables: dict[str, Table], gpu: Gpu, where: str) -> None:
    """Raise SpecError naming the first implausible entry."""
    for table in tables.values():
        for found in implausible(table, gpu):
            raise SpecError(f"{where}: {found.sentence}")


def implausible(table: Table, gpu: Gpu) -> Iterator[Implausible]:
    """Entries of one table that cannot be right on this GPU."""
    if table.name in ("gemm", "expert_gemm", "attention"):
        yield from _faster_than_peak(table, gpu)
    elif table.name == "memory":
        yield from _faster(table, table.number("bytes")[0], gpu.hbm_bytes_per_s, "memory bandwidth", gpu)
    elif table.name == "collectives":
        yield from _faster_than_link(table, gpu)
    elif table.name == "p2p":
        rate = np.where(table["nodes"] > 1, gpu.nic_bytes_per_s, reach_bytes_per_s(gpu, 2))
        yield from _faster(table, table.number("bytes")[0], rate, "link", gpu)
    yield from _shrinking(table, gpu)


def reach_bytes_per_s(gpu: Gpu, ranks: int) -> float:
    """Rate per GPU and direction of the link that joins so many GPUs of one node."""
    if ranks <= gpu.scale_up_domain or gpu.scale_up_domain == 1 or gpu.host_link_bytes_per_s is None:
        return gpu.scale_up_bytes_per_s
    return max(gpu.host_link_bytes_per_s, gpu.nic_bytes_per_s)


def peak_of(operand: np.ndarray, gpu: Gpu) -> Array:
    """Dense FLOP/s by row; NaN where the GPU states none."""
    names, code = np.unique(operand, return_inverse=True)
    return np.asarray(np.array([gpu.peak_flops.get(d, np.nan) for d in names.tolist()])[code])


def _faster_than_peak(table: Table, gpu: Gpu) -> Iterator[Implausible]:
    work = work_of(table)
    peak = peak_of(work.operand, gpu)
    for i in np.flatnonzero(np.isnan(peak)).tolist():
        known = ", ".join(sorted(gpu.peak_flops))
        yield Implausible(table.name, i, f"{table.entry(i)}: {gpu.name} states no {work.operand[i]} peak (it has {known})")
    with np.errstate(invalid="ignore"):
        fast = np.flatnonzero(work.least_flops / table.seconds > peak)
    for i in fast.tolist():
        rate = work.least_flops[i] / table.seconds[i]
        yield Implausible(
            table.name,
            i,
            f"{table.entry(i)} reaches {rate / 1e12:.4g} TFLOP/s, {rate / peak[i] - 1:.0%} above {gpu.name}'s dense "
            f"{work.operand[i]} peak of {peak[i] / 1e12:.4g}",
        )


def _faster(table: Table, moved: Array, limit: Array | float, what: str, gpu: Gpu) -> Iterator[Implausible]:
    bound = np.broadcast_to(limit, moved.shape)
    for i in np.flatnonzero(moved / table.seconds > bound).tolist():
        rate = moved[i] / table.seconds[i]
        yield Implausible(
            table.name,
            i,
            f"{table.entry(i)} moves {rate / 1e9:.4g} GB/s, {rate / bound[i] - 1:.0%} above {gpu.name}'s {what} of "
            f"{bound[i] / 1e9:.4g}",
        )


def _faster_than_link(table: Table, gpu: Gpu) -> Iterator[Implausible]:
    ranks, nodes = table.number("ranks", "nodes")
    for i in np.flatnonzero((ranks < 2) | (nodes > ranks)).tolist():
        why = "a collective has at least 2 ranks" if ranks[i] < 2 else "there are more nodes than ranks"
        yield Implausible(table.name, i, f"{table.entry(i)}: {why}")
    inside = np.array([reach_bytes_per_s(gpu, int(r)) for r in ranks])
    rate = np.where((nodes > 1) & (ranks > gpu.scale_up_domain), _across(table, gpu), inside)
    yield from _faster(table, _crossing(table), rate, "link", gpu)


def _crossing(table: Table) -> Array:
    size, ranks = table.number("bytes", "ranks")
    return np.array([float(link_bytes(k, b, r)) for k, b, r in zip(table["kind"].tolist(), size, ranks, strict=True)])


def _across(table: Table, gpu: Gpu) -> Array:
    """Bound on :func:`link_bytes` per second of groups over several nodes.

    What a node gathers enters through the NICs of all its ranks together; exchanged tokens leave through their own.
    """
    ranks, nodes = table.number("ranks", "nodes")
    reduced = np.char.startswith(table["kind"], "all_reduce") | (table["kind"] == "broadcast")
    gathered = np.isin(table["kind"], ("all_gather", "reduce_scatter"))
    own = np.where(reduced, 1.0, nodes / np.maximum(nodes - 1.0, 1.0))
    return np.asarray(gpu.nic_bytes_per_s * own * np.where(reduced | gathered, ranks / nodes, 1.0))


_SIZES = {
    "gemm": ("m", "n", "k"), "expert_gemm": ("tokens",), "attention": ("batch", "kv_len"), "memory": ("bytes",),
    "collectives": ("bytes",), "p2p": ("bytes",), "launch": (),
}  # fmt: skip


def _shrinking(table: Table, gpu: Gpu) -> Iterator[Implausible]:
    """Along each size, all else equal: a larger shape in less time than a smaller one by more than noise and tiles explain."""
    bound = least_seconds(table, gpu) / table.seconds >= BOUND_SHARE
    for size in _SIZES[table.name]:
        others = {c: table[c] for c in TABLES[table.name] if c != size}
        if size == "kv_len":  # a prompt attends to itself: both lengths grow together
            others["q_len"] = np.where(others["q_len"] == table[size], 0, others["q_len"])
        group = np.zeros(len(table), dtype=np.int64)
        for values in others.values():
            code = np.unique(values, return_inverse=True)[1]
            group = np.unique(group * (code.max(initial=0) + 1) + code, return_inverse=True)[1]
        order = np.lexsort((table.seconds, table[size], group))
        slowest = _slowest_before(group[order], table.seconds[order])
        tops = order[slowest]
        least = np.where(bound[tops], BOUND_DIP, LATENCY_DIP) * table.seconds[tops]
        falls = (table.seconds[order] < least) & (table[size][order] > table[size][tops])
        for i, top in zip(order[falls].tolist(), tops[falls].tolist(), strict=True):
            yield Implausible(
                table.name,
                i,
                f"{table.entry(i)} takes {table.seconds[i]:.4g} s, less than the smaller {table.entry(top)} with "
                f"{table.seconds[top]:.4g} s: time falls with size",
                slower=top,
            )


def _slowest_before(group: NDArray[np.int64], seconds: Array) -> NDArray[np.int64]:
    """Position of the largest value so far within each run of equal groups, int64[R] for sorted groups."""
    rank = np.empty(len(seconds), dtype=np.int64)
    rank[np.argsort(seconds, kind="stable")] = np.arange(len(seconds))
    offset = group * len(seconds)
    highest = np.maximum.accumulate(rank + offset) - offset
    at_rank = np.argsort(rank)
    return np.asarray(at_rank[highest])


def least_seconds(table: Table, gpu: Gpu) -> Array:
    """Seconds at the hardware's peak, float64[R]; 0 where no peak applies."""
    if table.name in ("gemm", "expert_gemm", "attention"):
        work = work_of(table)
        return np.fmax(work.least_flops / peak_of(work.operand, gpu), work.moved_bytes / gpu.hbm_bytes_per_s)
    if table.name == "memory":
        return table.number("bytes")[0] / gpu.hbm_bytes_per_s
    if table.name == "collectives":
        return _crossing(table) / gpu.scale_up_bytes_per_s
    if table.name == "p2p":
        return table.number("bytes")[0] / gpu.scale_up_bytes_per_s
    return np.zeros(len(table))
