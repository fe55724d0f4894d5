"""Sharding rules hold: every rule of every operator is run on pieces, and views carry placements as they say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from pytorch_models import Decoder, Norm, planned, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402

from autoparallel_core.errors import SpecError  # noqa: E402
from autoparallel_pytorch.graph import Graph, Meta, Node, Ref  # noqa: E402
from autoparallel_pytorch.placement import P, R, fits, parse, text  # noqa: E402
from autoparallel_pytorch.rule_check import error  # noqa: E402
from autoparallel_pytorch.rules import Rules, check_version  # noqa: E402
from autoparallel_pytorch.views import carry, chain_of, is_view  # noqa: E402

pytestmark = pytest.mark.torch


class Mixed(nn.Module):
    """Operators that the decoder lacks: layer norm, biases, GELU, softmax, concatenation, masks, slices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.scale = Norm(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).split(16, -1)
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -1e4).softmax(-1)
        y = nn.functional.gelu(self.out(scores @ v)) + torch.tanh(self.scale(x))
        y = torch.cat([y[..., :8], -y[..., 8:]], -1)
        attended = nn.functional.scaled_dot_product_attention(
            y.unsqueeze(1), y.unsqueeze(1), y.unsqueeze(1), attn_mask=mask.unsqueeze(1)
        )
        return (attended.squeeze(1) + y.cumsum(1)).pow(2).mean()


GRAPHS = {
    "decoder": lambda: traced(Decoder(layers=1), tokens(batch=4, length=8)),
    "mixed": lambda: traced(Mixed(), {"x": torch.ones(4, 8, 16), "mask": torch.ones(4, 8, 8, dtype=torch.bool)}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_rule_holds_on_pieces(name: str) -> None:
    graph = GRAPHS[name]()
    rules, checked, seen = Rules(), 0, set()
    for node in graph.nodes:
        if node.placeholder or is_view(node):
            continue
        found = rules.of(graph, node)
        assert found.source != "none" or not list(node.refs()), node.op
        key = (node.op, tuple(graph.meta(r) for r in node.refs()), str(node.kwargs))
        if key in seen:
            continue
        seen.add(key)
        for rule in found.rules:
            wrong = error(graph, node, rule)
            checked += wrong is not None
            assert wrong is None or wrong < 1e-9, f"{node.op} {rule}: {wrong}"
    assert checked > 150


def test_a_wrong_rule_is_found() -> None:
    graph = traced(Decoder(layers=1), tokens(batch=4, length=8))
    product = next(n for n in graph.nodes if n.op == "aten.mm.default")
    assert error(graph, product, ((P,), (1, 0))) < 1e-12
    assert error(graph, product, ((P,), (0, R))) == float("inf")
    assert error(graph, product, ((R,), (1, 0))) > 0.1


def test_a_users_rule_is_taken_and_checked() -> None:
    graph = traced(nn.Linear(4, 4, bias=False), [torch.ones(4, 4)])
    product = next(n for n in graph.nodes if n.op == "aten.mm.default")
    found = Rules({"aten.mm.default": lambda *_: [((0,), (0, R))]}).of(graph, product)
    assert found.source == "user"
    assert found.rules == (((R,), (R, R)), ((0,), (0, R)))
    with pytest.raises(SpecError, match="gives 1 outputs and 1 inputs; it has 1 and 2"):
        Rules({"aten.mm.default": lambda *_: [((0,), (0,))]}).of(graph, product)


def test_torchs_own_registration_gives_a_rule() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @torch.library.custom_op("autoparallel_test::flip_rows", mutates_args=(), schema="(Tensor x) -> Tensor")
    def flip_rows(x: torch.Tensor) -> torch.Tensor:
        return x.flip(1)

    flip_rows.register_fake(torch.empty_like)
    graph = traced(Applied(torch.ops.autoparallel_test.flip_rows), [torch.ones(4, 4)])
    flipped = next(n for n in graph.nodes if n.op == "autoparallel_test.flip_rows.default")
    assert Rules().of(graph, flipped).source == "none"

    @register_sharding(torch.ops.autoparallel_test.flip_rows.default)
    def rows(_x: object) -> list[object]:
        return [([Replicate()], [Replicate()]), ([Shard(0)], [Shard(0)])]

    found = Rules().of(graph, flipped)
    assert found.source == "torch"
    assert found.rules == (((R,), (R,)), ((0,), (0,)))
    assert error(graph, flipped, ((0,), (0,))) == 0.0


class Applied(nn.Module):
    def __init__(self, f: object) -> None:
        super().__init__()
        self.f, self.weight = f, nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x * self.weight)


def test_an_operator_without_a_rule_is_reported_with_its_cost() -> None:
    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft2(self.linear(x)).abs().sum()

    class Hidden(Rules):
        def _find(self, graph: Graph, node: Node, metas: object) -> object:
            from autoparallel_pytorch.own_rules import replicated
            from autoparallel_pytorch.rules import Found

            if node.op.startswith("aten._fft"):
                return Found((replicated(len(node.outs), len(list(node.refs()))),), "none")
            return super()._find(graph, node, metas)

    from pytorch_models import request

    from autoparallel_pytorch.document import document
    from autoparallel_pytorch.planner import Planning

    module = Rolled()
    making = Planning.of(traced(module, [torch.ones(8, 64)]), request({"dp": 2}), Hidden())
    plan = document(module, making, making.search())
    (first, *_) = plan.document["unruled"]
    assert first["op"].startswith("aten._fft")
    assert first["seconds"] > 0


def test_the_tested_torch_is_this_one() -> None:
    assert check_version() is None


def test_placements_read_as_written() -> None:
    assert parse("S(0) R P", 3) == (0, R, P)
    assert text((0, R, P)) == "S(0) R P"
    with pytest.raises(SpecError, match="gives 1 placements for 2 mesh dimensions"):
        parse("R", 2)
    with pytest.raises(SpecError, match="'X' in 'X R' is no placement"):
        parse("X R", 2)


def view(op: str, args: tuple[object, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Graph:
    nodes = [
        Node(0, "input", (), {}, (Meta(before, "float32"),), 0, ""),
        Node(1, op, (Ref(0), *args), {}, (Meta(after, "float32"),), 0, ""),
    ]
    return Graph(nodes, [Ref(1)], [None], {}, None, {}, {}, {}, [], {})


def carried(
    op: str,
    args: tuple[object, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    wanted: tuple[int, ...],
    mesh: tuple[int, ...],
):
    _, steps = chain_of(view(op, args, before, after), Ref(1))
    return carry(steps, wanted, mesh)


def test_views_carry_leading_dimensions_only() -> None:
    flat = ("aten.view.default", ((32, 4),), (4, 8, 4), (32, 4))
    assert carried(*flat, (0,), (2,)).base == (0,)
    assert carried(*flat, (0,), (8,)).base == (R,)  # the batch of 4 does not go in 8: cut after the view
    assert carried(*flat, (1,), (2,)).base == (2,)
    heads = ("aten.view.default", ((2, 4, 8),), (2, 32), (2, 4, 8))
    assert carried(*heads, (1, 1), (2, 2)).base == (1, 1)
    assert carried(*heads, (2,), (2,)).base == (R,)
    assert carried("aten.permute.default", ((1, 0),), (4, 8), (8, 4), (0,), (2,)).base == (1,)
    assert carried("aten.expand.default", ((4, 8),), (1, 8), (4, 8), (0, 1), (2, 2)).base == (R, 1)
    assert carried("aten.select.int", (1, 0), (4, 2, 8), (4, 8), (1,), (2,)).base == (2,)
    assert carried("aten.slice.Tensor", (1, 0, 4, 1), (4, 8), (4, 4), (1,), (2,)).base == (R,)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False), st.integers(0, 3))
def test_the_piece_of_a_reshape_is_the_reshape_of_the_piece(shape: list[int], rng: object, dim: int) -> None:
    before = tuple(2 * s for s in shape)
    n = 1
    for s in before:
        n *= s
    after, rest = [], n
    while rest > 1 and len(after) < 3:
        d = rng.choice([k for k in range(1, rest + 1) if rest % k == 0])
        after.append(d)
        rest //= d
    after = (*after, rest)
    wanted = (dim % len(after),)
    if not fits(wanted, (2,), after):
        return
    found = carried("aten.view.default", (after,), before, after, wanted, (2,))
    x = torch.arange(n).reshape(before)
    for rank in range(2):
        piece = x if found.base == (R,) else x.chunk(2, found.base[0])[rank]
        ((given_after, cut),) = found.steps
        local = tuple(s // 2 if given_after == (d,) else s for d, s in enumerate(after))
        y = piece.reshape(local)
        if given_after != cut:
            y = y.chunk(2, cut[0])[rank]
        assert torch.equal(y, x.reshape(after).chunk(2, wanted[0])[rank])


def test_planning_leaves_no_state_behind() -> None:
    """Two plans in one process, on different meshes, are what each is alone."""
    module, inputs = Decoder(layers=1), tokens()
    first = planned(module, inputs, {"dp": 2})
    planned(module, inputs, {"dp": 2, "tp": 2})
    again = planned(module, inputs, {"dp": 2})
    assert first.document["operators"] == again.document["operators"]
