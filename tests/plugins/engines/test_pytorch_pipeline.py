"""Pipelines: where they are cut, what their stages hold, and that they train as the unsharded module does."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pytorch_models import Decoder, planned, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402
from torch.multiprocessing.spawn import spawn  # noqa: E402

import autoparallel_core as ap  # noqa: E402
from autoparallel_core.errors import Infeasible, SpecError  # noqa: E402
from autoparallel_core.spec.module_plan import read_module_plan  # noqa: E402
from autoparallel_pytorch.pipeline_cut import Chain  # noqa: E402
from autoparallel_pytorch.pipeline_schedule import Pipelining  # noqa: E402
from autoparallel_pytorch.regions import classes  # noqa: E402
from autoparallel_pytorch.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = 4
TOLERANCE = 1e-5


def large(mesh: dict[str, int], vocab: int = 4096, **fields: object) -> ap.ModulePlan:
    with torch.device("meta"):
        module = Decoder(layers=6, hidden=1024, heads=8, kv_heads=8, width=4096, vocab=vocab).to(torch.bfloat16)
        inputs = {k: torch.empty(32, 1024, dtype=torch.int64) for k in ("tokens", "labels")}
    return planned(module, inputs, mesh, **fields)


def test_stages_are_whole_graphs_that_share_nothing_but_what_crosses() -> None:
    graph = traced(Decoder(layers=LAYERS), tokens())
    chain = Chain.find(graph, classes(graph))
    assert chain.units == tuple(f"layers.{i}" for i in range(LAYERS))
    stages = [chain.stage(0, 0), chain.stage(1, 2), chain.stage(3, 3)]
    assert [list(s.inputs) for s in stages] == [["tokens"], ["boundary_0"], ["labels", "boundary_0"]]
    names = [n for s in stages for n in s.parameters]
    assert sorted(names) == sorted(graph.parameters)
    assert sorted(n for s in stages for n in s.gradients) == sorted(graph.gradients)
    matrices = [sum(n.op == "aten.mm.default" for n in s.nodes) for s in stages]
    assert sum(matrices) == sum(n.op == "aten.mm.default" for n in graph.nodes)
    for i, s in enumerate(stages):
        assert list(s.input_gradients) == (["boundary_0"] if i else [])
        assert all(r.node < n.id for n in s.nodes for r in n.refs())


def test_modules_that_no_pipeline_can_cut_are_refused() -> None:
    tied = Decoder(layers=LAYERS)
    tied.head.weight = tied.embed.weight
    graph = traced(tied, tokens())
    with pytest.raises(SpecError, match=r"embed.weight is read in layers 0 and 3.*untie"):
        Chain.find(graph, classes(graph))

    class Skipping(Decoder):
        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            x = first = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.cross_entropy(self.head(self.norm(x + first)).flatten(0, 1), labels.flatten())

    graph = traced(Skipping(layers=LAYERS), tokens())
    with pytest.raises(SpecError, match=r"no pipeline can be cut after layers\.0"):
        Chain.find(graph, classes(graph))


def test_wrong_options_are_explained() -> None:
    for mesh, options, message in (
        ({"pp": 2, "dp": 2}, {"microbatches": 3}, r"does not go into 3 micro-batches; microbatches may be \[1, 2, 4, 8\]"),
        ({"pp": 2, "dp": 2}, {"schedule": "zb"}, "schedule 'zb' is not known"),
        ({"pp": 2, "dp": 2}, {"stages_per_rank": 2}, "only interleaved takes more than one"),
        ({"pp": 2, "dp": 2}, {"schedule": "interleaved", "microbatches": 1}, "in groups of 2"),
        ({"pp": 4}, {}, "plans its stages on an inner mesh"),
        ({"pp": 8, "dp": 1}, {}, "8 stages need as many layers"),
        ({"dp": 2, "pp": 2}, {}, "outermost"),
    ):
        with pytest.raises(SpecError, match=message):
            planned(Decoder(layers=LAYERS), tokens(), mesh, options=options)


def test_a_stage_with_the_head_gets_fewer_layers_and_early_stages_keep_more() -> None:
    plan = large({"pp": 2, "dp": 2}, vocab=32768, options={"microbatches": 8})
    first, last = plan.document["pipeline"]["stages"]
    assert len(first["layers"]) > len(last["layers"]) > 0
    assert (first["in_flight"], last["in_flight"]) == (2, 1)
    times = [s["time_s"] for s in (first, last)]
    assert max(times) / min(times) < 1.25
    step = sum(times) + 2 * last["enters"][0]["send_s"] + 7 * max(times) + max(s["update_s"] for s in (first, last))
    assert plan.step_s == pytest.approx(step)
    cost = plan.document["cost"]
    parts = cost["compute_s"] + cost["exchange_s"] + cost["weights_s"] + cost["update_s"] + cost["bubble_s"] - cost["hidden_s"]
    assert plan.step_s == pytest.approx(parts)
    assert {p["stage"] for p in plan.document["parameters"].values()} == {0, 1}


def test_memory_of_every_stage_is_kept_within_the_limit() -> None:
    free = large({"pp": 2, "dp": 2}, options={"microbatches": 8})
    limit = 0.75 * free.peak_bytes
    tight = large({"pp": 2, "dp": 2}, options={"microbatches": 8}, memory_limit_bytes=limit)
    assert max(s["peak_bytes"] for s in tight.document["pipeline"]["stages"]) == tight.peak_bytes <= limit
    assert tight.step_s >= free.step_s
    with pytest.raises(Infeasible):
        large({"pp": 2, "dp": 2}, options={"microbatches": 8}, memory_limit_bytes=0.05 * free.peak_bytes)


def test_schedules_hold_as_many_micro_batches_as_they_warm_up() -> None:
    one = Pipelining(4, 1, 8, "1f1b")
    assert [one.in_flight(i) for i in range(4)] == [4, 3, 2, 1]
    assert one.step_s([1.0] * 4, [0.0] * 3) == 4 + 7
    assert [Pipelining(4, 1, 8, "gpipe").in_flight(i) for i in range(4)] == [8] * 4
    # A rank with two stages of half a layer's time each: the others' halves fill the pipeline twice as fast.
    assert Pipelining(4, 2, 8, "interleaved").step_s([0.5] * 8, [0.0] * 7) == pytest.approx(8 * 1.0 + 3 * 0.5)


OUT = "layers.*/add.1"
CASES = {
    "1f1b": ({"pp": 2, "tp": 2}, {"microbatches": 4}, {"layers.*/add.1": "S(1)", "layers.*.down": "S(1)", "*.w[qkv]": "S(0)"}),
    "interleaved": (
        {"pp": 2, "dp": 2},
        {"schedule": "interleaved", "microbatches": 4},
        {"layers.*/add.1": "S(0)", "*.up": "S(0)"},
    ),
}


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    for name in CASES:
        torch.manual_seed(0)
        module, alone = Decoder(layers=LAYERS), Decoder(layers=LAYERS)
        alone.load_state_dict(module.state_dict())
        pipeline = ap.apply(module, read_module_plan(Path(folder) / f"{name}.json"))
        loss = pipeline.step(**tokens())
        expected = alone(**tokens())
        expected.backward()
        gradients = {n: p.grad for n, p in alone.named_parameters()}
        worst = max(
            float((p.grad.full_tensor() - gradients[n]).norm() / gradients[n].norm()) for n, p in pipeline.named_parameters()
        )
        off = 0.0 if loss is None else abs(float(loss) - float(expected.detach()))
        torch.save((worst, off, sorted(n for n, _ in pipeline.named_parameters())), Path(folder) / f"{name}.{rank}.pt")
    torch.distributed.destroy_process_group()


def test_pipelines_on_four_processes_train_as_the_unsharded_module(tmp_path: Path) -> None:
    for name, (mesh, options, pins) in CASES.items():
        plan = planned(Decoder(layers=LAYERS), tokens(), mesh, options=options, pins=pins)
        assert {e["placement"] for s in plan.document["pipeline"]["stages"] for e in s["enters"]} == {pins[OUT]}
        plan.save(tmp_path / f"{name}.json")
    verified = verify(plan, {"module": Decoder(layers=2), "inputs": tokens()})
    assert verified["passed"], verified
    assert "inner mesh" in verified["how"]
    assert verified["mesh"] == [2]
    spawn(run, args=(str(tmp_path),), nprocs=4)
    for name in CASES:
        found = [torch.load(tmp_path / f"{name}.{r}.pt") for r in range(4)]
        assert max(f[0] for f in found) < TOLERANCE
        assert max(f[1] for f in found) < TOLERANCE
        held = {n for f in found for n in f[2]}
        assert held == {n for n, _ in Decoder(layers=LAYERS).named_parameters()}
