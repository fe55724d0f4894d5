"""What one micro-batch costs on each pipeline stage: layers priced once per layer key, stages once per stage key.

Axis legend: U unique stage keys, P distinct stages (padded), K causes, C layer classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import define, evolve, frozen
from numpy.typing import NDArray

from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.host_time import HostModel
from autoparallel_core.cost.layer import CAUSES, LayerCost, layer_cost, parameters
from autoparallel_core.cost.recompute import Recompute
from autoparallel_core.cost.stages import StageLayout, stage_layout
from autoparallel_core.ops.mesh import KEYS, Mesh
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, StrategyBatch

Array = NDArray[np.float64]
STAGE_KEYS = (*KEYS, "pp", "vpp", "recompute", "recompute_layers")
"""Strategy columns on which the cost of a stage depends."""
SELECTIVE, FULL = RECOMPUTE.index("selective"), RECOMPUTE.index("full")


@frozen(eq=False)
class Pieces:
    """Layer costs of a problem on its layer keys: one per class, and the ends of the model."""

    classes: tuple[LayerCost, ...]
    prologue: LayerCost
    epilogue: LayerCost
    mtp: tuple[LayerCost, ...]
    mesh: Mesh

    @property
    def ends(self) -> tuple[LayerCost, ...]:
        return (self.prologue, self.epilogue, *self.mtp)


def price_layers(problem: Problem, hw: TrainingHardware, layer_keys: StrategyBatch) -> Pieces:
    """Every distinct layer of the model, and its ends, on the layer keys."""
    mesh = Mesh.of(layer_keys, problem.training.seq_len)
    recompute = Recompute.of(problem.software.recompute_modules, problem.constant("op_recompute_gemm_share"))
    arch, host = problem.arch, HostModel.of(problem)

    def layer(blocks: tuple[Block, ...]) -> LayerCost:
        cost = layer_cost(blocks, mesh, hw, recompute)
        routed = any(op.kind == "expert_gemm" for block in blocks for op in block.ops)
        for part, passes in ((cost.forward, 1.0), (cost.backward, 2.0)):
            wait = host.wait_s(part.sum(axis=1), passes * cost.launches, passes, routed=routed, tp=mesh.tp)
            part[:, CAUSES.index("host")] += wait
        return cost

    def last(block: Block) -> LayerCost:
        """The head with the loss; whoever dispatches sharded tensors one by one does so at both ends of the model, too."""
        cost = layer_cost((block,), mesh, hw, recompute)
        for part, passes in ((cost.forward, 1.0), (cost.backward, 2.0)):
            part[:, CAUSES.index("host")] += host.ends_wait_s(part.sum(axis=1), passes, tp=mesh.tp)
        return cost

    def with_head(blocks: tuple[Block, ...]) -> LayerCost:
        """A prediction layer runs the head again; the head's parameters are the epilogue's and counted there."""
        dense, expert, _ = parameters(blocks, mesh)
        return evolve(layer((*blocks, arch.epilogue)), dense_params=dense, expert_params=expert)

    return Pieces(
        classes=tuple(layer(x.blocks) for x, _ in arch.layer_classes()),
        prologue=layer_cost((arch.prologue,), mesh, hw, recompute),
        epilogue=last(arch.epilogue),
        mtp=tuple(with_head(x.blocks) for x in arch.mtp),
        mesh=mesh,
    )


@define(eq=False)
class Stages:
    """Stage-level figures of one micro-batch on U stage keys."""

    pieces: Pieces
    of_key: NDArray[np.int64]
    """Layer key of each stage key, [U]."""
    layouts: Mapping[tuple[int, int], StageLayout]
    p2p: Array
    """Exposed seconds of pipeline transfers, [U]."""
    slowest: Array
    """Seconds by cause of the slowest stage, without recompute, [U, K]."""
    recompute: Array
    """Seconds of the slowest stage's second forward, [U]."""
    forward: Array
    """Seconds of the slowest stage, [U]."""
    backward: Array
    """With recompute, [U]."""
    fill_forward: Array
    """Seconds of the average chunk that fills the pipeline, [U]."""
    fill_backward: Array
    fill_weight: Array
    """Of the backward, what only weight gradients take, [U]."""
    mean_forward: Array
    """Seconds of the average stage, [U]."""
    mean_backward: Array
    dense: Array
    """Parameters of the slowest stage on one rank outside the routed experts, [U]."""
    expert: Array
    largest_matrix: Array
    counts: Array
    """Layers by class on the slowest stage, [U, C]."""
    dense_params: Array
    """Parameters on one rank, [U, P]."""
    expert_params: Array
    saved: Array
    """Bytes kept per micro-batch in flight, [U, P]."""
    live: Array
    """Bytes of the layer under recompute, [U, P]."""
    offloaded: Array
    """Bytes per micro-batch in flight that wait in host memory instead, [U, P]."""
    logits: Array
    stage_index: Array
    """Position of each distinct stage, −1 where padded, [U, P]."""

    @classmethod
    def build(
        cls,
        problem: Problem,
        hw: TrainingHardware,
        keys: StrategyBatch,
        of_key: NDArray[np.int64],
        pieces: Pieces,
        layout: StageLayout | None = None,
    ) -> Stages:
        """Spread the layers over the stages of every key; with ``layout`` all keys have its pp and vpp and take it."""
        u, arch, soft = len(keys), problem.arch, problem.software
        pairs, of_pair = keys.unique(("pp", "vpp"))
        layouts = {
            (int(pp), int(vpp)): layout
            or stage_layout(
                arch,
                int(pp),
                int(vpp),
                embedding_as_layer=soft.embedding_as_layer,
                v_shaped=soft.pipeline_schedule == "dualpipe_v",
            )
            for pp, vpp in zip(pairs.pp, pairs.vpp, strict=True)
        }
        width = max((len(x.index) for x in layouts.values()), default=1)

        def flat() -> Array:
            return np.zeros(u)

        def wide() -> Array:
            return np.zeros((u, width))

        stages = cls(
            pieces=pieces, of_key=of_key, layouts=layouts, p2p=_transfers(problem, hw, keys, pieces.mesh.tokens[of_key]),
            slowest=np.zeros((u, len(CAUSES))), recompute=flat(), forward=flat(), backward=flat(), fill_forward=flat(),
            fill_backward=flat(), fill_weight=flat(), mean_forward=flat(), mean_backward=flat(), dense=flat(),
            expert=flat(), largest_matrix=flat(), counts=np.zeros((u, len(pieces.classes))), dense_params=wide(),
            expert_params=wide(), saved=wide(), live=wide(), offloaded=wide(), logits=wide(), stage_index=wide() - 1.0,
        )  # fmt: skip
        for g, each in enumerate(layouts.values()):
            rows = np.flatnonzero(of_pair == g)
            _fill_group(stages, problem, rows, keys.take(rows), each)
        return stages


def _transfers(problem: Problem, hw: TrainingHardware, keys: StrategyBatch, tokens: Array) -> Array:
    """Exposed point-to-point time of one micro-batch: activations forward and gradients backward, once per chunk.

    Each tensor-parallel rank sends its own part (scatter/gather optimisation, arXiv 2104.04473, section 4.1).
    """
    stride = np.maximum(keys.tp * keys.cp, problem.cluster.n_gpus / keys.pp)
    one = hw.network.send(tokens / keys.tp * problem.arch.hidden_size * 2.0, stride)
    return np.where(keys.pp > 1, 2.0 * keys.vpp * one * problem.constant("p2p_exposed"), 0.0)


@frozen(eq=False)
class Again:
    """How much of a layer's forward the backward repeats, on the rows of one group."""

    selective: Array
    """1 where selective recompute is on."""
    full_layers: Array
    """Layers of each stage under full recompute."""

    def shares(self, counts: Array, full: Array | None) -> list[Array]:
        """Share of each class's layers under full recompute: as chosen by stage, else spread over the classes as they occur."""
        if full is not None:
            return [np.full(len(self.full_layers), f / n if n else 0.0) for n, f in zip(counts, full, strict=True)]
        layers = counts.sum()
        return [np.minimum(self.full_layers, layers) / max(layers, 1.0)] * len(counts)

    def seconds(self, cost: LayerCost, of_key: NDArray[np.int64], share: Array) -> Array:
        return share * cost.forward_s[of_key] + self.selective * cost.selective[of_key]


def again_of(keys: StrategyBatch) -> Again:
    """What the recompute columns of the keys repeat."""
    limit = np.where(keys.recompute_layers > 0, keys.recompute_layers, 1 << 30)
    return Again((keys.recompute == SELECTIVE).astype(np.float64), np.where(keys.recompute == FULL, limit, 0).astype(np.float64))


def _fill_group(stages: Stages, problem: Problem, rows: NDArray[np.int64], keys: StrategyBatch, layout: StageLayout) -> None:
    """The rows of one (pp, vpp)."""
    again = again_of(keys)
    best = np.full(len(rows), -1.0)
    for p in range(len(layout.index)):
        best = _fill_stage(stages, problem, rows, keys, layout, p, again, best)
    _fill_means(stages, rows, layout, again)


def _fill_stage(
    stages: Stages, problem: Problem, rows: NDArray[np.int64], keys: StrategyBatch, layout: StageLayout, p: int, again: Again,
    best: Array,
) -> Array:  # fmt: skip
    """One distinct stage; it replaces the slowest so far (``best`` seconds) where it takes longer."""
    pieces, of_key, tied = stages.pieces, stages.of_key[rows], problem.arch.tied_embeddings
    seconds = np.zeros((len(rows), len(CAUSES)))
    forward, repeated = np.zeros(len(rows)), np.zeros(len(rows))
    dense, expert, saved, live = (np.zeros(len(rows)) for _ in range(4))
    largest = stages.largest_matrix[rows]
    shares = again.shares(layout.counts[p], None if layout.full_counts is None else layout.full_counts[p])
    for n, cost, share in zip(layout.counts[p], pieces.classes, shares, strict=True):
        if not n:
            continue
        seconds += n * (cost.forward + cost.backward)[of_key]
        forward += n * cost.forward_s[of_key]
        repeated += n * again.seconds(cost, of_key, share)
        kept = np.where(again.selective > 0, cost.saved_selective[of_key], cost.saved[of_key])
        saved += n * (share * cost.saved_full[of_key] + (1 - share) * kept)
        live = np.maximum(live, np.where(share > 0, cost.live[of_key], 0.0))
        dense += n * cost.dense_params[of_key]
        expert += n * cost.expert_params[of_key]
        largest = np.maximum(largest, cost.largest_matrix[of_key])
    away = saved * min(1.0, problem.software.activation_offload_layers / max(layout.counts[p].sum(), 1.0))
    saved = saved - away
    if layout.chunks > 1:
        boundary = pieces.mesh.resident_tokens[of_key] * problem.arch.hidden_size * 2.0
        saved += boundary * problem.constant("memory_stage_boundary_copies")
    for present, cost in zip((layout.first[p], *([layout.last[p]] * (1 + len(pieces.mtp)))), pieces.ends, strict=True):
        if not present:
            continue
        seconds += (cost.forward + cost.backward)[of_key]
        forward += cost.forward_s[of_key]
        dense += cost.dense_params[of_key]
        expert += cost.expert_params[of_key]
        largest = np.maximum(largest, cost.largest_matrix[of_key])
        if cost is not pieces.prologue:
            saved += cost.saved[of_key] / keys.pp  # a head's tensors live for one micro-batch only
    if layout.last[p]:
        logits = pieces.mesh.tokens[of_key] * np.ceil(problem.arch.vocab_size / pieces.mesh.tp[of_key])
        stages.logits[rows, p] = logits * problem.constant("memory_bytes_per_logit")
        if tied and len(layout.layers_per_stage) > 1:
            dense += pieces.prologue.dense_params[of_key]
    stages.largest_matrix[rows] = largest
    for name, value in (
        ("dense_params", dense), ("expert_params", expert), ("saved", saved), ("live", live), ("offloaded", away),
    ):  # fmt: skip
        getattr(stages, name)[rows, p] = value
    stages.stage_index[rows, p] = layout.index[p]
    total = seconds.sum(axis=1) + repeated
    win = total > best
    at = rows[win]
    stages.slowest[at], stages.counts[at] = seconds[win], layout.counts[p]
    stages.recompute[at], stages.forward[at], stages.backward[at] = repeated[win], forward[win], (total - forward)[win]
    stages.dense[at], stages.expert[at] = dense[win], expert[win]
    return np.where(win, total, best)


def _fill_means(stages: Stages, rows: NDArray[np.int64], layout: StageLayout, again: Again) -> None:
    """Times of the average stage, and of the average chunk in the row that fills the pipeline."""
    pieces, of_key = stages.pieces, stages.of_key[rows]
    pp, chunks = len(layout.layers_per_stage), layout.chunks
    shares = again.shares(layout.mean_counts, layout.mean_full)
    mean_f, mean_b, fill_f, fill_b, fill_w = (np.zeros(len(rows)) for _ in range(5))
    for mean, fill, cost, share in zip(layout.mean_counts, layout.fill_counts, pieces.classes, shares, strict=True):
        f = cost.forward_s[of_key]
        b = cost.backward_s[of_key] + again.seconds(cost, of_key, share)
        mean_f, mean_b, fill_f, fill_b = mean_f + mean * f, mean_b + mean * b, fill_f + fill * f, fill_b + fill * b
        fill_w = fill_w + fill * cost.weight_grad[of_key]
    for cost in pieces.ends:
        f, b = cost.forward_s[of_key] / pp, cost.backward_s[of_key] / pp
        mean_f, mean_b = mean_f + f, mean_b + b
        if chunks == pp or cost is pieces.prologue:
            fill_f, fill_b, fill_w = fill_f + f, fill_b + b, fill_w + cost.weight_grad[of_key] / pp
    stages.fill_weight[rows] = fill_w
    stages.mean_forward[rows], stages.mean_backward[rows] = mean_f, mean_b
    stages.fill_forward[rows], stages.fill_backward[rows] = fill_f, fill_b
