"""Latent attention, its sparse indexer, and compressed sparse attention."""

import pytest
from mixer_facts import DEEPSEEK_V3, DEEPSEEK_V4_FLASH, DEEPSEEK_V32, counts, per_token, read

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.params import kv_bytes_per_sequence, kv_bytes_per_token, state_bytes_per_sequence
from autoparallel_core.spec.op import Attention


def test_deepseek_v3_has_its_published_size_and_active_part():
    found = counts(read(DEEPSEEK_V3))
    assert found["text"] == 671_026_404_352
    assert found["active"] == pytest.approx(37.5e9, rel=0.01)  # 37B, published without the embedding


def test_one_latent_per_token_is_cached_whole_on_every_rank():
    arch = read(DEEPSEEK_V3)
    latent = per_token(arch, 0)["latent"]
    assert (latent.axis.name, latent.axis.size) == ("latent", 512 + 64)
    assert kv_bytes_per_token(arch, 2) == 61 * 576 * 2 == 70_272
    assert state_bytes_per_sequence(arch, 2) == 0


@pytest.mark.parametrize("head_dim", [64, 192])
def test_head_dim_of_a_latent_config_is_ignored(head_dim):
    assert read(DEEPSEEK_V3, head_dim=head_dim).layers == read(DEEPSEEK_V3).layers


def test_query_without_a_latent_has_one_matrix():
    layer = read(DEEPSEEK_V3, q_lora_rank=None).layers[0]
    sizes = {w.module: w.size for w in layer.weights()}
    assert sizes["self_attn.q_proj"] == 7168 * 128 * (128 + 64)
    assert not any("q_a" in m for m in sizes)


def test_indexer_keys_are_cached_beside_the_latent():
    arch = read(DEEPSEEK_V32)
    assert counts(arch)["text"] == 671_877_929_216
    # 128 fp8 values and one fp32 scale per key
    assert kv_bytes_per_token(arch, 2) == 61 * (576 * 2 + 132)
    scores = [op for op in arch.layers[0].ops if isinstance(op, Attention) and not op.v_width]
    assert [(op.heads.units, op.heads.width, op.kv_heads.units) for op in scores] == [(64, 128, 1)]
    (core,) = [op for op in arch.layers[0].ops if isinstance(op, Attention) and op.v_width]
    assert core.top_k_keys == 2048


def test_layers_that_share_a_selection_own_no_indexer():
    kinds = ["full", "full", "shared", "shared"]
    arch = read(DEEPSEEK_V32, num_hidden_layers=4, indexer_types=kinds, model_type="glm_moe_dsa")
    assert [layer.blocks[0].kind for layer in arch.layers] == [
        "mla-sparse",
        "mla-sparse",
        "mla-sparse-shared",
        "mla-sparse-shared",
    ]
    assert kv_bytes_per_token(arch, 2) == 4 * 576 * 2 + 2 * 132


@pytest.mark.parametrize(
    ("freq", "offset", "full"), [(1, 2, [0, 1, 2, 3, 4, 5, 6, 7]), (4, 3, [0, 1, 2, 6]), (3, 0, [2, 5]), (2, 2, [0, 1, 3, 5, 7])]
)
def test_every_freq_th_layer_after_the_offset_selects(freq, offset, full):
    arch = read(
        DEEPSEEK_V32, model_type="glm_moe_dsa", num_hidden_layers=8, index_topk_freq=freq, index_skip_topk_offset=offset
    )  # fmt: skip
    assert [i for i, layer in enumerate(arch.layers) if layer.blocks[0].kind == "mla-sparse"] == full


def test_indexer_pattern_as_a_string():
    arch = read(DEEPSEEK_V32, model_type="glm_moe_dsa", num_hidden_layers=3, index_topk_pattern="FSF")
    assert ["shared" in layer.blocks[0].kind for layer in arch.layers] == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"index_head_dim": ...}, "index_head_dim"),
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["half"] * 61}, "indexer_types"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"v_head_dim": "wide"}, "v_head_dim"),
    ],
)
def test_a_missing_or_wrong_field_is_named(changes, message):
    with pytest.raises(SpecError, match=message):
        read(DEEPSEEK_V32, **changes)


def test_an_unknown_type_with_a_latent_rank_is_read_with_a_note():
    arch = read(DEEPSEEK_V3, model_type="newcomer", architectures=["NewcomerForCausalLM"])
    assert arch.layers[0].blocks[0].kind == "mla"
    assert any("newcomer" in note and "kv_lora_rank" in note for note in arch.notes)


# --- compressed sparse attention -------------------------------------------------------------------------------


def test_deepseek_v4_flash_has_its_published_size():
    found = counts(read(DEEPSEEK_V4_FLASH))
    assert found["text"] == 284_332_230_231
    assert found["active"] == pytest.approx(13.3e9, rel=0.05)  # 13B active, published


def test_compressed_keys_are_cached_once_per_ratio():
    arch = read(DEEPSEEK_V4_FLASH)
    assert [arch.layers[i].blocks[0].kind for i in (0, 2, 3)] == ["window", "csa", "hca"]
    window = per_token(arch, 0)["kv_window"]
    assert (window.axis.size, window.limit_tokens) == (512, 128)
    tokens = 1_000_000
    per_window = 43 * 128 * 512 * 2
    csa = 21 * (tokens / 4) * (512 * 2 + 132)
    hca = 20 * (tokens / 128) * 512 * 2
    assert kv_bytes_per_sequence(arch, tokens, 2) == per_window + csa + hca


def test_a_small_ratio_selects_keys_and_a_large_one_reads_all():
    arch = read(DEEPSEEK_V4_FLASH)

    def compressed(layer):
        return next(op for op in arch.layers[layer].ops if op.name == "compressed_attention")

    assert (compressed(2).tokens_per_key, compressed(2).top_k_keys) == (4, 512)
    assert (compressed(3).tokens_per_key, compressed(3).top_k_keys) == (128, None)


def test_a_re_upload_under_another_type_is_the_same_model():
    arch = read(DEEPSEEK_V4_FLASH, model_type="deepseek_ref", architectures=["DeepseekV4ForCausalLM"])
    assert counts(arch)["text"] == 284_332_230_231
    assert read(DEEPSEEK_V4_FLASH, model_type="deepseek_ref").layers == arch.layers


def test_its_prediction_block_uses_the_ratio_after_the_last_layer():
    (block,) = read(DEEPSEEK_V4_FLASH).mtp
    assert [b.kind for b in block.blocks] == ["mtp-in", "window", "moe", "mtp-head"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios"),
        ({"compress_ratios": "4"}, "compress_ratios"),
        ({"compress_ratios": ...}, "compress_ratios"),
        ({"o_groups": 7}, "o_groups"),
        ({"index_topk": ...}, "index_topk"),
        ({"layer_types": ["odd"] * 43, "compress_ratios": ...}, "layer_types"),
    ],
)
def test_a_wrong_compressed_field_is_named(changes, message):
    with pytest.raises(SpecError, match=message):
        read(DEEPSEEK_V4_FLASH, **changes)
