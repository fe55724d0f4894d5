"""Attention layers: shapes, biases, norms, windows and cache, from hand calculations."""

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import kv_bytes_per_sequence, kv_bytes_per_token, parameter_counts
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Attention
from autoparallel_gqa.families import _table
from autoparallel_gqa.windows import attention_kind

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def build(model_type="llama", **changes):
    config = {"model_type": model_type, **BASE, **changes}
    return build_arch({k: v for k, v in config.items() if v is not ...}, name="m", host=host())


def attention_of(arch, layer=0):
    return next(op for op in arch.layers[layer].ops if isinstance(op, Attention))


def component(arch, name):
    return parameter_counts(arch)["by_component"].get(name, 0)


def modules(arch, layer=0):
    return {w.module: w.size for w in arch.layers[layer].weights()}


# -- heads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv", "kind"), [(8, "mha"), (2, "gqa"), (1, "mqa")])
def test_cache_and_projections_follow_the_key_value_heads(kv, kind):
    arch = build(num_key_value_heads=kv)
    assert arch.layers[0].blocks[0].kind == kind
    assert kv_bytes_per_token(arch, 2) == 4 * 2 * kv * 8 * 2
    assert component(arch, "attention") == 4 * (2 * 64 * 64 + 2 * 64 * kv * 8)
    assert (arch.num_heads, arch.num_kv_heads) == (8, kv)


def test_absent_key_value_heads_are_as_many_as_query_heads():
    for value in (..., None):
        assert build(num_key_value_heads=value).num_kv_heads == 8


def test_published_cache_sizes():
    """Llama-3.1-70B: 2 · 80 layers · 8 heads · 128 · 2 B = 327,680 B; gpt-j: 2 · 28 · 4096 · 2 B; one head in Falcon-7B."""
    large = build(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, intermediate_size=28672)
    assert kv_bytes_per_token(large, 2) == 327_680
    gptj = {"n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "vocab_size": 50400, "tie_word_embeddings": False}
    assert kv_bytes_per_token(build_arch({"model_type": "gptj", **gptj}, name="j", host=host()), 2) == 458_752
    falcon = build("falcon", hidden_size=4544, num_attention_heads=71, num_key_value_heads=..., num_hidden_layers=32,
                   multi_query=True, new_decoder_architecture=False, parallel_attn=True)  # fmt: skip
    assert kv_bytes_per_token(falcon, 2) == 2 * 32 * 64 * 2


def test_head_width_is_its_own_where_given():
    arch = build(head_dim=32)
    assert component(arch, "attention") == 4 * (2 * 64 * 8 * 32 + 2 * 64 * 2 * 32)
    assert kv_bytes_per_token(arch, 2) == 4 * 2 * 2 * 32 * 2


def test_an_uneven_head_width_is_rounded_down_with_a_note():
    arch = build(hidden_size=100, num_attention_heads=8)
    assert attention_of(arch).heads.width == 12
    assert any("head_dim is not given" in note for note in arch.notes)


def test_heads_that_do_not_group_are_refused():
    with pytest.raises(SpecError, match="8 attention heads are not a multiple of 3"):
        build(num_key_value_heads=3)


def test_grouped_heads_of_a_nested_attention_config():
    assert build("mpt", num_key_value_heads=..., attn_config={"kv_n_heads": 4, "alibi": True}).num_kv_heads == 4


@pytest.mark.parametrize(("new", "multi", "heads"), [(False, True, 1), (False, False, 8), (True, True, 2)])
def test_a_multi_query_flag_is_ignored_by_the_new_falcon_layout(new, multi, heads):
    kv = 2 if new else ...
    arch = build("falcon", num_key_value_heads=kv, new_decoder_architecture=new, multi_query=multi)
    assert arch.num_kv_heads == heads


def test_keys_and_values_of_different_width_and_heads_per_kind_of_layer():
    """MiMo-V2-Flash: K is 192 wide, V 128; 8 key/value heads in sliding layers, 4 in full ones."""
    arch = build("mimo_v2_flash", num_key_value_heads=4, head_dim=192, v_head_dim=128, swa_num_key_value_heads=8,
                 swa_head_dim=192, swa_v_head_dim=128, hybrid_layer_pattern=[0, 1, 1, 1], sliding_window=128)  # fmt: skip
    full, sliding = 4 * (192 + 128) * 2, 8 * (192 + 128) * 2
    assert kv_bytes_per_token(arch, 2) == full + 3 * sliding
    assert kv_bytes_per_sequence(arch, 1000, 2) == 1000 * full + 128 * 3 * sliding
    assert [m for m in modules(arch) if "sinks" in m] == []
    assert modules(arch, 1)["self_attn.sinks"] == 8
    assert modules(arch)["self_attn.o_proj"] == 8 * 128 * 64


def test_global_layers_with_wide_heads_whose_value_is_the_key():
    """Gemma-4-26B-A4B: 8 heads of 256 in sliding layers; 2 heads of 512 without value projection in full layers."""
    arch = build("gemma4_text", num_attention_heads=16, num_key_value_heads=8, head_dim=256, global_head_dim=512,
                 num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=1024, hidden_size_per_layer_input=0,
                 layer_types=["sliding_attention"] * 3 + ["full_attention"])  # fmt: skip
    assert "self_attn.v_proj" in modules(arch)
    assert "self_attn.v_proj" not in modules(arch, 3)
    assert modules(arch, 3)["self_attn.k_proj"] == 64 * 2 * 512
    sliding, full = 2 * 8 * 256 * 2, 2 * 2 * 512 * 2
    assert kv_bytes_per_token(arch, 2) == 3 * sliding + full
    assert kv_bytes_per_sequence(arch, 5000, 2) == 1024 * 3 * sliding + 5000 * full


def test_layers_that_share_an_earlier_layers_cache_keep_nothing():
    arch = build("gemma4_text", head_dim=8, global_head_dim=8, num_kv_shared_layers=2, hidden_size_per_layer_input=0,
                 layer_types=["full_attention"] * 4)  # fmt: skip
    assert kv_bytes_per_token(arch, 2) == 2 * 2 * 2 * 8 * 2
    assert {"self_attn.k_proj", "self_attn.k_norm.weight"} & set(modules(arch, 3)) == set()


def test_heads_per_layer_from_overrides():
    arch = build("laguna", num_attention_heads_per_layer=[8, 16, 8, 16], head_dim=8)
    assert [attention_of(arch, i).heads.units for i in range(4)] == [8, 16, 8, 16]
    overrides = {"per_layer_config": {"02": {"num_attention_heads": 4, "head_dim": 16}}}
    arch = build("step3p5", head_dim=8, **overrides)
    assert (attention_of(arch, 2).heads.units, attention_of(arch, 2).heads.width) == (4, 16)
    assert attention_of(arch, 1).heads.units == 8


# -- windows --------------------------------------------------------------------------------------------------------


def kinds(arch):
    return "".join({"full": "F", "sliding": "S", "chunked": "C"}[b.kind.partition("_")[2] or "full"] for b in
                   (layer.blocks[0] for layer in arch.layers))  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, "FFFF"),
        ("mistral", {"sliding_window": 16}, "SSSS"),
        ("mistral", {"sliding_window": None}, "FFFF"),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False, "max_window_layers": 2}, "FFFF"),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}, "FFSS"),
        ("gemma2", {"head_dim": 8}, "SFSF"),
        ("gemma3_text", {"head_dim": 8, "sliding_window": 16, "sliding_window_pattern": 2}, "SFSF"),
        ("gpt_oss", {"sliding_window": 16}, "SFSF"),
        ("cohere2", {"sliding_window": 16}, "SSSF"),
        ("exaone4", {"sliding_window": 16, "sliding_window_pattern": "LLG"}, "SSFS"),
        ("llama4", {"attention_chunk_size": 16}, "CCCF"),
        ("llama4", {"attention_chunk_size": 16, "no_rope_layers": [1, 0, 1, 0]}, "CFCF"),
        ("llama4", {"attention_chunk_size": None}, "FFFF"),
        ("smollm3", {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2}, "FSFS"),
        ("gpt_neo", {"window_size": 16, "attention_layers": ["global", "local"] * 2}, "FSFS"),
        ("qwen3_moe", {"sliding_window": 16, "sliding_window_pattern": "alternating (1 of 2 layers)"}, "SFSF"),
    ],
)
def test_which_layers_are_local(model_type, fields, expected):
    assert kinds(build(model_type, **fields)) == expected


def test_a_window_limits_the_cache():
    arch = build("mistral", sliding_window=16)
    per_token = 4 * 2 * 2 * 8 * 2
    assert kv_bytes_per_sequence(arch, 10, 2) == 10 * per_token
    assert kv_bytes_per_sequence(arch, 10_000, 2) == 16 * per_token


def test_a_window_that_no_field_places_is_noted_and_not_applied():
    arch = build("newcomer", sliding_window=16)
    assert kinds(arch) == "FFFF"
    assert any("sliding_window" in note for note in arch.notes)


def test_a_wrong_window_is_refused():
    with pytest.raises(SpecError, match="sliding_window"):
        build("mistral", sliding_window="wide")
    with pytest.raises(SpecError, match="'layer_types' lists 2 layers"):
        build(layer_types=["full_attention"] * 2)
    with pytest.raises(SpecError, match="sliding_window is not given"):
        build(layer_types=["sliding_attention"] * 4)
    with pytest.raises(SpecError, match="sliding_window_pattern"):
        build("gemma3_text", head_dim=8, sliding_window=16, sliding_window_pattern="zigzag")


def test_linear_layers_are_not_claimed():
    config = ConfigView({"layer_types": ["linear_attention", "full_attention"]}, name="m")
    assert attention_kind(config, 0) is None
    assert attention_kind(config, 1) == "full"


# -- biases, norms, gates -------------------------------------------------------------------------------------------


def bias_sizes(arch):
    return {m.split(".")[1]: s for m, s in modules(arch).items() if m.endswith(".bias") and m.startswith("self_attn")}


def test_biases():
    qkv = {"q_proj": 64, "k_proj": 16, "v_proj": 16}
    assert bias_sizes(build()) == {}
    assert bias_sizes(build(attention_bias=True)) == {**qkv, "o_proj": 64}
    assert bias_sizes(build("qwen2")) == qkv
    assert bias_sizes(build("qwen2", attention_bias=True)) == qkv  # as converted configs state it
    assert bias_sizes(build("glm4_moe", num_experts=None, attention_bias=True)) == qkv
    assert bias_sizes(build("seed_oss", attention_bias=True, attention_out_bias=False)) == qkv
    assert bias_sizes(build("starcoder2", use_bias=False)) == {}
    assert bias_sizes(build("starcoder2", use_bias=True)) == {**qkv, "o_proj": 64}
    assert bias_sizes(build("gpt_neo")) == {"o_proj": 64}


def test_query_and_key_norms():
    def norms(arch):
        return sum(s for m, s in modules(arch).items() if "q_norm" in m or "k_norm" in m)

    assert norms(build()) == 0
    assert norms(build("qwen3", head_dim=8)) == 8 + 8
    assert norms(build("olmo2")) == 64 + 16
    assert norms(build("phi", qk_layernorm=True)) == 4 * 8
    assert norms(build("phi", qk_layernorm=False)) == 0
    assert norms(build("glm4_moe", num_experts=None, use_qk_norm=True)) == 8 + 8
    assert norms(build("glm4_moe", num_experts=None, use_qk_norm=False)) == 0


def test_an_unknown_types_query_norm_is_assumed_with_a_note():
    arch = build("newcomer", use_qk_norm=True)
    assert modules(arch)["self_attn.q_norm.weight"] == 8
    assert any("use_qk_norm" in note for note in arch.notes)


def test_gates():
    assert modules(build(attn_output_gate=True))["self_attn.q_proj"] == 64 * 64 * 2
    assert modules(build("step3p5"))["self_attn.g_proj"] == 64 * 8
    assert modules(build("afmoe", num_experts=None))["self_attn.gate_proj"] == 64 * 64


@pytest.mark.parametrize(
    ("model_type", "per_layer", "last"),
    [("llama", 2, 1), ("gemma2", 4, 1), ("olmo2", 2, 1), ("gptj", 2, 2), ("gpt_neox", 4, 2), ("cohere", 1, 1), ("olmo", 0, 0)],
)
def test_norm_vectors(model_type, per_layer, last):
    """In vectors of hidden size: RMS norms have one, LayerNorms two; parallel layers share one norm or have two."""
    arch = build(model_type, head_dim=8, num_key_value_heads=8)
    found = sum(s for m, s in modules(arch).items() if "layernorm" in m)
    assert found == 64 * per_layer
    assert sum(w.size for w in arch.epilogue.weights() if w.component == "norm") == 64 * last


def test_learned_positions_and_embedding_norms_belong_to_the_embedding():
    assert component(build("gpt2", max_position_embeddings=32), "embedding") == (100 + 32) * 64
    assert component(build("opt", max_position_embeddings=32), "embedding") == (100 + 34) * 64
    bloom = build("bloom")
    assert sum(w.size for w in bloom.prologue.weights() if w.component == "norm") == 2 * 64


def test_block_sparse_attention_keeps_index_keys_and_visits_few_keys():
    """MiniMax-M3: 4 index heads of 128 choose 16 blocks of 128 keys; the first layers are dense."""
    sparse = {"sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_topk_blocks": 16, "sparse_block_size": 128,
              "sparse_attention_freq": [0, 1, 1, 1]}  # fmt: skip
    arch = build("minimax_m3", head_dim=8, sparse_attention_config=sparse)
    assert attention_of(arch).top_k_keys is None
    assert attention_of(arch, 1).top_k_keys == 2048
    dense = 2 * 2 * 8 * 2
    assert kv_bytes_per_token(arch, 2) == 4 * dense + 3 * 128 * 2
    extra = sum(modules(arch, 1).values()) - sum(modules(arch).values())
    assert extra == 64 * (4 * 128 + 128) + 2 * 128
    with pytest.raises(SpecError, match="sparse_topk_blocks"):
        build("minimax_m3", sparse_attention_config={**sparse, "sparse_topk_blocks": 0})


def test_further_residual_streams_and_the_low_rank_branch():
    """Gemma-3n: per layer a branch of rank r, coefficients of n streams; n − 1 projections at each end."""
    fields = {"head_dim": 8, "hidden_size_per_layer_input": 0, "sliding_window": 16, "layer_types": ["full_attention"] * 4}
    plain, streams = build("gemma3n_text", **fields), build("gemma3n_text", **fields, altup_num_inputs=3, laurel_rank=5)
    extra = parameter_counts(streams)["text"] - parameter_counts(plain)["text"]
    per_layer = 2 * 64 * 5 + 64 + (64 + 64 * 3 + 27 + 9 + 64)
    assert extra == 4 * per_layer + 2 * 2 * 64 * 64
    assert kv_bytes_per_token(streams, 2) == kv_bytes_per_token(plain, 2)


def test_every_type_is_stated_once_and_with_known_traits():
    known = {
        "types", "defaults", "norm", "norms", "gated", "tied", "qkv_bias", "out_bias", "out_bias_fixed", "mlp_bias", "head_bias",
        "bias_field", "qk_norm", "qk_norm_flag", "qk_norm_default", "qk_norm_bias", "window", "gate_proj", "sinks", "understood",
        "router_correction", "parallel_experts", "moe_module", "shared_expert", "shared_gate", "router_bias", "expert_bias",
        "router_scales", "attention_inner_norm", "mlp_inner_norm", "mlp_scalars", "learned_positions", "position_offset",
        "embedding_norm", "ffn_multiplier",
    }  # fmt: skip
    assert len(_table()) > 80
    assert {trait for entry in _table().values() for trait in entry} <= known
