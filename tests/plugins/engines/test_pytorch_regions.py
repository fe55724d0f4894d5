"""Functions under ``local_map`` keep their placements and their own collectives; the planner decides what surrounds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as funcol  # noqa: E402
from pytorch_checks import drawn  # noqa: E402
from pytorch_models import planned, planning, request, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.experimental import local_map  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import autoparallel_core as ap  # noqa: E402
from autoparallel_core.errors import SpecError  # noqa: E402
from autoparallel_pytorch.planner import Planning  # noqa: E402
from autoparallel_pytorch.regions import classes  # noqa: E402
from autoparallel_pytorch.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch

ROWS, WHOLE = (Shard(0), Replicate()), (Replicate(), Replicate())


def gated(x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ up.t()) * (x @ up.t())


columns = local_map(
    gated, out_placements=(Shard(0), Shard(1)), in_placements=(ROWS, (Replicate(), Shard(0))),
    in_grad_placements=((Shard(0), Partial()), (Partial(), Shard(0))),
)  # fmt: skip


class Wrapped(nn.Module):
    """A region of tensor-parallel columns, wrapped when this file was read."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens).flatten(0, 1)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(self.head(x), labels.flatten())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(columns(x, self.up.weight))


def test_a_region_keeps_its_placements_and_repeats_with_its_layer() -> None:
    torch.manual_seed(0)
    module, inputs = Wrapped(), tokens(length=8)
    graph = traced(module, inputs)
    assert classes(graph).regions == {"layers.*": ("layers.0", "layers.1")}
    assert "region gated of layers.0" in graph.notes[0]
    drawn(module, inputs, planning(graph, {"dp": 2, "tp": 2}), seeds=2)
    plan = planned(module, inputs, {"dp": 2, "tp": 2})
    (region,) = [o for o in plan.document["operators"] if o["op"] == "autoparallel.region"]
    assert (region["in"], region["out"]) == (["S(0) R", "R S(0)"], ["S(0) S(1)"])
    assert region["seconds"]["compute"] > 0
    assert verify(plan, {"module": module, "inputs": inputs, "reduce": False})["passed"]
    with pytest.raises(SpecError, match="gives placements for 2 mesh dimensions; mesh dp=4 has 1"):
        planned(module, inputs, {"dp": 4})
    searched = ap.plan(module, inputs, "auto", n_gpus=4, gpu="H100")
    assert len(searched.mesh) == 2
    assert any(m.startswith("dp=4: region gated of layers.0 gives") for m in searched.document["meshes"])
    with pytest.raises(SpecError, match=r"takes S\(0\) R of a tensor of shape \(64, 16\): mesh dp=3,tp=2 does not divide it"):
        planned(module, inputs, {"dp": 3, "tp": 2})


@pytest.fixture(name="four_ranks")
def _four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Reduced(nn.Module):
    """Rows of a product, summed by the region itself, on one dimension of the mesh."""

    def __init__(self, mesh: object) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32, bias=False), nn.Parameter(torch.randn(16, 32) / 4)
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def row(mesh: object, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return funcol.reduce_scatter_single(y @ w.t(), "sum", 1, (mesh, 0))

        if self.mesh is None:
            return (torch.relu(self.a(x)) @ self.b.t()).square().sum()
        rows = local_map(row, out_placements=[Shard(1)], in_placements=(None, (Shard(1),), (Shard(1),)), device_mesh=self.mesh)
        return rows(self.mesh, torch.relu(self.a(x)), self.b).square().sum()


@pytest.mark.usefixtures("four_ranks")
def test_collectives_of_a_region_are_recorded_counted_and_priced() -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module, x = Reduced(mesh["tp"]), torch.randn(8, 16)
    plan = planned(module, [x], {"dp": 2, "tp": 2})
    own = [c for c in plan.document["collectives"] if c["for"] == "/region"]
    assert ("reduce_scatter", "tp") in [(c["kind"], c["mesh_dim"]) for c in own]
    assert all(c["seconds"] > 0 for c in own)
    made = Planning.of(traced(module, [x]), request({"dp": 2, "tp": 2}))
    made.form = made.formulate()
    alone = Reduced(None)
    alone.load_state_dict(module.state_dict())
    drawn(module, {"x": x}, made, seeds=2, alone=alone)
    with pytest.raises(SpecError, match="is for the mesh dimension tp; mesh dp=4 has none of that name"):
        planned(module, [x], {"dp": 4})
