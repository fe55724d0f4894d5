"""Quantised checkpoints: which weight is stored in which format, how many bytes that is, what the KV cache asks for."""

import pytest

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import stored_bytes, weight_bytes
from autoparallel_core.reading.module_patterns import ModulePatterns, canonical
from autoparallel_core.reading.report import formats
from autoparallel_core.spec.op import Axis, Weight
from autoparallel_core.spec.quantization import weight_format

H, F, V, L = 256, 512, 1000, 2
DENSE = {
    "model_type": "llama", "hidden_size": H, "num_hidden_layers": L, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": F, "vocab_size": V, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
E, FE = 8, 128
EXPERTS = {
    **DENSE, "model_type": "qwen3_moe", "num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": FE, "head_dim": 64,
}  # fmt: skip
ATTENTION, MLP = H * H * 2 + H * H // 2 * 2, 3 * H * F
LINEAR = L * (ATTENTION + MLP)


def build(quantization=None, sibling=None, base=DENSE, **more):
    config = {**base, **more} | ({"quantization_config": quantization} if quantization else {})
    return build_arch(config, name="q", host=host(), quant_config=sibling)


def by_module(arch, layer=0):
    return {w.module: w.format for w in arch.layers[layer].weights() if w.linear}


BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}}


def test_unquantised_bytes_are_two_per_parameter():
    arch = build()
    assert arch.quantization is None
    assert weight_bytes(arch) == 2 * (LINEAR + 2 * V * H + H * (2 * L + 1))


def test_block_fp8_adds_one_scale_per_tile_and_keeps_embeddings_head_and_norms():
    arch = build(BLOCK_FP8)
    assert formats(arch) == {"bf16": 2 * V * H + H * (2 * L + 1), "fp8_block128": LINEAR}
    assert weight_bytes(arch) == LINEAR * (1 + 4 / 16384) + 2 * (2 * V * H + H * (2 * L + 1))


def test_scales_of_partial_tiles_are_whole():
    w = Weight("m", (Axis("hidden", 130), Axis("ffn", 200)), "mlp", format="fp8_block128")
    assert stored_bytes(w, "bf16") == 130 * 200 + 4 * 2 * 2
    w = Weight("m", (Axis("hidden", 20), Axis("ffn", 3)), "mlp", format="nvfp4")
    assert stored_bytes(w, "bf16") == 30 + 2 * 3
    w = Weight("m", (Axis("experts", 5), Axis("hidden", 256), Axis("ffn", 3)), "experts", format="int4_g128z")
    assert stored_bytes(w, "bf16") == 5 * (256 * 3 / 2 + 2 * 3 * (2 + 0.5))


def test_static_fp8_has_no_block():
    arch = build({"quant_method": "fp8", "activation_scheme": "static"})
    assert formats(arch)["fp8"] == LINEAR
    assert weight_format("fp8").block is None


def test_modules_not_to_convert_are_matched_by_whole_names():
    q = BLOCK_FP8 | {"modules_to_not_convert": ["gate", "lm_head", "model.layers.1.self_attn"]}
    arch = build(q, base=EXPERTS)
    assert by_module(arch)["mlp.gate"] is None
    assert by_module(arch)["mlp.experts.gate_proj"] == "fp8_block128"  # "gate" is no part of a name
    assert by_module(arch)["self_attn.q_proj"] == "fp8_block128"
    assert by_module(arch, 1)["self_attn.q_proj"] is None


def test_routers_stay_wide_without_being_listed():
    assert by_module(build(BLOCK_FP8, base=EXPERTS))["mlp.gate"] is None


def test_a_summary_in_place_of_a_list_is_noted():
    arch = build(BLOCK_FP8 | {"modules_to_not_convert": "list of 283 modules"})
    assert any("list of 283 modules" in n for n in arch.notes)


@pytest.mark.parametrize(
    ("config", "name", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4_g128z", 0.5 + 2 / 128 + 0.5 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4_g128z", 0.5 + 2 / 128 + 0.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8_g-1z", 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 0.5 + 4 / 64),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "nf4_nested",
            0.5 + 1 / 64 + 4 / (64 * 256),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
        ({"quant_algo": "FP8"}, "fp8", 1.0),
        ({"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4_g64", 0.5 + 2 / 64),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            "mxfp4",
            0.5 + 1 / 32,
        ),
    ],
)
def test_weight_only_formats(config, name, bytes_per_weight):
    arch = build(config)
    assert formats(arch)[name] == LINEAR
    assert weight_bytes(arch) - 2 * (2 * V * H + H * (2 * L + 1)) == pytest.approx(LINEAR * bytes_per_weight, rel=1e-12)


def compressed(weights, *, targets=("Linear",), ignore=("lm_head",), layout="pack-quantized", **more):
    group = {"targets": list(targets), "weights": weights}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"g": group}, "ignore": list(ignore), **more}


@pytest.mark.parametrize(
    ("weights", "layout", "name"),
    [
        ({"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}, "pack-quantized", "int4_g32"),
        (
            {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "symmetric": False},
            "pack-quantized",
            "int4_g128z",
        ),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized", "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "float-quantized", "fp8_block128"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized", "int8"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, "nvfp4-pack-quantized", "nvfp4_weight_only"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, "mxfp4-pack-quantized", "mxfp4"),
    ],
)
def test_compressed_tensors(weights, layout, name):
    assert set(formats(build(compressed(weights, layout=layout)))) == {"bf16", name}


def test_compressed_tensors_ignores_by_regular_expression():
    four_bit = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}
    arch = build(compressed(four_bit, ignore=["lm_head", "re:.*self_attn.*", "re:.*layers.0.mlp.*"]))
    assert by_module(arch)["self_attn.q_proj"] is None
    assert by_module(arch)["mlp.up_proj"] is None
    assert by_module(arch, 1)["mlp.up_proj"] == "int4_g32"
    with pytest.raises(SpecError, match="no regular expression"):
        build(compressed(four_bit, ignore=["re:("]))


def test_compressed_tensors_targets_and_kv_scheme():
    eight = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    arch = build(compressed(eight, targets=["re:.*mlp.*"], kv_cache_scheme={"num_bits": 8, "type": "float"}))
    assert by_module(arch)["mlp.down_proj"] == "fp8"
    assert by_module(arch)["self_attn.o_proj"] is None
    assert arch.kv_dtype == "fp8"


def test_mxfp4_touches_the_experts_only():
    q = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}
    arch = build(q, base=EXPERTS)
    assert formats(arch)["mxfp4"] == L * E * 3 * H * FE
    assert {f for m, f in by_module(arch).items() if "experts" not in m} == {None}


def test_a_sibling_file_quantises_what_it_does_not_exclude():
    arch = build(sibling=NVFP4)
    assert (arch.quantization.method, arch.quantization.source) == ("modelopt", "hf_quant_config.json")
    assert formats(arch)["nvfp4"] == LINEAR
    assert arch.kv_dtype == "fp8"
    sibling = {
        "quantization": {**NVFP4["quantization"], "exclude_modules": ["lm_head", "model.layers.1*", "model.layers.0.self_attn*"]}
    }
    arch = build(sibling=sibling)
    assert formats(arch)["nvfp4"] == MLP
    assert by_module(arch, 1)["mlp.up_proj"] is None


def test_other_prefixes_of_a_layer_mean_the_same_modules():
    for prefix in ("language_model.model.layers", "model.language_model.layers", "backbone.layers", "layers", "transformer.h"):
        sibling = {"quantization": {"quant_algo": "FP8", "exclude_modules": [f"{prefix}.0.mlp*", "lm_head"]}}
        arch = build(sibling=sibling)
        assert by_module(arch)["mlp.up_proj"] is None, prefix
        assert by_module(arch)["self_attn.q_proj"] == "fp8"


def test_mixed_precision_reads_every_layers_own_format():
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(L) for p in "qkvo"}
    layers |= {
        f"model.layers.{i}.mlp.experts.{e}.{m}": {"quant_algo": "NVFP4", "group_size": 16}
        for i in range(L)
        for e in range(E)
        for m in ("w1", "w2", "w3")
    }
    layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    arch = build(sibling={"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}, base=EXPERTS)
    head = V * H
    assert formats(arch) == {
        "bf16": V * H + H * (2 * L + 1) + L * (2 * 64 + H * E),
        "fp8": L * ATTENTION,
        "nvfp4": L * E * 3 * H * FE,
        "nvfp4_weight_only": head,
    }
    with pytest.raises(SpecError, match="quantized_layers"):
        build({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})


def test_experts_requantised_over_block_fp8_leave_the_rest_in_fp8():
    own = BLOCK_FP8 | {"quant_algo": "MIXED_PRECISION"}
    layers = {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(L)}
    sibling = {"quantization": {"quant_algo": "MIXED_PRECISION", "exclude_modules": ["*.attn.*"], "quantized_layers": layers}}
    arch = build(own, sibling, base=EXPERTS)
    assert by_module(arch)["self_attn.q_proj"] == "fp8_block128"
    assert by_module(arch)["mlp.experts.up_proj"] == "nvfp4"


def test_quantisation_inside_the_language_part_is_found():
    config = {"model_type": "wrapper", "text_config": {**DENSE, "quantization_config": BLOCK_FP8}}
    assert build_arch(config, name="n", host=host()).quantization.default_format == "fp8_block128"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "magic"}, "'magic' is not understood"),
        ({"quant_method": "awq", "bits": 5}, "bits must be 2, 3, 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size"),
        ({"quant_algo": "FP3"}, "FP3"),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, "weight_block_size"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"quant_method": "fp8", "modules_to_not_convert": 3}, "modules_to_not_convert"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
    ],
)
def test_what_is_not_understood_is_refused(config, says):
    with pytest.raises(SpecError, match=says):
        build(config)
    with pytest.raises(SpecError, match="must be an object"):
        build("fp8")


def test_biases_and_norms_are_never_quantised():
    arch = build(BLOCK_FP8, attention_bias=True)
    assert all(w.format is None for layer in arch.layers for w in layer.weights() if not w.linear)


@pytest.mark.parametrize(
    ("pattern", "module", "layer", "covered"),
    [
        ("model.layers.1.*", "mlp.up_proj", 1, True),
        ("model.layers.1.*", "mlp.up_proj", 10, False),
        ("model.layers.1*", "mlp.up_proj", 1, True),
        ("*.mlp.shared_expert.*", "mlp.shared_experts.up_proj", 4, True),
        ("model.layers.3.block_sparse_moe.gate", "mlp.gate", 3, True),
        ("model.layers.3.block_sparse_moe.gate", "mlp.experts.gate_proj", 3, False),
        ("layers.2.ffn.experts", "mlp.experts.down_proj", 2, True),
        ("model.layers.0.self_attn.qkv_proj", "self_attn.v_proj", 0, True),
        ("model.layers.0.mlp.gate_up_proj", "mlp.gate_proj", 0, True),
        ("model.layers.0.mlp.gate_up_proj", "mlp.down_proj", 0, False),
        ("lm_head", "lm_head", None, True),
        ("language_model.lm_head", "lm_head", None, True),
        ("model.layers.0.self_attn.indexer*", "self_attn.indexer.wk", 0, True),
    ],
)
def test_patterns(pattern, module, layer, covered):
    assert ModulePatterns((pattern,)).match(module, layer) is covered


def test_patterns_of_prediction_blocks_and_towers_are_not_those_of_layers():
    for pattern in ("mtp.layers.0*", "mtp*", "mtp.layers.0.self_attn.q_proj"):
        patterns = ModulePatterns((pattern,))
        assert not patterns.match("self_attn.q_proj", 0)
        assert patterns.match("self_attn.q_proj", 40, block=0)
    assert not ModulePatterns(("vision_tower.layers.0*", "model.visual*")).match("mlp.up_proj", 0)


def test_canonical_names():
    assert canonical("model.layers.12.mlp.experts.7.w2") == "layers.12.mlp.experts.down_proj"
    assert canonical("transformer.h.3.attn.out_proj") == "layers.3.self_attn.o_proj"
