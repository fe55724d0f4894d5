"""Replayed programs equal the unsharded module: for plans, and for placements drawn at random for every operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytorch_checks import compare, drawn  # noqa: E402
from pytorch_models import Block, Decoder, planned, planning, tokens, traced  # noqa: E402
from torch import nn  # noqa: E402

from autoparallel_pytorch.recompute import AGAIN, expand, split, states_of  # noqa: E402
from autoparallel_pytorch.search import assignment, solve_program  # noqa: E402
from autoparallel_pytorch.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch

MESHES = ({"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "fsdp": 2, "tp": 2})


class Learned(nn.Module):
    """Learned positions, layer norms, biases, GELU, one fused projection, tied embedding: the other common decoder."""

    def __init__(self, hidden: int = 32, heads: int = 4, vocab: int = 64, length: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Fused(hidden, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=3)
        return {"loss": loss, "logits": logits}


class Fused(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc, self.out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (y.view(b, s, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(h, -1))
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, h))
        return x + self.out(nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


MODULES = {"gated": Decoder, "learned": Learned}


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.values())))
@pytest.mark.parametrize("name", MODULES)
def test_placements_drawn_at_random_change_nothing(name: str, mesh: dict[str, int]) -> None:
    torch.manual_seed(0)
    module, inputs = MODULES[name](), tokens()
    drawn(module, inputs, planning(traced(module, inputs), mesh), seeds=2)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("price", [0.0, 1e-9, 1e-6])
def test_the_best_placements_at_any_price_of_memory_change_nothing(name: str, price: float) -> None:
    torch.manual_seed(0)
    module, inputs = MODULES[name](), tokens()
    made = planning(traced(module, inputs), {"dp": 2, "tp": 2})
    states = states_of(made.graph, made.classes, made.form, (2, 2), 8.0)
    whole = expand(made.form, made.graph, states)
    from autoparallel_pytorch.recompute import memory_rows

    problem = assignment(whole, made.objective.prices(1.0), {i: price * r for i, r in memory_rows(states).items()})
    answer = solve_program(problem, whole, time_limit_s=30.0)
    assert answer.choice is not None
    assert answer.gap < 1e-5
    placements, found = split(states, whole, answer.choice)
    again = {s.key[1] for s, z in zip(made.form.slots, found, strict=True) if s.key[0] == "op" and z == AGAIN}
    compare(module, inputs, made, placements, frozenset(n.id for n in made.graph.nodes if made.classes.of[n.id] in again))


@pytest.mark.parametrize("mesh", MESHES[:2], ids=lambda m: "x".join(map(str, m.values())))
def test_a_plan_of_a_large_decoder_verifies_on_a_reduced_copy(mesh: dict[str, int]) -> None:
    with torch.device("meta"):
        large = Decoder(layers=3, hidden=1024, heads=8, kv_heads=4, width=4096, vocab=32768)
    shapes = {k: torch.empty(64, 2048, dtype=torch.int64, device="meta") for k in ("tokens", "labels")}
    plan = planned(large, shapes, {k: 4 * v for k, v in mesh.items()})
    small = Decoder(layers=2, hidden=64, heads=8, kv_heads=4, width=128, vocab=128)
    found = verify(plan, {"module": small, "inputs": tokens(vocab=128)})
    assert found["passed"], found
    assert found["collectives_predicted"] == found["collectives_counted"]
    assert found["mesh"] == [2] * len(mesh)


def test_four_processes_agree() -> None:
    module, inputs = Decoder(), tokens()
    plan = planned(module, inputs, {"dp": 2, "tp": 2}, pins={"layers.*.wq": "R S(0)", "layers.*.down": "S(0) S(1)"})
    found = verify(plan, {"module": module, "inputs": inputs, "processes": 4})
    assert found["passed"], found
    assert found["how"] == "4 processes over gloo"


def test_an_output_without_a_loss_comes_back_placed_and_takes_a_gradient() -> None:
    module = Block(32, 4, 2, 64)
    inputs = {"x": torch.randn(8, 16, 32)}
    plan = planned(module, inputs, {"dp": 2, "tp": 2}, pins={"output 0": "S(0) R", "x": "S(0) R"})
    found = verify(plan, {"module": module, "inputs": inputs, "reduce": False})
    assert found["passed"], found


def test_a_plan_on_four_dimensions_verifies() -> None:
    with torch.device("meta"):
        large = Decoder(layers=2, hidden=2048, heads=16, kv_heads=16, width=8192, vocab=32768).to(torch.bfloat16)
        shapes = {k: torch.empty(32, 4096, dtype=torch.int64) for k in ("tokens", "labels")}
    plan = planned(large, shapes, {"dp": 2, "fsdp": 2, "cp": 2, "tp": 2})
    small = Decoder(layers=2, hidden=64, heads=16, kv_heads=16, width=128, vocab=64)
    found = verify(plan, {"module": small, "inputs": tokens(batch=16)})
    assert found["passed"], found
    assert found["mesh"] == [2, 2, 2, 2]
    assert sum(found["collectives_counted"].values()) > 50
