"""What the host adds to a layer whose operators are sharded tensors (DTensor) dispatched one by one in Python."""

from __future__ import annotations

from typing import Any

from autoparallel_profiler.timing import Timed, Together, time_calls

PASSES = 3.0
"""Forward, and twice as much backward: what the cost model counts of a layer."""
_HIDDEN, _TOKENS = 64, 8


def time_sharded_layer(torch: Any, device: str, *, budget_s: float, together: Together | None = None) -> Timed:
    """Seconds that each pass of a tiny tensor-parallel layer takes beyond those of the plain layer.

    Every rank is a tensor-parallel group of one, so nothing is sent and only dispatch is seen. All ranks of the process
    group must call this.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (torch.distributed.get_world_size(), 1), mesh_dim_names=("all", "tp"))["tp"]
    times = []
    with torch.enable_grad():
        for sharded in (False, True):
            layer = _layer(torch).to(device=device, dtype=torch.bfloat16)
            if sharded:
                _shard(layer, mesh)
            x = torch.zeros(1, _TOKENS, _HIDDEN, device=device, dtype=torch.bfloat16, requires_grad=True)
            times.append(time_calls(_pass(layer, x), "cpu", budget_s=budget_s / 2, together=together))
        if device == "cuda":
            torch.cuda.synchronize()
    plain, dispatched = times
    return Timed(max(dispatched.seconds - plain.seconds, 1e-9) / PASSES, dispatched.spread, dispatched.calls)


def _pass(layer: Any, x: Any) -> Any:
    def call(_: int) -> None:
        layer(x).sum().backward()

    return call


def _layer(torch: Any) -> Any:
    """A pre-norm decoder layer of separate matrices, so small that nothing but its dispatch takes time."""
    nn, f = torch.nn, torch.nn.functional

    def linear(inputs: int, outputs: int) -> Any:
        return nn.Linear(inputs, outputs, bias=False)

    class Attention(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (linear(_HIDDEN, _HIDDEN) for _ in range(4))

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (p(x).view(b, s, -1, 16).transpose(1, 2) for p in (self.q, self.k, self.v))
            return self.o(f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1))

    class FeedForward(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = linear(_HIDDEN, 128), linear(_HIDDEN, 128), linear(128, _HIDDEN)

        def forward(self, x: Any) -> Any:
            return self.down(f.silu(self.gate(x)) * self.up(x))

    class Layer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(_HIDDEN), nn.RMSNorm(_HIDDEN)
            self.attention, self.ffn = Attention(), FeedForward()

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.ffn(self.norm2(x))

    return Layer()


def _shard(layer: Any, mesh: Any) -> None:
    """Column- and row-parallel matrices with sequence parallelism between the blocks, as torch's own trainers plan it."""
    from torch.distributed.tensor import Replicate, Shard, parallel

    tokens, whole = Shard(1), Replicate()
    gathered = parallel.PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,))
    row = parallel.RowwiseParallel(output_layouts=tokens)
    plan = {"norm1": parallel.SequenceParallel(), "norm2": parallel.SequenceParallel(), "attention": gathered, "ffn": gathered}
    for name in ("attention.q", "attention.k", "attention.v", "ffn.gate", "ffn.up"):
        plan[name] = parallel.ColwiseParallel()
    parallel.parallelize_module(layer, mesh, plan | {"attention.o": row, "ffn.down": row})
