"""One strategy, many strategies (struct of arrays), and the compact notation between people and both.

Training: the world is ``tp·cp·pp·dp``; experts live on a second grid ``etp·ep·pp·edp`` over the same
ranks, so EP does not multiply the world. Inference: one instance is ``tp·attn_dp·pp`` GPUs (``tp`` is
the attention's tensor parallelism), ``dp`` counts independent instances.

Axis legend for arrays: S strategies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict, fields, frozen

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

RECOMPUTE = ("none", "selective", "full")
"""Codes of the ``recompute`` column: full applies to ``recompute_layers`` of a stage's layers, 0 meaning all."""


@frozen
class Strategy:
    """One parallel strategy. Degrees are ≥ 1; ``zero`` 0–3; ``recompute`` is an index into RECOMPUTE."""

    tp: int = 1
    sp: int = 0
    """1: sequence parallelism (activations outside the TP region are sharded over tp)."""
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    shard: int = 1
    """Ranks that one copy of parameters (ZeRO-3) or optimizer state (ZeRO-1/2) is spread over; dp·cp unless HSDP."""
    zero: int = 0
    mbs: int = 1
    recompute: int = 0
    recompute_layers: int = 0
    """Layers of each stage under full recompute; 0: all of them."""
    offload: int = 0
    """1: optimizer state lives in host memory."""
    attn_dp: int = 1
    """Inference: data-parallel attention ranks inside one instance."""

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.pp * self.dp * self.attn_dp

    def __str__(self) -> str:
        return format_strategy(self)


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Strategy))


@frozen(eq=False)
class StrategyBatch:
    """S strategies as one int64 array per column."""

    columns: Mapping[str, IntArray]

    @classmethod
    def of(cls, strategies: Sequence[Strategy]) -> StrategyBatch:
        import numpy as np

        return cls({c: np.array([getattr(s, c) for s in strategies], dtype=np.int64) for c in COLUMNS})

    @classmethod
    def from_columns(cls, n: int, /, **columns: Any) -> StrategyBatch:
        """Broadcast the given columns to length ``n``; the others take the defaults of Strategy."""
        import numpy as np

        default = asdict(Strategy())
        if unknown := set(columns) - set(default):
            raise SpecError(f"unknown strategy column {', '.join(sorted(unknown))}; known: {', '.join(COLUMNS)}")
        return cls(
            {
                c: np.ascontiguousarray(np.broadcast_to(np.asarray(columns.get(c, default[c]), dtype=np.int64), (n,)))
                for c in COLUMNS
            }
        )

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def __getattr__(self, name: str) -> IntArray:
        if name.startswith("_") or name not in COLUMNS:
            raise AttributeError(name)
        return self.columns[name]

    def __getitem__(self, i: int) -> Strategy:
        return Strategy(**{c: int(self.columns[c][i]) for c in COLUMNS})

    def __iter__(self) -> Iterator[Strategy]:
        return (self[i] for i in range(len(self)))

    def take(self, index: Any) -> StrategyBatch:
        """Rows by integer index or boolean mask."""
        return StrategyBatch({c: v[index] for c, v in self.columns.items()})

    def replace(self, **columns: IntArray) -> StrategyBatch:
        return StrategyBatch({**self.columns, **columns})

    @staticmethod
    def concat(batches: Sequence[StrategyBatch]) -> StrategyBatch:
        import numpy as np

        if not batches:
            return StrategyBatch.from_columns(0)
        return StrategyBatch({c: np.concatenate([b.columns[c] for b in batches]) for c in COLUMNS})

    def unique(self, names: Sequence[str]) -> tuple[StrategyBatch, IntArray]:
        """Distinct rows over the named columns (others keep a representative), and each row's index into them."""
        import numpy as np

        if not len(self):
            return self, np.zeros(0, dtype=np.int64)
        key = np.zeros(len(self), dtype=np.int64)
        for c in names:
            col = self.columns[c]
            low, high = int(col.min()), int(col.max())
            if high == low:
                continue
            key = key * (high - low + 1) + (col - low)
            if key.max() > 1 << 40:
                key = np.unique(key, return_inverse=True)[1].astype(np.int64)
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        return self.take(first), inverse.astype(np.int64)


_LETTERS = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "zero", "shard", "attn_dp")
_HELP = "write it like 'tp8 pp4 dp2 cp2 ep16 mbs1 recompute=full'"


def format_strategy(s: Strategy) -> str:
    """Compact notation; degrees of 1 are left out except tp, pp and dp. Inverse of :func:`parse_strategy`."""
    out = [f"tp{s.tp}", f"pp{s.pp}", f"dp{s.dp}"]
    if s.attn_dp > 1:
        out.append(f"attn_dp{s.attn_dp}")
    out += [f"{k}{getattr(s, k)}" for k in ("vpp", "cp", "ep", "etp") if getattr(s, k) > 1]
    if s.zero:
        out.append(f"zero{s.zero}")
        if s.shard != s.dp * s.cp:
            out.append(f"shard{s.shard}")
    out.append(f"mbs{s.mbs}")
    if s.tp > 1 and not s.sp:
        out.append("sp=off")
    elif s.tp == 1 and s.sp:
        out.append("sp=on")
    if s.recompute:
        name = RECOMPUTE[s.recompute]
        out.append(f"recompute={name}" + (f":{s.recompute_layers}" if s.recompute_layers else ""))
    if s.offload:
        out.append("offload=optimizer")
    return " ".join(out)


def parse_strategy(text: str) -> Strategy:
    """Read the compact notation. Raises SpecError naming the token that is wrong.

    ``shard`` defaults to dp·cp when zero is given; ``sp`` to on when tp > 1.
    """
    values: dict[str, int] = {}
    for token in text.replace(",", " ").split():
        t = token.lower()
        if m := re.fullmatch(r"([a-z_]+?)=?(\d+)", t):
            name = {"micro_batch_size": "mbs"}.get(m[1], m[1])
            if name not in _LETTERS:
                raise SpecError(f"strategy '{text}': '{token}' is not a dimension; known: {', '.join(_LETTERS)}; {_HELP}")
            if name in values:
                raise SpecError(f"strategy '{text}': {name} is given twice")
            values[name] = int(m[2])
            if values[name] < (0 if name == "zero" else 1) or (name == "zero" and values[name] > 3):
                raise SpecError(
                    f"strategy '{text}': {name} {m[2]} is out of range ({'0 to 3' if name == 'zero' else 'at least 1'})"
                )
        elif t in ("sp=on", "sp=off", "sp"):
            values["sp"] = int(t != "sp=off")
        elif m := re.fullmatch(r"recompute=(none|selective|full)(?::(\d+))?", t):
            values["recompute"] = RECOMPUTE.index(m[1])
            values["recompute_layers"] = int(m[2] or 0)
            if values["recompute_layers"] and m[1] != "full":
                raise SpecError(f"strategy '{text}': a number of layers goes with recompute=full only")
        elif t in ("offload=optimizer", "offload=none"):
            values["offload"] = int(t == "offload=optimizer")
        else:
            raise SpecError(f"strategy '{text}': cannot read '{token}'; {_HELP}")
    values.setdefault("sp", int(values.get("tp", 1) > 1))
    if values.get("zero"):
        values.setdefault("shard", values.get("dp", 1) * values.get("cp", 1))
    return Strategy(**values)
