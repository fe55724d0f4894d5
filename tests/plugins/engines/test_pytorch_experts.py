"""Mixtures of experts: with a capacity, without one, and what cannot be planned."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytorch_checks import drawn  # noqa: E402
from pytorch_models import planned, planning, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from autoparallel_core.errors import SpecError  # noqa: E402
from autoparallel_pytorch import routed_experts  # noqa: E402

pytestmark = pytest.mark.torch

MESHES = ({"ep": 4}, {"dp": 2, "ep": 2}, {"dp": 2, "fsdp": 2, "ep": 2})


class Capacity(nn.Module):
    """Each row of the batch gives every expert at most ``capacity`` tokens; the others pass by (GShard, arXiv 2006.16668)."""

    def __init__(self, hidden: int = 16, width: int = 32, experts: int = 8, top: int = 2, capacity: int = 8) -> None:
        super().__init__()
        self.experts, self.top, self.capacity = experts, top, capacity
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)
        self.down = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, m = x.shape
        weight, index = self.router(x).softmax(-1).topk(self.top, -1)
        chosen = F.one_hot(index, self.experts).flatten(1, 2)  # [B, S·k, E]
        place = (chosen.cumsum(1) - 1) * chosen
        inside = ((place < self.capacity) & (chosen > 0)).to(x.dtype)
        slot = F.one_hot(place.clamp(max=self.capacity - 1), self.capacity).to(x.dtype) * inside.unsqueeze(-1)
        slot = slot.view(b, s, self.top, self.experts, self.capacity)
        sent = slot.sum(2).flatten(2)  # [B, S, E·C]
        returned = (slot * weight[..., None, None]).sum(2).flatten(2)
        rows = (sent.transpose(1, 2) @ x).view(b, self.experts, self.capacity, m).transpose(0, 1)
        y = torch.bmm(F.silu(torch.bmm(rows.reshape(self.experts, b * self.capacity, m), self.up)), self.down)
        y = y.view(self.experts, b, self.capacity, m).transpose(0, 1).reshape(b, self.experts * self.capacity, m)
        return returned @ y


class Dropless(nn.Module):
    """Every token reaches its experts."""

    def __init__(self, hidden: int = 16, width: int = 32, experts: int = 8, top: int = 2) -> None:
        super().__init__()
        self.top = top
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, hidden) / hidden**0.5)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / hidden**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight, index = self.router(flat).softmax(-1).topk(self.top, -1)
        return routed_experts(flat, index, weight, self.gate, self.up, self.down).view_as(x)


class Sorted(Dropless):
    """The same, written out: rows sorted by expert, a grouped product, and back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight, index = self.router(flat).softmax(-1).topk(self.top, -1)
        order = torch.argsort(index.flatten(), stable=True)
        counts = torch.histc(index.flatten().float(), self.gate.shape[0], 0, self.gate.shape[0] - 1)
        ends = counts.cumsum(0).to(torch.int32)
        rows = flat[order // self.top]
        inner = F.silu(F.grouped_mm(rows, self.gate.transpose(1, 2), offs=ends))
        inner = inner * F.grouped_mm(rows, self.up.transpose(1, 2), offs=ends)
        y = F.grouped_mm(inner, self.down.transpose(1, 2), offs=ends) * weight.flatten()[order].unsqueeze(1)
        return torch.zeros_like(flat).index_add(0, order // self.top, y).view_as(x)


class Model(nn.Module):
    def __init__(self, kind: type[nn.Module], layers: int = 2, vocab: int = 64, hidden: int = 16, **fields: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(kind(hidden, **fields) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


@pytest.mark.parametrize("kind", [Capacity, Dropless, Sorted])
def test_pieces_of_experts_give_the_whole(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, inputs = Model(kind, 1), tokens(length=8)
    graph = traced(module, inputs)
    for mesh in MESHES:
        drawn(module, inputs, planning(graph, mesh), seeds=1)


def test_the_two_ways_to_write_it_agree() -> None:
    torch.manual_seed(0)
    one, x = Dropless(), torch.randn(2, 8, 16)
    other = Sorted()
    other.load_state_dict(one.state_dict())
    a, b = one(x), other(x)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    a.square().sum().backward()
    b.square().sum().backward()
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", [Capacity, Dropless])
def test_many_large_experts_are_kept_apart(kind: type[nn.Module]) -> None:
    fields = {"capacity": 64} if kind is Capacity else {}
    with torch.device("meta"):
        module = Model(kind, 1, 32768, 1024, width=4096, experts=64, **fields).to(torch.bfloat16)
        inputs = {k: torch.empty(64, 1024, dtype=torch.int64) for k in ("tokens", "labels")}
    plan = planned(module, inputs, {"ep": 8})
    assert {plan.placements[f"layers.0.{n}"] for n in ("up", "down")} == {"S(0)"}
    if kind is Capacity:  # tokens lie by batch, experts by expert: they change places
        exchanged = [c for c in plan.document["collectives"] if c["kind"] == "all_to_all" and "layers.0" in c["for"]]
        assert len(exchanged) >= 2


def test_shapes_that_depend_on_values_are_refused_with_the_way_out() -> None:
    class Dynamic(Dropless):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            index = self.router(x).argmax(-1)
            out = torch.zeros_like(x)
            out[index == 0] = x[index == 0]
            return out

    with pytest.raises(SpecError, match=r"layers\.0 uses aten\.index\.Tensor, whose result has a shape that depends on values"):
        traced(Model(Dynamic, 1), tokens())
    with pytest.raises(SpecError, match="unknown activation 'swish'"):
        routed_experts(*(torch.ones(1, 1),) * 3, torch.ones(1, 1, 1), None, torch.ones(1, 1, 1), activation="swish")
