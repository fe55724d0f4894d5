"""Operator granularity on models of the catalogue: the lowering is complete, and known schemes are found where they are best.

Costs are bytes: a collective over n devices costs (n−1)/n of its buffer (an all-reduce twice that, an all-to-all 1/n of
it), an element-wise pass a tenth of what it writes.
"""

from __future__ import annotations

from functools import cache

import pytest
from attrs import evolve

from autoparallel_core.cluster import build_cluster
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.planners.two_level.operators.lowering import ELEMENT_BYTES, head_graph, layer_graph
from autoparallel_core.planners.two_level.operators.model_plan import ModelOperatorPlan, plan_model
from autoparallel_core.planners.two_level.operators.search import meshes, scheme, search_operators, work_axes
from autoparallel_core.planners.two_level.operators.shardings import Collectives
from autoparallel_core.problem import make_problem
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.workload import TrainingWorkload

ROOMY = 1e15


def by_bytes(*shape: int) -> Collectives:
    def moved(d: int, n_bytes: float) -> float:
        return (shape[d] - 1) / shape[d] * n_bytes

    return Collectives(
        all_reduce=lambda d, n: 2 * moved(d, n),
        all_gather=moved,
        reduce_scatter=moved,
        all_to_all=lambda d, n: moved(d, n) / shape[d],
        touch=lambda n: 0.1 * n,
    )


@cache
def arch(name: str) -> ModelArch:
    return load_model(name, host())


def problem(name: str, n_gpus: int, batch: int, seq_len: int) -> Problem:
    work = TrainingWorkload(seq_len=seq_len, global_batch_size=batch)
    return make_problem(arch(name), build_cluster(host().gpu("H100"), n_gpus), work, engine="megatron", host=host())


LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"


def planned(p: Problem, *shape: int, m: int = 1, memory_bytes: float = ROOMY, tokens: bool = True) -> ModelOperatorPlan:
    work = None if tokens else frozenset({"kv", "group", "ffn", "vocab", "experts", "expert_ffn", "hidden"})
    plan = plan_model(p, shape, m, comm=by_bytes(*shape), memory_bytes=memory_bytes, work=work)
    assert plan is not None
    assert plan.gap == pytest.approx(0, abs=1e-6)
    return plan


def schemes(plan: ModelOperatorPlan, part: str) -> dict[str, str]:
    """Scheme of every product with weights, along the last mesh dimension."""
    p = next(i for i, x in enumerate(plan.parts) if x.name == part)
    graph, options = plan.parts[p].layer.graph, plan.options[p]
    out = {}
    for i, node in enumerate(graph.nodes):
        weight = next((j for j in node.inputs if graph.nodes[j].kind == "parameter"), None)
        if node.kind == "einsum" and not node.backward and weight is not None:
            update = next(u for u in graph.users(weight) if graph.nodes[u].kind == "update")
            d = len(plan.mesh.shape) - 1
            out[node.name] = scheme(graph, i, options[i], options[weight], options[update], d)
    return out


@pytest.mark.parametrize(
    "name",
    [LLAMA, MOE, "deepseek-ai/DeepSeek-V3", "google/gemma-3-27b-it", "Qwen/Qwen3.5-397B-A17B", "openai/gpt-oss-120b"],
)
def test_every_matrix_of_a_model_is_in_its_graphs(name: str) -> None:
    """All parameters but vectors and what a scan owns beside its projections; all of them are updated."""
    model = arch(name)
    for layer, _ in model.layer_classes():
        g = layer_graph(layer, model, 8, 4096)
        own = [i for i, n in enumerate(g.graph.nodes) if n.kind == "parameter"]
        size = sum(g.graph.bytes(i) / ELEMENT_BYTES for i in own)
        assert size == pytest.approx(sum(w.size for w in layer.weights()), rel=1e-3)
        updated = {n.inputs[0] for n in g.graph.nodes if n.kind == "update"}
        assert updated == set(own) or "gated" in layer.kind  # a scalar gate's result is not modelled
        assert g.leaves is not None
        assert g.graph.nodes[g.leaves].axes == g.graph.nodes[g.enters].axes == g.graph.nodes[g.gradient_leaves].axes
    head = head_graph(model, 8, 4096).graph
    assert sum(n.kind == "parameter" for n in head.nodes) == 1


@pytest.mark.parametrize("name", ["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"])
def test_experts_may_work_on_a_narrower_stream(name: str) -> None:
    for layer, _ in arch(name).layer_classes():
        g = layer_graph(layer, arch(name), 8, 4096).graph
        size = sum(g.bytes(i) / ELEMENT_BYTES for i, n in enumerate(g.nodes) if n.kind == "parameter")
        assert size == pytest.approx(sum(w.size for w in layer.weights()), rel=5e-3)


def test_what_cannot_be_told_is_refused() -> None:
    """Hyper-connections widen the stream inside a layer."""
    model = arch("deepseek-ai/DeepSeek-V4-Flash")
    with pytest.raises(SpecError, match="has no graph of einsums here"):
        layer_graph(model.layer_classes()[0][0], model, 8, 4096)


def test_columns_and_rows_alternate_with_sequence_parallelism_between() -> None:
    """Work split by anything but tokens: the plan of Megatron, four scatters and four gathers a layer."""
    p = problem(LLAMA, 8, 8, 4096)
    plan = planned(p, 8, tokens=False)
    assert schemes(plan, "gqa+dense") == {"qkv": "columns", "out": "rows", "mlp.up": "columns", "mlp.down": "rows"}
    assert schemes(plan, "head") == {"lm_head": "columns"}
    for node in ("input_layernorm", "post_attention_layernorm", "attention_residual"):
        assert plan.sharding("gqa+dense", node)[0] in {"b", "s"}
    assert plan.sharding("gqa+dense", "core_attention") == ("kv",)
    stream = 8 * 4096 * 4096 * ELEMENT_BYTES * 7 / 8
    assert plan.seconds["reduction of activations"] == pytest.approx((4 * 32 + 1) * stream)
    assert plan.seconds["resharding of activations"] == pytest.approx((4 * 32 + 1) * stream)
    assert "reduction of gradients" not in plan.seconds


def test_data_parallelism_shards_the_optimizer_when_it_is_free_and_the_weights_when_memory_binds() -> None:
    p = problem(LLAMA, 8, 64, 4096)
    roomy, mixed, tight = planned(p, 8, m=8), planned(p, 8, m=8, memory_bytes=40e9), planned(p, 8, m=8, memory_bytes=38e9)
    assert set(schemes(roomy, "gqa+dense").values()) == {"data, ZeRO-1"}
    assert set(schemes(mixed, "gqa+dense").values()) == {"data, ZeRO-1", "data, ZeRO-3"}  # as much as is needed
    assert set(schemes(tight, "gqa+dense").values()) == {"data, ZeRO-3"}
    assert tight.held_bytes <= 38e9 < mixed.held_bytes <= 40e9 < roomy.held_bytes
    assert roomy.step_s < mixed.step_s < tight.step_s
    matrices = 32 * 218_103_808
    gathered = 8 * 2 * matrices * ELEMENT_BYTES * 7 / 8  # forward and backward, each micro-batch
    assert tight.seconds["gathering of parameters"] == pytest.approx(gathered)


def test_a_single_long_sequence_is_split_by_tokens_and_traded_for_heads_in_the_attention() -> None:
    plan = planned(problem(LLAMA, 8, 1, 65_536), 8)
    assert set(schemes(plan, "gqa+dense").values()) == {"sequence, ZeRO-1"}
    assert plan.sharding("gqa+dense", "core_attention") == ("kv",)
    assert plan.collectives["all-to-all"] == 8  # queries, keys, values and the result, forward and backward


def test_experts_are_spread_by_expert_when_their_states_do_not_fit() -> None:
    """Tokens go to their experts and back; everything else stays data parallel."""
    p = problem(MOE, 8, 256, 4096)
    roomy, tight = planned(p, 8, m=32), planned(p, 8, m=32, memory_bytes=105e9)
    assert set(schemes(roomy, "gqa+moe").values()) == {"data, ZeRO-1"}
    found = schemes(tight, "gqa+moe")
    assert found["experts.up"] == found["experts.down"] == "experts"
    assert found["qkv"] == found["out"] == "data, ZeRO-1"
    assert dict(tight.collectives) == {"all-to-all": 4, "reduce-scatter": 4}
    graph = tight.parts[0].layer.graph
    up = next(i for i, n in enumerate(graph.nodes) if n.name == "experts.up")
    assert work_axes(tight.options[0][up], 1) == ("experts",)
    assert tight.sharding("gqa+moe", "experts.up weight") == ("experts",)


def test_the_stream_is_passed_on_between_unlike_layers() -> None:
    """Dense layers in front of mixtures, a head behind: every class has its own plan, no worse than one idea for all."""
    p = problem("deepseek-ai/DeepSeek-V3", 8, 8, 4096)
    free, tensor = planned(p, 8), planned(p, 8, tokens=False)
    assert {x.name: x.count for x in free.parts} == {"mla+dense": 3, "mla+moe": 58, "head": 1}
    assert free.step_s <= tensor.step_s


def test_the_answer_compares_with_plans_of_one_idea() -> None:
    assert meshes(problem(LLAMA, 4, 16, 2048)) == [(4,), (2, 2)]
    assert meshes(problem(LLAMA, 16, 16, 2048)) == [(8, 2), (4, 4), (2, 8)]
    p = problem(LLAMA, 2, 8, 2048)
    p = p.with_cluster(evolve(p.cluster, gpu=evolve(p.cluster.gpu, memory_bytes=140e9)))
    answer = search_operators(p)
    assert answer is not None
    assert answer.held_bytes <= answer.budget_bytes
    assert sum(answer.seconds.values()) == pytest.approx(answer.step_s, rel=1e-5)
    others = dict(answer.others)
    assert set(others) == {"data parallel alone", "tensor parallel alone", "sequence alone"}
    assert all(s is None or s >= answer.step_s * (1 - 1e-9) for s in others.values())
    assert {r.part for r in answer.rows} == {"gqa+dense", "head"}
    assert search_operators(p.with_cluster(evolve(p.cluster, gpu=evolve(p.cluster.gpu, memory_bytes=1e10)))) is None
    with pytest.raises(SpecError, match="needs several GPUs"):
        meshes(problem(LLAMA, 1, 16, 2048))
