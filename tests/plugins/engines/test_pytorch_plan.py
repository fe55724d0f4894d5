"""What plans choose: known cases, hand-written placements as constraints, memory, larger meshes, mesh search."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pytorch_models import MLP, Decoder, planned, planning, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402

import autoparallel_core as ap  # noqa: E402
from autoparallel_core.cost.constants import core_constants  # noqa: E402
from autoparallel_core.errors import Infeasible, SpecError  # noqa: E402
from autoparallel_core.search.result import TIE  # noqa: E402
from autoparallel_core.solve.assignment import solve_assignment  # noqa: E402
from autoparallel_core.solve.reduce import reduce_assignment  # noqa: E402
from autoparallel_pytorch.mesh_search import meshes, refined  # noqa: E402
from autoparallel_pytorch.recompute import expand, memory_rows  # noqa: E402
from autoparallel_pytorch.search import assignment, solve_program  # noqa: E402

pytestmark = pytest.mark.torch


def mlp(batch: int, hidden: int, width: int, mesh: dict[str, int], **fields: object) -> ap.ModulePlan:
    with torch.device("meta"):
        module = MLP(hidden, width).to(torch.bfloat16)
        x = torch.empty(batch, hidden, dtype=torch.bfloat16)
    return planned(module, [x], mesh, **fields)


def test_a_large_batch_on_small_weights_is_data_parallel() -> None:
    plan = mlp(1 << 20, 1024, 1024, {"x": 8})
    up = next(o for o in plan.document["operators"] if o["name"] == "up/mm")
    assert up["in"] == ["S(0)", "R"]
    assert plan.gap < 1e-6


def test_a_small_batch_on_large_weights_is_tensor_parallel() -> None:
    plan = mlp(256, 16384, 65536, {"x": 8})
    assert plan.placements == {"up.weight": "S(0)", "down.weight": "S(1)"}
    assert plan.gap < 1e-6


def test_memory_below_replicated_parameters_shards_them() -> None:
    whole = {"*.weight": "R"}
    replicated = mlp(1 << 14, 4096, 4096, {"x": 8}, memory_limit_bytes=1e12, pins=whole)
    state = sum(p["bytes"] for p in replicated.document["parameters"].values()) * (1 + 12 / 2)
    limit = replicated.peak_bytes - 0.6 * state
    with pytest.raises(Infeasible):
        mlp(1 << 14, 4096, 4096, {"x": 8}, memory_limit_bytes=limit, pins=whole)
    tight = mlp(1 << 14, 4096, 4096, {"x": 8}, memory_limit_bytes=limit)
    assert all(p.startswith("S") for p in tight.placements.values())
    assert tight.peak_bytes <= limit
    with pytest.raises(Infeasible, match="leanest plan found needs"):
        mlp(1 << 14, 4096, 4096, {"x": 8}, memory_limit_bytes=1e6)


def test_a_large_table_is_not_gathered() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1 << 20, 1024, dtype=torch.bfloat16)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return self.table(index).float().pow(2).mean()

    with torch.device("meta"):
        module, index = Lookup(), torch.empty(64, 16, dtype=torch.int64)
    plan = planned(module, [index], {"x": 8})
    table = plan.document["parameters"]["table.weight"]["bytes"]
    assert max((c["bytes"] for c in plan.document["collectives"]), default=0) < table / 100


COLUMNS, ROWS = ("*.w[qkv].weight", "*.gate.weight", "*.up.weight"), ("*.wo.weight", "*.down.weight")
HAND = {
    "fsdp": dict.fromkeys((*COLUMNS, *ROWS, "tokens", "*/attention"), "S(0) S(0)"),
    "tensor": dict.fromkeys(COLUMNS, "R S(0)") | dict.fromkeys(ROWS, "R S(1)") | {"*/attention": "S(0) S(1)"},
    "fsdp + tensor": dict.fromkeys(COLUMNS, "S(1) S(0)") | dict.fromkeys(ROWS, "S(0) S(1)") | {"*/attention": "S(0) S(1)"},
}


def test_no_hand_written_plan_is_better() -> None:
    with torch.device("meta"):
        module = Decoder(layers=2, hidden=2048, heads=16, kv_heads=8, width=8192, vocab=32768).to(torch.bfloat16)
        inputs = {k: torch.empty(64, 2048, dtype=torch.int64) for k in ("tokens", "labels")}
    best = planned(module, inputs, {"dp": 4, "tp": 8})
    assert best.gap < 0.02
    for name, pins in HAND.items():
        hand = planned(module, inputs, {"dp": 4, "tp": 8}, pins=pins)
        assert best.step_s <= hand.step_s * (1 + 1e-9), name


def test_pins_hold_and_wrong_ones_are_explained() -> None:
    module, inputs = Decoder(), tokens()
    plan = planned(module, inputs, {"dp": 2, "tp": 2}, pins={"layers.*.wq": "R S(0)"})
    assert plan.placements["layers.0.wq.weight"] == plan.placements["layers.1.wq.weight"] == "R S(0)"
    with pytest.raises(SpecError, match=r"matches no parameter.*did you mean"):
        planned(module, inputs, {"dp": 2}, pins={"layers.0.wz.weight": "S(0)"})
    with pytest.raises(SpecError, match="not among its placements"):
        planned(module, inputs, {"dp": 2}, pins={"layers.0.wq.weight": "S(5)"})


def test_dimensions_that_do_not_divide_are_said() -> None:
    with torch.device("meta"):
        module, inputs = Decoder(layers=1, vocab=50257), tokens(batch=6)
    plan = planned(module, inputs, {"tp": 8})
    table, batch = (n for n in plan.document["notes"] if "equal pieces" in n)
    assert table == (
        "embed.weight, head.weight: dimension 0 of 50257 does not go in 8 (tp) equal pieces and is not cut there; 50264 would"
    )
    assert batch.startswith("input tokens, input labels: dimension 0 of 6 does not go in 8 (tp)")
    assert plan.placements["head.weight"] in ("R", "S(1)")
    with pytest.raises(SpecError, match=r"head.weight=S\(0\): not among its placements on mesh tp=8: R; S\(1\)"):
        planned(module, inputs, {"tp": 8}, pins={"head": "S(0)"})


def test_no_collective_is_faster_than_its_wire_and_no_step_than_its_computation() -> None:
    with torch.device("meta"):
        module = Decoder(layers=1, hidden=1024, heads=8, kv_heads=8, width=4096, vocab=8192).to(torch.bfloat16)
        inputs = {k: torch.empty(32, 1024, dtype=torch.int64) for k in ("tokens", "labels")}
    document = planned(module, inputs, {"dp": 4, "tp": 4}).document
    fastest = max(t["bytes_per_s"] for t in document["cluster"]["tiers"])
    for c in document["collectives"]:
        share = 2.0 if c["kind"] == "all_reduce" else 1.0
        assert c["seconds"] >= share * (c["ranks"] - 1) / c["ranks"] * c["bytes"] / fastest
    cost = document["cost"]
    assert cost["step_s"] >= max(cost["compute_s"], cost["weights_s"])
    total = cost["compute_s"] + cost["weights_s"] + cost["exchange_s"] + cost["update_s"] - cost["hidden_s"]
    assert cost["step_s"] == pytest.approx(total)


def test_gathers_of_parameters_run_beside_computation() -> None:
    plan = mlp(1 << 17, 4096, 16384, {"x": 8}, pins={"*.weight": "S(0)", "x": "S(0)", "up/mm": "S(0)", "down/mm": "S(0)"})
    document = plan.document
    gathered = [c for c in document["collectives"] if c["kind"] == "all_gather"]
    assert {c["cause"] for c in gathered} == {"weights"}
    # Once for the forward; the input of the module takes no gradient, so only the second matrix is gathered again.
    assert sum(c["bytes"] for c in gathered) == 3 * 4096 * 16384 * 2
    cost = document["cost"]
    loss = core_constants()["overlap_loss"].value
    assert cost["compute_s"] > cost["weights_s"] > 0
    assert cost["hidden_s"] == pytest.approx((1 - loss) * cost["weights_s"])
    assert cost["step_s"] == pytest.approx(cost["compute_s"] + cost["exchange_s"] + cost["update_s"] + loss * cost["weights_s"])


def test_weight_traffic_of_a_layer_goes_in_one_collective_each_way() -> None:
    with torch.device("meta"):
        module = Decoder(layers=3, hidden=256, heads=8, kv_heads=8, width=512, vocab=512).to(torch.bfloat16)
        inputs = {k: torch.empty(64, 256, dtype=torch.int64) for k in ("tokens", "labels")}
    pins = dict.fromkeys((*COLUMNS, *ROWS, "tokens", "labels", "*/attention"), "S(0)")
    document = planned(module, inputs, {"dp": 8}, pins=pins).document
    steps = [s for s in document["program"]["steps"] if s["kind"] == "weights" and isinstance(s["args"][0], list)]
    for layer in range(3):
        own = [s for s in steps if s["name"].startswith(f"layers.{layer}")]
        assert [(s["op"], s["phase"]) for s in own if s["op"] == "move.all_gather"] == [
            ("move.all_gather", 0),
            ("move.all_gather", 1),
        ]
        scattered = [s for s in own if s["op"] == "move.reduce_scatter"]
        assert len(scattered) == 1
        assert len(scattered[0]["args"][0]) >= 7
    bucket = [c for c in document["collectives"] if c["for"].startswith("layers.1") and c["kind"] == "all_gather"]
    assert len({c["bucket"] for c in bucket}) == 2
    assert len(bucket) == 14


def test_costs_are_those_of_the_core_for_the_same_strategy() -> None:
    """Llama-3-8B's shapes, two layers, on 32 × 8: the described model's price for tensor and data parallelism of these sizes."""
    layers, hidden, width, vocab, batch, length = 2, 4096, 14336, 128256, 64, 8192
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": width, "vocab_size": vocab,
        "max_position_embeddings": length, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }  # fmt: skip
    host = ap.host()
    problem = ap.make_problem(
        ap.build_arch(config, name="two layers", host=host), ap.build_cluster(host.gpu("H100"), 256),
        ap.TrainingWorkload(seq_len=length, global_batch_size=batch), engine="torchtitan", host=host,
    )  # fmt: skip
    core = ap.explain_strategy(problem, ap.parse_strategy("tp8 pp1 dp32 zero0 mbs2 recompute=none"), host).cost.seconds
    with torch.device("meta"):
        module = Decoder(layers=layers, hidden=hidden, heads=32, kv_heads=8, width=width, vocab=vocab).to(torch.bfloat16)
        inputs = {k: torch.empty(batch, length, dtype=torch.int64) for k in ("tokens", "labels")}
    pins = dict.fromkeys(COLUMNS, "R S(0)") | dict.fromkeys(ROWS, "R S(1)") | {"*/attention": "S(0) S(1)", "head": "R S(0)"}
    document = ap.plan(module, inputs, {"dp": 32, "tp": 8}, gpu="H100", pins=pins).document
    program = document["program"]
    seconds: dict[str, float] = {}
    flops = 0
    for step in program["steps"]:
        seconds[step["op"]] = seconds.get(step["op"], 0.0) + step["s"]
        if step["op"] == "aten.mm.default":
            (m, k), (_, n) = (program["values"][x["v"]][0] for x in step["args"])
            flops += 2 * m * k * n
    matrices = layers * (2 * hidden * hidden + 2 * hidden * hidden // 4 + 3 * hidden * width) + hidden * vocab
    assert 256 * flops == 6 * matrices * batch * length
    # One product each for q, k, v, gate and up here, one for q, k and v together and one for gate and up there.
    assert seconds["aten.mm.default"] == pytest.approx(core["gemm"], rel=0.1)
    attention = seconds["autoparallel.attention"] + seconds["autoparallel.attention_backward"]
    assert attention == pytest.approx(core["attention"], rel=0.02)
    reduced = [c for c in document["collectives"] if c["cause"] == "weights" and c["mesh_dim"] == "dp" and c["bytes"] > 1e6]
    whole = [p for p in document["parameters"].values() if p["placement"].startswith("R") and len(p["shape"]) == 2]
    assert sum(c["bytes"] for c in reduced if c["kind"] == "all_reduce") == sum(p["local_bytes"] for p in whole)
    # Two sums per layer and direction over the tensor-parallel ranks, as all-reduces or in halves.
    passed = [c for c in document["collectives"] if c["mesh_dim"] == "tp" and c["cause"] == "exchange" and c["bytes"] > 1e8]
    halves = sum(2 if c["kind"] == "all_reduce" else 1 for c in passed)
    assert 8 * layers <= halves <= 8 * layers + 6
    assert sum(c["seconds"] for c in passed) == pytest.approx(core["tp_comm"], rel=0.35)


@pytest.mark.parametrize(("batch", "hidden", "width"), [(4096, 256, 1024), (64, 2048, 8192)])
def test_messages_reach_the_linear_programs_optimum_on_three_dimensions(batch: int, hidden: int, width: int) -> None:
    with torch.device("meta"):
        module, x = MLP(hidden, width).to(torch.bfloat16), torch.empty(batch, hidden, dtype=torch.bfloat16)
    made = planning(traced(module, [x]), {"a": 4, "b": 2, "c": 4})
    for price in (0.0, 1e-12):
        states = made.states(made.form)
        whole = expand(made.form, made.graph, states)
        problem = assignment(whole, made.objective.prices(1.0), {i: price * r for i, r in memory_rows(states).items()})
        reduced = reduce_assignment(problem.restricted([np.arange(len(c)) for c in problem.cost]))
        assert reduced is not None
        exact = solve_assignment(reduced.problem) if reduced.nodes else None
        choice = reduced.expand(() if exact is None or exact.choice is None else exact.choice)
        found = solve_program(problem, whole, time_limit_s=60.0)
        assert found.cost == pytest.approx(problem.price(choice), rel=1e-6)
        assert found.bound == pytest.approx(found.cost, rel=2e-6)


def test_the_mesh_is_searched() -> None:
    with torch.device("meta"):
        module = MLP(4096, 16384).to(torch.bfloat16)
        inputs = [torch.empty(4096, 4096, dtype=torch.bfloat16)]
    plan = ap.plan(module, inputs, "auto", n_gpus=16, gpu="H100")
    assert meshes(16) == [(16,), (8, 2), (4, 4), (2, 8)]
    said = plan.document["meshes"]
    for shape in meshes(16):
        mesh = dict(zip(("dp", "tp"), shape, strict=False))
        (line,) = [x for x in said if x.startswith(",".join(f"{n}={s}" for n, s in mesh.items()) + ": ")]
        alone = ap.plan(module, inputs, mesh, gpu="H100").step_s
        assert plan.step_s <= alone * (1 + (TIE if len(plan.mesh) < len(shape) else 1e-9))
        if "not below" in line:
            assert alone >= float(line.split()[-2]) * (1 - 1e-3)
        else:
            assert f"{alone:.4g} s" in line


def test_a_mesh_of_five_dimensions_is_refused() -> None:
    with pytest.raises(SpecError, match=r"mesh a=2,b=2,c=2,d=2,e=2 has 5 dimensions; plans have at most 4"):
        ap.plan(MLP(), [torch.zeros(32, 16)], dict.fromkeys("abcde", 2), gpu="H100")


def test_a_dimension_that_gains_nothing_is_left_out() -> None:
    """A large batch on small weights is data parallel, and two dimensions of it are no better than one."""
    with torch.device("meta"):
        module = MLP(1024, 1024).to(torch.bfloat16)
        inputs = [torch.empty(1 << 20, 1024, dtype=torch.bfloat16)]
    assert ap.plan(module, inputs, "auto", n_gpus=8, gpu="H100").mesh == {"dp": 8}


def test_meshes_of_three_dimensions_end_where_nodes_do() -> None:
    assert refined((32, 2), 8) == [(16, 2, 2), (8, 4, 2), (4, 8, 2), (2, 16, 2)]
    assert refined((8, 8), 8) == [(4, 2, 8), (2, 4, 8)]
    assert refined((2, 4), 8) == []
