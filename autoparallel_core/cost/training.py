"""One training step of many strategies: seconds by cause and memory by cause.

Three levels, each on its unique keys and broadcast to the next: layers on (tp, sp, cp, ep, etp, mbs), pipeline
stages on those plus (pp, vpp, recompute), the step on every strategy. Axis legend: S strategies, U unique stage
keys, P distinct stages (padded), K causes, C layer classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.cost.data_parallel import Groups, gradient_bytes, optimizer_s, overlapped_s, reduce_s, zero_exposed_s
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.host_time import HostModel
from autoparallel_core.cost.layer import CAUSES, LayerCost, layer_cost
from autoparallel_core.cost.pipeline import bubble_s, in_flight
from autoparallel_core.cost.recompute import Recompute
from autoparallel_core.cost.stages import StageLayout, stage_layout
from autoparallel_core.ops.collectives import Network
from autoparallel_core.ops.mesh import KEYS, Mesh
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import StrategyBatch

Array = NDArray[np.float64]
STAGE_KEYS = (*KEYS, "pp", "vpp", "recompute", "recompute_layers")
MEMORY_CAUSES = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "gathered")


@frozen(eq=False)
class TrainingBatch:
    """What evaluation needs of S strategies."""

    seconds: Mapping[str, Array]
    """By cause, [S]; sums to the step."""
    memory: Mapping[str, Array]
    """Bytes by cause on the stage that decides, [S]."""
    stage_memory: Mapping[str, Array]
    """Bytes by cause on every distinct stage, [S, P]."""
    stage_index: Array
    """Position of each distinct stage, [S, P]; −1 where padded."""
    host_bytes_per_node: Array
    micro_batches: Array
    slowest_stage_s: Array
    layouts: Mapping[tuple[int, int], StageLayout]


@frozen(eq=False)
class _Pieces:
    """Layer costs of a problem on U′ layer keys: one per class, and the ends of the model."""

    classes: tuple[LayerCost, ...]
    prologue: LayerCost
    epilogue: LayerCost
    mtp: tuple[LayerCost, ...]
    mesh: Mesh


def evaluate_training(problem: Problem, batch: StrategyBatch) -> TrainingBatch:
    """Price a batch. Raises SpecError when the GPU lacks the precision."""
    hw = TrainingHardware.of(problem)
    keys, of_row = batch.unique(STAGE_KEYS)
    layer_keys, of_key = keys.unique(KEYS)
    pieces = _price_layers(problem, hw, layer_keys)
    stages = _Stages.build(problem, hw, keys, of_key, pieces)
    return _step(problem, hw, batch, of_row, stages)


def _price_layers(problem: Problem, hw: TrainingHardware, layer_keys: StrategyBatch) -> _Pieces:
    mesh = Mesh.of(layer_keys, problem.training.seq_len)
    recompute = Recompute.of(problem.software.recompute_modules, problem.constant("op_recompute_gemm_share"))
    arch = problem.arch
    host = HostModel.of(problem)
    classes = []
    for layer, _ in arch.layer_classes():
        cost = layer_cost(layer.blocks, mesh, hw, recompute)
        routed = any(op.kind == "expert_gemm" for op in layer.ops)
        for part, passes in ((cost.forward, 1.0), (cost.backward, 2.0)):
            part[:, CAUSES.index("host")] += host.wait_s(part.sum(axis=1), routed=routed, passes=passes)
        classes.append(cost)
    return _Pieces(
        classes=tuple(classes),
        prologue=layer_cost((arch.prologue,), mesh, hw, recompute),
        epilogue=layer_cost((arch.epilogue,), mesh, hw, recompute),
        mtp=tuple(layer_cost((*layer.blocks, arch.epilogue), mesh, hw, recompute) for layer in arch.mtp),
        mesh=mesh,
    )


@frozen(eq=False)
class _Stages:
    """Stage-level figures of one micro-batch on U keys."""

    slowest: Array
    """Seconds by cause of the slowest stage, [U, K]."""
    slowest_recompute: Array
    slowest_forward: Array
    slowest_backward: Array
    mean_forward: Array
    mean_backward: Array
    p2p: Array
    dense_params: Array
    """[U, P]."""
    expert_params: Array
    saved: Array
    """Bytes per micro-batch in flight, [U, P]."""
    live: Array
    logits: Array
    stage_index: Array
    slowest_dense: Array
    slowest_expert: Array
    largest_matrix: Array
    counts: Array
    """Layers by class on the slowest stage, [U, C]."""
    pieces: _Pieces
    of_key: NDArray[np.int64]
    layouts: Mapping[tuple[int, int], StageLayout]

    @classmethod
    def build(
        cls, problem: Problem, hw: TrainingHardware, keys: StrategyBatch, of_key: NDArray[np.int64], pieces: _Pieces
    ) -> _Stages:
        arch = problem.arch
        u, k, n_classes = len(keys), len(CAUSES), len(pieces.classes)
        pairs, of_pair = keys.unique(("pp", "vpp"))
        layouts = {
            (int(pp), int(vpp)): stage_layout(arch, int(pp), int(vpp), embedding_as_layer=problem.software.embedding_as_layer)
            for pp, vpp in zip(pairs.pp, pairs.vpp, strict=True)
        }
        width = max((len(x.index) for x in layouts.values()), default=1)
        full = {n: np.zeros((u, width)) for n in ("dense", "expert", "saved", "live", "logits", "index")}
        full["index"] -= 1.0
        flat = {n: np.zeros(u) for n in ("recompute", "forward", "backward", "mean_f", "mean_b", "dense", "expert", "largest")}
        slowest, slow_counts = np.zeros((u, k)), np.zeros((u, n_classes))
        for g, layout in enumerate(layouts.values()):
            rows = np.flatnonzero(of_pair == g)
            _group(problem, rows, keys.take(rows), of_key[rows], pieces, layout, full, flat, slowest, slow_counts)
        tokens = pieces.mesh.resident_tokens[of_key]
        n_bytes = tokens * arch.hidden_size * 2.0
        stride = (keys.tp * keys.cp).astype(np.float64) * np.maximum(1.0, problem.cluster.n_gpus / (keys.tp * keys.cp * keys.pp))
        share = problem.constant("p2p_exposed")
        p2p = np.where(keys.pp > 1, 2.0 * keys.vpp * hw.network.send(n_bytes, stride) * share, 0.0)
        return cls(
            slowest=slowest,
            slowest_recompute=flat["recompute"],
            slowest_forward=flat["forward"],
            slowest_backward=flat["backward"],
            mean_forward=flat["mean_f"],
            mean_backward=flat["mean_b"],
            p2p=p2p,
            dense_params=full["dense"],
            expert_params=full["expert"],
            saved=full["saved"],
            live=full["live"],
            logits=full["logits"],
            stage_index=full["index"],
            slowest_dense=flat["dense"],
            slowest_expert=flat["expert"],
            largest_matrix=flat["largest"],
            counts=slow_counts,
            pieces=pieces,
            of_key=of_key,
            layouts=layouts,
        )


def _group(
    problem: Problem,
    rows: NDArray[np.int64],
    keys: StrategyBatch,
    of_key: NDArray[np.int64],
    pieces: _Pieces,
    layout: StageLayout,
    full: dict[str, Array],
    flat: dict[str, Array],
    slowest: Array,
    slow_counts: Array,
) -> None:
    """Fill the rows of one (pp, vpp)."""
    selective = (keys.recompute == 1).astype(np.float64)
    whole = keys.recompute == 2
    limit = np.where(whole, np.where(keys.recompute_layers > 0, keys.recompute_layers, 1 << 30), 0).astype(np.float64)
    v = keys.vpp.astype(np.float64)
    ends = (pieces.prologue, pieces.epilogue, *pieces.mtp)
    end_counts = (layout.first, layout.last, *(layout.last for _ in pieces.mtp))
    best = np.full(len(rows), -1.0)
    for p in range(len(layout.index)):
        seconds = np.zeros((len(rows), len(CAUSES)))
        forward, again = np.zeros(len(rows)), np.zeros(len(rows))
        total_layers = layout.counts[p].sum()
        # Layers under full recompute, spread over the classes as they occur on the stage.
        share = np.minimum(limit, total_layers) / max(total_layers, 1.0)
        for c, cost in enumerate(pieces.classes):
            n = layout.counts[p, c]
            if not n:
                continue
            f, b = cost.forward[of_key], cost.backward[of_key]
            seconds += n * (f + b)
            forward += n * f.sum(axis=1)
            again += n * (share * f.sum(axis=1) + selective * cost.selective[of_key])
            kept = np.where(selective > 0, cost.saved_selective[of_key], cost.saved[of_key])
            full["dense"][rows, p] += n * cost.dense_params[of_key]
            full["expert"][rows, p] += n * cost.expert_params[of_key]
            full["saved"][rows, p] += n * (share * cost.saved_full[of_key] + (1 - share) * kept)
            full["live"][rows, p] = np.maximum(full["live"][rows, p], np.where(share > 0, cost.live[of_key], 0.0))
            flat["largest"][rows] = np.maximum(flat["largest"][rows], cost.largest_matrix[of_key])
        for cost, present in zip(ends, end_counts, strict=True):
            if present[p]:
                f, b = cost.forward[of_key], cost.backward[of_key]
                seconds += f + b
                forward += f.sum(axis=1)
                full["dense"][rows, p] += cost.dense_params[of_key]
                full["expert"][rows, p] += cost.expert_params[of_key]
                flat["largest"][rows] = np.maximum(flat["largest"][rows], cost.largest_matrix[of_key])
                if cost is not pieces.prologue:
                    full["saved"][rows, p] += cost.saved[of_key] / keys.pp  # a head's tensors live for one micro-batch only
        if layout.last[p]:
            logits = pieces.mesh.tokens[of_key] * np.ceil(problem.arch.vocab_size / pieces.mesh.tp[of_key])
            full["logits"][rows, p] = logits * problem.constant("memory_bytes_per_logit")
            if problem.arch.tied_embeddings and len(layout.layers_per_stage) > 1:
                full["dense"][rows, p] += pieces.prologue.dense_params[of_key]
        full["index"][rows, p] = layout.index[p]
        total = seconds.sum(axis=1) + again
        win = total > best
        best = np.where(win, total, best)
        slowest[rows] = np.where(win[:, None], seconds, slowest[rows])
        slow_counts[rows] = np.where(win[:, None], layout.counts[p], slow_counts[rows])
        for name, value in (("recompute", again), ("forward", forward), ("backward", total - forward),
                            ("dense", full["dense"][rows, p]), ("expert", full["expert"][rows, p])):  # fmt: skip
            flat[name][rows] = np.where(win, value, flat[name][rows])
    pp = len(layout.layers_per_stage)
    mean_f, mean_b = np.zeros(len(rows)), np.zeros(len(rows))
    layers = layout.mean_counts.sum()
    share = np.minimum(limit, layers) / max(layers, 1.0)
    for c, cost in enumerate(pieces.classes):
        f, b = cost.forward_s[of_key], cost.backward_s[of_key]
        mean_f += layout.mean_counts[c] * f
        mean_b += layout.mean_counts[c] * (b + share * f + selective * cost.selective[of_key])
    for cost in ends:
        mean_f += cost.forward_s[of_key] / pp
        mean_b += cost.backward_s[of_key] / pp
    flat["mean_f"][rows], flat["mean_b"][rows] = mean_f, mean_b
    del v


def _step(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: _Stages
) -> TrainingBatch:
    c = problem.constant
    f = {n: batch.columns[n].astype(np.float64) for n in ("tp", "cp", "ep", "etp", "dp", "shard", "pp", "vpp", "mbs")}
    m = problem.training.global_batch_size / (f["mbs"] * f["dp"])
    zero = batch.zero
    groups = Groups.of(tp=f["tp"], cp=f["cp"], ep=f["ep"], etp=f["etp"], dp=f["dp"], shard=np.where(zero > 0, f["shard"], 1.0))
    seconds = {cause: m * stages.slowest[of_row, i] for i, cause in enumerate(CAUSES)}
    seconds["recompute"] = m * stages.slowest_recompute[of_row]
    seconds["pp_p2p"] = m * stages.p2p[of_row]
    seconds["bubble"] = np.where(
        batch.pp > 1,
        bubble_s(
            problem.software.pipeline_schedule, f["pp"], f["vpp"], stages.mean_forward[of_row], stages.mean_backward[of_row]
        ),
        0.0,
    )
    seconds |= _gradient_seconds(problem, hw, batch, of_row, stages, groups, m)
    dense, expert = stages.slowest_dense[of_row], stages.slowest_expert[of_row]
    if hw.frozen_weights:
        dense, expert = dense * 0.0, expert * 0.0
    local = np.where(zero > 0, dense / groups.shard + expert / groups.expert_shard, dense + expert)
    seconds["optimizer"] = optimizer_s(problem, local, batch.offload, hw.hbm_bytes_per_s)
    total = np.sum(list(seconds.values()), axis=0)
    seconds["straggler"] = total * c("straggler_per_doubling") * np.log2(max(problem.cluster.n_nodes, 1))
    stage_memory, host = _memory(problem, hw, batch, of_row, stages, groups, m)
    totals = np.sum(list(stage_memory.values()), axis=0)
    worst = totals.argmax(axis=1)
    pick = np.arange(len(batch))
    return TrainingBatch(
        seconds=seconds,
        memory={k: v[pick, worst] for k, v in stage_memory.items()},
        stage_memory=stage_memory,
        stage_index=stages.stage_index[of_row],
        host_bytes_per_node=host,
        micro_batches=m,
        slowest_stage_s=stages.slowest_forward[of_row] + stages.slowest_backward[of_row],
        layouts=stages.layouts,
    )


def _gradient_seconds(
    problem: Problem,
    hw: TrainingHardware,
    batch: StrategyBatch,
    of_row: NDArray[np.int64],
    stages: _Stages,
    groups: Groups,
    m: Array,
) -> dict[str, Array]:
    """Exposed reduction and gathering by ZeRO stage."""
    c, net, zero = problem.constant, hw.network, batch.zero
    trained = 0.0 if hw.frozen_weights else 1.0
    dense, expert = stages.slowest_dense[of_row], stages.slowest_expert[of_row]
    grad, param = gradient_bytes(problem), c("dp_param_bytes")
    whole = _reduce_all(net, dense, expert, groups, grad) * trained
    scatter = _reduce_sharded(net, dense, expert, groups, grad) * trained
    gather = reduce_s(net, dense, param, groups.shard, groups.dense_stride) * trained
    gather = gather + reduce_s(net, expert, param, groups.expert_shard, groups.expert_stride) * trained
    backward, forward = stages.slowest_backward[of_row], stages.slowest_forward[of_row]
    plain = zero_exposed_s(problem, whole, backward)
    zero1 = zero_exposed_s(problem, scatter, backward) + zero_exposed_s(problem, gather, forward)
    zero2 = zero_exposed_s(problem, scatter, backward) * m + zero_exposed_s(problem, gather, forward)
    out = {"dp_comm": np.select([zero == 0, zero == 1, zero == 2], [plain, zero1, zero2], 0.0)}
    out["fsdp_comm"] = np.zeros(len(batch))
    rows = np.flatnonzero(zero == 3)
    if len(rows):
        out["fsdp_comm"][rows] = _fsdp_seconds(problem, hw, batch.take(rows), of_row[rows], stages, m[rows])
    return out


def _reduce_all(net: Network, dense: Array, expert: Array, groups: Groups, n_bytes: float) -> Array:
    """All-reduce of the gradients over all replicas."""
    out = 2 * reduce_s(net, dense, n_bytes, groups.dense_size, groups.dense_stride)
    return out + 2 * reduce_s(net, expert, n_bytes, groups.expert_size, groups.expert_stride)


def _reduce_sharded(net: Network, dense: Array, expert: Array, groups: Groups, n_bytes: float) -> Array:
    """Reduce-scatter inside the shard group, then all-reduce of the shard across the groups (hybrid sharding)."""
    out = np.zeros(len(dense))
    for params, size, stride, shard in (
        (dense, groups.dense_size, groups.dense_stride, groups.shard),
        (expert, groups.expert_size, groups.expert_stride, groups.expert_shard),
    ):
        out = out + reduce_s(net, params, n_bytes, shard, stride)
        out = out + 2 * reduce_s(net, params / shard, n_bytes, size / shard, stride * shard)
    return out


def _fsdp_seconds(
    problem: Problem, hw: TrainingHardware, batch: StrategyBatch, of_row: NDArray[np.int64], stages: _Stages, m: Array
) -> Array:
    """Per-layer gathers and scatters of fully sharded training, every micro-batch, behind the layer's computation."""
    c, net = problem.constant, hw.network
    key = stages.of_key[of_row]
    f = {n: batch.columns[n].astype(np.float64) for n in ("tp", "cp", "ep", "etp", "dp", "shard")}
    groups = Groups.of(**f)
    again = (batch.recompute == 2).astype(np.float64)
    total, replica = np.zeros(len(batch)), np.zeros(len(batch))
    grad, param, loss = gradient_bytes(problem), c("dp_param_bytes"), c("fsdp_overlap_loss")
    trained = 0.0 if hw.frozen_weights else 1.0
    counted = [(cost, stages.counts[of_row, i]) for i, cost in enumerate(stages.pieces.classes)]
    ends = (stages.pieces.prologue, stages.pieces.epilogue, *stages.pieces.mtp)
    counted += [(cost, np.ones(len(batch))) for cost in ends]
    for cost, n in counted:
        dense, expert = cost.dense_params[key], cost.expert_params[key]
        one = reduce_s(net, dense, 1.0, f["shard"], groups.dense_stride)
        one = one + reduce_s(net, expert, 1.0, groups.expert_shard, groups.expert_stride)
        wait = np.where(f["shard"] > 1, c("fsdp_latency_s") * np.log2(np.maximum(f["shard"], 1.0)), 0.0)
        forward_s = cost.forward_s[key]
        backward_s = cost.backward_s[key] + again * forward_s
        forward = overlapped_s(forward_s, one * param + wait, loss)
        backward = overlapped_s(backward_s, one * (param + grad * trained) + 2 * wait, loss)
        if not problem.software.dp_overlap:
            forward, backward = one * param + wait, one * (param + grad * trained) + 2 * wait
        total += n * (forward + backward)
        replicas = groups.dense_size / f["shard"]
        across = net.all_reduce((dense / f["shard"] + expert / groups.expert_shard) * grad, replicas, f["tp"] * f["shard"])
        replica += n * np.where(replicas > 1, across, 0.0) * trained
    hidden = zero_exposed_s(problem, replica, stages.slowest_backward[of_row])
    return m * total + hidden


def _memory(
    problem: Problem,
    hw: TrainingHardware,
    batch: StrategyBatch,
    of_row: NDArray[np.int64],
    stages: _Stages,
    groups: Groups,
    m: Array,
) -> tuple[dict[str, Array], Array]:
    """Bytes by cause on every distinct stage [S, P], and the host's bytes per node [S]."""
    c = problem.constant
    zero = batch.zero[:, None]
    dense, expert = stages.dense_params[of_row], stages.expert_params[of_row]
    sharded = dense / groups.shard[:, None] + expert / groups.expert_shard[:, None]
    local = dense + expert
    trained = 0.0 if hw.frozen_weights else 1.0
    state = np.where(zero >= 1, sharded, local) * c("memory_optimizer_bytes") * trained
    pp, vpp = batch.pp[:, None].astype(np.float64), batch.vpp[:, None].astype(np.float64)
    index = stages.stage_index[of_row]
    flight = in_flight(problem.software.pipeline_schedule, pp, vpp, m[:, None], np.maximum(index, 0.0))
    offload = batch.offload[:, None] > 0
    largest = stages.largest_matrix[of_row][:, None]
    exists = index >= 0
    gathered = np.where(zero == 3, c("fsdp_gathered_layers") * 2.0 * _largest_layer(stages, of_row)[:, None], 0.0)
    memory = {
        "weights": np.where(zero == 3, sharded, local) * c("memory_weight_bytes"),
        "gradients": np.where(zero >= 2, sharded, local) * c("memory_grad_bytes") * trained,
        "optimizer": np.where(offload, 0.0, state),
        "activations": stages.saved[of_row] * flight + stages.live[of_row],
        "logits": stages.logits[of_row],
        "transient": np.where(exists, largest * c("memory_largest_matrix_bytes"), 0.0),
        "gathered": np.where(exists & (groups.shard[:, None] > 1), gathered, 0.0),
    }
    host = np.where(offload, state, 0.0).max(axis=1) * min(problem.cluster.gpus_per_node, problem.cluster.n_gpus)
    return memory, host


def _largest_layer(stages: _Stages, of_row: NDArray[np.int64]) -> Array:
    key = stages.of_key[of_row]
    sizes = [cost.dense_params + cost.expert_params for cost in (*stages.pieces.classes, stages.pieces.epilogue)]
    return np.asarray(np.max(sizes, axis=0)[key])
