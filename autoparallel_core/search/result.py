"""What a search or an evaluation answers. Reports format these and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import Strategy

Verdict = Literal["fits", "tight", "does not fit"]

TIE = 1e-2
"""Differences that a prediction cannot tell apart: a quarter of the median error on published runs."""


@frozen
class CostBreakdown:
    """Seconds of one step (training) or one request's path by cause. The values sum to ``total_s``."""

    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@frozen
class StageMemory:
    """Bytes per GPU of one pipeline stage by cause; they sum to the stage's allocated peak."""

    stage: int
    layers: int
    bytes: Mapping[str, float]
    overhead: Mapping[str, float] = field(factory=dict)
    """Bytes in use above the allocated ones, by cause: context and communicators, blocks that the allocator caches."""
    squeezed_bytes: float = 0.0
    """Blocks that the allocator would cache as well if the device had room for them."""

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes.values())

    @property
    def peak_bytes(self) -> float:
        """What the device shows in use."""
        return self.total_bytes + sum(self.overhead.values())

    @property
    def parts(self) -> dict[str, float]:
        """Everything in use by cause; sums to ``peak_bytes``."""
        return {**self.bytes, **self.overhead}


@frozen
class MemoryBreakdown:
    """Memory per stage, and the two figures people compare it with."""

    stages: tuple[StageMemory, ...]
    capacity_bytes: float
    """What one GPU offers."""
    reserved_bytes: float
    """Peak reserved by the allocator plus context and communicators, on the deciding stage."""
    host_bytes_per_node: float = 0.0
    least_room: int | None = None
    """Serving: the stage with the least room for a cache, which decides; None where the fullest does."""

    @property
    def deciding(self) -> StageMemory:
        if self.least_room is not None:
            return next(s for s in self.stages if s.stage == self.least_room)
        return max(self.stages, key=lambda s: s.total_bytes)

    @property
    def allocated_bytes(self) -> float:
        return self.deciding.total_bytes

    @property
    def margin_bytes(self) -> float:
        return self.capacity_bytes - self.reserved_bytes


@frozen
class TrainingFigures:
    """What one training step achieves."""

    step_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    """Model FLOPs (6·active parameters plus causal attention, no recompute) over the bf16 dense peak."""
    micro_batches: int
    layers_per_stage: tuple[int, ...]
    bubble_fraction: float


@frozen
class ServingFigures:
    """One deployment. Totals are over all instances; latencies are means with a (low, high) interval."""

    instances: int
    gpus_per_instance: int
    batch_per_instance: float
    """Sequences decoding together in steady state."""
    kv_tokens_per_instance: int
    kv_bytes_per_gpu: float
    weights_bytes_per_gpu: float
    prefill_s: float
    ttft_s: float
    ttft_interval_s: tuple[float, float]
    tpot_s: float
    """Mean time between tokens after the first."""
    tpot_interval_s: tuple[float, float]
    e2e_tpot_s: float
    """End-to-end latency over output tokens."""
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    requests_per_s: float
    max_concurrency: int
    """Requests of the asked length that the KV cache of all instances holds at once."""
    concurrency: float = 0.0
    """Requests in flight over all instances."""
    waiting: float = 0.0
    """Of the requests in flight, those that wait for a place at an instance."""
    kv_use: float = 0.0
    """Share of the KV cache that the requests which run together fill when all have reached their full length, at most 1."""
    longest_request_tokens: int | None = None
    """Longest request at which as many of them still have room in the KV cache; None: any, or nobody looked."""
    longest_alone_tokens: int | None = None
    """The same of a request that an instance serves alone."""
    e2e_tpot_interval_s: tuple[float, float] = (0.0, 0.0)
    price_per_million_output_tokens: float | None = None
    """At the workload's price of a GPU and hour, for the GPUs in use."""
    price_per_million_tokens: float | None = None
    """The same over input and output tokens together."""
    activation_bytes_per_gpu: float = 0.0
    non_torch_bytes_per_gpu: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return self.instances * self.gpus_per_instance


@frozen
class PlannedStage:
    """One pipeline stage of a plan whose stages were chosen one by one."""

    stage: int
    layers: tuple[int, ...]
    """Decoder layers of each of its chunks (virtual stages), in order."""
    first_layers: tuple[int, ...]
    """Index of each chunk's first layer."""
    classes: Mapping[str, int]
    """Layers by kind."""
    recomputed: Mapping[str, int]
    """Of those, layers under full recompute."""
    strategy: Strategy
    gpu: str
    gpus: int
    time_s: float
    """Forward and backward of one micro-batch."""
    memory_bytes: float
    """Allocated at the peak."""
    capacity_bytes: float
    embedding: bool = False
    head: bool = False
    """With the loss and the layers for multi-token prediction."""
    offloaded: int = 0
    """First layers whose activations wait in host memory."""

    @property
    def n_layers(self) -> int:
        return sum(self.layers)


@frozen
class Plan:
    """One strategy with everything the answer says about it."""

    strategy: Strategy
    cost: CostBreakdown
    memory: MemoryBreakdown
    verdict: Verdict
    training: TrainingFigures | None = None
    serving: ServingFigures | None = None
    reasons: tuple[str, ...] = ()
    """Sentences: what is exposed, what binds, what the next best would be."""
    variants: tuple[Strategy, ...] = ()
    """Strategies of the same degrees and nearly the same speed that this one stands for."""
    stages: tuple[PlannedStage, ...] = ()
    """All stages in order, where they were chosen one by one; () for the usual spread of layers."""
    cut: StageCut | None = None
    """The same as the evaluator takes it; None for the usual spread, and where stages differ in more than their layers."""

    @property
    def notation(self) -> str:
        """The strategy in compact notation; a deployment has no micro-batch."""
        text = str(self.strategy)
        return text.replace(" mbs1", "") if self.serving else text

    @property
    def throughput(self) -> float:
        """Tokens per second and GPU, the ranking key of both modes."""
        if self.training:
            return self.training.tokens_per_s_per_gpu
        return self.serving.output_tokens_per_s_per_gpu if self.serving else 0.0


@frozen
class OperatorRow:
    """How one product of a layer is sharded; words by mesh dimension."""

    part: str
    """Class of layers, or the head."""
    layers: int
    operator: str
    scheme: tuple[str, ...]
    work: str
    """Axes by which its work is split."""
    weights: str
    """Axes along which its weights lie; empty where it has none."""
    state: str
    """The same of its optimizer state."""
    moves: str
    """Collectives on its result."""


@frozen
class OperatorAnswer:
    """The best sharding of every operator, where each is chosen by itself."""

    mesh: tuple[int, ...]
    micro_batches: int
    rows: tuple[OperatorRow, ...]
    seconds: Mapping[str, float]
    """Of a step, by cause: collectives and element-wise passes, the part that depends on the choice."""
    step_s: float
    held_bytes: float
    budget_bytes: float
    others: tuple[tuple[str, float | None], ...]
    """The same part under plans of one idea; None: does not fit or does not divide."""
    gap: float
    """Relative distance to the solver's bound; 0: optimal."""
    notes: tuple[str, ...] = ()


@frozen
class SearchResult:
    """The answer to one problem. ``plans`` are ranked, best first, and all fit unless nothing does."""

    problem: Problem
    plans: tuple[Plan, ...]
    pareto: tuple[Plan, ...] = ()
    """Non-dominated in (throughput, memory margin), best throughput first, thinned evenly over the margin.

    In serving the cache takes all free memory; there the margin is the number of requests that it holds.
    """
    enumerated: int = 0
    """Strategies of the space after divisibility."""
    evaluated: int = 0
    fitting: int = 0
    refused: Mapping[str, int] = field(factory=dict)
    """Strategies refused, by rule id."""
    nearest_miss: Plan | None = None
    """When nothing fits: the legal strategy that misses by least."""
    planner: str = "grid"
    chosen: str = ""
    """Why this planner answered, where nobody named one."""
    elapsed_s: float = 0.0
    assumptions: tuple[str, ...] = ()
    blame: Mapping[str, str] = field(factory=dict)
    """Cause → plugin that added a cost or memory delta."""
    operators: OperatorAnswer | None = None
    """A sharding per operator, where that was asked for."""
    baseline: Plan | None = None
    """The best plan of a simpler search on the same space, for comparison."""
