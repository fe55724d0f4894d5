"""Training questions on real GPUs, and the ids of the rules that a strategy breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
from serving_models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, MIXTRAL

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.rules import apply_rules, rules_for, violations
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch, parse_strategy
from autoparallel_core.spec.workload import TrainingWorkload

LLAMA_405B = LLAMA_70B | {"hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128, "intermediate_size": 53248}
GLM = DEEPSEEK_V3 | {
    "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 154880,
    "qk_nope_head_dim": 192, "v_head_dim": 256, "num_nextn_predict_layers": 0,
}  # fmt: skip
"""78 layers of 256 experts with latent attention, as GLM-5.1 has (its sparse indexer left out)."""
TIED = LLAMA_8B | {"tie_word_embeddings": True}

__all__ = ["DEEPSEEK_V3", "GLM", "LLAMA_8B", "LLAMA_70B", "LLAMA_405B", "MIXTRAL", "TIED"]


def question(
    engine: str,
    config: dict[str, Any],
    n_gpus: int,
    *,
    batch: int = 1024,
    seq: int = 4096,
    precision: str = "bf16",
    version: str | None = None,
    gpu: str = "H100-SXM-80GB",
    **software: Any,
) -> Problem:
    arch = build_arch(config, name=config["model_type"], host=host())
    cluster = build_cluster(host().gpu(gpu), n_gpus)
    workload = TrainingWorkload(seq_len=seq, global_batch_size=batch, precision=precision)
    return make_problem(arch, cluster, workload, engine=engine, engine_version=version, software=software, host=host())


def sentences(problem: Problem, text: str) -> dict[str, str]:
    """Rule id → sentence of every rule that the strategy breaks."""
    return {v.rule: v.sentence for v in violations(problem, parse_strategy(text), rules_for(problem, host()))}


def broken(problem: Problem, text: str) -> set[str]:
    return set(sentences(problem, text))


def legal_space(problem: Problem, **axes: Any) -> tuple[StrategyBatch, StrategyBatch]:
    """All strategies of the engine's space (axes narrowed), and the legal ones as the search keeps them."""
    found = [r for _, r in host().call("engines", "search_space", problem=problem) if r is not None]
    space = found[0] if found else Space()
    from attrs import evolve

    space = evolve(space, **axes)
    rules = rules_for(problem, host())
    everything = StrategyBatch.concat(list(enumerate_space(problem, space)))
    kept = StrategyBatch.concat(list(enumerate_space(problem, space, rules)))
    legal, _ = apply_rules(problem, everything, rules)
    assert int(legal.sum()) == len(kept)
    return everything, kept


def every_sentence_speaks(problem: Problem, batch: StrategyBatch, limit: int = 40) -> set[str]:
    """Every rule that refuses something in the batch says so with a number; the ids of those rules."""
    seen: set[str] = set()
    for rule in rules_for(problem, host()):
        rows = np.flatnonzero(rule.broken(problem, batch))[:limit]
        for i in rows:
            text = rule.sentence(problem, batch[int(i)])
            assert any(c.isdigit() for c in text), (rule.id, text)
            assert text == text.strip()
            assert "None" not in text
            seen.add(rule.id)
    return seen
