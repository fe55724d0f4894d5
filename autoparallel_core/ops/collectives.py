"""Seconds of collectives over groups of ranks laid out on a tiered network.

A group is ``size`` ranks, ``stride`` apart (the product of the mesh dimensions inside it). A group that
spans more than the scale-up domain runs at the scale-out rate of all its ranks in one domain together
(a hierarchical ring uses every NIC of a node), never above the scale-up rate.
Bus-bandwidth convention: NCCL tests, PERFORMANCE.md (all-reduce moves 2(n−1)/n of the buffer per rank,
all-gather, reduce-scatter and all-to-all (n−1)/n).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autoparallel_core.spec.cluster import Cluster, GroupLine

Array = NDArray[np.float64]
RING_STEP_S = 2e-6
"""One hop of a ring inside the scale-up domain: NCCL, a few microseconds per step of the low-latency protocol (assumed)."""


@frozen
class Network:
    """The rates of one cluster as collectives see them."""

    domain: float
    scale_up_bytes_per_s: float
    scale_up_latency_s: float
    scale_out_bytes_per_s: float
    """Per GPU."""
    scale_out_latency_s: float
    send_bytes_per_s: float | None = None
    """Point to point inside the domain, where it was measured."""
    send_latency_s: float | None = None
    groups: Mapping[str, tuple[GroupLine, ...]] = field(factory=dict)
    """Measured lines of gathers ("gather") and of half an all-reduce ("all_reduce") by group size inside the domain."""

    @classmethod
    def of(
        cls, cluster: Cluster, *, scale_up_efficiency: float, scale_out_efficiency: float, scale_out_latency_s: float
    ) -> Network:
        """Measured in-situ bus bandwidth inside the domain where the GPU's data has it, the tiers' rates elsewhere."""
        inner, outer = cluster.tiers[0], cluster.tiers[-1]
        training = cluster.gpu.training
        bus = min(training.get("all_reduce_bytes_per_s", inner.bytes_per_s), inner.bytes_per_s)
        return cls(
            domain=float(min(inner.ranks, cluster.n_gpus)),
            scale_up_bytes_per_s=bus * scale_up_efficiency,
            scale_up_latency_s=training.get("all_reduce_latency_s", inner.latency_s),
            scale_out_bytes_per_s=outer.bytes_per_s * scale_out_efficiency,
            scale_out_latency_s=max(outer.latency_s, scale_out_latency_s),
            send_bytes_per_s=training.get("p2p_bytes_per_s"),
            send_latency_s=training.get("p2p_latency_s"),
            groups=cluster.gpu.tables.get("training.groups", {}),
        )

    def _measured(self, what: str, of: str, size: Array, stride: Array | float, otherwise: Array) -> Array:
        """``otherwise``, but the measured line's attribute ``of`` for groups of measured sizes inside the domain."""
        inside = self.inside(size, stride)
        for line in self.groups.get(what, ()):
            otherwise = np.where(inside & (size == line.ranks), getattr(line, of), otherwise)
        return otherwise

    def inside(self, size: Array, stride: Array | float) -> NDArray[np.bool_]:
        return size * stride <= self.domain

    def bus(self, size: Array, stride: Array | float) -> Array:
        """Bytes/s per rank that a ring over the group moves."""
        ranks_per_domain = np.clip(self.domain / stride, 1.0, size)
        out = np.minimum(self.scale_out_bytes_per_s * ranks_per_domain, self.scale_up_bytes_per_s)
        out = np.where(self.inside(size, stride), self.scale_up_bytes_per_s, out)
        return self._measured("gather", "bytes_per_s", size, stride, out)

    def latency(self, size: Array, stride: Array | float) -> Array:
        """Seconds before the first byte counts: one step per doubling across domains, a constant inside."""
        domains = np.maximum(1.0, size * stride / self.domain)
        outer = self.scale_out_latency_s * np.ceil(np.log2(domains))
        return np.where(
            size > 1, np.where(self.inside(size, stride), self.scale_up_latency_s, self.scale_up_latency_s + outer), 0.0
        )

    def ring_latency(self, size: Array, stride: Array | float) -> Array:
        """Seconds before a ring all-gather or reduce-scatter over the group moves at full rate: one step per rank.

        Inside the scale-up domain a constant; across domains every rank is a hop, most of them inside a domain.
        """
        domains = np.maximum(1.0, size * stride / self.domain)
        hops = (domains - 1.0) * self.scale_out_latency_s + (size - domains) * RING_STEP_S
        out = np.where(size > 1, self.scale_up_latency_s + np.where(self.inside(size, stride), 0.0, hops), 0.0)
        return self._measured("gather", "latency_s", size, stride, out)

    def bytes_s(self, full_bytes: Array, size: Array, stride: Array | float) -> Array:
        """All-gather to, or reduce-scatter of, ``full_bytes`` per rank, without latency."""
        return (size - 1) / size * full_bytes / self.bus(size, stride)

    def gather(self, full_bytes: Array, size: Array, stride: Array | float) -> Array:
        """All-gather to, or reduce-scatter of, ``full_bytes`` per rank."""
        return self.bytes_s(full_bytes, size, stride) + self.ring_latency(size, stride)

    def all_reduce(self, full_bytes: Array, size: Array, stride: Array | float, *, calls: Array | float = 1.0) -> Array:
        """In ``calls`` pieces; across domains trees keep the latency logarithmic (NCCL's choice for all-reduce)."""
        bus = self._measured("all_reduce", "bytes_per_s", size, stride, self.bus(size, stride))
        latency = self._measured("all_reduce", "latency_s", size, stride, self.latency(size, stride))
        return 2 * ((size - 1) / size * full_bytes / bus + calls * latency)

    def send(self, n_bytes: Array, stride: Array | float) -> Array:
        """Point to point between neighbours ``stride`` apart."""
        near = np.asarray(stride < self.domain)
        rate = np.where(near, self.send_bytes_per_s or self.scale_up_bytes_per_s, self.scale_out_bytes_per_s)
        wait = self.scale_up_latency_s if self.send_latency_s is None else self.send_latency_s
        return n_bytes / rate + np.where(near, wait, self.scale_out_latency_s)

    def ring_step(self, n_bytes: Array, size: Array, stride: Array | float) -> Array:
        """One step of a ring of sends over the group: across domains some neighbour is behind a single NIC."""
        inside = self.inside(size, stride)
        rate = np.where(inside, self.scale_up_bytes_per_s, self.scale_out_bytes_per_s)
        return n_bytes / rate + np.where(inside, self.scale_up_latency_s, self.scale_out_latency_s)

    def exchange(self, token_bytes: Array, top_k: int, size: Array, stride: Array | float, *, once_per_rank: bool) -> Array:
        """All-to-all of the tokens of one rank (``token_bytes`` in one copy) to ``top_k`` experts spread over the group.

        A plain all-to-all sends every one of the k copies. Dispatchers that send a token once to each rank, and once
        to each domain from which it is spread inside (``once_per_rank``), send R(1−(1−1/R)^k) of R ranks or domains
        under balanced routing (arXiv 2412.19437, section 3.2.2).
        """
        domains = np.maximum(1.0, size * stride / self.domain)
        inner = size / domains
        elsewhere, away = (size - 1) / size, (domains - 1) / domains
        copies = visited(size, top_k) if once_per_rank else np.full_like(size, float(top_k))
        crossing = visited(domains, top_k) if once_per_rank else np.full_like(size, float(top_k))
        # Spreading inside the domain moves every copy that is not for the rank that received it.
        inside = token_bytes * copies * np.where(domains > 1, (inner - 1) / inner, elsewhere) / self.scale_up_bytes_per_s
        outside = token_bytes * crossing * away / self.scale_out_bytes_per_s
        return np.where(size > 1, np.maximum(inside, outside) + self.latency(size, stride), 0.0)


def visited(places: Array, top_k: int) -> Array:
    """Distinct places that k independent choices among them visit, on average."""
    return places * (1.0 - (1.0 - 1.0 / np.maximum(places, 1.0)) ** top_k)
