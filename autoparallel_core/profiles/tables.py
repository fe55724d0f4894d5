"""What can be measured: one table per kind of operator, as columns.

Axis legend: R rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean

Array = NDArray[np.float64]
Kind = Literal["word", "whole", "amount"]

OPERANDS: Mapping[str, tuple[str, float]] = {
    "bf16": ("bf16", 2.0), "fp16": ("fp16", 2.0), "fp32": ("fp32", 4.0), "tf32": ("tf32", 4.0), "fp8": ("fp8", 1.0),
    "fp8_block": ("fp8", 1.0), "fp4": ("fp4", 0.5625), "int8": ("int8", 1.0), "int8_wo": ("bf16", 1.0),
    "int4_wo": ("bf16", 0.5), "mxfp4_wo": ("bf16", 0.53125), "mxfp4_fp8": ("fp8", 0.53125),
}  # fmt: skip
"""Matrix formats: the dtype whose dense peak bounds them, and the stored bytes of a weight."""
WHOLE_BUFFER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVES = (
    *WHOLE_BUFFER, "all_reduce_custom", "broadcast", "dispatch", "combine", "dispatch_low_latency", "combine_low_latency",
)  # fmt: skip


@frozen
class Column:
    """One column: a word out of a closed set, a whole number of at least 1, or an amount above 0."""

    kind: Kind
    words: tuple[str, ...] = ()
    default: Any = None
    """What a file that leaves the column out means; None: it must be there."""


_WHOLE = Column("whole")
TABLES: Mapping[str, Mapping[str, Column]] = {
    "gemm": {"dtype": Column("word", tuple(OPERANDS)), "m": _WHOLE, "n": _WHOLE, "k": _WHOLE},
    "expert_gemm": {
        "dtype": Column("word", tuple(OPERANDS)), "tokens": _WHOLE, "experts": _WHOLE, "top_k": _WHOLE, "hidden": _WHOLE,
        "intermediate": _WHOLE,
    },
    "attention": {
        "phase": Column("word", ("forward", "backward", "decode")), "dtype": Column("word", ("bf16", "fp16", "fp8", "fp32")),
        "kernel": Column("word", ("fused", "flash2"), "fused"), "batch": _WHOLE, "heads": _WHOLE, "kv_heads": _WHOLE,
        "head_dim": _WHOLE, "q_len": _WHOLE, "kv_len": _WHOLE,
    },
    "memory": {"op": Column("word", ("copy", "add", "norm", "activation", "loss", "adam")), "bytes": _WHOLE},
    "collectives": {
        "kind": Column("word", COLLECTIVES), "bytes": _WHOLE, "ranks": _WHOLE, "nodes": Column("whole", default=1),
    },
    "p2p": {"bytes": _WHOLE, "nodes": Column("whole", default=1)},
    "launch": {"what": Column("word", ("kernel", "layer", "sharded_layer"))},
}  # fmt: skip
"""Shape columns by table; every table also has ``seconds`` and may have ``spread`` (interquartile range over median)."""
_TIMES: Mapping[str, Column] = {"seconds": Column("amount"), "spread": Column("amount", default=0.0)}


@frozen(eq=False)
class Table:
    """Rows of one kind: arrays of R by column name."""

    name: str
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["seconds"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def number(self, *names: str) -> tuple[Array, ...]:
        """Columns as float64[R]."""
        return tuple(self.columns[n].astype(np.float64) for n in names)

    @property
    def seconds(self) -> Array:
        return self.columns["seconds"]

    def where(self, keep: NDArray[np.bool_]) -> Table:
        return Table(self.name, {k: v[keep] for k, v in self.columns.items()})

    def by(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Table]]:
        """Groups of equal values of some columns, sorted."""
        code = np.zeros(len(self), dtype=np.int64)
        for n in names:
            one = np.unique(self.columns[n], return_inverse=True)[1]
            code = code * (int(one.max(initial=0)) + 1) + one
        for value in np.unique(code):
            rows = self.where(code == value)
            yield tuple(rows[n][0].item() for n in names), rows

    def entry(self, row: int) -> str:
        """How messages name a row: ``gemm[3] (bf16, m 1, n 2, k 3)``."""
        shape = {k: v[row] for k, v in self.columns.items() if k in TABLES[self.name]}
        words = [str(v) if isinstance(v, str) else f"{k} {v:g}" for k, v in shape.items()]
        return f"{self.name}[{row}] ({', '.join(words)})"


@frozen
class Provenance:
    """Who measured, on what, when and how."""

    source: str
    date: str = ""
    command: str = ""
    device: str = ""
    """The accelerator as its driver calls it."""
    driver: str = ""
    libraries: Mapping[str, str] = field(factory=dict)
    host: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """For the source column of an answer."""
        versions = ", ".join(f"{k} {v}" for k, v in self.libraries.items())
        parts = (self.source, self.device, f"driver {self.driver}" if self.driver else "", versions, self.date)
        return ", ".join(p for p in parts if p)


def table_of(name: str, raw: Any, where: str) -> Table:
    """A table from JSON: a list of row objects, or an object of columns in which a single value stands for all rows.

    Raises:
        SpecError: an unknown, missing or wrong column, naming the entry.
    """
    known = {**TABLES[name], **_TIMES}
    columns = _columns_of_rows(name, raw, where) if isinstance(raw, list) else dict(raw)
    for c in columns:
        if c not in known:
            raise SpecError(f"{where}: {name} has the unknown column '{c}'; {did_you_mean(c, known)}")
    lengths = {c: len(v) for c, v in columns.items() if isinstance(v, list)}
    rows = max(lengths.values(), default=1)
    if odd := next((c for c, n in lengths.items() if n != rows), None):
        raise SpecError(f"{where}: {name}.{odd} has {lengths[odd]} entries and others have {rows}")
    out: dict[str, NDArray[Any]] = {}
    for c, spec in known.items():
        value = columns.get(c, spec.default)
        if value is None:
            raise SpecError(f"{where}: {name} lacks the column '{c}'")
        out[c] = _column(value if isinstance(value, list) else [value] * rows, spec, name, c, where)
    return Table(name, out)


def _columns_of_rows(name: str, rows: Sequence[Any], where: str) -> dict[str, list[Any]]:
    for i, r in enumerate(rows):
        if not isinstance(r, Mapping):
            raise SpecError(f"{where}: {name}[{i}] must be an object, not {r!r}")
    known = {**TABLES[name], **_TIMES}
    names = list(dict.fromkeys(k for r in rows for k in r))
    for c in names:
        default = known[c].default if c in known else None
        missing = next((i for i, r in enumerate(rows) if c not in r), None)
        if c in known and default is None and missing is not None:
            raise SpecError(f"{where}: {name}[{missing}] lacks '{c}'")
    return {c: [r.get(c, known[c].default if c in known else None) for r in rows] for c in names}


def _column(values: list[Any], spec: Column, name: str, column: str, where: str) -> NDArray[Any]:
    if spec.kind == "word":
        for i, v in enumerate(values):
            if v not in spec.words:
                raise SpecError(f"{where}: {name}[{i}].{column} is {v!r}; {did_you_mean(str(v), spec.words)}")
        return np.array(values, dtype=np.str_)
    for i, v in enumerate(values):
        number = isinstance(v, int | float) and not isinstance(v, bool)
        if not number or v != v or v in (float("inf"), float("-inf")):  # noqa: PLR0124  NaN is not itself
            raise SpecError(f"{where}: {name}[{i}].{column} is {v!r}; it must be a number")
        if spec.kind == "whole" and (v != int(v) or v < 1):
            raise SpecError(f"{where}: {name}[{i}].{column} is {v!r}; it must be a whole number above 0")
        if v < 0 or (v == 0 and spec.default is None):
            raise SpecError(f"{where}: {name}[{i}].{column} is {v!r}; it must be above 0")
    return np.array(values, dtype=np.int64 if spec.kind == "whole" else np.float64)
