"""Rules of the planner's own operators, and of a few whose torch rule does not say how each input must be placed.

A rule is (placements of the outputs, placements of the tensor inputs), one mesh dimension, as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoparallel_pytorch.graph import Meta, Node
from autoparallel_pytorch.placement import P, R

Rule = tuple[tuple[int, ...], tuple[int, ...]]
Metas = Sequence[Meta]


def replicated(n_out: int, n_in: int) -> Rule:
    return (R,) * n_out, (R,) * n_in


def pointwise(node: Node, metas: Metas) -> list[Rule]:
    """Every dimension of the result, and of what broadcasts to it."""
    out = node.outs[0]
    assert out is not None, "element-wise operators give a tensor"
    return [((d,), tuple(_at(m, d - (len(out.shape) - len(m.shape))) for m in metas)) for d in range(len(out.shape))]


def _at(meta: Meta, d: int) -> int:
    return d if d >= 0 and meta.shape[d] != 1 else R


def attention(node: Node, metas: Metas) -> list[Rule]:
    """Batch, heads (grouped keys are cut with their queries) and, keys and values whole, the queries when not causal."""
    mask = _mask(metas[3:4])
    rules: list[Rule] = [((0, 0), (0, 0, 0, *mask(0))), ((1, 1), (1, 1, 1, *mask(1)))]
    if not node.args[4]:
        rules.append(((2, 2), (2, R, R, *mask(2))))
    return rules


def attention_backward(node: Node, metas: Metas) -> list[Rule]:
    """As forward; with the queries cut, the gradients of keys and values are partial."""
    n_mask = len(metas) - 6
    mask = _mask(metas[4 : 4 + n_mask])
    rules: list[Rule] = [((d, d, d), (d, d, d, d, *mask(d), d, d)) for d in (0, 1)]
    if not node.args[7]:
        rules.append(((2, P, P), (2, 2, R, R, *mask(2), 2, 2)))
    return rules


def _mask(metas: Metas) -> Callable[[int], tuple[int, ...]]:
    """The placement of an attention mask that broadcasts to [B, H, Q, K], for a cut of dimension d of the queries."""

    def of(d: int) -> tuple[int, ...]:
        found = []
        for m in metas:
            at = d - (4 - len(m.shape))
            found.append(at if at >= 0 and m.shape[at] != 1 else R)
        return tuple(found)

    return of


def scatter_rows(_node: Node, _metas: Metas) -> list[Rule]:
    """[N] values at class index [N] → [N, C]: rows, classes (each rank its own), linear in the values."""
    rules: list[Rule] = [((0,), (0, 0)), ((1,), (R, R)), ((P,), (P, R))]
    return rules


def dropout(_node: Node, metas: Metas) -> list[Rule]:
    return [((d, d), (d,)) for d in range(len(metas[0].shape))]


def slice_backward(node: Node, metas: Metas) -> list[Rule]:
    dim = node.args[2]
    return [*(((d,), (d,)) for d in range(len(metas[0].shape)) if d != dim), ((P,), (P,))]


def select_backward(node: Node, metas: Metas) -> list[Rule]:
    dim = node.args[2]
    return [*(((d if d < dim else d + 1,), (d,)) for d in range(len(metas[0].shape))), ((P,), (P,))]


def cat(node: Node, metas: Metas) -> list[Rule]:
    dim = node.args[1] % len(metas[0].shape) if len(node.args) > 1 else 0
    n = len(metas)
    return [*(((d,), (d,) * n) for d in range(len(metas[0].shape)) if d != dim), ((P,), (P,) * n)]


def stack(node: Node, metas: Metas) -> list[Rule]:
    ndim, n = len(metas[0].shape), len(metas)
    dim = node.args[1] % (ndim + 1) if len(node.args) > 1 else 0
    return [*(((d if d < dim else d + 1,), (d,) * n) for d in range(ndim)), ((P,), (P,) * n)]


def fill(node: Node, _metas: Metas) -> list[Rule]:
    """The same number everywhere: any piece of it is such a tensor."""
    meta = node.outs[0]
    assert meta is not None
    return [((d,), ()) for d in range(len(meta.shape))]


def sum_(node: Node, metas: Metas) -> list[Rule]:
    ndim, dims, keep = len(metas[0].shape), set(node.args[1]), bool(node.args[2])
    rules: list[Rule] = [((P,), (P,))]
    for d in range(ndim):
        if d in dims:
            rules.append(((P,), (d,)))
        else:
            rules.append(((d if keep else d - sum(x < d for x in dims),), (d,)))
    return rules


def embedding(_node: Node, metas: Metas) -> list[Rule]:
    """Rows of [V, H] by index [...]: columns, index dimensions, or rows (ranks give zeros for what is not theirs)."""
    ndim = len(metas[1].shape)
    return [((ndim,), (1, R)), ((P,), (0, R)), *(((d,), (R, d)) for d in range(ndim))]


def embedding_backward(_node: Node, metas: Metas) -> list[Rule]:
    """Gradient [..., H] and index [...] → [V, H]."""
    ndim = len(metas[1].shape)
    return [((1,), (ndim, R)), ((0,), (R, R)), ((P,), (P, R)), *(((P,), (d, d)) for d in range(ndim))]


def gather(node: Node, metas: Metas) -> list[Rule]:
    """``out = x.gather(dim, index)``: equal other dimensions, or the gathered one (zeros for what is not a rank's own)."""
    dim, ndim = node.args[1] % len(metas[0].shape), len(metas[0].shape)
    rules: list[Rule] = [((P,), (P, R))]
    for d in range(ndim):
        if d == dim:
            rules += [((P,), (d, R)), ((d,), (R, d))]
        elif metas[0].shape[d] == metas[1].shape[d]:
            rules.append(((d,), (d, d)))
    return rules


def experts(_node: Node, metas: Metas) -> list[Rule]:
    """Tokens; experts; the width of each expert, where gate and up are apart. In: x, index, weight, matrices."""
    n = len(metas) - 3
    rules: list[Rule] = [((0,), (0, 0, 0, *(R,) * n)), ((P,), (R, R, R, *(0,) * n))]
    if metas[3].shape[1] == metas[-1].shape[2]:
        rules.append(((P,), (R, R, R, *(1,) * (n - 1), 2)))
    return rules


def experts_backward(_node: Node, metas: Metas) -> list[Rule]:
    """In: gradient, x, index, weight, matrices; out: gradients of x, weight and the matrices. Linear in the gradient."""
    n = len(metas) - 4
    rules: list[Rule] = [
        ((0, 0, *(P,) * n), (0, 0, 0, 0, *(R,) * n)),
        ((P, P, *(0,) * n), (R, R, R, R, *(0,) * n)),
        ((P, P, *(P,) * n), (P, R, R, R, *(R,) * n)),
    ]
    if metas[4].shape[1] == metas[-1].shape[2]:
        width = (*(1,) * (n - 1), 2)
        rules.append(((P, P, *width), (R, R, R, R, *width)))
    return rules


def histc(_node: Node, _metas: Metas) -> list[Rule]:
    return [((P,), (0,))]


def grouped_mm(_node: Node, _metas: Metas) -> list[Rule]:
    """Rows [S, K] × [E, K, N] → [S, N]: columns, the summed dimension, groups (zeros for rows of others), linear in both."""
    return [((1,), (R, 2, R)), ((P,), (1, 1, R)), ((P,), (R, 0, R)), ((P,), (P, R, R)), ((P,), (R, P, R))]


def grouped_outer(_node: Node, _metas: Metas) -> list[Rule]:
    """Rows [S, K] and [S, N] → [E, K, N]."""
    return [((1,), (1, R, R)), ((2,), (R, 1, R)), ((0,), (R, R, R)), ((P,), (P, R, R)), ((P,), (R, P, R))]


OWN: dict[str, Callable[[Node, Metas], list[Rule]]] = {
    "autoparallel.attention": attention,
    "autoparallel.attention_backward": attention_backward,
    "autoparallel.scatter_rows": scatter_rows,
    "autoparallel.dropout": dropout,
    "autoparallel.experts": experts,
    "autoparallel.experts_backward": experts_backward,
    "autoparallel.histc": histc,
    "autoparallel.grouped_mm": grouped_mm,
    "autoparallel.grouped_outer": grouped_outer,
    "aten.slice_backward.default": slice_backward,
    "aten.select_backward.default": select_backward,
    "aten.cat.default": cat,
    "aten.stack.default": stack,
    "aten.zeros.default": fill,
    "aten.ones.default": fill,
    "aten.full.default": fill,
    "aten.sum.dim_IntList": sum_,
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.gather.default": gather,
}
