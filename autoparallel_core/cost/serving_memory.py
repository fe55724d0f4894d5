"""Memory of a deployment: weights, reserves and KV cache per GPU, and what the cache holds.

The engine's policy says what its memory fraction is a fraction of; its ``memory`` hook says what activations,
communication buffers and captured graphs take. The rest is arithmetic over the model. An instance serves as many
tokens as its tightest pipeline stage.

Axis legend: S strategies, U strategy keys, P pipeline stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import fields, frozen

from autoparallel_core.cost.serving_cache import StageCache, stage_cache
from autoparallel_core.cost.serving_mesh import KEYS, ServingMesh
from autoparallel_core.cost.serving_policy import device_bytes, policy_for
from autoparallel_core.cost.serving_weights import split_layers, stage_weights
from autoparallel_core.spec.serving import CAUSES
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from autoparallel_core.cost.serving_mesh import Array
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy


class MemoryHook(Protocol):
    """What this module asks of the plugin host."""

    def memory(self, problem: Problem, batch: StrategyBatch) -> Sequence[tuple[Any, Mapping[str, Array]]]:
        """Bytes per GPU by cause, from every plugin."""


@frozen(eq=False)
class StageArrays:
    """Per-stage memory of U keys that share a pipeline depth: float64[U, P] in bytes unless it says otherwise."""

    layers: tuple[int, ...]
    causes: Mapping[str, Array]
    """Everything but the KV cache, by cause; they sum to what a rank holds besides it."""
    kv_cache_bytes: Array
    """Room for the cache; negative when the rest does not fit."""
    cache: StageCache
    tokens: Array

    def kind(self, kind: str) -> Array:
        """Sum of the causes of one kind (:data:`CAUSES`; ``other`` for the rest)."""
        zero = np.zeros_like(self.kv_cache_bytes)
        return sum((v for c, v in self.causes.items() if cause_kind(c) == kind), start=zero)


@frozen(eq=False)
class ServingMemory:
    """Memory per GPU of S strategies on the stage that decides, float64[S].

    ``kv_tokens`` is per attention rank, as engines print it; an instance holds ``attn_dp`` times as many.
    """

    weights_bytes: Array
    activation_bytes: Array
    non_torch_bytes: Array
    cuda_graph_bytes: Array
    kv_cache_bytes: Array
    kv_tokens: Array
    kv_bytes_per_token: Array
    """All layers of the stage, group padding included, windows still growing."""
    state_bytes_per_sequence: Array
    max_concurrency: Array
    """Whole sequences of the workload's context that one instance holds at once."""
    by_cause: Mapping[str, Array]
    """Everything but the KV cache, on the deciding stage."""
    first_rank: Mapping[str, Array]
    """``weights_bytes``, ``activation_bytes``, ``non_torch_bytes``, ``cuda_graph_bytes`` and ``kv_cache_bytes`` of rank 0,
    on the first stage: what a start-up log prints."""
    deciding_stage: NDArray[np.int64]
    capacity_bytes: float
    attn_dp: Array
    window_bytes_per_token: Mapping[int, Array]
    """Bytes per token by window (0: none) on the deciding stage."""
    page_tokens: Array
    windows_free: bool
    """Whether layers with a window give back what they passed."""
    window_pool_ratio: float | None = None
    """Tokens in the windows' own pool over those in the pool of full attention; None: they share pages."""
    state_pool_ratio: float = 0.0
    """Bytes set aside for states over those for tokens; 0: they share pages."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """One sequence of the workload's context has room."""
        return self.max_concurrency >= 1

    @property
    def kv_tokens_per_instance(self) -> Array:
        return self.kv_tokens * self.attn_dp

    def take(self, rows: NDArray[np.int64]) -> ServingMemory:
        """The memory of ``rows``, which may repeat."""

        def of(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[rows]
            return {k: v[rows] for k, v in value.items()} if isinstance(value, dict) else value

        return ServingMemory(**{f.name: of(getattr(self, f.name)) for f in fields(type(self))})

    def sequence_bytes(self, context: Array | float) -> Array:
        """Cache bytes of one sequence of ``context`` tokens."""
        total = self.state_bytes_per_sequence.copy()
        for window, b in self.window_bytes_per_token.items():
            kept = np.asarray(context, dtype=np.float64)
            if window and self.windows_free:
                kept = np.minimum(kept, window + self.page_tokens)
            total = total + np.ceil(kept / self.page_tokens) * self.page_tokens * b
        return total

    def concurrency_at(self, context: Array | float) -> Array:
        """Whole sequences of ``context`` tokens that one instance holds."""
        return np.floor(self.sequences_at(context)) * self.attn_dp

    def capacity_tokens(self, context: Array | float) -> Array:
        """Tokens of running sequences, each of ``context`` tokens, that one instance holds.

        Where layers with a window or a state take less than a slot per token this is not what an engine prints as its cache's
        size.
        """
        if not (len(self.window_bytes_per_token) > 1 and self.windows_free) and not self.state_bytes_per_sequence.any():
            return self.kv_tokens_per_instance
        return np.asarray(self.sequences_at(context) * context * self.attn_dp)

    def sequences_at(self, context: Array | float) -> Array:
        """Sequences of ``context`` tokens that one attention rank holds, with the fraction of one."""
        budget, state = np.maximum(self.kv_cache_bytes, 0.0), self.state_bytes_per_sequence
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.state_pool_ratio and state.any():
                tokens = budget / (1.0 + self.state_pool_ratio) / (self.sequence_bytes(context) - state)
                states = budget / (1.0 + 1.0 / self.state_pool_ratio) / state
                return np.where(state > 0, np.minimum(tokens, states), budget / self.sequence_bytes(context))
            if self.window_pool_ratio is not None and len(self.window_bytes_per_token) > 1:
                window = float(max(self.window_bytes_per_token))
                held = np.minimum(np.asarray(context, dtype=np.float64), window)
                return np.asarray(np.minimum(self.kv_tokens / context, self.window_pool_ratio * self.kv_tokens / held))
            return np.asarray(budget / self.sequence_bytes(context))

    def longest_context(self, concurrency: float) -> Array:
        """Most tokens per sequence at ``concurrency`` sequences per instance, by bisection; 0 when not one token fits."""
        per_rank = np.ceil(concurrency / self.attn_dp)
        low, high = np.zeros(len(self.attn_dp)), np.full(len(self.attn_dp), float(1 << 40))
        while np.any(high - low > 1):
            mid = np.floor((low + high) / 2)
            ok = per_rank <= self.sequences_at(np.maximum(mid, 1.0))
            low, high = np.where(ok, mid, low), np.where(ok, high, mid)
        return low


def cause_kind(cause: str) -> str:
    """``activation: logits@last`` is of kind ``activation``; unknown kinds are ``other``."""
    word = cause.partition("@")[0].partition(":")[0].strip()
    return word if word in CAUSES else "other"


def serving_memory(problem: Problem, batch: StrategyBatch, host: MemoryHook) -> ServingMemory:
    """Memory of every strategy of the batch.

    Raises:
        SpecError: the engine's version has no policy, or a dtype or format is unknown.
    """
    unique, inverse = batch.unique((*KEYS, "pp"))
    S = len(unique)
    rows: dict[str, Array] = {}
    capacity = device_bytes(problem)
    policy = policy_for(problem)
    for pp in np.unique(unique.pp):
        index = np.flatnonzero(unique.pp == pp)
        stages = stage_arrays(problem, unique.take(index), host)
        worst = np.argmin(np.where(stages.kv_cache_bytes < 0, stages.kv_cache_bytes, stages.tokens), axis=1)
        pick = (np.arange(len(index)), worst)

        def put(name: str, values: Array, where: NDArray[np.int64] = index) -> None:
            rows.setdefault(name, np.zeros(S))[where] = values

        for kind in (*CAUSES, "other"):
            put(kind, stages.kind(kind)[pick])
            put(f"first {kind}_bytes", stages.kind(kind)[:, 0])
        for cause, v in stages.causes.items():
            put(f"cause {cause}", v[pick])
        put("first kv_cache_bytes", stages.kv_cache_bytes[:, 0])
        put("kv", stages.kv_cache_bytes[pick])
        put("tokens", stages.tokens[pick])
        put("per_token", stages.cache.per_token[pick])
        put("state", stages.cache.state_bytes[pick])
        put("page", stages.cache.page[pick])
        put("stage", worst.astype(np.float64))
        for window, b in stages.cache.token_bytes.items():
            put(f"window {window}", b[pick])
    full = {k: v[inverse] for k, v in rows.items()}

    def prefixed(prefix: str) -> dict[str, Array]:
        return {k.removeprefix(prefix): v for k, v in full.items() if k.startswith(prefix)}

    memory = ServingMemory(
        weights_bytes=full["weights"],
        activation_bytes=full["activation"],
        non_torch_bytes=full["non_torch"] + full["other"],
        cuda_graph_bytes=full["cuda_graph"],
        kv_cache_bytes=full["kv"],
        kv_tokens=full["tokens"],
        kv_bytes_per_token=full["per_token"],
        state_bytes_per_sequence=full["state"],
        max_concurrency=np.zeros(len(batch)),
        by_cause=prefixed("cause "),
        first_rank=prefixed("first "),
        deciding_stage=full["stage"].astype(np.int64),
        capacity_bytes=capacity,
        attn_dp=batch.attn_dp.astype(np.float64),
        window_bytes_per_token={int(k): v for k, v in prefixed("window ").items()},
        page_tokens=full["page"],
        windows_free=policy.mixed_cache != "uniform",
        window_pool_ratio=policy.window_pool_ratio if policy.mixed_cache == "pools" else None,
        state_pool_ratio=policy.state_pool_ratio,
    )
    object.__setattr__(memory, "max_concurrency", memory.concurrency_at(float(problem.inference.context_tokens)))
    return memory


def serving_stages(problem: Problem, strategy: Strategy, host: MemoryHook) -> StageArrays:
    """Every stage of one strategy (U = 1), for explanations and for comparison with one rank's log."""
    return stage_arrays(problem, StrategyBatch.of([strategy]), host)


def stage_arrays(problem: Problem, batch: StrategyBatch, host: MemoryHook) -> StageArrays:
    """Per-stage memory of strategies that share one pipeline depth."""
    policy = policy_for(problem)
    pp = int(batch.pp[0])
    sizes = split_layers(problem.arch.num_layers, pp, policy.layer_split)
    mesh = ServingMesh.of(batch, policy, problem.cluster.gpu.architecture)
    causes: dict[str, Array] = dict(stage_weights(problem, mesh, sizes).causes)
    for _, result in host.memory(problem=problem, batch=batch):
        for cause, values in result.items():
            name, _, where = cause.partition("@")
            spread = np.zeros((len(batch), pp))
            spread[:, {"first": slice(0, 1), "last": slice(pp - 1, pp)}.get(where, slice(None))] = values[:, None]
            causes[name] = causes.get(name, 0.0) + spread
    cache = stage_cache(problem, mesh, sizes)
    zero = np.zeros((len(batch), pp))
    stages = StageArrays(sizes, causes, zero, cache, zero)
    share = _share(problem, stages)
    kv = _kv_bytes(problem, stages, share)
    if policy.budget == "share_of_free":
        causes = _what_the_share_leaves(problem, stages, share)
    work = problem.inference
    context = float(work.max_model_len or work.context_tokens)
    return StageArrays(sizes, causes, kv, cache, cache.tokens(kv, context))


def _outside(stages: StageArrays) -> Array:
    return stages.kind("non_torch") + stages.kind("other")


def _reserves(stages: StageArrays) -> Array:
    return stages.kind("activation") + stages.kind("cuda_graph")


def _share(problem: Problem, stages: StageArrays) -> Array:
    """The memory fraction: the user's, the policy's, or one minus what the engine reserves for activations and graphs."""
    asked, default = problem.inference.memory_fraction, policy_for(problem).memory_fraction
    if asked is None and default is None:
        return 1.0 - _reserves(stages) / device_bytes(problem)
    return np.full_like(stages.kv_cache_bytes, asked if asked is not None else default)


def _kv_bytes(problem: Problem, stages: StageArrays, share: Array) -> Array:
    """Room for the cache under the engine's budget (see :data:`autoparallel_core.spec.serving.Budget`)."""
    device, weights = device_bytes(problem), stages.kind("weights")
    budget = policy_for(problem).budget
    if budget == "share_of_device":
        return share * device - weights - _reserves(stages) - _outside(stages)
    if budget == "share_of_free":
        return share * (device - _outside(stages)) - weights
    free = device - weights - _reserves(stages) - _outside(stages)
    return np.where(free > 0, share * free, free)


def _what_the_share_leaves(problem: Problem, stages: StageArrays, share: Array) -> dict[str, Array]:
    """The causes, with activations and graphs scaled to the memory that weights and cache leave to them."""
    left = (1.0 - share) * np.maximum(device_bytes(problem) - _outside(stages), 0.0)
    planned = _reserves(stages)
    factor = np.divide(left, planned, out=np.zeros_like(left), where=planned > 0)
    return {c: v * factor if cause_kind(c) in ("activation", "cuda_graph") else v for c, v in stages.causes.items()}
