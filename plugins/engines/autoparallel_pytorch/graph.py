"""The traced graph: one list of operators for forward and backward, with named tensors, as plain data.

Nothing here needs torch: dtypes are names (``float32``), operators are names (``aten.mm.default``), a tensor is the
output ``out`` of the node ``node``. Arguments are nested tuples of numbers, strings, None, :class:`Ref`, :class:`Dtype`
and :class:`Size` (an integer that grows with the batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attrs import define, field, frozen

FORWARD, BACKWARD = 0, 1

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8,
    "complex128": 16, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class Ref(NamedTuple):
    """A tensor: output ``out`` of node ``node``."""

    node: int
    out: int = 0


class Dtype(NamedTuple):
    """A dtype among the arguments."""

    name: str


class Size(NamedTuple):
    """``fixed + per_batch · batch``: an integer argument that follows the batch size."""

    fixed: int
    per_batch: int

    def at(self, batch: int) -> int:
        return self.fixed + self.per_batch * batch


@frozen
class Meta:
    """Shape and dtype of a tensor as the unsharded program sees it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


@define(eq=False)
class Node:
    """One operator, or a placeholder (``op`` is ``parameter``, ``buffer``, ``input``, ``tangent`` or ``constant``)."""

    id: int
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Meta | None, ...]
    phase: int
    module: str
    """Fully qualified name of the module whose forward (or whose forward's gradient) this is."""
    name: str = ""
    """Placeholders: the parameter's, buffer's or input's name; operators: a readable, stable identity."""

    @property
    def placeholder(self) -> bool:
        return self.op in PLACEHOLDERS

    def refs(self) -> Iterator[Ref]:
        """The tensors that the arguments name, in order, repeated when named twice."""
        yield from refs_in(self.args)
        yield from refs_in(tuple(self.kwargs.values()))


PLACEHOLDERS = frozenset({"parameter", "buffer", "input", "tangent", "constant"})


def refs_in(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (Dtype, Size)):
        return
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from refs_in(v)


def map_refs(value: Any, f: Callable[[Ref], Any]) -> Any:
    """The same nested value with every :class:`Ref` replaced."""
    if isinstance(value, Ref):
        return f(value)
    if isinstance(value, (Dtype, Size)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map_refs(v, f) for v in value)
    return value


@define(eq=False)
class Graph:
    """Forward and backward of a module in execution order.

    ``outputs`` are the tensors that the module returns, ``gradients`` those of the parameters by name (None where the
    loss does not depend on one). ``structure`` says how the module's result is made of ``outputs``.
    """

    nodes: list[Node]
    outputs: list[Ref]
    tangents: list[int | None]
    """Per output the placeholder of its incoming gradient, None where no gradient flows."""
    gradients: dict[str, Ref | None]
    structure: Any
    inputs: dict[str, int]
    parameters: dict[str, int]
    buffers: dict[str, int]
    notes: list[str]
    """What tracing left out or assumed, one sentence each."""
    constants: dict[str, Any]
    """Values of ``constant`` nodes by name, nested lists."""
    input_gradients: dict[str, Ref] = field(factory=dict)
    """Gradients of the inputs that take one, by name."""
    regions: dict[str, Any] = field(factory=dict)
    """Functions that the user controls; see ``local_regions``."""
    batch: int | None = None
    """The batch size that ``Size`` arguments were traced at; None: every size is fixed."""
    facts: dict[str, Any] | None = None
    """What the fingerprint needs beyond the graph; see ``fingerprint``."""

    def meta(self, ref: Ref) -> Meta:
        found = self.nodes[ref.node].outs[ref.out]
        assert found is not None, f"{self.nodes[ref.node].op} has no output {ref.out}"
        return found

    def users(self) -> list[list[int]]:
        """Per node the nodes that read it, in order, each once."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for ref in node.refs():
                if not found[ref.node] or found[ref.node][-1] != node.id:
                    found[ref.node].append(node.id)
        return found
