"""State-space hybrids: sub-layers, states, shared blocks."""

import pytest
from mixer_facts import JAMBA, NEMOTRON_3_NANO, counts, per_sequence, read

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.params import kv_bytes_per_token, state_bytes_per_sequence
from autoparallel_core.spec.op import ExpertGemm, Gemm, Scan, TokenExchange


def test_each_character_is_one_sub_layer():
    arch = read(NEMOTRON_3_NANO)
    assert arch.num_layers == 52
    assert counts(arch)["text"] == 31_577_937_344
    assert all(len(layer.blocks) == 1 for layer in arch.layers)
    names = {"M": "mamba2", "E": "moe", "*": "gqa"}
    assert [layer.kind for layer in arch.layers] == [names[c] for c in NEMOTRON_3_NANO["hybrid_override_pattern"]]


def test_nemotron_cache_and_state():
    arch = read(NEMOTRON_3_NANO)
    assert kv_bytes_per_token(arch, 2) == 6 * 2 * (2 * 128) * 2 == 6_144
    convolution = 3 * (64 * 64 + 2 * 8 * 128)  # x, and B and C by groups
    assert state_bytes_per_sequence(arch, 2) == 23 * (64 * 64 * 128 * 4 + convolution * 2)
    assert arch.fact("mamba_groups") == 8


def test_state_dtype_follows_the_config():
    arch = read(NEMOTRON_3_NANO, mamba_ssm_cache_dtype="bfloat16")
    assert per_sequence(arch, 0)["state"].dtype == "bf16"


def test_words_and_characters_say_the_same():
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = [words[c] for c in NEMOTRON_3_NANO["hybrid_override_pattern"]]
    arch = read(NEMOTRON_3_NANO, hybrid_override_pattern=..., layers_block_type=listed, num_hidden_layers=...)
    assert arch.layers == read(NEMOTRON_3_NANO).layers


def test_an_unknown_type_with_a_pattern_is_read_with_a_note():
    arch = read(NEMOTRON_3_NANO, model_type="newcomer")
    assert counts(arch) == counts(read(NEMOTRON_3_NANO))
    assert any("newcomer" in note for note in arch.notes)


def test_latent_experts_work_between_two_projections():
    arch = read(NEMOTRON_3_NANO, moe_latent_size=1024)
    ops = arch.layers[1].ops
    (up,) = [op for op in ops if isinstance(op, ExpertGemm) and op.name == "experts.up"]
    assert up.k.size == 1024
    assert {op.width.size for op in ops if isinstance(op, TokenExchange)} == {1024}
    router = next(op for op in ops if op.name == "router")
    assert isinstance(router, Gemm)
    assert router.k.size == 2688
    change = 23 * (2 * 2688 * 1024 + 128 * 2 * 1856 * (1024 - 2688))
    assert counts(arch)["text"] == 31_577_937_344 + change


def test_prediction_block_follows_its_own_pattern():
    (block,) = read(NEMOTRON_3_NANO, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E").mtp
    assert [b.kind for b in block.blocks] == ["mtp-in", "gqa", "moe", "mtp-head"]
    assumed = read(NEMOTRON_3_NANO, num_nextn_predict_layers=1)
    assert assumed.mtp == (block,)
    assert any("mtp_hybrid_override_pattern" in note for note in assumed.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": "MXM", "num_hidden_layers": 3}, "X.*known: M"),
        ({"num_hidden_layers": 51}, "num_hidden_layers is 51.*52"),
        ({"hybrid_override_pattern": ...}, "hybrid_override_pattern"),
        ({"ssm_state_size": ...}, "ssm_state_size"),
        ({"mamba_ssm_cache_dtype": "half"}, "mamba_ssm_cache_dtype"),
    ],
)
def test_a_wrong_nemotron_field_is_named(changes, message):
    with pytest.raises(SpecError, match=message):
        read(NEMOTRON_3_NANO, **changes)


def test_jamba_attends_once_in_eight_and_routes_in_every_other_layer():
    arch = read(JAMBA)
    assert counts(arch)["text"] == 51_570_323_328
    assert [i for i, layer in enumerate(arch.layers) if layer.blocks[0].kind == "gqa"] == [4, 12, 20, 28]
    assert [layer.blocks[1].kind for layer in arch.layers[:4]] == ["dense", "moe", "dense", "moe"]
    assert kv_bytes_per_token(arch, 2) == 4 * 2 * 8 * 128 * 2
    assert state_bytes_per_sequence(arch, 2) == 28 * (8192 * 16 * 4 + 3 * 8192 * 2)


BAMBA = {
    "model_type": "bamba", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 100, "intermediate_size": 96, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 1,
    "mamba_d_state": 32, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16, "tie_word_embeddings": False,
    "attn_layer_indices": [2], "torch_dtype": "bfloat16",
}  # fmt: skip


def test_bamba_attends_where_listed():
    arch = read(BAMBA)
    assert [layer.blocks[0].kind for layer in arch.layers] == ["mamba2", "mamba2", "gqa", "mamba2"]
    assert state_bytes_per_sequence(arch, 2) == 3 * (8 * 16 * 32 * 4 + 3 * (128 + 2 * 32) * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"mamba_d_head": 20}, "inner width"), ({"mamba_n_groups": 3}, "mamba_n_groups"), ({"mamba_d_state": ...}, "mamba_d_state")],
)
def test_inner_width_must_fit(changes, message):
    with pytest.raises(SpecError, match=message):
        read(BAMBA, **changes)


def test_falcon_h1_runs_both_mixers_in_one_layer():
    arch = read(BAMBA, model_type="falcon_h1", mamba_d_ssm=128, mamba_rms_norm=False, attn_layer_indices=...)
    (mixer, _) = arch.layers[0].blocks
    assert sum(isinstance(op, Scan) for op in mixer.ops) == 1
    assert kv_bytes_per_token(arch, 2) == 4 * 2 * 2 * 16 * 2
    assert state_bytes_per_sequence(arch, 2) == 4 * (8 * 16 * 32 * 4 + 3 * (128 + 2 * 32) * 2)


ZAMBA2 = {
    "model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 96, "n_mamba_heads": 8, "mamba_ngroups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"], "num_mem_blocks": 1, "adapter_rank": 8,
    "use_shared_attention_adapter": False, "add_bias_linear": False, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_zamba2_shares_one_transformer_block():
    arch = read(ZAMBA2)
    own = [sum(w.size for w in layer.weights() if w.module.startswith("shared_transformer")) for layer in arch.layers]
    attention = 3 * 128 * 128 + 128 * 64
    shared = attention + 3 * 64 * 96 + 128 + 64
    assert own == [0, shared, 0, 0, 0, 0]
    # the work is done, and a cache kept, at every use
    assert [len(layer.blocks[0].cache_per_token) for layer in arch.layers] == [0, 2, 0, 2, 2, 0]
    gemms = [sum(isinstance(op, Gemm) for op in layer.ops) for layer in arch.layers]
    assert gemms[1] == gemms[3] == gemms[4] > gemms[0]
    assert kv_bytes_per_token(arch, 2) == 3 * 2 * 4 * 32 * 2


def test_two_memory_blocks_alternate():
    arch = read(ZAMBA2, num_mem_blocks=2)
    owners = [i for i, layer in enumerate(arch.layers) if any(w.module.startswith("shared_transformer") for w in layer.weights())]
    assert owners == [1, 3]


def test_an_unknown_kind_is_refused():
    with pytest.raises(SpecError, match="layers_block_type"):
        read(ZAMBA2, layers_block_type=["mamba"] * 5 + ["odd"])
