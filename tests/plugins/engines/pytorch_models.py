"""Small modules and the helpers that plan them; import it after ``pytest.importorskip("torch")``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autoparallel_core.cluster import build_cluster
from autoparallel_core.host import host
from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.graph import Graph
from autoparallel_pytorch.planner import Planning, plan_module
from autoparallel_pytorch.trace import trace


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """A pre-norm decoder block: grouped-query attention and a gated feed-forward."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        self.wq = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)
        self.attention_norm, self.mlp_norm = Norm(hidden), Norm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.attention_norm(x)
        q = self.wq(y).view(b, s, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(y).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(y).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        y = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model that returns its loss."""

    def __init__(
        self, layers: int = 2, hidden: int = 32, heads: int = 4, kv_heads: int = 2, width: int = 64, vocab: int = 64
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, kv_heads, width) for _ in range(layers))
        self.norm = Norm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


class MLP(nn.Module):
    """Two matrices that feed each other."""

    def __init__(self, hidden: int = 16, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def tokens(batch: int = 8, length: int = 16, vocab: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, vocab, (2, batch, length), generator=generator)
    return {"tokens": drawn[0], "labels": drawn[1]}


def request(mesh: Mapping[str, int], **fields: Any) -> ModuleRequest:
    n = 1
    for size in mesh.values():
        n *= size
    cluster = build_cluster(host().gpu("H100"), n, gpus_per_node=min(n, 8))
    return ModuleRequest(cluster=cluster, mesh_names=tuple(mesh), mesh_sizes=tuple(mesh.values()), **fields)


def planned(module: nn.Module, inputs: Any, mesh: Mapping[str, int], **fields: Any) -> ModulePlan:
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    return plan_module(module, args, kwargs, request(mesh, **fields))


def planning(graph: Graph, mesh: Mapping[str, int], **fields: Any) -> Planning:
    made = Planning.of(graph, request(mesh, **fields))
    if made.n_dims <= 3:
        made.form = made.formulate()
    return made


def traced(module: nn.Module, inputs: Any) -> Graph:
    return trace(module, (), inputs) if isinstance(inputs, Mapping) else trace(module, inputs)
