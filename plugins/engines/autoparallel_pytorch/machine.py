"""The target GPUs as the planner prices them: the core's kernel and collective models, on a mesh. Not the local device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.constants import core_constants
from autoparallel_core.errors import SpecError
from autoparallel_core.ops.collectives import Network
from autoparallel_core.ops.kernels import GemmModel
from autoparallel_core.spec.cluster import Cluster

Array = NDArray[np.float64]

_TENSOR_CORE = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


MOST_DIMENSIONS = 4


@frozen
class Mesh:
    """Named dimensions, the last one innermost: neighbours of the last dimension are next to each other in a node."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.sizes) > MOST_DIMENSIONS:
            raise SpecError(f"mesh {self} has {len(self.sizes)} dimensions; plans have at most {MOST_DIMENSIONS}")

    @property
    def n_gpus(self) -> int:
        return prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.sizes[i + 1 :]) for i in range(len(self.sizes)))

    def __str__(self) -> str:
        return ",".join(f"{n}={s}" for n, s in zip(self.names, self.sizes, strict=True))


@frozen(eq=False)
class Machine:
    """Seconds of kernels and collectives of one cluster, whose GPUs form ``mesh``."""

    cluster: Cluster
    mesh: Mesh
    network: Network = field(init=False)
    constants: Mapping[str, float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        c = {name: x.value for name, x in core_constants().items()}
        object.__setattr__(self, "constants", c)
        network = Network.of(
            self.cluster,
            scale_up_efficiency=c["scale_up_efficiency"],
            scale_out_efficiency=c["scale_out_efficiency"],
            scale_out_latency_s=c["scale_out_latency_s"],
        )
        object.__setattr__(self, "network", network)
        if self.cluster.n_gpus != self.mesh.n_gpus:
            raise SpecError(f"mesh {self.mesh} takes {self.mesh.n_gpus} GPUs and the cluster has {self.cluster.n_gpus}")

    def training(self, key: str) -> float:
        gpu = self.cluster.gpu
        if key not in gpu.training:
            raise SpecError(f"{gpu.name} has no training constant '{key}', which planning needs")
        return gpu.training[key]

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.cluster.gpu.hbm_bytes_per_s * self.training("hbm")

    def peak(self, dtype: str) -> float:
        """FLOP/s for a dtype's matrix products; 32-bit ones run on the plain units, not as TF32, unless torch is told to."""
        gpu = self.cluster.gpu
        name = _TENSOR_CORE.get(dtype)
        if name is not None:
            return gpu.peak(name)
        if dtype == "float64":
            return gpu.peak_flops.get("fp64", gpu.peak("fp32") / 2)
        return gpu.peak("fp32")

    def gemm(self, dtype: str, bytes_per_element: int) -> GemmModel:
        c = self.constants
        return GemmModel(
            self.peak(dtype), self.training("gemm_bf16"), self.hbm_bytes_per_s, c["gemm_half_k"], float(bytes_per_element),
            c["gemm_misaligned"],
        )  # fmt: skip

    def attention_rate(self, dtype: str, keys: float, width: int) -> float:
        """FLOP/s of an attention forward over ``keys`` keys, by the kernel that is replayed: torch's FlashAttention-2."""
        c = self.constants
        share = self.training("attention_flash2")
        rate = self.peak(dtype) * share * keys / (keys + c["attention_half_length"])
        return rate * (c["attention_small_head"] if width <= 64 else 1.0)

    def traffic_s(self, n_bytes: Array | float) -> Array:
        """Element-wise passes over so many bytes, as the compiler's kernels make them."""
        return np.asarray(n_bytes / self.hbm_bytes_per_s)

    # --- collectives over mesh dimension m; ``local`` is the bytes of the tensor on one rank before ---------------------

    def all_gather_s(self, local: Array, m: int) -> Array:
        n, stride = self._group(m)
        return self.network.gather(local * n, n, stride)

    def reduce_scatter_s(self, local: Array, m: int) -> Array:
        n, stride = self._group(m)
        return self.network.gather(local, n, stride)

    def all_reduce_s(self, local: Array, m: int) -> Array:
        n, stride = self._group(m)
        return self.network.all_reduce(local, n, stride)

    def all_to_all_s(self, local: Array, m: int) -> Array:
        n, stride = self._group(m)
        return self.network.exchange(local, 1, n, stride, once_per_rank=False)

    def latency_s(self, kind: str, m: int) -> float:
        """Of a collective without bytes."""
        found: Array = getattr(self, f"{kind}_s")(np.zeros(()), m)
        return float(found)

    def _group(self, m: int) -> tuple[Array, float]:
        return np.asarray(float(self.mesh.sizes[m])), float(self.mesh.strides[m])


def default_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """Names of mesh dimensions that a search made."""
    return {1: ("dp",), 2: ("dp", "tp"), 3: ("dp", "fsdp", "tp"), 4: ("pp", "dp", "fsdp", "tp")}[len(sizes)]
