"""GPUs and clusters as the user has them. SI units: bytes, bytes/s per GPU and direction, FLOP/s, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autoparallel_core.errors import SpecError


@frozen
class Efficiency:
    """Fractions of a peak that a kernel class reaches on large shapes, and the fixed time of one launch."""

    compute: float
    """Share of the dense FLOP/s peak."""
    memory: float
    """Share of the HBM bandwidth."""
    source: str
    """Where the two numbers come from: a measured operator set, a vendor page, or ``assumed``."""
    origin: str = "preset"
    """measured | vendor | fitted | assumed."""
    fixed_s: float = 0.0
    """Seconds of one call on an empty shape: launch, prologue, and the casts that belong to the kernel."""


@frozen
class CollectiveCurve:
    """Bus bandwidth and latency of one collective among ``ranks`` GPUs of one scale-up domain.

    ``seconds = latency_s + share · bytes / bus_bytes_per_s`` with ``share`` 2(n−1)/n for an all-reduce and (n−1)/n for
    the others; ``bytes`` is the whole buffer per rank (the gathered one for all-gather and reduce-scatter).
    """

    ranks: int
    bus_bytes_per_s: float
    latency_s: float
    source: str
    origin: str = "preset"
    """measured | vendor | fitted | assumed."""
    knots: tuple[tuple[float, float], ...] = ()
    """Measured (bytes, seconds) in rising order where the two-parameter curve is off by more than a tenth.

    ``ops.curves.curve_seconds`` interpolates in the logarithms; below the first its time holds, above the last its rate.
    """


@frozen
class Gpu:
    """One accelerator. A figure that no source states is an assumption and its source says so.

    ``peak_flops`` is dense, by dtype (``bf16 fp16 fp8 fp4 int8 tf32 fp32``); a missing dtype is not supported
    by the tensor cores. ``scale_up_bytes_per_s`` and ``nic_bytes_per_s`` are per GPU and *per direction*.
    ``memory_bytes`` is what the driver shows, ``marketing_memory_bytes`` what the page says.
    """

    name: str
    vendor: str
    memory_bytes: float
    marketing_memory_bytes: float
    hbm_bytes_per_s: float
    peak_flops: Mapping[str, float]
    scale_up_bytes_per_s: float
    scale_up_domain: int
    """GPUs joined by the scale-up fabric (NVLink domain): 8, 72, or 1 when there is only PCIe."""
    nic_bytes_per_s: float
    gpus_per_node: int
    host_memory_bytes_per_node: float
    architecture: str = ""
    """Vendor's generation name (as data; nothing branches on it in core)."""
    aliases: tuple[str, ...] = ()
    gemm: Mapping[str, Efficiency] = field(factory=dict)
    """By operand dtype."""
    expert_gemm: Mapping[str, Efficiency] = field(factory=dict)
    attention: Mapping[str, Efficiency] = field(factory=dict)
    """By kernel of serving: ``prefill``, ``decode``, ``mla_prefill``, ``mla_decode``.

    Each also with ``_fp8`` when keys and values are fp8. Training has its own in ``training``.
    """
    collectives: Mapping[str, tuple[CollectiveCurve, ...]] = field(factory=dict)
    """By kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` (the vendor's library).

    ``all_reduce_custom`` is the serving engines' own one, ``dispatch`` and ``combine`` the token exchange of experts.
    """
    training: Mapping[str, float] = field(factory=dict)
    """In-situ training constants of this GPU, see docs/reference/gpu-data.md for the keys."""
    serving: Mapping[str, float] = field(factory=dict)
    sources: Mapping[str, str] = field(factory=dict)
    """Where each figure comes from, by field name (``training.gemm_bf16`` for a key of a table)."""
    tables: Mapping[str, Any] = field(factory=dict, repr=False)
    """Measured points that refine an efficiency, by its name (``gemm.bf16``): ``profiles.residuals.Residuals``."""
    replaced: frozenset[str] = frozenset()
    """Figures that the user measured in place of the preset (``gemm.bf16``, ``training.hbm``, ``constant x``)."""
    host_link_bytes_per_s: float | None = None
    """GPU to host per direction (PCIe or a coherent link); carries GPU-to-GPU traffic where the fabric ends inside a node."""
    default: bool = False
    """The command takes this GPU when the user names none; two claims must be resolved by a name."""

    @property
    def wide_dtype(self) -> str:
        """The 16-bit dtype whose dense peak an MFU refers to: bf16, or fp16 where there is no bf16."""
        return "bf16" if "bf16" in self.peak_flops else "fp16"

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for a dtype. Raises SpecError naming what the GPU supports."""
        if dtype not in self.peak_flops:
            raise SpecError(f"{self.name} has no {dtype} tensor-core peak; it supports {', '.join(sorted(self.peak_flops))}")
        return self.peak_flops[dtype]


@frozen
class GroupLine:
    """Collectives of training inside a node over groups of one size, measured: latency and bus bandwidth."""

    ranks: float
    bytes_per_s: float
    latency_s: float


@frozen
class Tier:
    """One level of the network: groups of up to ``ranks`` GPUs talk at this speed per GPU and direction."""

    name: str
    ranks: int
    bytes_per_s: float
    latency_s: float
    source: str


@frozen
class Cluster:
    """GPUs × nodes × tiers, innermost tier first; the last tier spans all GPUs."""

    gpu: Gpu
    n_gpus: int
    gpus_per_node: int
    tiers: tuple[Tier, ...]
    host_memory_bytes_per_node: float
    overrides: tuple[str, ...] = ()
    """What the user replaced, as ``field=value`` for the header."""
    kinds: tuple[Cluster, ...] = ()
    """Parts of one kind of GPU each, where the GPUs differ; ``gpu`` is then the first part's, ``tiers`` the whole's."""

    @property
    def n_nodes(self) -> int:
        return sum(k.n_nodes for k in self.kinds) or -(-self.n_gpus // self.gpus_per_node)
