"""Exports before the engines' own parsers.

These tests run in an environment of their own, see ``docs/explanation/engines.md``; where an engine is not installed
its tests are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.rules import apply_rules, rules_for
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip
QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False,
    "max_position_embeddings": 40960, "hidden_act": "silu", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1000000.0,
}  # fmt: skip
MODELS = {"dense": (LLAMA_70B, 64), "sparse": (QWEN3_30B, 64)}
SAMPLE = 60


def needs(module: str) -> list[pytest.MarkDecorator]:
    """Marks of a file whose tests need an engine's package; importing one may warn about anything."""
    there = find_spec(module.split(".", maxsplit=1)[0]) is not None and find_spec(module) is not None
    return [
        pytest.mark.engines,
        pytest.mark.filterwarnings("ignore"),
        pytest.mark.skipif(not there, reason=f"{module} is not installed (extra: engines)"),
    ]


def question(engine: str, model: str, *, batch: int = 512, seq: int = 4096) -> Problem:
    """A training or serving problem on H100."""
    config, n = MODELS[model]
    arch = build_arch(config, name=model, host=host())
    cluster = build_cluster(host().gpu("H100"), n)
    mode = host().engines()[engine].modes[0]
    work = TrainingWorkload(seq_len=seq, global_batch_size=batch) if mode == "training" else InferenceWorkload(isl=1000, osl=200)
    return make_problem(arch, cluster, work, engine=engine, host=host())


def sample(problem: Problem, *, seed: int = 3, **axes: tuple[int, ...]) -> tuple[list[Strategy], list[Strategy]]:
    """Legal and illegal strategies of the space, up to SAMPLE each."""
    from attrs import evolve

    space = evolve(host().search_space(problem) or Space(), **axes)
    everything = StrategyBatch.concat(list(enumerate_space(problem, space)))
    legal, _ = apply_rules(problem, everything, rules_for(problem, host()))
    rng = np.random.default_rng(seed)
    out = []
    for rows in (np.flatnonzero(legal), np.flatnonzero(~legal)):
        chosen = rng.choice(rows, min(SAMPLE, len(rows)), replace=False) if len(rows) else rows
        out.append([everything[int(i)] for i in chosen])
    return out[0], out[1]


def is_legal(problem: Problem, strategy: Strategy) -> bool:
    legal, _ = apply_rules(problem, StrategyBatch.of([strategy]), rules_for(problem, host()))
    return bool(legal[0])


def export(problem: Problem, strategy: Strategy, model: str) -> Mapping[str, str]:
    files = host().export(problem, strategy, {"model": f"org/{model}", "config": MODELS[model][0], "question": "--n-gpus 64"})
    assert files is not None
    return files
