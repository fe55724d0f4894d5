"""The short causal convolution in front of linear-time mixers: its parameters, and what decode keeps of it."""

from __future__ import annotations

from collections.abc import Sequence

from autoparallel_core.spec.arch import CacheTensor
from autoparallel_core.spec.op import Axis, Weight


def conv_weights(module: str, axes: Sequence[Axis], kernel: int, *, bias: bool) -> tuple[Weight, ...]:
    """A depth-wise causal convolution over the concatenation of ``axes``."""
    taps = Axis("latent", kernel)
    out = tuple(Weight(f"{module}.weight", (a, taps), "attention", linear=False) for a in axes)
    if bias:
        out += tuple(Weight(f"{module}.bias", (a,), "attention", linear=False) for a in axes)
    return out


def conv_cache(axes: Sequence[Axis], kernel: int, dtype: str) -> tuple[CacheTensor, ...]:
    """The last kernel − 1 inputs of the convolution."""
    if kernel < 2:
        return ()
    return tuple(CacheTensor(f"conv{i}", Axis(a.name, a.units, a.width * (kernel - 1)), dtype=dtype) for i, a in enumerate(axes))
