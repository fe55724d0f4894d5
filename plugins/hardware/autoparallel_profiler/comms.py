"""Collectives among ranks of one process group, and messages between two: every rank takes part in every probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_profiler.timing import Timed, summary

LEAST, MOST = 5, 40


class Groups:
    """Process groups by (ranks, nodes): all disjoint groups of that shape work at the same time, as in a real run."""

    def __init__(self, torch: Any, world: int, ranks_per_node: int) -> None:
        self.torch, self.world, self.per_node = torch, world, ranks_per_node
        self.rank = torch.distributed.get_rank()
        self._made: dict[tuple[int, int], tuple[Any, list[int]]] = {}

    def get(self, ranks: int, nodes: int) -> tuple[Any, list[int]]:
        """This rank's group and its members; (None, []) for a rank that belongs to none."""
        key = (ranks, nodes)
        if key not in self._made:
            mine: tuple[Any, list[int]] = (None, [])
            for members in members_of(self.world, self.per_node, ranks, nodes):
                group = self.torch.distributed.new_group(members)
                if self.rank in members:
                    mine = (group, members)
            self._made[key] = mine
        return self._made[key]


def members_of(world: int, per_node: int, ranks: int, nodes: int) -> list[list[int]]:
    """Disjoint groups of ``ranks`` over ``nodes`` nodes: neighbours on each node, the same places on the next nodes.

    Raises:
        SpecError: the world has no such groups.
    """
    share, rest = divmod(ranks, nodes)
    if rest or share > per_node or per_node % share or nodes * per_node > world:
        raise SpecError(f"no groups of {ranks} ranks over {nodes} nodes among {world} ranks, {per_node} a node")
    out = []
    for first_node in range(0, world // per_node - nodes + 1, nodes):
        out += [
            [(first_node + n) * per_node + place + i for n in range(nodes) for i in range(share)]
            for place in range(0, per_node, share)
        ]
    return out


def time_collective(torch: Any, groups: Groups, device: str, probe: Mapping[str, Any], budget_s: float) -> Timed | None:
    """Seconds of one collective or message, None on a rank that takes no part. Every rank must call this."""
    p2p = probe["table"] == "p2p"
    nodes = int(probe["nodes"])
    group, members = groups.get(2 if p2p and nodes == 1 else nodes if p2p else int(probe["ranks"]), nodes)
    if group is None:
        return None
    call = _message(torch, groups.rank, members, device, probe) if p2p else _collective(torch, group, members, device, probe)
    return _time(torch, call, group, device, budget_s)


def _time(torch: Any, call: Any, group: Any, device: str, budget_s: float) -> Timed:
    """Each call between two synchronisations of the group: the clock of the slowest rank decides."""
    distributed = torch.distributed
    for _ in range(2):
        call()
    times: list[float] = []
    spent = 0.0
    flag = torch.zeros(1, device=device)
    while len(times) < LEAST or (len(times) < MOST and spent < budget_s):
        distributed.barrier(group=group)
        _settle(torch, device)
        started = time.perf_counter()
        call()
        _settle(torch, device)
        own = time.perf_counter() - started
        flag[0] = own
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=group)  # all ranks count the same time
        times.append(float(flag[0]))
        spent += times[-1]
    return summary(times, device, len(times))


def _settle(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _collective(torch: Any, group: Any, members: list[int], device: str, probe: Mapping[str, Any]) -> Any:
    """A call on 16-bit buffers of ``bytes`` in all per rank (the gathered one of gathers and scatters)."""
    d = torch.distributed
    n = len(members)
    elements = max(int(probe["bytes"]) // 2 // n, 1) * n
    whole = torch.zeros(elements, device=device, dtype=torch.bfloat16)
    part = torch.zeros(elements // n, device=device, dtype=torch.bfloat16)
    out = torch.zeros_like(whole)
    kind = probe["kind"]
    if kind == "all_reduce":
        return lambda: d.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: d.all_gather_into_tensor(whole, part, group=group)
    if kind == "reduce_scatter":
        return lambda: d.reduce_scatter_tensor(part, whole, group=group)
    if kind == "all_to_all":
        return lambda: d.all_to_all_single(out, whole, group=group)
    if kind == "broadcast":
        return lambda: d.broadcast(whole, src=members[0], group=group)
    raise SpecError(f"collective '{kind}' is not measured here")


def _message(torch: Any, rank: int, members: list[int], device: str, probe: Mapping[str, Any]) -> Any:
    """The first half of the group sends to the second half."""
    d = torch.distributed
    place, half = members.index(rank), len(members) // 2
    buffer = torch.zeros(max(int(probe["bytes"]) // 2, 1), device=device, dtype=torch.bfloat16)
    if place < half:
        return lambda: d.send(buffer, dst=members[place + half])
    return lambda: d.recv(buffer, src=members[place - half])
