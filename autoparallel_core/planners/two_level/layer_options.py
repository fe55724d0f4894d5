"""What a layer costs a step under each strategy, when layers may have different ones, and what lies between two layers.

A chain of nodes (embedding, every layer, multi-token prediction with its head, head) on a stage's GPUs. Per micro-batch
each node computes and communicates as the evaluator prices it; per step its parameters are reduced and gathered behind
its own computation; between two nodes of different layouts the residual stream is exchanged.

Axis legend: K options (strategies), C layer classes and the two ends, V nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.data_parallel import Groups, optimizer_s, reduction_s
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.layer import LayerCost
from autoparallel_core.cost.stage_costs import Pieces, Stages, price_layers
from autoparallel_core.ops.mesh import KEYS
from autoparallel_core.planners.two_level.cells import FULL
from autoparallel_core.planners.two_level.stage_model import StageModel, stage_model
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

if TYPE_CHECKING:
    from autoparallel_core.host import Host

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


@frozen(eq=False)
class LayerOptions:
    """K strategies as choices of a layer."""

    model: StageModel
    layer_s: Array
    """Seconds of a step per layer, [K, C]: micro-batches, recompute and synchronisation."""
    first_s: Array
    last_s: Array
    layer_bytes: Array
    """Parameters' state and kept activations with one micro-batch in flight, [K, C]."""
    first_bytes: Array
    last_bytes: Array
    live: Array
    """Bytes that recompute has live at once, the largest class's, [K]; 0 without recompute."""
    change_s: Array
    """Seconds of a step for the change of layout between two neighbours, [K, K]."""

    @property
    def batch(self) -> StrategyBatch:
        return self.model.batch

    @property
    def class_of_layer(self) -> IntArray:
        """[L]."""
        return np.asarray((self.model.prefix[1:] - self.model.prefix[:-1]).argmax(axis=1))

    def of_nodes(self, first: Array, layer: Array, last: Array) -> list[Array]:
        """One vector [K] per node: embedding, layers, head."""
        return [first, *(layer[:, c] for c in self.class_of_layer), last]

    def uniform_s(self) -> float:
        """Of the best option that fits for all nodes alike, infinite where none does."""
        time = sum(self.of_nodes(self.first_s, self.layer_s, self.last_s), np.zeros(len(self.batch)))
        held = sum(self.of_nodes(self.first_bytes, self.layer_bytes, self.last_bytes), np.zeros(len(self.batch)))
        fits = held + self.model.constant + self.live <= self.model.budget
        return float(np.where(fits, time, np.inf).min(initial=np.inf))

    def take(self, rows: IntArray) -> LayerOptions:
        """Some of the options."""
        names = ("layer_s", "first_s", "last_s", "layer_bytes", "first_bytes", "last_bytes", "live")
        plain = {n: getattr(self, n)[rows] for n in names}
        return LayerOptions(self.model.take(rows), **plain, change_s=self.change_s[np.ix_(rows, rows)])


def layer_options(problem: Problem, batch: StrategyBatch, host: Host | None) -> LayerOptions:
    """Price strategies of one pipeline depth and one micro-batch over all ranks as choices per layer."""
    model = stage_model(problem, batch, host)
    hw = TrainingHardware.of(problem)
    layer_keys, of_key = batch.unique(KEYS)
    pieces = price_layers(problem, hw, layer_keys)
    sync = _Sync(problem, hw, batch, of_key, pieces, model.micro_batches)
    full = (batch.recompute == FULL)[:, None]
    m = model.micro_batches[:, None]
    time = m * (model.time + np.where(full, model.again, 0.0))
    time = time + np.stack([sync.of_class(c) for c in range(len(pieces.classes))], axis=1)
    kept = model.saved - np.where(full, model.dropped, 0.0)
    tails = (pieces.epilogue, *pieces.mtp)
    return LayerOptions(
        model=model,
        layer_s=time,
        first_s=model.micro_batches * model.first_s + sync.of_end(pieces.prologue),
        last_s=model.micro_batches * model.last_s + sum((sync.of_end(t) for t in tails), np.zeros(len(batch))),
        layer_bytes=model.static + kept,
        first_bytes=model.first_static,
        last_bytes=model.last_static + model.logits + model.last_saved,
        live=np.where(full[:, 0], model.live.max(axis=1), 0.0),
        change_s=_changes(problem, hw, batch) * m,
    )


@frozen(eq=False)
class _Sync:
    """Reduction, gathering and optimizer of one layer per step, behind its own computation, by the evaluator's functions."""

    problem: Problem
    hw: TrainingHardware
    batch: StrategyBatch
    of_key: IntArray
    pieces: Pieces
    micro_batches: Array

    def of_class(self, c: int) -> Array:
        """Of one layer of a class, [K]."""
        cost = self.pieces.classes[c]
        one = np.zeros((len(self.batch), len(self.pieces.classes)))
        return self._seconds(cost, one + np.eye(one.shape[1])[c]) - self._fully_sharded_ends()

    def of_end(self, cost: LayerCost) -> Array:
        """Of the embedding, the head or a layer for multi-token prediction, [K]: a fully sharded one by its own gathers."""
        none = np.zeros((len(self.batch), len(self.pieces.classes)))
        ends = sum((c.dense_params + c.expert_params for c in self.pieces.ends), np.zeros(len(cost.dense_params)))
        mine = (cost.dense_params + cost.expert_params)[self.of_key] / ends[self.of_key]
        sharded = self.batch.zero == 3
        plain = self._seconds(cost, none)
        return np.where(sharded, plain - self._fully_sharded_ends() * (1 - mine), plain)

    def _fully_sharded_ends(self) -> Array:
        """The evaluator's fully sharded seconds count the ends of the model; alone they are these."""
        none = np.zeros((len(self.batch), len(self.pieces.classes)))
        return self._reduction(np.zeros(len(self.batch)), np.zeros(len(self.batch)), None, none)["fsdp_comm"]

    def _seconds(self, cost: LayerCost, counts: Array) -> Array:
        dense, expert = cost.dense_params[self.of_key], cost.expert_params[self.of_key]
        parts = self._reduction(dense, expert, cost, counts)
        groups = self._groups()
        sharded = dense / groups.shard + expert / groups.expert_shard
        local = np.where(self.batch.zero > 0, sharded, dense + expert) * (0.0 if self.hw.frozen_weights else 1.0)
        fixed = optimizer_s(self.problem, local * 0.0, self.batch.offload, self.hw.hbm_bytes_per_s)
        update = optimizer_s(self.problem, local, self.batch.offload, self.hw.hbm_bytes_per_s)
        return parts["dp_comm"] + parts["fsdp_comm"] + update - fixed

    def _reduction(self, dense: Array, expert: Array, cost: LayerCost | None, counts: Array) -> dict[str, Array]:
        flat = np.zeros(len(self.batch))
        forward = flat if cost is None else cost.forward_s[self.of_key]
        backward = flat if cost is None else cost.backward_s[self.of_key]
        given: dict[str, Any] = dict.fromkeys((a.name for a in fields(Stages)), flat)
        given |= {"pieces": self.pieces, "of_key": self.of_key, "layouts": {}, "counts": counts, "dense": dense, "expert": expert}
        stages = Stages(**given | {"forward": forward, "backward": backward})
        rows = np.arange(len(self.batch))
        return reduction_s(self.problem, self.hw, self.batch, rows, stages, self._groups(), self.micro_batches)

    def _groups(self) -> Groups:
        f = {c: self.batch.columns[c].astype(np.float64) for c in ("tp", "cp", "ep", "etp", "dp", "shard")}
        f["shard"] = np.where(self.batch.zero > 0, f["shard"], 1.0)
        return Groups.of(**f)


def _changes(problem: Problem, hw: TrainingHardware, batch: StrategyBatch) -> Array:
    """Seconds per micro-batch of going from one option's layout to another's and back with the gradients, [K, K].

    Under sequence parallelism the residual stream lies in equal parts on all ranks of a stage; another layout is an
    all-to-all among as many ranks as the degrees differ by. Without it, every rank of tp holds its part tp times.
    """
    tp, cp, dp = (batch.columns[c].astype(np.float64) for c in ("tp", "cp", "dp"))
    ratio = np.ones((len(batch), len(batch)))
    for d in (tp, cp, dp):
        ratio = np.maximum(ratio, np.maximum(d[:, None] / d[None, :], d[None, :] / d[:, None]))
    resident = np.where((batch.sp > 0) | (batch.tp == 1), tp, 1.0)
    tokens = batch.mbs * problem.training.seq_len / (cp * resident)
    n_bytes = np.maximum(tokens[:, None], tokens[None, :]) * problem.arch.hidden_size * 2.0
    one = hw.network.gather(n_bytes, ratio, np.minimum(tp[:, None], tp[None, :]))
    same = (tp[:, None] == tp) & (cp[:, None] == cp) & (dp[:, None] == dp) & (resident[:, None] == resident)
    return np.where(same, 0.0, 2.0 * one)
