"""A module of one's own: what `autoparallel plan --module my_model:build --inputs my_model:inputs` calls."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = (y.view(b, s, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(w, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


def build() -> nn.Module:
    """The planner calls this on the meta device: nothing is allocated."""
    return Model(layers=16, width=2048, heads=16, vocabulary=50304).to(torch.bfloat16)


def inputs() -> dict[str, torch.Tensor]:
    """Arguments of one call of the whole batch; only shapes and dtypes matter."""
    return {name: torch.empty(64, 2048, dtype=torch.int64) for name in ("tokens", "labels")}


def small() -> nn.Module:
    """The same structure, small enough for `autoparallel plan verify` to run on a CPU."""
    return Model(layers=2, width=64, heads=16, vocabulary=128)


def small_inputs() -> dict[str, torch.Tensor]:
    return {name: torch.empty(8, 16, dtype=torch.int64) for name in ("tokens", "labels")}
