"""What any pipeline stage costs, linear in its layers by class: the evaluator's own numbers, taken apart once.

A stage that holds n[c] layers of class c, at position s of the pipeline, with x[c] of them under full recompute::

    seconds = Σ n[c]·time[c] + Σ x[c]·again[c] + first·first_s + last·last_s
    bytes   = Σ n[c]·static[c] + flight(s)·(stays·(Σ n[c]·saved[c] − Σ x[c]·dropped[c]) + passing) + live + ends + constant

Axis legend: S strategies, C layer classes, K causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, fields, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.data_parallel import Groups
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.layer import CAUSES, LayerCost
from autoparallel_core.cost.pipeline import in_flight
from autoparallel_core.cost.stage_costs import SELECTIVE, Pieces, Stages, price_layers
from autoparallel_core.cost.training_memory import device_bytes, stage_memory
from autoparallel_core.ops.mesh import KEYS
from autoparallel_core.search.evaluate import evaluate
from autoparallel_core.search.evaluation import Evaluation
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

PIPELINE_CAUSES = (*CAUSES, "recompute", "pp_p2p", "bubble")


@frozen(eq=False)
class StageModel:
    """S strategies of one problem. Seconds are of one micro-batch, forward and backward, with the engine's changes."""

    problem: Problem
    batch: StrategyBatch
    time: Array
    """[S, C]."""
    forward: Array
    """Of that, the forward, [S, C]."""
    again: Array
    """Seconds that full recompute adds per layer, [S, C]."""
    first_s: Array
    """The embedding, [S]."""
    last_s: Array
    """The head with the loss, and the layers for multi-token prediction, [S]."""
    first_forward: Array
    last_forward: Array
    p2p_s: Array
    """Exposed transfers of one micro-batch on every stage, [S]."""
    static: Array
    """Bytes of a layer's parameters, gradients and optimizer state, [S, C]."""
    saved: Array
    """Bytes kept per micro-batch in flight, [S, C]."""
    dropped: Array
    """Of those, what full recompute drops, [S, C]."""
    passing: Array
    """Further bytes per micro-batch in flight, whatever the layers, [S]."""
    live: Array
    """Bytes of the layer being recomputed, [S, C]."""
    first_static: Array
    last_static: Array
    last_saved: Array
    logits: Array
    constant: Array
    """Bytes that every stage holds, [S]."""
    budget: Array
    """Bytes that a stage may allocate, [S]."""
    rest_s: Array
    """Seconds of a step outside the pipeline: reduction, optimizer; as with the usual spread of layers, [S]."""
    slow: Array
    """Factor on the whole step (stragglers), [S]."""
    micro_batches: Array
    spread: Array
    """Weight of the sum over stages in the step, [S]; see :mod:`autoparallel_core.solve.stages`."""
    repeat: Array
    """Weight of the slowest stage, [S]."""
    prefix: IntArray
    """Layers by class in front of each layer, and of all, [L + 1, C]."""

    def stays(self, counts: IntArray) -> Array:
        """Share of a stage's activations that is not offloaded to the host, by its layers by class, [N]."""
        away = self.problem.software.activation_offload_layers
        return np.asarray(1.0 - np.minimum(1.0, away / np.maximum(counts.sum(axis=1), 1)))

    def flight(self, i: int, stages: IntArray) -> Array:
        """Micro-batches in flight on the given stages of strategy ``i``."""
        p, v = float(self.batch.pp[i]), float(self.batch.vpp[i])
        at = np.asarray(stages, dtype=np.float64)
        one = np.ones_like(at)
        schedule = self.problem.software.pipeline_schedule
        return np.asarray(in_flight(schedule, p * one, v * one, self.micro_batches[i] * one, at))

    def step_s(self, i: int, summed: Array | float, slowest: Array | float) -> Array:
        """Step seconds of strategy ``i`` for stage times with this sum and maximum."""
        spread = self.spread[i] * np.asarray(summed) if self.spread[i] else 0.0  # not 0 times the infinity of what does not fit
        pipeline = spread + self.repeat[i] * np.asarray(slowest) + self.micro_batches[i] * self.p2p_s[i]
        return np.asarray((pipeline + self.rest_s[i]) * self.slow[i])

    def with_room(self) -> StageModel:
        """The same where a stage may only fill the memory up to where a plan is called tight, cached blocks included."""
        slack = 1.0 + self.problem.constant("memory_allocator_slack")
        spare = (1.0 - self.problem.constant("tight_below")) * self.problem.cluster.gpu.memory_bytes
        passing = ("saved", "dropped", "passing", "live", "last_saved", "logits")
        return evolve(self, budget=self.budget - spare, **{n: getattr(self, n) * slack for n in passing})

    def take(self, rows: IntArray) -> StageModel:
        """The model of some of its strategies."""
        arrays = {n: getattr(self, n)[rows] for n in _ARRAYS}
        return StageModel(self.problem, self.batch.take(rows), **arrays, prefix=self.prefix)


_ARRAYS = (
    "time", "forward", "again", "first_s", "last_s", "first_forward", "last_forward", "p2p_s", "static", "saved", "dropped",
    "passing", "live", "first_static", "last_static", "last_saved", "logits", "constant", "budget", "rest_s", "slow",
    "micro_batches", "spread", "repeat",
)  # fmt: skip


def stage_model(problem: Problem, batch: StrategyBatch, host: Host | None = None) -> StageModel:
    """Take the evaluator's figures of a batch apart. Raises what :func:`evaluate` raises."""
    e = evaluate(problem, batch, host)
    assert e.training is not None
    core = e.training
    hw = TrainingHardware.of(problem)
    layer_keys, of_key = batch.unique(KEYS)
    pieces = price_layers(problem, hw, layer_keys)
    ratio = np.stack([_ratio(e.seconds[c], core.seconds[c]) for c in CAUSES], axis=1)
    again = _ratio(e.seconds["recompute"], core.seconds["recompute"])
    selective = (batch.recompute == SELECTIVE).astype(np.float64)

    def seconds(cost: LayerCost) -> Array:
        return np.asarray(((cost.forward + cost.backward)[of_key] * ratio).sum(axis=1))

    def forward(cost: LayerCost) -> Array:
        return np.asarray((cost.forward[of_key] * ratio).sum(axis=1))

    def layer_seconds(cost: LayerCost) -> Array:
        return np.asarray(seconds(cost) + selective * again * cost.selective[of_key])

    tails = (pieces.epilogue, *pieces.mtp)
    saved = _by_class(pieces, lambda c: np.where(selective > 0, c.saved_selective[of_key], c.saved[of_key]))
    memory = _Memory.of(problem, hw, batch, of_key, pieces)
    tied = problem.arch.tied_embeddings * (batch.pp > 1) * memory.params(pieces.prologue)
    m = core.micro_batches
    weights = _weights(problem, batch, core.seconds["bubble"], core.slowest_stage_s, m)
    pipeline = sum((e.seconds[c] for c in PIPELINE_CAUSES), np.zeros(len(batch)))
    slow = 1.0 + e.seconds["straggler"] / np.maximum(sum(core.seconds.values(), -core.seconds["straggler"]), 1e-300)
    return StageModel(
        problem=problem,
        batch=batch,
        time=_by_class(pieces, layer_seconds),
        forward=_by_class(pieces, forward),
        again=_by_class(pieces, lambda c: again * c.forward_s[of_key]),
        first_s=seconds(pieces.prologue),
        last_s=sum((seconds(c) for c in tails), np.zeros(len(batch))),
        first_forward=forward(pieces.prologue),
        last_forward=sum((forward(c) for c in tails), np.zeros(len(batch))),
        p2p_s=e.seconds["pp_p2p"] / m,
        static=_by_class(pieces, memory.params),
        saved=saved,
        dropped=saved - _by_class(pieces, lambda c: c.saved_full[of_key]),
        passing=_boundary(problem, batch, pieces, of_key),
        live=_by_class(pieces, lambda c: c.live[of_key]),
        first_static=memory.params(pieces.prologue),
        last_static=sum((memory.params(c) for c in tails), np.zeros(len(batch))) + tied,
        last_saved=sum((c.saved[of_key] for c in tails), np.zeros(len(batch))) / batch.pp,
        logits=memory.logits,
        constant=memory.constant,
        budget=_budget(problem, e),
        rest_s=e.total_s - e.seconds["straggler"] - pipeline,
        slow=slow,
        micro_batches=m,
        spread=weights[0],
        repeat=weights[1],
        prefix=layers_before(problem),
    )


def layers_before(problem: Problem) -> IntArray:
    """Layers by class in front of each decoder layer, and of all of them, [L + 1, C]."""
    classes = problem.arch.layer_classes()
    one = np.zeros((problem.arch.num_layers + 1, len(classes)), dtype=np.int64)
    for c, (_, where) in enumerate(classes):
        one[np.array(where) + 1, c] = 1
    return np.cumsum(one, axis=0)


def _ratio(changed: Array, core: Array) -> Array:
    return np.where(core > 0, changed / np.where(core > 0, core, 1.0), 1.0)


def _boundary(problem: Problem, batch: StrategyBatch, pieces: Pieces, of_key: IntArray) -> Array:
    """Outputs of a stage that are held beside its activations."""
    one = pieces.mesh.resident_tokens[of_key] * problem.arch.hidden_size * 2.0
    return np.where(batch.pp * batch.vpp > 1, one * problem.constant("memory_stage_boundary_copies"), 0.0)


def _by_class(pieces: Pieces, of: object) -> Array:
    assert callable(of)
    return np.stack([of(c) for c in pieces.classes], axis=1)


def _budget(problem: Problem, e: Evaluation) -> Array:
    """Bytes that a stage may allocate, less what the engine adds to every stage."""
    assert e.training is not None
    _, empty = device_bytes(problem, {"weights": np.zeros(len(e))})
    core = sum(e.training.memory.values(), np.zeros(len(e)))
    return e.capacity_bytes - empty - (e.allocated_bytes - core)


def _weights(problem: Problem, batch: StrategyBatch, bubble_s: Array, slowest_s: Array, m: Array) -> tuple[Array, Array]:
    """Weights of the sum and of the maximum of stage times in the step.

    1F1B without interleaving: ΣT + (m−1)·max. Other schedules: their bubble per second of a whole micro-batch, and m.
    """
    plain = (problem.software.pipeline_schedule in {"1f1b", "gpipe"}) & (batch.vpp == 1)
    per_micro_batch = np.maximum(slowest_s * batch.pp, 1e-300)
    spread = np.where(plain, 1.0, bubble_s / per_micro_batch)
    single = batch.pp == 1
    return np.where(single, 0.0, spread), np.where(single, m, np.where(plain, m - 1.0, m))


@frozen(eq=False)
class _Memory:
    """Bytes per parameter and what does not depend on the layers, from the evaluator's own memory function."""

    dense: Array
    expert: Array
    constant: Array
    logits: Array
    of_key: IntArray

    @classmethod
    def of(cls, problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_key: IntArray, pieces: Pieces) -> _Memory:
        """Three stages are asked for: one dense parameter, one expert parameter, none."""
        n = len(batch)
        wide = np.zeros((n, 3))
        dense, expert = wide.copy(), wide.copy()
        dense[:, 0], expert[:, 1] = 1.0, 1.0
        largest = np.max([c.largest_matrix for c in (*pieces.classes, *pieces.ends)], axis=0)[of_key]
        given = {"pieces": pieces, "of_key": of_key, "layouts": {}, "largest_matrix": largest}
        stages = Stages(
            **dict.fromkeys((a.name for a in fields(Stages)), wide) | given | {"dense_params": dense, "expert_params": expert}
        )
        f = {c: batch.columns[c].astype(np.float64) for c in ("tp", "cp", "ep", "etp", "dp", "shard", "mbs")}
        m = problem.training.global_batch_size / (f.pop("mbs") * f["dp"])
        f["shard"] = np.where(batch.zero > 0, f["shard"], 1.0)
        memory, _ = stage_memory(problem, hw, batch, np.arange(n), stages, Groups.of(**f), m)
        total = sum(memory.values(), np.zeros((n, 3)))
        rows = pieces.mesh.tokens[of_key] * np.ceil(problem.arch.vocab_size / pieces.mesh.tp[of_key])
        return cls(
            dense=total[:, 0] - total[:, 2],
            expert=total[:, 1] - total[:, 2],
            constant=total[:, 2],
            logits=rows * problem.constant("memory_bytes_per_logit"),
            of_key=of_key,
        )

    def params(self, cost: LayerCost) -> Array:
        """Bytes of a layer's parameters with their gradients and optimizer state."""
        return cost.dense_params[self.of_key] * self.dense + cost.expert_params[self.of_key] * self.expert
