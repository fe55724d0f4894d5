"""Small training problems whose stages cannot be even, and an engine that may cut them anywhere."""

from __future__ import annotations

from typing import Any

import problem_builders as builders
from attrs import evolve

from autoparallel_core.cost.constants import core_constants
from autoparallel_core.spec.arch import Layer, ModelArch
from autoparallel_core.spec.blocks import attention_block, embedding_block, head_block, mlp_block
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.problem import Ability, EngineSpec, Problem
from autoparallel_core.spec.workload import TrainingWorkload

HIDDEN = 1024
FREE = EngineSpec(
    name="free",
    modes=("training",),
    default_version="1.0",
    summary="Cuts stages anywhere.",
    abilities={"uneven_stages": Ability("1.0", "a list"), "recompute_by_layer": Ability("1.0", "a set")},
)
FIRST = evolve(
    FREE, name="first", abilities={"uneven_stages": Ability("1.0", "a list"), "recompute_by_stage": Ability("1.0", "n")}
)
SAME = evolve(FREE, name="same", abilities={"uneven_stages": Ability("1.0", "a list")})
PLAIN = EngineSpec(name="plain", modes=("training",), default_version="1.0", summary="Cuts evenly.")


def layer(ffn: int) -> Layer:
    return Layer((attention_block(hidden=HIDDEN, heads=8, kv_heads=8, head_dim=128), mlp_block(hidden=HIDDEN, intermediate=ffn)))


def arch(widths: tuple[int, ...], vocab: int = 32000) -> ModelArch:
    """Layers of the given feed-forward widths; a large vocabulary makes a heavy head."""
    return ModelArch(
        name="uneven",
        model_type="uneven",
        hidden_size=HIDDEN,
        vocab_size=vocab,
        prologue=embedding_block(vocab=vocab, hidden=HIDDEN),
        layers=tuple(layer(w) for w in widths),
        epilogue=head_block(vocab=vocab, hidden=HIDDEN, tied=False),
        tied_embeddings=False,
        num_heads=8,
        num_kv_heads=8,
    )


def problem(
    model: ModelArch, n_gpus: int = 4, *, memory_gb: float = 80.0, batch: int = 32, engine: EngineSpec = FREE, **workload: Any
) -> Problem:
    cluster: Cluster = builders.cluster(n_gpus, memory_bytes=memory_gb * 1e9)
    work = TrainingWorkload(seq_len=2048, global_batch_size=batch, **workload)
    return Problem(model, cluster, work, engine, "1.0", constants=core_constants())
