"""Dense feed-forwards: two or three matrices, widths, biases."""

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import parameter_counts

BASE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 96,
    "vocab_size": 100, "max_position_embeddings": 32, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def build(**changes):
    return build_arch({k: v for k, v in {**BASE, **changes}.items() if v is not ...}, name="m", host=host())


def mlp(arch):
    return parameter_counts(arch)["by_component"].get("mlp", 0)


@pytest.mark.parametrize(
    ("model_type", "fields", "matrices"),
    [
        ("llama", {}, 3),
        ("gemma", {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 8}, 3),  # gated GELU
        ("nemotron", {"hidden_act": "relu2"}, 2),
        ("arcee", {}, 2),
        ("gpt_ungated", {"gated_mlp": False}, 2),
        ("llama", {"gated_mlp": False}, 2),
        ("gpt_ungated", {"gated_mlp": True}, 3),
        ("newcomer", {"hidden_act": "silu"}, 3),
        ("newcomer", {"hidden_act": "gelu"}, 2),
        ("newcomer", {"hidden_act": "relu2"}, 2),
        ("newcomer", {}, 3),
    ],
)
def test_matrices(model_type, fields, matrices):
    assert mlp(build(model_type=model_type, **fields)) == 3 * matrices * 64 * 96


def test_an_unknown_types_gating_is_noted_only_where_nothing_says_it():
    assert any("gated" in n for n in build(model_type="newcomer").notes)
    assert not any("gated" in n for n in build(model_type="newcomer", hidden_act="silu").notes)
    assert not any("gated" in n for n in build().notes)


def test_biases():
    assert mlp(build(mlp_bias=True)) == 3 * (3 * 64 * 96 + 2 * 96 + 64)
    assert mlp(build(model_type="gpt_neox")) == 3 * (2 * 64 * 96 + 96 + 64)
    assert mlp(build(model_type="opt", enable_bias=False)) == 3 * 2 * 64 * 96


def test_a_width_per_layer():
    assert mlp(build(intermediate_size=[96, 32, 64])) == 3 * 64 * (96 + 32 + 64)
    with pytest.raises(SpecError, match="intermediate_size"):
        build(intermediate_size=[96, 32])
    with pytest.raises(SpecError, match="intermediate_size"):
        build(intermediate_size=[96, None, 64])


def test_a_null_width_is_four_times_hidden_only_for_types_that_say_so():
    assert mlp(build(model_type="gptj", intermediate_size=..., n_inner=None)) == 3 * (2 * 64 * 256 + 256 + 64)
    assert mlp(build(model_type="mpt", intermediate_size=..., expansion_ratio=2)) == 3 * 2 * 64 * 128
    with pytest.raises(SpecError, match="intermediate_size"):
        build(intermediate_size=None)


def test_parallel_layers_have_no_norm_of_their_own():
    arch = build(model_type="gptj")
    assert not [op for op in arch.layers[0].blocks[1].ops if op.kind == "elementwise" and op.role == "norm"]


def test_doubled_widths_of_layers_without_a_cache():
    fields = {"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0}
    plain = mlp(build(**fields))
    assert mlp(build(**fields, num_kv_shared_layers=1, use_double_wide_mlp=True)) == plain * 4 // 3


def test_per_layer_inputs_are_counted_with_the_embedding_and_the_layers():
    fields = {"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 8, "vocab_size_per_layer_input": 50}
    without, with_input = (parameter_counts(build(**fields, hidden_size_per_layer_input=n))["by_component"] for n in (0, 16))
    assert with_input["embedding"] - without["embedding"] == 50 * 3 * 16 + 64 * 3 * 16
    assert with_input["other"] == 3 * 2 * 64 * 16
    assert with_input["norm"] - without["norm"] == 3 * 64 + 16


def test_activation_scalars_and_inner_norms():
    assert mlp(build(model_type="apertus")) == 3 * (2 * 64 * 96 + 2)
    extra = parameter_counts(build(model_type="bitnet"))["by_component"]["norm"]
    assert extra - parameter_counts(build())["by_component"]["norm"] == 3 * (64 + 96)
