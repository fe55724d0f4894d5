"""Linear-attention hybrids: which layer is which, what each caches."""

import pytest
from mixer_facts import DEEPSEEK_V3, KIMI_LINEAR_48B, MINIMAX_M1, QWEN3_NEXT_80B, counts, per_sequence, per_token, read

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.params import kv_bytes_per_token, state_bytes_per_sequence
from autoparallel_core.spec.op import Scan


def kinds(arch):
    return [layer.blocks[0].kind for layer in arch.layers]


# --- gated delta ------------------------------------------------------------------------------------------------


def test_every_fourth_layer_attends_with_a_gate():
    arch = read(QWEN3_NEXT_80B)
    assert counts(arch)["text"] == 79_674_391_296
    assert kinds(arch) == (["gated-delta"] * 3 + ["gqa-gated"]) * 12
    assert kv_bytes_per_token(arch, 2) == 12 * 2 * (2 * 256) * 2 == 24_576


def test_gated_delta_state_and_convolution():
    arch = read(QWEN3_NEXT_80B)
    state = per_sequence(arch, 0)["state"]
    assert (state.axis.units, state.axis.size, state.dtype) == (32, 32 * 128 * 128, "fp32")
    convolution = 3 * (2 * 16 * 128 + 32 * 128)  # last three inputs of queries, keys and values
    assert state_bytes_per_sequence(arch, 2) == 36 * (32 * 128 * 128 * 4 + convolution * 2)
    assert per_token(arch, 0) == {}
    # an fp8 key/value cache leaves the states as they are
    assert state_bytes_per_sequence(arch, 1) == state_bytes_per_sequence(arch, 2)


def test_a_16_bit_state_is_honoured():
    arch = read(QWEN3_NEXT_80B, mamba_ssm_dtype="bfloat16")
    assert per_sequence(arch, 0)["state"].dtype == "bf16"


def test_query_gate_doubles_the_query_projection():
    weights = {w.module: w.size for w in read(QWEN3_NEXT_80B).layers[3].weights()}
    assert weights["self_attn.q_proj"] == 2048 * 16 * 256 * 2


def test_heads_of_the_scan_for_divisibility_rules():
    (scan,) = [op for op in read(QWEN3_NEXT_80B).layers[0].ops if isinstance(op, Scan)]
    assert (scan.heads.units, scan.key_heads.units, scan.conv_width) == (32, 16, 4)
    assert read(QWEN3_NEXT_80B).fact("linear_key_heads") == 16


def test_listed_layers_win_over_the_interval():
    listed = ["full_attention", *["linear_attention"] * 47]
    assert kinds(read(QWEN3_NEXT_80B, layer_types=listed)) == ["gqa-gated", *["gated-delta"] * 47]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["odd"] * 48}, "layer_types"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads"),
        ({"linear_key_head_dim": ...}, "linear_key_head_dim"),
        ({"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
    ],
)
def test_a_wrong_gated_delta_field_is_named(changes, message):
    with pytest.raises(SpecError, match=message):
        read(QWEN3_NEXT_80B, **changes)


# --- KDA --------------------------------------------------------------------------------------------------------


def test_kimi_linear_counts_layers_from_one():
    arch = read(KIMI_LINEAR_48B)
    assert [i + 1 for i, kind in enumerate(kinds(arch)) if kind == "mla"] == [4, 8, 12, 16, 20, 24, 27]
    assert kv_bytes_per_token(arch, 2) == 7 * 576 * 2
    convolution = 3 * (3 * 32 * 128)
    assert state_bytes_per_sequence(arch, 2) == 20 * (32 * 128 * 128 * 4 + convolution * 2)
    assert counts(arch)["text"] == pytest.approx(49.1e9, rel=0.002)  # 48B-A3B


def test_a_layer_in_both_lists_is_refused():
    both = KIMI_LINEAR_48B["linear_attn_config"] | {"kda_layers": list(range(1, 28))}
    with pytest.raises(SpecError, match=r"layer 4 .*both lists"):
        read(KIMI_LINEAR_48B, linear_attn_config=both)


def test_ling_hybrid_ends_each_group_with_latent_attention():
    config = KIMI_LINEAR_48B | {"model_type": "bailing_hybrid", "num_hidden_layers": 10, "layer_group_size": 4, "head_dim": 128}
    arch = read(config, linear_attn_config=...)
    # the last two layers fill no group and attend, too
    assert kinds(arch) == ["kda", "kda", "kda", "mla"] * 2 + ["mla", "mla"]


# --- lightning --------------------------------------------------------------------------------------------------


def test_minimax_m1_is_seven_to_one_and_456_billion():
    arch = read(MINIMAX_M1)
    assert kinds(arch) == (["lightning"] * 7 + ["gqa"]) * 10
    assert counts(arch)["text"] == pytest.approx(456e9, rel=0.001)
    assert counts(arch)["active"] == pytest.approx(45.9e9, rel=0.06)  # 45.9B activated, published
    assert kv_bytes_per_token(arch, 2) == 10 * 2 * 8 * 128 * 2
    assert state_bytes_per_sequence(arch, 2) == 70 * 64 * 128 * 128 * 4


def test_a_missing_list_takes_the_types_period_with_a_note():
    arch = read(MINIMAX_M1, attn_type_list=..., num_key_value_heads=...)
    assert arch.layers == read(MINIMAX_M1).layers
    assert any("attn_type_list" in note for note in arch.notes)
    assert any("num_key_value_heads" in note for note in arch.notes)


@pytest.mark.parametrize("bad", [[0, 1], [2] * 80])
def test_a_wrong_attn_type_list_is_refused(bad):
    with pytest.raises(SpecError, match="attn_type_list"):
        read(MINIMAX_M1, attn_type_list=bad)


def test_ling_linear_mixes_lightning_and_grouped_attention():
    config = {
        "model_type": "bailing_moe_linear_v2", "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000, "intermediate_size": 100, "layer_group_size": 5,
        "use_qk_norm": True, "hidden_act": "silu", "tie_word_embeddings": False, "group_norm_size": 4,
    }  # fmt: skip
    arch = read(config)
    assert kinds(arch) == ["lightning"] * 4 + ["gqa"]
    attention = 256 * 256 * 5 + 256 + 2 * 32 + 256  # q, k, v, gate, out; full-width norm; two head norms; layer norm
    assert sum(w.size for w in arch.layers[0].blocks[0].weights()) == attention
    assert state_bytes_per_sequence(arch, 2) == 4 * 8 * 32 * 32 * 4
    assert kv_bytes_per_token(arch, 2) == 2 * 2 * 32 * 2


def test_other_types_are_left_alone():
    assert kinds(read(DEEPSEEK_V3))[0] == "mla"


@pytest.mark.parametrize(
    ("config", "kind"), [(KIMI_LINEAR_48B, "kda"), (QWEN3_NEXT_80B, "gated-delta"), (MINIMAX_M1, "lightning")]
)
def test_an_unknown_type_is_read_by_its_fields_with_a_note(config, kind):
    arch = read(config, model_type="newcomer", architectures=["NewcomerForCausalLM"])
    assert kinds(arch) == kinds(read(config))
    assert kinds(arch)[0] == kind
    assert any("newcomer" in note for note in arch.notes)


def test_a_list_of_full_attention_only_is_no_lightning_model():
    config = MINIMAX_M1 | {"model_type": "newcomer", "attn_type_list": [1] * 80}
    with pytest.raises(SpecError, match="newcomer"):
        read(config)
