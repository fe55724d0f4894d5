"""Weights per GPU when serving, by layer and by pipeline stage.

Axis legend: U strategy keys, P pipeline stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from autoparallel_core.cost.serving_policy import model_dtype, stored_format
from autoparallel_core.spec.dtypes import dtype_bytes
from autoparallel_core.spec.op import Attention, ExpertGemm, Gemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoparallel_core.cost.serving_mesh import Array, ServingMesh
    from autoparallel_core.spec.arch import Block, Layer, ModelArch
    from autoparallel_core.spec.problem import Problem

ROTARY_FACT = "rotary_cache_elements"
"""Name of the model fact: positions times rotated width, summed over the distinct rotary tables of the model."""


def split_layers(layers: int, stages: int, rule: str) -> tuple[int, ...]:
    """Layers of each pipeline stage; ``rule`` is :attr:`ServingPolicy.layer_split`.

    >>> split_layers(61, 4, "inner"), split_layers(94, 4, "inner"), split_layers(61, 4, "first")
    ((15, 15, 16, 15), (23, 24, 24, 23), (16, 15, 15, 15))
    """
    base, rest = divmod(layers, stages)
    sizes = [base] * stages
    if rule == "last":
        sizes[-1] += rest
    else:
        for i in range(rest):
            sizes[{"inner": -(i + 2), "trailing": -(i + 1)}.get(rule, i)] += 1
    return tuple(sizes)


@frozen(eq=False)
class StageWeights:
    """Bytes per GPU float64[U, P] by cause; a rank holds the sum."""

    causes: Mapping[str, Array]

    @property
    def total(self) -> Array:
        return sum(self.causes.values(), start=np.zeros(1))


def block_bytes(problem: Problem, mesh: ServingMesh, block: Block) -> Array:
    """Bytes per GPU of one block's weights: float64[U]."""
    total = np.zeros(len(mesh))
    for op in block.ops:
        for w in op.weights:
            fmt = stored_format(problem, op, w)
            total += mesh.weight_elements(w, fmt.name, experts=isinstance(op, ExpertGemm)) * fmt.bytes_per_param
    return total


def absorbed_bytes(problem: Problem, mesh: ServingMesh, block: Block) -> Array:
    """What absorbed decoding keeps beside a latent attention's up-projection (arXiv 2405.04434, section 2.1.2).

    Split: rank × heads/tp × (key width without rotary + value width) elements in the model's dtype. Fused: query input ×
    heads/tp × rank and heads/tp × rank × hidden elements, and the rotary part of the query projection again.
    """
    total = np.zeros(len(mesh))
    for op in block.ops:
        # keys expanded per query head are what an up-projection makes; a shared latent without one has nothing to absorb
        if not (isinstance(op, Attention) and op.latent and op.latent_v and op.v_width and op.kv_heads.name == "heads"):
            continue
        rotary = op.latent - op.latent_v
        heads = mesh.local(op.heads) / op.heads.width
        if mesh.policy.absorbed_copies == "split":
            elements = op.latent_v * heads * (op.heads.width - rotary + op.v_width)
            total += elements * dtype_bytes(model_dtype(problem))
        else:
            query = next(q for q in block.ops if isinstance(q, Gemm) and op.heads in q.n)
            elements = heads * (op.latent_v * (query.k.size + problem.arch.hidden_size) + rotary * query.k.size)
            total += elements * stored_format(problem, query, query.weights[0]).bytes_per_param
    return total


def stage_weights(problem: Problem, mesh: ServingMesh, sizes: tuple[int, ...]) -> StageWeights:
    """Weights of every stage of ``sizes`` layers, for the U keys of the mesh.

    The embedding is on the first stage, norm and head on the last; a tied matrix is held twice when these differ.
    Vision and audio towers load with the first stage; draft layers (only with speculative decoding) with the last.
    """
    arch, policy = problem.arch, mesh.policy
    U, P = len(mesh), len(sizes)
    layers, copies = np.zeros((U, P)), np.zeros((U, P))
    for layer, counts in _classes_by_stage(arch, sizes):
        w, c = layer_bytes(problem, mesh, layer)
        layers += w[:, None] * counts
        copies += c[:, None] * counts
    causes = {"weights": layers}
    table = block_bytes(problem, mesh, arch.prologue)
    ends = np.zeros((U, P))
    ends[:, 0] += table
    ends[:, -1] += block_bytes(problem, mesh, arch.epilogue)
    if arch.tied_embeddings and P > 1:
        ends[:, -1] += table
    causes["weights: embedding and head"] = ends
    if policy.absorbed_copies != "none" and copies.any():
        causes["weights: absorbed projections"] = copies
    if arch.towers:
        towers = _layers_bytes(problem, mesh, arch.towers)
        causes["weights: towers"] = _at(0, towers / mesh.tp if policy.towers_sharded else towers, P)
    if arch.mtp and problem.inference.accepted_length > 1:
        causes["weights: draft layers"] = _at(P - 1, _layers_bytes(problem, mesh, arch.mtp), P)
    if policy.rotary_cache and (elements := arch.fact(ROTARY_FACT)):
        causes["weights: rotary tables"] = np.full((U, P), elements * dtype_bytes(model_dtype(problem)))
    return StageWeights(causes)


def layer_bytes(problem: Problem, mesh: ServingMesh, layer: Layer) -> tuple[Array, Array]:
    """Bytes per GPU of one layer's weights, and of its absorbed copies: float64[U] each."""
    w, c = np.zeros(len(mesh)), np.zeros(len(mesh))
    for block in layer.blocks:
        w += block_bytes(problem, mesh, block)
        c += absorbed_bytes(problem, mesh, block)
    return w, c


def _layers_bytes(problem: Problem, mesh: ServingMesh, layers: Iterable[Layer]) -> Array:
    return sum((layer_bytes(problem, mesh, layer)[0] for layer in layers), start=np.zeros(len(mesh)))


def _at(stage: int, values: Array, stages: int) -> Array:
    out = np.zeros((len(values), stages))
    out[:, stage] = values
    return out


def _classes_by_stage(arch: ModelArch, sizes: tuple[int, ...]) -> list[tuple[Layer, Array]]:
    """Distinct layers, each with how many of them every stage holds (float64[P])."""
    edges = np.cumsum((0, *sizes))
    return [(layer, np.histogram(where, bins=edges)[0].astype(np.float64)) for layer, where in arch.layer_classes()]
