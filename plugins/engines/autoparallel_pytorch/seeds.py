"""Seeds of dropout: the same on all ranks whatever their own generators hold, and the same again when a step is run again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from attrs import define, field

if TYPE_CHECKING:
    from autoparallel_pytorch.collectives import Collectives

_REMEMBERED = 4096
"""Calls that activation checkpointing may still run again."""


@define(eq=False)
class Seeds:
    """A new seed per call. Checkpointing restores torch's generator before it calls again: that state is the call's name."""

    base: int
    _calls: int = 0
    _known: OrderedDict[bytes, int] = field(factory=OrderedDict)

    def next(self) -> int:
        state = bytes(torch.get_rng_state().numpy())
        torch.rand(())  # the generator moves on, so that the next call has another name
        if state not in self._known:
            self._known[state] = self._calls
            self._calls += 1
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return (self.base + 7919 * self._known[state]) % (1 << 40)


def agreed_seed(collectives: Collectives) -> int:
    """The largest of the ranks' draws."""
    drawn = torch.randint(1 << 40, (1,), device=collectives.mesh.device_type)
    for m in range(len(collectives.sizes)):
        drawn = collectives.all_reduce(drawn, m, -3, -1)
    return int(drawn)
