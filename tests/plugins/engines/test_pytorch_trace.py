"""Tracing: what is recorded, how it is named, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytorch_models import Decoder, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402

from autoparallel_core.errors import SpecError  # noqa: E402
from autoparallel_pytorch.graph import BACKWARD, FORWARD, Size  # noqa: E402
from autoparallel_pytorch.regions import classes  # noqa: E402

pytestmark = pytest.mark.torch


class Lambda(nn.Module):
    def __init__(self, f: object, size: int = 4) -> None:
        super().__init__()
        self.f, self.weight = f, nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x, self.weight)


def ops(graph: object, phase: int | None = None) -> list[str]:
    return [n.op for n in graph.nodes if not n.placeholder and phase in (None, n.phase)]


def test_a_decoder_gives_products_attention_and_named_parameters() -> None:
    graph = traced(Decoder(layers=2), tokens())
    matrices = [n for n in graph.nodes if n.op == "aten.mm.default"]
    assert len([n for n in matrices if n.phase == FORWARD]) == 2 * 7 + 1
    assert len([n for n in matrices if n.phase == BACKWARD]) == 2 * (2 * 7 + 1)
    assert ops(graph).count("autoparallel.attention") == ops(graph).count("autoparallel.attention_backward") == 2
    names = {n.name for n in matrices}
    assert {"layers.0.wq/mm", "layers.1.down/mm", "layers.1.down/bwd/mm", "head/bwd/mm.1"} <= names
    assert list(graph.parameters) == [n for n, _ in Decoder().named_parameters()]
    assert all(graph.meta(ref).shape == graph.nodes[graph.parameters[n]].outs[0].shape for n, ref in graph.gradients.items())


def test_sizes_follow_the_batch() -> None:
    graph = traced(Decoder(layers=1), tokens(batch=8))
    views = [n.args[1] for n in graph.nodes if n.op == "aten.view.default" and len(n.args[1]) == 2]
    assert graph.batch == 8
    assert views[0] == (Size(0, 16), 32)
    assert views[0][0].at(3) == 48


def test_what_depends_on_the_batch_otherwise_is_said() -> None:
    graph = traced(Lambda(lambda x, w: (x * w * x.shape[0] ** 2).sum()), [torch.ones(4, 4)])
    assert graph.batch is None
    assert "batch size 4 only" in graph.notes[0]


def test_repeated_layers_are_one_region_and_the_problem_does_not_grow() -> None:
    two, six = (classes(traced(Decoder(layers=n), tokens())) for n in (2, 6))
    assert six.regions == {"layers.*": tuple(f"layers.{i}" for i in range(6))}
    assert two.n == six.n
    untied = classes(traced(Decoder(layers=2), tokens()), tie=False)
    assert untied.n > 1.5 * two.n


def test_plain_linear_layers_of_a_sequence_are_not_tied() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert classes(traced(module, [torch.ones(4, 8)])).regions == {}


def test_in_place_operators_become_functional() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        y.add_(1.0).mul_(2.0)
        return y.sum()

    graph = traced(Lambda(f), [torch.ones(3, 4)])
    assert ops(graph, FORWARD) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Tensor", "aten.sum.dim_IntList"]


def test_a_change_seen_through_another_view_is_refused() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w.detach()
        row = y[0]
        row.add_(1.0)
        return (y * w).sum()

    with pytest.raises(SpecError, match="changed in place"):
        traced(Lambda(f), [torch.ones(3, 4)])


def test_control_flow_on_constants_is_followed_and_on_inputs_refused() -> None:
    def constant(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sum() if bool((torch.arange(4) < 5).all()) else x.sum()

    def data(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sum() if bool((x > 0).all()) else x.sum()

    assert "aten.mul.Tensor" in ops(traced(Lambda(constant), [torch.ones(3, 4, device="meta")]))
    with pytest.raises(SpecError, match="decides by the value of 'x'"):
        traced(Lambda(data), [torch.ones(3, 4, device="meta")])
    known = traced(Lambda(data), [torch.ones(3, 4)])
    assert any("values of x" in n for n in known.notes)


def test_random_numbers_other_than_dropout_are_refused() -> None:
    with pytest.raises(SpecError, match="draws random numbers"):
        traced(Lambda(lambda x, w: (x * w * torch.rand(3, 4)).sum()), [torch.ones(3, 4)])
    graph = traced(Lambda(lambda x, w: nn.functional.dropout(x * w, 0.5).sum()), [torch.ones(3, 4)])
    assert "autoparallel.dropout" in ops(graph)


def test_gradients_flow_from_the_loss_alone_where_there_is_one() -> None:
    graph = traced(Lambda(lambda x, w: ((x * w).sum(), x * w)), [torch.ones(3, 4)])
    assert [t is not None for t in graph.tangents] == [True, False]
    graph = traced(Lambda(lambda x, w: x * w), [torch.ones(3, 4)])
    assert [t is not None for t in graph.tangents] == [True]


def test_wrong_arguments_are_one_sentence() -> None:
    with pytest.raises(SpecError, match=r"inputs do not fit .*Decoder\.forward"):
        traced(Decoder(), {"words": torch.ones(2, 2)})
