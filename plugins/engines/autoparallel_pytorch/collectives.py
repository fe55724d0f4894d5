"""The moves of a program on real tensors: one collective over one mesh dimension each, or a local cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

_ops = torch.ops._c10d_functional
_OPS = {-2: "sum", -3: "max", -4: "min"}


class Collectives:
    """Bound to a mesh; programs call it as ``mesh_.all_gather(x, dim, …)``."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.sizes = tuple(int(mesh.size(m)) for m in range(mesh.ndim))
        self._groups = [mesh.get_group(m).group_name for m in range(mesh.ndim)]

    def all_gather(self, x: Any, m: int, source: Any, _target: Any) -> Any:
        if isinstance(x, list):
            return self._gather_bucket(x, m, source)
        out = _ops.wait_tensor(_ops.all_gather_into_tensor(x.contiguous(), self.sizes[m], self._groups[m]))
        return out if source == 0 else torch.cat(out.chunk(self.sizes[m], 0), source)

    def all_reduce(self, x: Any, m: int, source: Any, _target: Any) -> Any:
        if isinstance(x, list):
            flat = self.all_reduce(torch.cat([t.reshape(-1) for t in x]), m, source[0], source[0])
            return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in x]), x, strict=True)]
        return _ops.wait_tensor(_ops.all_reduce(x.contiguous(), _OPS[source], self._groups[m]))  # type: ignore[no-any-return]

    def reduce_scatter(self, x: Any, m: int, source: Any, target: Any) -> Any:
        n = self.sizes[m]
        if isinstance(x, list):
            return self._scatter_bucket(x, m, source[0], target)
        given = x.contiguous() if target == 0 else torch.cat(x.chunk(n, target), 0)
        return _ops.wait_tensor(_ops.reduce_scatter_tensor(given, _OPS[source], n, self._groups[m]))  # type: ignore[no-any-return]

    def _gather_bucket(self, x: list[Tensor], m: int, dims: Sequence[int]) -> list[Tensor]:
        """[this rank's pieces behind each other] → [ranks, pieces] → every tensor whole along its dimension."""
        n = self.sizes[m]
        given = torch.cat([t.reshape(-1) for t in x])
        flat = _ops.wait_tensor(_ops.all_gather_into_tensor(given, n, self._groups[m])).view(n, -1)
        parts = flat.split([t.numel() for t in x], 1)
        return [
            p.view(n, *t.shape).movedim(0, d).reshape(*t.shape[:d], n * t.shape[d], *t.shape[d + 1 :])
            for p, t, d in zip(parts, x, dims, strict=True)
        ]

    def _scatter_bucket(self, x: list[Tensor], m: int, source: int, dims: Sequence[int]) -> list[Tensor]:
        """Every tensor's pieces, [ranks, pieces] → the sum of this rank's pieces, behind each other → one by one."""
        n = self.sizes[m]
        pieces = [t.unflatten(d, (n, -1)).movedim(d, 0) for t, d in zip(x, dims, strict=True)]
        given = torch.cat([p.reshape(n, -1) for p in pieces], 1).view(-1)
        flat = _ops.wait_tensor(_ops.reduce_scatter_tensor(given, _OPS[source], n, self._groups[m]))
        parts = flat.split([p[0].numel() for p in pieces])
        return [part.view(p.shape[1:]) for part, p in zip(parts, pieces, strict=True)]

    def all_to_all(self, x: Tensor, m: int, source: int, target: int) -> Tensor:
        n = self.sizes[m]
        given = torch.cat(x.chunk(n, target), 0) if target else x.contiguous()
        length = given.shape[0] // n
        splits = [length] * n
        out = _ops.wait_tensor(_ops.all_to_all_single(given, splits, splits, self._groups[m]))
        return torch.cat(out.chunk(n, 0), source) if source else out

    def slice(self, x: Tensor, m: int, _source: int, target: int) -> Tensor:
        length = x.shape[target] // self.sizes[m]
        # Kernels may take the strides of a whole tensor for granted: some read saved statistics by their pointer alone.
        return x.narrow(target, self.coordinate(m) * length, length).contiguous()

    def scale(self, x: Tensor, m: int, _source: int, _target: int) -> Tensor:
        return x / self.sizes[m]

    def coordinate(self, m: int) -> Any:
        """This rank's index along a mesh dimension (an integer per rank under LocalTensorMode)."""
        return self.mesh.get_local_rank(m)

    def offset(self, dims: tuple[int, ...], length: int) -> Any:
        """Where this rank's piece of a dimension begins."""
        at: Any = 0
        for m in dims:
            at = at * self.sizes[m] + self.coordinate(m)
        return at * length
