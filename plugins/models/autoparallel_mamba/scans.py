"""Selective state-space mixers as blocks: Mamba-2 and Mamba-1.

Mamba-2 (Dao and Gu, arXiv 2405.21060) keeps a head_dim × state matrix per head; heads share their B and C in groups.
Mamba-1 (Gu and Dao, arXiv 2312.00752) keeps a state vector per channel. Decode reads and writes the state once per
token; the short convolution in front keeps its last kernel − 1 inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

from autoparallel_core.spec.arch import Block, CacheTensor
from autoparallel_core.spec.blocks import hidden_axis, linear, norm, residual
from autoparallel_core.spec.convolution import conv_cache, conv_weights
from autoparallel_core.spec.op import Axis, Elementwise, Op, Scan, Weight


@frozen
class Mamba2:
    """Sizes of one Mamba-2 mixer; ``norm`` False: no gated norm of the output."""

    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    state_dtype: str
    conv_dtype: str
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: bool = True

    @property
    def conv_axes(self) -> tuple[Axis, Axis]:
        """What the convolution runs over: x by heads, B and C by groups."""
        return Axis("heads", self.heads, self.head_dim), Axis("kv_heads", self.groups, 2 * self.state)


@frozen
class Mamba1:
    """Sizes of one Mamba-1 mixer; ``norms``: small norms on the step and on B and C (Jamba)."""

    hidden: int
    inner: int
    state: int
    rank: int
    kernel: int
    state_dtype: str
    conv_dtype: str
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False


def mamba2_ops(m: Mamba2, module: str) -> tuple[Op, ...]:
    """The mixer without its layer's norm and residual."""
    h, one = hidden_axis(m.hidden), Axis("heads", m.heads)
    x, bc = m.conv_axes
    into = f"{module}.in_proj"
    vectors = tuple(Weight(f"{module}.{v}", (one,), "attention", linear=False) for v in ("A_log", "D", "dt_bias"))
    conv = conv_weights(f"{module}.conv1d", m.conv_axes, m.kernel, bias=m.conv_bias)
    ops: list[Op] = [
        linear("in", h, [(into, x), (into, x), (into, bc), (into, one)], component="attention", bias=m.in_bias),
        Scan(
            "scan", algorithm="mamba2", heads=x, key_heads=Axis("kv_heads", m.groups, m.state), chunk=m.chunk,
            conv_width=m.kernel, weights=(*conv, *vectors),
        ),
    ]  # fmt: skip
    gain = (Weight(f"{module}.norm.weight", (x,), "norm", linear=False),) if m.norm else ()
    role: Literal["norm", "gate"] = "norm" if m.norm else "gate"
    ops.append(Elementwise("gated_norm", role=role, reads=(x, x), writes=(x,), saved=(x, x), weights=gain))
    ops.append(linear("out", x, [(f"{module}.out_proj", h)], component="attention", bias=m.out_bias))
    return tuple(ops)


def mamba2_cache(m: Mamba2) -> tuple[CacheTensor, ...]:
    state = CacheTensor("state", Axis("heads", m.heads, m.head_dim * m.state), dtype=m.state_dtype)
    return (state, *conv_cache(m.conv_axes, m.kernel, m.conv_dtype))


def mamba2_block(
    m: Mamba2, *, module: str, specificity: int, norm_module: str = "input_layernorm", before: Sequence[Op] = ()
) -> Block:
    """A Mamba-2 sub-layer with its norm and residual; ``before`` runs first (a shared transformer block)."""
    h = hidden_axis(m.hidden)
    ops = (*before, norm(norm_module, h), *mamba2_ops(m, module), residual("mixer_residual", h))
    return Block("mamba2", ops, cache_per_sequence=mamba2_cache(m), specificity=specificity)


def mamba1_block(m: Mamba1, *, module: str, specificity: int) -> Block:
    """A Mamba-1 sub-layer with its norm and residual; B, C and the step come from a row-parallel projection of x."""
    h, x = hidden_axis(m.hidden), Axis("heads", m.inner)
    rank, b = Axis("latent", m.rank), Axis("latent", m.state)
    into = f"{module}.in_proj"
    ops: list[Op] = [
        norm("input_layernorm", h),
        linear("in", h, [(into, x), (into, x)], component="attention", bias=m.bias),
        linear("x", x, [(f"{module}.x_proj", rank), (f"{module}.x_proj", b), (f"{module}.x_proj", b)], component="attention"),
    ]
    if m.norms:
        ops += [norm(f"{module}.{n}_layernorm", a) for n, a in (("dt", rank), ("b", b), ("c", b))]
    ops += [
        linear("dt", rank, [(f"{module}.dt_proj", x)], component="attention", bias=True),
        Scan(
            "scan", algorithm="mamba1", heads=x, key_heads=Axis("latent", 1, m.state), chunk=1, conv_width=m.kernel,
            weights=(
                *conv_weights(f"{module}.conv1d", (x,), m.kernel, bias=m.conv_bias),
                Weight(f"{module}.A_log", (x, b), "attention", linear=False),
                Weight(f"{module}.D", (x,), "attention", linear=False),
            ),
        ),
        Elementwise("gate", role="gate", reads=(x, x), writes=(x,), saved=(x, x)),
        linear("out", x, [(f"{module}.out_proj", h)], component="attention", bias=m.bias),
        residual("mixer_residual", h),
    ]  # fmt: skip
    state = CacheTensor("state", Axis("heads", m.inner, m.state), dtype=m.state_dtype)
    return Block(
        "mamba1", tuple(ops), cache_per_sequence=(state, *conv_cache((x,), m.kernel, m.conv_dtype)), specificity=specificity
    )
