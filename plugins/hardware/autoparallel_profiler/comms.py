"""Collectives among ranks of one process group, and messages between two: every rank takes part in every probe.

On accelerators calls are timed alone, between two synchronisations, as nccl-tests does it: they run beside the kernels.
The ranks of a processor move their messages with the cores that compute, and wait for whichever of them is late; so
there a call is timed between matrix products, and the products alone are taken off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_profiler.timing import LEAST_BATCHES, Timed, Together, best, calls_per_batch, host_batch, typical

LEAST, MOST = 5, 40
BETWEEN = 384
"""Rows and columns of the matrix product between two calls on a processor: half a millisecond, as operators of a layer."""


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
    if device == "cpu":
        return _time_between(torch, call, together_of(torch, group), budget_s)
    return _time(torch, call, group, device, budget_s)


def together_of(torch: Any, group: Any = None) -> Together:
    """The mean of the group's numbers, on all of its ranks at the same time."""
    distributed = torch.distributed
    size = distributed.get_world_size(group)
    box = torch.zeros(1, dtype=torch.float64)

    def together(number: float) -> float:
        box[0] = number
        distributed.all_reduce(box, group=group)
        return float(box[0] / size)

    return together


def _time_between(torch: Any, call: Any, together: Together, budget_s: float) -> Timed:
    """What a call adds to a row of matrix products on all ranks of the group; no less than what it takes by itself."""
    a = torch.full((BETWEEN, BETWEEN), 0.5, dtype=torch.bfloat16)

    def product(_: int) -> None:
        torch.mm(a, a)

    def alone(_: int) -> None:
        call()

    def both(_: int) -> None:
        torch.mm(a, a)
        call()

    for i in range(3):
        both(i)
    together(0.0)
    one = max(together(host_batch(both, 0, 3)) / 3, 1e-6)
    n = max(3, calls_per_batch(one, budget_s))
    steps = (both, product, alone)
    batches: tuple[list[float], ...] = ([], [], [])
    for _ in range(LEAST_BATCHES):  # in turns, so that a busy moment of the machine hits all three
        for step, times in zip(steps, batches, strict=True):
            together(0.0)
            times.append(together(host_batch(step, 0, n)) / n)
    with_products, products, calls = (best(times, LEAST_BATCHES * n) for times in batches)
    return Timed(max(with_products.seconds - products.seconds, calls.seconds), with_products.spread, calls.calls)


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
    return typical(times, len(times))


def _settle(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _collective(torch: Any, group: Any, members: list[int], device: str, probe: Mapping[str, Any]) -> Any:
    """A call on 16-bit buffers of ``bytes`` in all per rank (the gathered one of gathers and scatters).

    On a processor the output is a new tensor each time, as in a training step: its pages are not there yet.
    """
    d = torch.distributed
    n = len(members)
    elements = max(int(probe["bytes"]) // 2 // n, 1) * n
    whole = torch.zeros(elements, device=device, dtype=torch.bfloat16)
    part = torch.zeros(elements // n, device=device, dtype=torch.bfloat16)
    out = torch.zeros_like(whole)
    into = torch.empty_like if device == "cpu" else (lambda buffer: buffer)
    kind = probe["kind"]
    if kind == "all_reduce":
        return lambda: d.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: d.all_gather_into_tensor(into(whole), part, group=group)
    if kind == "reduce_scatter":
        return lambda: d.reduce_scatter_tensor(into(part), whole, group=group)
    if kind == "all_to_all":
        return lambda: d.all_to_all_single(into(out), whole, group=group)
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
