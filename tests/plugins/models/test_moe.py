"""Mixtures of experts: which layers, how many, how wide, what is shared."""

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import parameter_counts
from autoparallel_core.spec.op import ExpertGemm

H, FE, E, L = 64, 16, 8, 6
BASE = {
    "model_type": "qwen3_moe", "hidden_size": H, "num_hidden_layers": L, "num_attention_heads": 8, "head_dim": 8,
    "intermediate_size": 96, "moe_intermediate_size": FE, "num_experts": E, "num_experts_per_tok": 2, "vocab_size": 100,
    "max_position_embeddings": 32, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERT = 3 * H * FE


def build(**changes):
    return build_arch({k: v for k, v in {**BASE, **changes}.items() if v is not ...}, name="m", host=host())


def sizes(arch):
    return parameter_counts(arch)["by_component"]


def where(arch):
    return "".join("E" if any(isinstance(op, ExpertGemm) for op in layer.ops) else "d" for layer in arch.layers)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "EEEEEE"),
        ({"num_experts": 0}, "dddddd"),
        ({"num_experts": None}, "dddddd"),
        ({"first_k_dense_replace": 2}, "ddEEEE"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "ddEdEd"),
        ({"moe_layer_freq": 1}, "EEEEEE"),
        ({"moe_layer_freq": [0, 0, 1, 1, 0, 1]}, "ddEEdE"),
        ({"moe_layer_freq": [0, 0, 1, 1, 0, 1], "first_k_dense_replace": 5}, "ddEEdE"),  # the list wins
        ({"decoder_sparse_step": 2}, "dEdEdE"),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 3]}, "dEEdEE"),
        ({"decoder_sparse_step": 0}, "dddddd"),
        ({"interleave_moe_layer_step": 3}, "ddEddE"),
        ({"moe_layers": [1, 4]}, "dEddEd"),
        ({"moe_layers_enum": "2,3,5"}, "ddEEdE"),
        ({"mlp_layer_types": ["dense", "sparse"] * 3}, "dEdEdE"),
        ({"is_moe_layer": [0, 1, 1, 0, 0, 1]}, "dEEddE"),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 1}, "dEEEdd"),
        ({"num_dense_layers": 2}, "ddEEEE"),
    ],
)
def test_which_layers_hold_experts(fields, expected):
    arch = build(**fields)
    assert where(arch) == expected
    assert sizes(arch).get("experts", 0) == expected.count("E") * E * EXPERT
    assert sizes(arch).get("mlp", 0) == expected.count("d") * 3 * H * 96


def test_a_list_that_ends_early_is_refused():
    with pytest.raises(SpecError, match="moe_layer_freq"):
        build(moe_layer_freq=[0, 1])
    with pytest.raises(SpecError, match="mlp_only_layers"):
        build(mlp_only_layers=True)


@pytest.mark.parametrize("name", ["n_routed_experts", "num_local_experts", "moe_num_experts"])
def test_names_of_the_number_of_experts(name):
    assert build(num_experts=..., **{name: E}).num_experts == E


@pytest.mark.parametrize("name", ["num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k"])
def test_names_of_the_number_per_token(name):
    assert build(num_experts_per_tok=..., **{name: 3}).top_k == 3


def test_experts_are_as_wide_as_the_feed_forward_where_no_width_of_theirs_is_given():
    arch = build(moe_intermediate_size=...)
    assert sizes(arch)["experts"] == L * E * 3 * H * 96


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, 0),
        ({"n_shared_experts": 0}, 0),
        ({"n_shared_experts": None}, 0),
        ({"n_shared_experts": 2}, 2 * FE),
        ({"num_shared_experts": 1}, FE),
        ({"shared_expert_intermediate_size": 40}, 40),
        ({"shared_expert_intermediate_size": 0}, 0),
        ({"shared_intermediate_size": 0}, 0),
        ({"n_shared_experts": 1, "shared_intermediate_size": 24}, 24),
        ({"n_shared_experts": 2, "shared_expert_intermediate_size": 40}, 40),  # the total, as run records state it
        ({"n_shared_experts": 1, "share_expert_dim": 24}, 24),
        ({"num_shared_expert": [1, 1]}, FE),
    ],
)
def test_shared_experts(fields, width):
    assert sizes(build(**fields)).get("shared_experts", 0) == L * 3 * H * width


def test_the_shared_experts_gate_and_llama_4s_unstated_shared_expert():
    arch = build(model_type="qwen2_moe", shared_expert_intermediate_size=40)
    assert sizes(arch)["shared_experts"] == L * (3 * H * 40 + H)
    arch = build(model_type="llama4_text", moe_intermediate_size=..., intermediate_size=FE, interleave_moe_layer_step=2,
                 intermediate_size_mlp=96)  # fmt: skip
    assert where(arch) == "dEdEdE"
    assert sizes(arch)["shared_experts"] == 3 * EXPERT
    assert sizes(arch)["mlp"] == 3 * 3 * H * 96


def test_biases_and_corrections_of_routers_and_experts():
    arch = build(model_type="gpt_oss", moe_intermediate_size=..., intermediate_size=FE)
    assert sizes(arch)["router"] == L * (H * E + E)
    assert sizes(arch)["experts"] == L * E * (EXPERT + 2 * FE + H)
    assert sizes(build(model_type="ernie4_5_moe"))["router"] == L * (H * E + E)
    assert sizes(build(model_type="glm4_moe"))["router"] == L * H * E  # its correction is a buffer, not a parameter


def test_experts_beside_a_dense_feed_forward():
    arch = build(model_type="gemma4_text", enable_moe_block=True, hidden_size_per_layer_input=0, global_head_dim=8)
    assert sizes(arch)["mlp"] == L * 3 * H * 96
    assert sizes(arch)["experts"] == L * E * EXPERT
    assert sizes(arch)["router"] == L * (H * E + H + E)
    dense = build(model_type="gemma4_text", enable_moe_block=False, hidden_size_per_layer_input=0, global_head_dim=8)
    assert "experts" not in sizes(dense)
    assert sizes(arch)["norm"] - sizes(dense)["norm"] == L * 3 * H


def test_active_parameters_count_the_visited_experts():
    counts = parameter_counts(build(n_shared_experts=1))
    assert counts["active"] == counts["text"] - L * (E - 2) * EXPERT


def test_more_experts_per_token_than_experts_are_refused():
    with pytest.raises(SpecError, match="num_experts_per_tok 9 exceeds the 8 experts"):
        build(num_experts_per_tok=9)
    with pytest.raises(SpecError, match="num_experts_per_tok"):
        build(num_experts_per_tok=None)


@pytest.mark.parametrize("field", ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"])
@pytest.mark.parametrize("value", [-1, "8", 1.5])
def test_wrong_values_name_the_field(field, value):
    with pytest.raises(SpecError, match=field):
        build(**{field: value})


def test_run_records_minimal_models():
    """A model as run records state it: Mixtral-8x7B under the fields that matter."""
    record = {
        "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128,
        "num_key_value_heads": 8, "intermediate_size": 14336, "moe_intermediate_size": 14336, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "first_k_dense_replace": 0, "moe_layer_freq": 1, "n_shared_experts": 0, "gated_mlp": True,
        "shared_expert_intermediate_size": 0, "tie_word_embeddings": False, "vocab_size": 32000,
    }  # fmt: skip
    counts = parameter_counts(build_arch(record, name="r", host=host()))
    assert counts["text"] == 46_702_792_704 + 32 * 2 * 128  # the type's query and key norms
    assert counts["by_component"]["experts"] == 32 * 8 * 3 * 4096 * 14336
