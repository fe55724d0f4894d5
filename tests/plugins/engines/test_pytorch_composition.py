"""Planned modules under optimizers, FSDP2, activation checkpoints, torch.compile and distributed checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import pytorch_training  # noqa: E402
from pytorch_models import MLP, Block, Decoder, planned, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402
from torch.multiprocessing.spawn import spawn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from autoparallel_core.errors import SpecError  # noqa: E402

pytestmark = pytest.mark.torch

HEADS = {"layers.*.w[qkv]": "S(0)", "layers.*.down": "S(1)", "*/attention": "S(1)"}
BOTH = {k: f"S(0) {v}" for k, v in HEADS.items()} | {"tokens": "S(0) R"}


def test_four_processes_train_as_one(tmp_path: Path) -> None:
    module, mesh = Decoder(layers=1), {"dp": 2, "tp": 2}
    plans = {
        "joint": planned(module, tokens(), mesh, pins=BOTH),
        "inner": planned(module, tokens(batch=4), {"tp": 2}, pins=HEADS),
        "block": planned(
            Block(32, 4, 2, 64), [torch.ones(4, 16, 32, requires_grad=True)], {"tp": 2},
            pins={"w[qkv]": "S(0)", "down": "S(1)", "x": "R", "output 0": "R"},
        ),
        "other": planned(module, tokens(), {"all": 4}, pins={"layers.*.w[qkvo]": "S(0)", "embed": "S(1)"}),
        "dropping": planned(pytorch_training.Dropping(), [torch.ones(8, 16)], mesh, pins={"up": "R S(0)", "x": "R R"}),
        "mlp": planned(MLP(), [torch.ones(8, 16)], mesh, pins={"up": "S(0) S(0)", "down": "S(0) S(1)", "x": "S(0) R"}),
    }  # fmt: skip
    for name, plan in plans.items():
        plan.save(tmp_path / f"{name}.json")
    spawn(pytorch_training.worker, args=(str(tmp_path), {n: str(tmp_path / f"{n}.json") for n in plans}), nprocs=4)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.pop("refused").startswith("layers.0.")
    assert found.pop("dropout: differs") > 1e-3
    assert len(found) == 2 * 6 + 3
    assert {k: v for k, v in found.items() if v > 1e-5} == {}


def test_a_gradient_of_an_input_is_planned_or_refused() -> None:
    from autoparallel_pytorch.verify import verify

    module, x = Block(32, 4, 2, 64), torch.randn(8, 16, 32, requires_grad=True)
    plan = planned(module, [x], {"dp": 2, "tp": 2}, pins={"x": "S(0) S(1)", "output 0": "S(0) S(1)"})
    found = verify(plan, {"module": module, "inputs": [x], "reduce": False})
    assert found["passed"], found
    without = planned(module, [x.detach()], {"dp": 2}, pins={"x": "S(0)"})
    with pytest.raises(SpecError, match="input x takes a gradient and the plan gives none"):
        _replayed(module, without, x)


def _replayed(module: nn.Module, plan: object, x: torch.Tensor) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import autoparallel_core as ap

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        ap.apply(module, plan)(x)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_of_a_module_are_left_to_the_plan(reentrant: bool) -> None:
    class Checkpointed(Decoder):
        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())

    plain, graph = traced(Decoder(layers=1), tokens()), traced(Checkpointed(layers=1), tokens())
    assert [n.op for n in graph.nodes] == [n.op for n in plain.nodes]
    assert "activation checkpoints" in graph.notes[0]
