"""Search and check share one set of rules: what the search offers is legal, and what is legal is searched.

The search leaves out on purpose what cannot win: micro-batches beyond a token limit, deployments that leave GPUs idle,
partial recomputation off a coarse grid, virtual stages of equal largest chunk, expert tensor parallelism that does not
divide tp, sharding over part of the ranks where an engine's space does not ask for it. Inside those bounds nothing is
missing.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attrs import evolve
from serving_models import LLAMA_8B, MIXTRAL
from training_problems import question as training_question

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.problem import make_problem
from autoparallel_core.search.api import search
from autoparallel_core.search.rules import rules_for, violations
from autoparallel_core.search.space import enumerate_space
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload

TRAINING = ("megatron", "torchtitan", "fsdp", "deepspeed")
SERVING = ("vllm", "sglang", "trtllm")
MODELS = {"dense": LLAMA_8B, "sparse": MIXTRAL}
CHILDREN = 3000


@cache
def problem_of(engine: str, model: str) -> Problem:
    if engine in TRAINING:
        return training_question(engine, MODELS[model], 16)
    arch = build_arch(MODELS[model], name=model, host=host())
    work = InferenceWorkload(isl=1000, osl=200)
    return make_problem(arch, build_cluster(host().gpu("H200"), 16), work, engine=engine, host=host())


@cache
def space_of(engine: str, model: str) -> StrategyBatch:
    problem = problem_of(engine, model)
    space = evolve(host().search_space(problem) or Space(), mbs=(1,), partial_recompute=False)
    return StrategyBatch.concat(list(enumerate_space(problem, space, rules_for(problem, host()))))


def crossed(parents: StrategyBatch, *, training: bool, parts: bool) -> list[Strategy]:
    """Strategies whose every column comes from one of two parents, inside the bounds of the search."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(len(parents), size=(2, CHILDREN))
    names = list(parents.columns)
    own = rng.integers(2, size=(len(names), CHILDREN)).astype(bool)
    rows = {n: np.where(own[k], parents.columns[n][a], parents.columns[n][b]) for k, n in enumerate(names)}
    rows["vpp"] = np.where(rows["pp"] == parents.columns["pp"][a], parents.columns["vpp"][a], parents.columns["vpp"][b])
    ranks = rows["dp"] * rows["cp"]
    if training:
        rows["etp"] = np.gcd(rows["etp"], rows["tp"])
        rows["zero"] = np.where(ranks > 1, rows["zero"], 0)
        rows["shard"] = np.where(rows["zero"] > 0, np.where(parts & (rows["shard"] > 1), rows["shard"], ranks), 1)
        rows["sp"] = np.where(rows["tp"] > 1, rows["sp"], 0)
    else:
        rows["sp"] = (rows["tp"] > 1).astype(np.int64)
    return [Strategy(**{n: int(rows[n][i]) for n in names}) for i in range(CHILDREN)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", [*TRAINING, *SERVING])
def test_what_is_legal_is_searched(engine: str, model: str) -> None:
    problem, space = problem_of(engine, model), space_of(engine, model)
    parts = bool((host().search_space(problem) or Space()).hsdp)
    children = crossed(space, training=engine in TRAINING, parts=parts)
    full = [s for s in children if s.world == problem.cluster.n_gpus]
    rules = rules_for(problem, host())
    batch = StrategyBatch.of(full)
    broken = np.logical_or.reduce([r.broken(problem, batch) for r in rules])
    accepted = {full[int(i)] for i in np.flatnonzero(~broken)}
    assert len(accepted) > 10
    known = set(space)
    assert not [str(s) for s in accepted if s not in known][:5]
    if engine in TRAINING or model == "sparse":
        assert broken.any(), "rules say no to some crossings, else this proves little"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", [*TRAINING, *SERVING])
def test_what_the_search_offers_is_legal(engine: str, model: str) -> None:
    problem = problem_of(engine, model)
    rules = rules_for(problem, host())
    plans = search(problem, top=40, host=host()).plans
    assert plans
    for plan in plans:
        assert violations(problem, plan.strategy, rules) == []
