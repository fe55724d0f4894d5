"""Megatron-Core's TransformerConfig takes what the exported configuration sets, and refuses what we refuse."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from samples import MODELS, export, is_legal, needs, question, sample

pytestmark = needs("megatron.core")
SET_BY_THE_TRAINER = ("seq_length", "make_vocab_size_divisible_by")


def fields(text: str) -> dict[str, Any]:
    """``cfg.model.NAME = VALUE`` of bridge.py."""
    out = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if isinstance(target.value, ast.Attribute) and target.value.attr == "model":
                out[target.attr] = ast.literal_eval(node.value)
    return {k: v for k, v in out.items() if k not in SET_BY_THE_TRAINER}


def build(model: str, settings: dict[str, Any]) -> Any:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    c = MODELS[model][0]
    sizes: dict[str, Any] = {
        "num_layers": c["num_hidden_layers"], "hidden_size": c["hidden_size"], "num_attention_heads": c["num_attention_heads"],
        "num_query_groups": c["num_key_value_heads"], "ffn_hidden_size": c["intermediate_size"], "add_bias_linear": False,
        "bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16, "gated_linear_unit": True,
    }  # fmt: skip
    if "num_experts" in c:
        sizes |= {"num_moe_experts": c["num_experts"], "moe_router_topk": c["num_experts_per_tok"],
                  "moe_ffn_hidden_size": c["moe_intermediate_size"]}  # fmt: skip
    return TransformerConfig(**sizes, **settings)


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model):
    problem = question("megatron", model)
    legal, _ = sample(problem)
    for strategy in legal:
        settings = fields(export(problem, strategy, model)["bridge.py"])
        config = build(model, settings)
        assert config.tensor_model_parallel_size == strategy.tp
        assert config.expert_model_parallel_size == strategy.ep


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_what_it_refuses_we_refuse(model):
    """Degrees that the configuration class turns down, over every tp, pp and ep up to 16."""
    from autoparallel_core.spec.strategy import Strategy

    problem = question("megatron", model)
    refused = 0
    for tp in range(1, 17):
        for ep in (1, 2, 3, 4, 8, 16) if model == "sparse" else (1,):
            settings = {"tensor_model_parallel_size": tp, "sequence_parallel": tp > 1, "expert_model_parallel_size": ep,
                        "expert_tensor_parallel_size": 1}  # fmt: skip
            strategy = Strategy(tp=tp, sp=int(tp > 1), dp=max(64 // tp, 1), ep=ep, zero=1, shard=max(64 // tp, 1))
            try:
                build(model, settings)
            except (ValueError, AssertionError):
                refused += 1
                assert not is_legal(problem, strategy), f"tp {tp} ep {ep}"
    assert refused > 5


def test_layouts_that_it_refuses_we_refuse():
    """First and last layers of a pipeline: the class's checks and ours agree on every pair."""
    from autoparallel_core.host import host

    problem = question("megatron", "sparse")
    agreed = {True: 0, False: 0}
    base = "--tensor-model-parallel-size 1 --expert-tensor-parallel-size 1 --micro-batch-size 1 --global-batch-size 512"
    for pp in (3, 4, 6):
        for first in (None, 5, 6, 9, 12):
            for last in (None, 6, 9, 12):
                settings = {"pipeline_model_parallel_size": pp, "num_layers_in_first_pipeline_stage": first,
                            "num_layers_in_last_pipeline_stage": last}  # fmt: skip
                try:
                    build("sparse", settings)
                    accepted = True
                except (ValueError, AssertionError):
                    accepted = False
                flags = f"--pipeline-model-parallel-size {pp}" + "".join(
                    f" --decoder-{name}-pipeline-num-layers {n}" for name, n in (("first", first), ("last", last)) if n
                )
                launch = host().read({"a.sh": f"{base} {flags}"}, "megatron", problem)
                ours = not any("layers" in r.rule or "stages" in r.rule for r in launch.refusals)
                assert ours == accepted, f"pp {pp} first {first} last {last}: {[r.sentence for r in launch.refusals]}"
                agreed[accepted] += 1
    assert min(agreed.values()) > 5
