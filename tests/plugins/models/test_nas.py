"""Layers of unequal shape."""

import pytest
from mixer_facts import counts, read

from autoparallel_core.errors import SpecError
from autoparallel_core.ops.params import kv_bytes_per_token
from autoparallel_nas.blocks import ffn_width


def attention(group=8, **changes):
    return {"n_heads_in_group": group, "no_op": False, "replace_with_linear": False, "window_length": None} | changes


def ffn(mult=5.25, **changes):
    return {"ffn_mult": mult, "no_op": False, "replace_with_linear": False} | changes


def config(*blocks, **changes):
    return {
        "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": 8192, "num_attention_heads": 64,
        "num_key_value_heads": None, "intermediate_size": None, "num_hidden_layers": len(blocks), "vocab_size": 128256,
        "block_configs": [{"attention": a, "ffn": f} for a, f in blocks], "attention_bias": False, "mlp_bias": False,
        "hidden_act": "silu", "tie_word_embeddings": False,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("mult", "width"), [(5.25, 28672), (2.625, 14336), (3.28125, 17920), (1.3125, 7168), (1.0, 5632), (0.1, 768)]
)
def test_widths_are_rounded_up_to_256(mult, width):
    assert ffn_width(mult, 8192) == width


def test_each_layer_has_its_own_shape():
    arch = read(
        config(
            (attention(), ffn()),
            (attention(no_op=True, group=None), ffn(2.625)),
            (attention(replace_with_linear=True), ffn(replace_with_linear=True)),
            (attention(16), ffn(no_op=True)),
        )
    )
    h = 8192
    full = 2 * h * h + 2 * h * 1024 + h
    sizes = [sum(w.size for w in layer.weights()) for layer in arch.layers]
    assert sizes == [full + 3 * h * 28672 + h, 3 * h * 14336 + h, 2 * (h * h + h), 2 * h * h + 2 * h * 512 + h]
    assert [layer.kind for layer in arch.layers] == ["gqa+dense", "dense", "linear+linear", "gqa"]
    assert kv_bytes_per_token(arch, 2) == 2 * (1024 + 512) * 2


def test_a_layer_without_any_part_is_empty():
    arch = read(config((attention(), ffn()), (attention(no_op=True), ffn(no_op=True))))
    assert arch.layers[1].kind == "empty"
    assert counts(arch)["by_component"]["attention"] == 2 * 8192**2 + 2 * 8192 * 1024


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(attention(7), ffn())], r"block_configs\[0\].attention.n_heads_in_group 7"),
        ([(attention(), ffn(-1))], r"block_configs\[0\].ffn.ffn_mult"),
        ([(attention(), None)], r"block_configs\[0\].ffn"),
    ],
)
def test_a_wrong_entry_is_named(blocks, message):
    with pytest.raises(SpecError, match=message):
        read(config(*blocks))


def test_too_few_entries_are_refused():
    with pytest.raises(SpecError, match=r"block_configs.*1 entries"):
        read(config((attention(), ffn()), num_hidden_layers=2))


def test_listed_key_value_heads():
    arch = read(
        {
            "model_type": "deci", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 3, "vocab_size": 100,
            "intermediate_size": 96, "num_key_value_heads_per_layer": [1, 4, 2], "hidden_act": "silu",
            "tie_word_embeddings": False,
        }
    )  # fmt: skip
    assert kv_bytes_per_token(arch, 2) == 2 * (1 + 4 + 2) * 8 * 2
    assert arch.layers[0].blocks[1].kind == "dense"
