"""Prediction blocks and towers."""

import pytest
from mixer_facts import DEEPSEEK_V3, DEEPSEEK_V32, QWEN3_NEXT_80B, counts, read

from autoparallel_core.errors import SpecError

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def test_deepseek_v3_prediction_block():
    """14B in the checkpoint, of which 2·129280·7168 are copies of the embedding and the head."""
    arch = read(DEEPSEEK_V3)
    layer = sum(w.size for w in arch.layers[-1].weights())
    h = 7168
    assert counts(arch)["mtp"] == 2 * h * h + 3 * h + layer
    assert counts(arch)["mtp"] == pytest.approx(11.5e9, rel=0.01)
    assert counts(arch)["total"] == counts(read(DEEPSEEK_V3, num_nextn_predict_layers=0))["total"]


def test_prediction_block_repeats_the_full_attention_layer():
    arch = read(QWEN3_NEXT_80B, mtp_num_hidden_layers=1, num_hidden_layers=6)
    assert [b.kind for b in arch.mtp[0].blocks] == ["mtp-in", "gqa-gated", "moe", "mtp-head"]


def test_prediction_block_owns_its_indexer():
    kinds = ["full", "shared", "shared", "shared"]
    arch = read(DEEPSEEK_V32, model_type="glm_moe_dsa", num_hidden_layers=4, indexer_types=kinds, first_k_dense_replace=0)
    assert arch.mtp[0].blocks[1].kind == "mla-sparse"


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ({}, 0), ({"num_nextn_predict_layers": 3}, 3), ({"mtp_num_hidden_layers": 1}, 1),
        ({"num_mtp_modules": 3, "use_mtp": True}, 3),
        ({"num_mtp_modules": 3, "use_mtp": False}, 0), ({"num_mtp_modules": 7, "num_nextn_predict_layers": 1}, 7),
    ],
)  # fmt: skip
def test_number_of_prediction_blocks(fields, blocks):
    arch = read(LLAMA, **fields)
    assert len(arch.mtp) == blocks
    assert any("MTP" in note for note in arch.notes) == (len(fields) == 2 and blocks == 7)


def test_dedicated_embeddings_and_deeper_blocks():
    plain = counts(read(LLAMA, mtp_num_hidden_layers=1))["mtp"]
    assert counts(read(LLAMA, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=True))["mtp"] == plain + 100 * 64
    layer = sum(w.size for w in read(LLAMA).layers[-1].weights())
    assert counts(read(LLAMA, mtp_num_hidden_layers=1, mtp_transformer_layers=2))["mtp"] == plain + layer


VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 4096, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip


def vision_language(model_type, text, vision, **fields):
    return {"model_type": model_type, "text_config": text, "vision_config": vision, "tie_word_embeddings": False} | fields


def test_qwen3_vl_tower():
    found = counts(read(vision_language("qwen3_vl", LLAMA | {"model_type": "qwen3_vl_text"}, VISION)))
    assert found["vision"] == 576_388_336  # tower of Qwen3-VL-8B
    assert found["total"] == found["text"] + found["vision"]


def test_siglip_tower_and_projector():
    vision = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896,
        "patch_size": 14, "num_channels": 3,
    }  # fmt: skip
    text = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8}
    found, plain = counts(read(vision_language("gemma3", text, vision))), counts(read(text))
    assert found["vision"] == 416_866_032
    assert found["text"] == plain["text"] + 1152 * 64 + 1152


def test_step_tower_is_assumed_with_a_note():
    arch = read(LLAMA, model_type="step3p7")
    assert counts(arch)["vision"] == 1_955_848_960
    assert any("vision tower" in note for note in arch.notes)


@pytest.mark.parametrize("part", ["vision_config", "audio_config"])
def test_unknown_tower_is_estimated_with_a_note(part):
    tower = {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 256}
    arch = read({"model_type": "novel_vl", "text_config": LLAMA, part: tower, "tie_word_embeddings": False})
    layer = 4 * (128 * 128 + 128) + (128 * 256 + 256) + (256 * 128 + 128) + 4 * 128
    assert counts(arch)["vision"] == 3 * layer
    assert any("novel_vl" in note for note in arch.notes)


def test_language_model_only_has_no_tower():
    config = vision_language("qwen3_vl", LLAMA | {"model_type": "qwen3_vl_text"}, VISION, language_model_only=True)
    assert counts(read(config))["vision"] == 0


@pytest.mark.parametrize("field", ["hidden_size", "depth", "patch_size"])
def test_a_missing_tower_field_is_named(field):
    vision = {k: v for k, v in VISION.items() if k != field}
    with pytest.raises(SpecError, match=rf"vision_config\.{field}"):
        read(vision_language("qwen3_vl", LLAMA | {"model_type": "qwen3_vl_text"}, vision))
