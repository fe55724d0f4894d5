"""Models of ``transformers`` from their configurations: traced, planned, and equal on pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pytorch_checks import drawn  # noqa: E402
from pytorch_models import planned, planning, tokens, traced  # noqa: E402

from autoparallel_pytorch.regions import classes  # noqa: E402
from autoparallel_pytorch.verify import verify  # noqa: E402

pytestmark = pytest.mark.torch

COMMON = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", COMMON),
    "qwen3": ("Qwen3", COMMON),
    "gemma": ("Gemma", COMMON),
    "gemma2": ("Gemma2", COMMON | {"sliding_window": 4, "attn_implementation": "eager"}),
    "mixtral": ("Mixtral", COMMON | {"num_local_experts": 4}),
    "qwen3-moe": ("Qwen3Moe", COMMON | EXPERTS),
    "gpt2": ("GPT2", {
        "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 1,
    }),
}  # fmt: skip


def made(name: str, **changes: Any) -> torch.nn.Module:
    kind, fields = FAMILIES[name]
    fields = fields | changes
    attention = fields.pop("attn_implementation", "sdpa")
    config = getattr(transformers, f"{kind}Config")(**fields)
    config._attn_implementation = attention
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    return getattr(transformers, kind + suffix)(config)


def inputs(**shape: int) -> dict[str, torch.Tensor]:
    x = tokens(**shape)
    return {"input_ids": x["tokens"], "labels": x["labels"]}


@pytest.mark.parametrize(("name", "mesh", "attention"), [
    ("llama", {"dp": 2, "tp": 2}, "sdpa"),
    ("llama", {"tp": 2}, "eager"),
    ("qwen3", {"tp": 2}, "sdpa"),
    ("gemma", {"tp": 2}, "sdpa"),
    ("gemma2", {"tp": 2}, "eager"),
    ("gpt2", {"dp": 2, "tp": 2}, "sdpa"),
    ("mixtral", {"dp": 2, "tp": 2}, "sdpa"),
    ("qwen3-moe", {"ep": 2}, "sdpa"),
])  # fmt: skip
def test_a_model_on_pieces_equals_the_whole(name: str, mesh: dict[str, int], attention: str) -> None:
    torch.manual_seed(0)
    module, given = made(name, attn_implementation=attention).eval(), inputs(length=8)
    graph = traced(module, given)
    assert graph.batch == 8, graph.notes
    drawn(module, given, planning(graph, mesh))


@pytest.mark.parametrize(
    ("name", "layers"), [("llama", "model.layers"), ("gpt2", "transformer.h"), ("qwen3-moe", "model.layers")]
)
def test_depth_adds_no_classes(name: str, layers: str) -> None:
    depth: Callable[[int], dict[str, int]] = lambda n: {"n_layer" if name == "gpt2" else "num_hidden_layers": n}  # noqa: E731
    with torch.device("meta"):
        two, four = (classes(traced(made(name, **depth(n)), inputs())) for n in (2, 4))
    assert two.n == four.n
    assert four.regions == {f"{layers}.*": tuple(f"{layers}.{i}" for i in range(4))}


LARGE: dict[str, dict[str, Any]] = {
    "qwen3-moe": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 32768, "max_position_embeddings": 2048, "num_experts": 32, "moe_intermediate_size": 1024,
    },
    "gpt2": {"n_embd": 1024, "n_head": 16, "n_layer": 3, "vocab_size": 32768, "n_positions": 2048},
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_plan_of_a_large_model_verifies_on_a_reduced_copy(name: str) -> None:
    with torch.device("meta"):
        module = made(name, **LARGE[name]).to(torch.bfloat16)
        given = {k: torch.empty(32, 2048, dtype=torch.int64) for k in ("input_ids", "labels")}
    plan = planned(module, given, {"ep": 8})
    if name == "qwen3-moe":
        assert plan.placements["model.layers.0.mlp.experts.gate_up_proj"] == "S(0)"
    found = verify(plan, {"module": module, "inputs": given})
    assert found["passed"], found
    assert sum(found["collectives_counted"].values()) > 10


def test_experts_that_loop_over_values_are_refused_with_the_setting_that_helps() -> None:
    from autoparallel_core.errors import SpecError

    module = made("mixtral")
    module.set_experts_implementation("eager")
    with pytest.raises(SpecError, match="experts_implementation='grouped_mm'"):
        traced(module, inputs())
