"""The planned module as straight-line code on local tensors: operators, views and collectives, forward then backward.

A program is what a plan replays: nothing of the search is needed to run it. Values are numbered; an argument is a number,
a string, None, :class:`Value`, :class:`~.graph.Dtype`, :class:`Length` (a local size that may follow the batch) or
:class:`Offset` (where this rank's piece of a dimension begins).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from attrs import define, field

from autoparallel_pytorch.graph import DTYPE_BYTES, Dtype
from autoparallel_pytorch.placement import Placements


class Value(NamedTuple):
    """A tensor of the program."""

    id: int


class Length(NamedTuple):
    """``(fixed + per_batch · batch) / pieces``."""

    fixed: int
    per_batch: int
    pieces: int

    def at(self, batch: int) -> int:
        return (self.fixed + self.per_batch * batch) // self.pieces


class Offset(NamedTuple):
    """First index of this rank's piece: the piece's number along ``mesh_dims`` (left to right) times ``length``."""

    mesh_dims: tuple[int, ...]
    length: Length


@define(eq=False)
class Info:
    """What is known of a value."""

    shape: tuple[int, ...]
    """Of the local piece, at the planned batch size."""
    dtype: str
    placements: Placements
    alias: int | None = None
    """The value whose memory it shares."""
    stored: bool = True
    """False: lives inside of a fused kernel."""

    @property
    def bytes(self) -> int:
        n = DTYPE_BYTES[self.dtype]
        for s in self.shape:
            n *= s
        return n


@define(eq=False)
class Step:
    """One line of the program."""

    op: str
    """An operator's name, or ``move.all_gather`` and its like."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    phase: int
    node: int
    """The operator of the graph that it computes or serves."""
    seconds: float = 0.0
    kind: str = "compute"
    recomputed: bool = False
    members: tuple[Step, ...] = ()
    """Of a collective of several tensors those of each."""

    @property
    def move(self) -> bool:
        return self.op.startswith("move.")

    @property
    def collective(self) -> bool:
        return self.op in COLLECTIVES

    def reads(self) -> Iterator[int]:
        yield from values_in(self.args)
        yield from values_in(tuple(self.kwargs.values()))


COLLECTIVES = frozenset({"move.all_gather", "move.all_reduce", "move.reduce_scatter", "move.all_to_all"})


@define(eq=False)
class Program:
    """Steps in order, and which values come from and go outside."""

    steps: list[Step] = field(factory=list)
    values: list[Info] = field(factory=list)
    parameters: dict[str, int] = field(factory=dict)
    buffers: dict[str, int] = field(factory=dict)
    inputs: dict[str, int] = field(factory=dict)
    constants: dict[str, int] = field(factory=dict)
    tangents: list[int | None] = field(factory=list)
    outputs: list[int] = field(factory=list)
    gradients: dict[str, int | None] = field(factory=dict)
    batch: int | None = None
    input_gradients: dict[str, int] = field(factory=dict)
    """Of the inputs that take one, placed as the input."""

    @property
    def n_forward(self) -> int:
        """Steps of the forward; they come first."""
        return sum(s.phase == 0 for s in self.steps)

    def gives(self) -> list[int]:
        """What the backward gives: gradients of parameters, then those of inputs."""
        return [*(v for v in self.gradients.values() if v is not None), *self.input_gradients.values()]

    def saved(self) -> list[int]:
        """Values that the backward reads and the forward, or the outside, made; without tangents."""
        n = self.n_forward
        made = {v for s in self.steps[n:] for v in s.outs} | {t for t in self.tangents if t is not None}
        wanted = [v for s in self.steps[n:] for v in s.reads()] + self.gives()
        return list(dict.fromkeys(v for v in wanted if v not in made))


def values_in(value: Any) -> Iterator[int]:
    if isinstance(value, Value):
        yield value.id
    elif isinstance(value, (Dtype, Length, Offset)):
        return
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from values_in(v)
