"""Counts of parameters, stored bytes, cache and state on a model built by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import (
    block_cache,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    kv_dtype_bytes,
    parameter_counts,
    state_bytes_per_sequence,
    stored_bytes,
    weight_bytes,
)
from autoparallel_core.reading.report import ranges
from autoparallel_core.spec.arch import Block, CacheTensor, Layer, ModelArch
from autoparallel_core.spec.op import Axis, Bare, ExpertGemm, Gemm, Lookup, Weight

H, V = Axis("hidden", 10), Axis("vocab", 100)


def weight(module, *axes, component, linear=True, fmt=None):
    return Weight(module, axes, component, linear=linear, format=fmt)


def model(**more):
    experts, width = Axis("experts", 4), Axis("expert_ffn", 6)
    moe = ExpertGemm(
        "up", experts=experts, top_k=1, k=H, n=(width,), weights=(weight("e", experts, H, width, component="experts"),)
    )
    proj = Gemm("q", k=H, n=(Axis("heads", 2, 5),), weights=(weight("q", H, Axis("heads", 2, 5), component="attention"),))
    caches = (CacheTensor("k", Axis("kv_heads", 2, 5)), CacheTensor("v", Axis("kv_heads", 2, 5)))
    mixer = Block("gqa", (proj,), cache_per_token=caches)
    local = Block("gqa_sliding", (proj,), cache_per_token=(CacheTensor("k", Axis("kv_heads", 2, 5), limit_tokens=8),))
    packed = Block("csa", (proj,), cache_per_token=(CacheTensor("c", Axis("latent", 12), tokens_per_entry=4),))
    scan = Block("mamba2", (proj,), cache_per_sequence=(CacheTensor("s", Axis("heads", 3, 7), dtype="fp32"),))
    ffn = Block("moe", (moe,))
    tower = Block("vision", (Bare("t", weights=(weight("t", Axis("latent", 77), component="tower", linear=False),
                                                weight("p", Axis("latent", 5), component="other", linear=False))),))  # fmt: skip
    table = Lookup("embedding", rows=V, width=H, weights=(weight("embed", V, H, component="embedding", linear=False),))
    fields = {
        "name": "m", "model_type": "t", "hidden_size": 10, "vocab_size": 100, "prologue": Block("embedding", (table,)),
        "layers": (Layer((mixer, ffn)), Layer((local, ffn)), Layer((packed,)), Layer((scan,))),
        "epilogue": Block("head", (Gemm("head", k=H, n=(V,), weights=(weight("lm_head", H, V, component="head"),)),)),
        "tied_embeddings": False, "mtp": (Layer((mixer,)),), "towers": (Layer((tower,)),),
    }  # fmt: skip
    return ModelArch(**{**fields, **more})


def test_counts():
    counts = parameter_counts(model())
    text = 2 * 1000 + 4 * 100 + 2 * 4 * 60 + 5
    assert counts == {
        "total": text + 77,
        "text": text,
        "active": text - 2 * 3 * 60,
        "vision": 77,
        "mtp": 100,
        "by_component": {"attention": 400, "embedding": 1000, "experts": 480, "head": 1000, "other": 5, "tower": 77},
    }
    assert sum(counts["by_component"].values()) == counts["total"]


def test_bytes_of_mixed_formats():
    arch = model()
    assert weight_bytes(arch) == 2 * (2405 + 480 + 77)
    assert weight_bytes(arch, mtp=True) - weight_bytes(arch) == 200
    assert weight_bytes(arch) - weight_bytes(arch, towers=False) == 2 * 82
    assert weight_bytes(model(weight_dtype="fp32", towers=())) == 4 * (2400 + 480)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, 2 * 256 * 64),
        ("fp8", 256 * 64),
        ("fp8_block128", 256 * 64 + 2 * 1 * 4),
        ("nvfp4", 256 * 64 / 2 + 256 / 16 * 64),
        ("mxfp4", 256 * 64 / 2 + 256 / 32 * 64),
        ("mxfp8", 256 * 64 + 256 / 32 * 64),
        ("int4_g128", 256 * 64 / 2 + 2 * 64 * 2),
        ("int8_g-1", 256 * 64),
    ],
)
def test_stored_bytes_of_one_matrix(name, expected):
    assert stored_bytes(weight("m", Axis("hidden", 256), Axis("ffn", 64), component="mlp", fmt=name), "bf16") == expected


def test_cache_and_state():
    arch = model()
    per_token = 2 * 10 * 2 + 10 * 2 + 12 * 2 / 4
    assert kv_bytes_per_token(arch, 2) == per_token
    assert kv_bytes_per_token(arch, 1) == per_token / 2
    assert state_bytes_per_sequence(arch, 2) == 21 * 4
    assert kv_bytes_per_sequence(arch, 100, 2) == 100 * (2 * 10 * 2 + 6) + 8 * 20 + 84
    assert [block_cache(layer.blocks[0], 2).limit_tokens for layer in arch.layers] == [None, 8, None, None]


def test_cache_dtype_is_the_asked_one_then_the_checkpoints_then_16_bit():
    assert kv_dtype_bytes(model()) == 2
    assert kv_dtype_bytes(model(weight_dtype="fp32")) == 2
    assert kv_dtype_bytes(model(kv_dtype="fp8")) == 1
    assert kv_dtype_bytes(model(kv_dtype="fp8"), "bf16") == 2


@given(
    st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.sampled_from([8, 16]), st.integers(1, 300), st.integers(10, 500),
    st.booleans(),
)  # fmt: skip
def test_a_plain_decoder_has_the_parameters_of_its_formula(layers, groups, per_group, width, ffn, vocab, tied):
    heads, hidden = groups * per_group, 24
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups, "head_dim": width, "intermediate_size": ffn, "vocab_size": vocab,
        "tie_word_embeddings": tied, "dtype": "bfloat16",
    }  # fmt: skip
    arch = build_arch(config, name="h", host=host())
    layer = 2 * hidden * heads * width + 2 * hidden * groups * width + 3 * hidden * ffn + 2 * hidden
    assert parameter_counts(arch)["text"] == layers * layer + hidden + (1 if tied else 2) * vocab * hidden
    assert kv_bytes_per_token(arch, 2) == 4 * layers * groups * width


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([1], "1"),
        ([1, 2, 3], "1-3"),
        ([1, 2, 3, 5], "1-3,5"),
        ([1, 3, 5, 7], "1-7:2"),
        ([2, 5], "2,5"),
        ([4, 8, 12, 13], "4,8,12-13"),
    ],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text
