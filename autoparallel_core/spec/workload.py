"""What is to be run: a training batch or a serving load, and the software that runs it."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")


@frozen
class Software:
    """What the software stack does, independent of the strategy. Engines give defaults, users and run records override.

    ``assumed`` names the fields nobody stated.
    """

    attention_kernel: Literal["unfused", "flash2", "fused"] = "fused"
    elementwise: Literal["unfused", "partly-fused", "eager", "compiled", "fused"] = "fused"
    dp_overlap: bool = True
    tp_overlap: bool = False
    ep_overlap: bool = False
    p2p_overlap: bool = True
    cuda_graph: Literal["none", "partial", "full_iteration"] = "none"
    dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] = "alltoall"
    cp_comm: Literal["p2p", "all_gather", "a2a"] = "p2p"
    """How context parallelism brings keys to queries: a ring of sends behind the attention (Ring Attention), an all-gather of
    keys and values before it, or all-to-alls that trade the sequence for heads (Ulysses)."""
    own_tensor_parallel: bool = False
    """The model's own layers are cut over tensor-parallel ranks; else the engine cuts a plain model, where it can."""
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING: the host waits for every kernel."""
    sharded_dispatch: bool = False
    """Tensor-parallel operators are sharded tensors that Python dispatches one by one (DTensor), unless they are compiled."""
    pipeline_schedule: Literal["1f1b", "gpipe", "zero_bubble", "dualpipe_v"] = "1f1b"
    embedding_as_layer: bool = False
    """Embedding and loss count as layers when the pipeline is split."""
    precision_aware_optimizer: bool = False
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    low_precision_recipe: str | None = None
    """delayed | current | blockwise | mxfp8 | nvfp4: how low-precision GEMMs are scaled."""
    recompute_modules: tuple[str, ...] = ("core_attn",)
    """What selective recompute runs again, by the names in ``autoparallel_core.cost.recompute.MODULES``."""
    activation_offload_layers: int = 0
    nic_bytes_per_s: float | None = None
    """Stated interconnect per GPU, when it differs from the preset."""
    assumed: tuple[str, ...] = ()


@frozen
class TrainingWorkload:
    """One optimizer step: ``global_batch_size`` sequences of ``seq_len`` tokens."""

    seq_len: int
    global_batch_size: int
    precision: str = "bf16"
    task: Literal["pretrain", "sft", "lora"] = "pretrain"
    max_tokens_per_micro_batch: int | None = None
    recompute_allowed: bool = True
    optimizer_cpu_offload: bool | None = None
    """True: required, False: forbidden, None: the search may choose."""
    activation_cpu_offload: bool = False
    """Whether plans may keep activations of some layers in host memory."""
    grad_reduce_in_fp32: bool = True
    lora_rank: int = 16
    software: Software | None = None
    """None: the engine's defaults."""

    @property
    def tokens_per_step(self) -> int:
        return self.seq_len * self.global_batch_size


@frozen
class InferenceWorkload:
    """Requests of ``isl`` input and ``osl`` output tokens, ``concurrency`` of them in flight over the whole cluster."""

    isl: int
    osl: int
    concurrency: int | None = None
    """None: as many as the cache holds at full length, the most within the latency limits, one for the goal latency, or the
    fewest that serve a request rate for the goals latency and cost."""
    load: Literal["closed", "offline", "static"] = "closed"
    requests: int | None = None
    """Requests of an offline run, whose last batch is not full; None: its steady state."""
    precision: str | None = None
    """GEMM precision override; None: what the checkpoint is."""
    kv_dtype: str | None = None
    prefix_hit_rate: float = 0.0
    accepted_length: float = 1.0
    """Mean tokens per step with speculative decoding, 1 without."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    memory_fraction: float | None = None
    """Engine's memory fraction flag; None: its default."""
    device_memory_bytes: float | None = None
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None
    request_rate_per_s: float | None = None
    goal: Literal["latency", "throughput", "cost"] = "throughput"
    gpu_hour_price: float | None = None
    """Price of one GPU for an hour, in any currency; prices of tokens are in the same."""
    settings: tuple[tuple[str, str], ...] = field(default=())

    @property
    def context_tokens(self) -> int:
        return self.isl + self.osl

    @property
    def paced(self) -> bool:
        """Whether a deployment runs at the request rate asked for, and no faster: what it could do beyond is of no use."""
        return self.request_rate_per_s is not None and self.goal in {"latency", "cost"} and self.concurrency is None

    @property
    def assumed_in_flight(self) -> str | None:
        """What is assumed of the requests in flight where nobody states them; None where they are stated."""
        if self.concurrency is not None:
            return None
        if self.load == "offline":
            return "requests in flight: as many as fit, the cache kept full"
        if self.paced:
            return f"requests in flight: the fewest that serve the request rate (goal {self.goal})"
        if self.goal == "latency":
            return "requests in flight: one in the whole cluster (goal latency)"
        limits = [n for n, v in (("TTFT", self.ttft_limit_s), ("TPOT", self.tpot_limit_s)) if v is not None]
        if limits:
            return f"requests in flight: for each layout the most that keep the limit on {' and '.join(limits)}"
        return "as many requests in flight as the KV cache holds at full length and the engine runs together, layout by layout"


Workload = TrainingWorkload | InferenceWorkload
