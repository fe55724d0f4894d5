"""The GPU, network and software of one training problem, as the pricing functions ask for them."""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.collectives import Network
from autoparallel_core.ops.kernels import GemmModel
from autoparallel_core.ops.ledger import note
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Problem

Array = NDArray[np.float64]

LOW_PRECISION = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Training precision → tensor-core dtype of its quantised GEMMs."""


@frozen(eq=False)
class TrainingHardware:
    """Rates and factors; seconds come from its methods."""

    problem: Problem
    network: Network
    hbm_bytes_per_s: float
    bf16: GemmModel
    low: GemmModel | None
    attention_flops: float
    """Plateau rate of the fused kernel in use, FLOP/s."""
    dense_flops: float
    unfused_attention: bool
    elementwise_factor: float
    accumulate_bytes: float
    tp_exposed_forward: float
    tp_exposed_backward: float
    dispatch_once: bool
    """The dispatcher sends a token once per rank and domain, not once per expert."""
    ep_exposed: float
    frozen_weights: bool

    @classmethod
    def of(cls, problem: Problem) -> TrainingHardware:
        """Raises SpecError when the GPU lacks the precision or a constant."""
        c, gpu, soft, work = problem.constant, problem.cluster.gpu, problem.software, problem.training
        dtype = "fp16" if work.precision == "fp16" else "bf16"
        if work.precision == "fp32":
            raise SpecError("precision fp32 is not priced for training; use bf16, fp16, fp8, mxfp8 or nvfp4")
        peak16 = gpu.peak(dtype)
        hbm = gpu.hbm_bytes_per_s * _training(gpu, "hbm")
        points = gpu.tables.get(f"gemm.{dtype}")
        bf16 = GemmModel(peak16, _training(gpu, "gemm_bf16"), hbm, c("gemm_half_k"), 2.0, c("gemm_misaligned"), points)
        low = None
        if name := LOW_PRECISION.get(work.precision):
            rate = _training(gpu, f"gemm_{name}") * (c("gemm_rowwise_scaled") if soft.low_precision_recipe == "rowwise" else 1.0)
            low = GemmModel(gpu.peak(name), rate, hbm, 2 * c("gemm_half_k"), 1.0, c("gemm_misaligned"))
        kernel = soft.attention_kernel
        unfused = kernel == "unfused"
        attention = peak16 * (c("attention_unfused") if unfused else _training(gpu, f"attention_{kernel}"))
        overlap = c("tp_overlap_exposed") if soft.tp_overlap else 1.0
        return cls(
            problem=problem,
            network=Network.of(
                problem.cluster,
                scale_up_efficiency=c("scale_up_efficiency"),
                scale_out_efficiency=c("scale_out_efficiency"),
                scale_out_latency_s=c("scale_out_latency_s"),
            ),
            hbm_bytes_per_s=hbm,
            bf16=bf16,
            low=low,
            attention_flops=attention,
            dense_flops=peak16 * bf16.efficiency,
            unfused_attention=unfused,
            elementwise_factor=c(f"elementwise_{soft.elementwise.replace('-', '_')}"),
            accumulate_bytes=c("wgrad_accumulate_bytes"),
            tp_exposed_forward=overlap,
            tp_exposed_backward=overlap * c("tp_exposed_backward"),
            dispatch_once=soft.dispatcher not in ("alltoall", "allgather"),
            ep_exposed=c("ep_overlap_exposed") if soft.ep_overlap else 1.0,
            frozen_weights=work.task == "lora",
        )

    @property
    def low_precision(self) -> bool:
        return self.low is not None

    @property
    def low_input_bytes(self) -> float:
        return self.problem.constant("memory_low_precision_input_bytes")

    @property
    def expert_half_rows(self) -> float:
        return self.problem.constant("expert_half_rows")

    @property
    def overlap_loss(self) -> float:
        return self.problem.constant("overlap_loss")

    def gemm(self, *, precise: bool) -> GemmModel:
        """The GEMM model of a quantised or a 16-bit matrix product."""
        return self.bf16 if precise or self.low is None else self.low

    def cast_s(self, elements: Array) -> Array:
        return elements * self.problem.constant("cast_bytes_per_element") / self.hbm_bytes_per_s

    def elementwise_s(self, moved_bytes: Array) -> Array:
        return moved_bytes * self.elementwise_factor / self.hbm_bytes_per_s

    def loss_s(self, logits: Array) -> Array:
        return logits * self.problem.constant("loss_bytes_per_logit") / self.hbm_bytes_per_s

    def scan_s(self, flops: Array, moved_bytes: Array) -> Array:
        """Chunked scans run small matrix products: half of the GEMM plateau (assumed), or the traffic."""
        return np.maximum(flops / (0.5 * self.dense_flops), moved_bytes * self.elementwise_factor / self.hbm_bytes_per_s)

    def attention_s(
        self, head_pairs: Array, qk_width: int, v_width: int, seq_len: float, head_square: Array
    ) -> tuple[Array, Array]:
        """Forward and backward of softmax attention.

        ``head_pairs`` counts attended query–key pairs times local heads, ``head_square`` the whole square (unfused
        kernels compute all of it and move every score through memory).
        """
        c = self.problem.constant
        flops_per_pair = 2.0 * (qk_width + v_width)
        if self.unfused_attention:
            forward = head_square * (
                flops_per_pair / self.attention_flops + c("attention_unfused_forward_bytes") / self.hbm_bytes_per_s
            )
            backward = head_square * (
                2 * flops_per_pair / self.attention_flops + c("attention_unfused_backward_bytes") / self.hbm_bytes_per_s
            )
            return forward, backward
        rate = self.attention_flops * seq_len / (seq_len + c("attention_half_length"))
        if qk_width <= 64:
            rate *= c("attention_small_head")
        forward = head_pairs * flops_per_pair / rate
        backward = forward * c("attention_backward_flops") / c("attention_backward_efficiency")
        shape = (head_square / float(seq_len) ** 2, np.full_like(forward, seq_len), np.full_like(forward, qk_width))
        least = head_pairs * flops_per_pair / self.bf16.peak_flops
        return (
            self._as_measured("forward", forward, shape, least),
            self._as_measured("backward", backward, shape, least * c("attention_backward_flops")),
        )

    def _as_measured(self, phase: str, seconds: Array, shape: tuple[Array, Array, Array], least: Array) -> Array:
        """Moved by what measured neighbours deviate from causal attention's form; (sequences × heads, length, head width)."""
        points = self.problem.cluster.gpu.tables.get(f"attention_training.{phase}")
        if points is None:
            return seconds
        c = self.problem.constant
        slower = 1.0 if phase == "forward" else c("attention_backward_flops") / c("attention_backward_efficiency")

        def form(heads: Array, length: Array, width: Array) -> Array:
            rate = self.attention_flops * length / (length + c("attention_half_length"))
            rate = rate * np.where(width <= 64, c("attention_small_head"), 1.0)
            return np.asarray(slower * heads * length**2 / 2.0 * 4.0 * width / rate)

        ratio, marks = points.deviation(form, *shape, absolute=True)
        out: Array = np.maximum(seconds * ratio, least)
        note("attention", out, marks)
        return out


def _training(gpu: Gpu, key: str) -> float:
    if key not in gpu.training:
        raise SpecError(
            f"{gpu.name} has no training constant '{key}'; its data file states {', '.join(sorted(gpu.training)) or 'none'}"
        )
    return gpu.training[key]
