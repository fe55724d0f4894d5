"""What every pipeline rank runs, in order, under each schedule.

A task is (kind, micro-batch, virtual stage): ``F`` forward, ``B`` the backward with both gradients, ``I`` the input
gradient alone, ``W`` the weight gradient that belongs to an ``I``, and ``FB`` a forward and a backward run as one.
Virtual stage c of ``pp·v`` lies on rank c mod p, or folded back in the V shape of two chunks per rank.

Sources: GPipe, arXiv 1811.06965, figure 2; 1F1B and interleaved 1F1B, Narayanan et al., arXiv 2104.04473, section 2.2;
ZB-H1, Qi et al., arXiv 2401.10241, section 2; DualPipe, arXiv 2412.19437, section 3.2.1, in the V shape (cut in half)
of its public implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from autoparallel_core.errors import SpecError


@frozen
class Task:
    """One unit of work of a rank; ``FB`` holds the forward first, then the backward."""

    kind: str
    micro: int
    stage: int
    other: tuple[int, int] | None = None
    """Micro-batch and virtual stage of the backward in ``FB``."""


def rank_of(schedule: str, stage: int, p: int) -> int:
    """The rank that holds a virtual stage."""
    if schedule == "dualpipe_v":
        return stage if stage < p else 2 * p - 1 - stage
    return stage % p


def orders(schedule: str, p: int, v: int, m: int) -> list[list[Task]]:
    """Tasks of every rank in order.

    Args:
        schedule: 1f1b, gpipe, zero_bubble or dualpipe_v.
        p: ranks.
        v: virtual stages per rank.
        m: micro-batches.

    Raises:
        SpecError: the schedule does not exist for these numbers.
    """
    if min(p, v, m) < 1:
        raise SpecError(f"a pipeline needs at least one stage, chunk and micro-batch, not p {p}, v {v}, m {m}")
    if schedule == "gpipe":
        _single(schedule, v)
        return [[Task("F", i, r) for i in range(m)] + [Task("B", i, r) for i in range(m)] for r in range(p)]
    if schedule == "1f1b":
        return [_one_forward_one_backward(p, v, m, r) for r in range(p)]
    if schedule == "zero_bubble":
        _single(schedule, v)
        return [_zero_bubble(p, m, r) for r in range(p)]
    if schedule == "dualpipe_v":
        if v != 2 or m < 2 * p:
            raise SpecError(f"dualpipe_v needs 2 chunks per rank and at least {2 * p} micro-batches, not v {v} and m {m}")
        return [_dualpipe_v(p, m, r) for r in range(p)]
    raise SpecError(f"unknown schedule '{schedule}'; known: 1f1b, gpipe, zero_bubble, dualpipe_v")


def _single(schedule: str, v: int) -> None:
    if v != 1:
        raise SpecError(f"{schedule} has one stage per rank, not {v}")


def _table(p: int, v: int, m: int, *, backward: bool) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order a rank meets them: groups of p micro-batches, chunk by chunk."""
    chunks = range(v - 1, -1, -1) if backward else range(v)
    return [(i, c) for start in range(0, m, p) for c in chunks for i in range(start, min(start + p, m))]


def _one_forward_one_backward(p: int, v: int, m: int, r: int) -> list[Task]:
    if v > 1 and m % p:
        raise SpecError(f"interleaved 1F1B needs micro-batches in multiples of p {p}, not {m}")
    forward = [Task("F", i, c * p + r) for i, c in _table(p, v, m, backward=False)]
    backward = [Task("B", i, c * p + r) for i, c in _table(p, v, m, backward=True)]
    warm = p - r - 1 if v == 1 else 2 * (p - r - 1) + (v - 1) * p
    return _paired(forward, backward, min(warm, m * v))


def _paired(forward: Sequence[Task], backward: Sequence[Task], warm: int) -> list[Task]:
    out = list(forward[:warm])
    for f, b in zip(forward[warm:], backward, strict=False):
        out += [f, b]
    return out + list(backward[len(forward) - warm :])


def _zero_bubble(p: int, m: int, r: int) -> list[Task]:
    """ZB-H1: 1F1B whose weight gradients lag by the rank's number, which its spare memory pays for."""
    out: list[Task] = []
    for t in _paired([Task("F", i, r) for i in range(m)], [Task("I", i, r) for i in range(m)], min(p - r - 1, m)):
        out.append(t)
        if t.kind == "I" and t.micro >= r:
            out.append(Task("W", t.micro - r, r))
    return out + [Task("W", i, r) for i in range(max(m - r, 0), m)]


class _Rank:
    """Appends tasks of one DualPipe-V rank: phase 0 is the chunk on the way down, phase 1 the one on the way back."""

    def __init__(self, p: int, r: int) -> None:
        self.stage = (r, 2 * p - 1 - r)
        self.next_f = [0, 0]
        self.next_b = [0, 0]
        self.lagging: list[tuple[int, int]] = []
        self.out: list[Task] = []

    def forward(self, phase: int) -> None:
        self.out.append(Task("F", self.next_f[phase], self.stage[phase]))
        self.next_f[phase] += 1

    def backward(self, phase: int, *, split: bool = False) -> None:
        i = self.next_b[phase]
        self.next_b[phase] += 1
        if split:
            self.lagging.append((i, self.stage[phase]))
        self.out.append(Task("I" if split else "B", i, self.stage[phase]))

    def both(self, phase: int) -> None:
        """Forward of ``phase`` beside the backward of the other."""
        back = 1 - phase
        pair = (self.next_b[back], self.stage[back])
        self.out.append(Task("FB", self.next_f[phase], self.stage[phase], pair))
        self.next_f[phase] += 1
        self.next_b[back] += 1

    def weight(self) -> None:
        micro, stage = self.lagging.pop(0)
        self.out.append(Task("W", micro, stage))


def _dualpipe_v(p: int, m: int, r: int) -> list[Task]:
    """The eight steps of the public implementation (dualpipev.py)."""
    rank, after = _Rank(p, r), p - r - 1
    for _ in range(2 * after):
        rank.forward(0)
    for _ in range(r + 1):
        rank.forward(0)
        rank.forward(1)
    for _ in range(after):
        rank.backward(1, split=True)
        rank.weight()
        rank.forward(1)
    for i in range(m - 2 * p + r + 1):
        if i == 0 and r == p - 1:
            rank.forward(0)
            rank.backward(1)
        else:
            rank.both(0)
        rank.both(1)
    for _ in range(after):
        rank.backward(1)
        rank.both(1)
    split = False
    for i in range(r + 1):
        half = i == (r + 1) // 2
        split = split or (half and r % 2 == 1)
        rank.backward(1, split=split)
        split = split or (half and r % 2 == 0)
        rank.backward(0, split=split)
    for _ in range(after):
        rank.weight()
        rank.backward(0, split=True)
    while rank.lagging:
        rank.weight()
    return rank.out
