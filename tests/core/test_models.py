"""Reading configs: where they come from, what they must say, how plugins' claims are composed."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugin_helpers import plugin

from autoparallel_core.errors import AutoparallelError, PluginConflict, SpecError, UnknownPlugin
from autoparallel_core.host import Host, host
from autoparallel_core.models import build_arch, describe, load_model
from autoparallel_core.ops.params import parameter_counts

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMALL_PARAMETERS = 2 * 1000 * 64 + 64 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64)


def build(**changes):
    config = {**SMALL, **changes}
    return build_arch({k: v for k, v in config.items() if v is not ...}, name="small", host=host())


def text(arch):
    return parameter_counts(arch)["text"]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return tmp_path


def test_a_directory_a_file_and_a_dictionary_give_the_same_model(directory):
    by_directory, by_file = load_model(str(directory), host()), load_model(str(directory / "config.json"), host())
    assert by_directory.layers == by_file.layers == build().layers
    assert by_directory.name == by_file.name == directory.name
    assert text(by_directory) == SMALL_PARAMETERS


def test_a_file_of_another_name_is_named_after_its_stem(directory):
    (directory / "org--small.json").write_text(json.dumps(SMALL))
    assert load_model(str(directory / "org--small.json"), host()).name == "org--small"


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "empty"), ("[1, 2]", "must be a JSON object, not list"), ("{oops", "not valid JSON"), ("\x00", "not valid JSON")],
)
def test_what_is_no_config_is_refused_in_a_sentence(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(SpecError, match=says) as caught:
        load_model(str(path), host())
    assert "\n" not in str(caught.value)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        load_model(str(tmp_path / "nowhere.json"), host())
    with pytest.raises(SpecError, match=r"has no config\.json"):
        load_model(str(tmp_path), host())
    with pytest.raises(SpecError, match="no model is named"):
        load_model("", host())


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "model.json").write_bytes(b"\xff\xfe\x00weights")
    with pytest.raises(SpecError, match="cannot be read"):
        load_model(str(tmp_path / "model.json"), host())


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"])
@pytest.mark.parametrize("value", [None, ..., 0, -4, 2.5, "64", True, -(10**12)])
def test_a_size_that_is_none_is_an_error_naming_the_field(field, value):
    with pytest.raises(SpecError, match=field):
        build(**{field: value})


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers"])
def test_a_size_beyond_any_model_is_taken_for_a_mistake(field):
    with pytest.raises(SpecError, match=field):
        build(**{field: 10**12})


def test_encoder_decoders_are_refused():
    with pytest.raises(SpecError, match="encoder-decoder"):
        build(is_encoder_decoder=True)


def test_an_unknown_architecture_names_its_type_and_classes():
    config = {"model_type": "rwkv9", "architectures": ["RwkvModel"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10}
    with pytest.raises(SpecError, match=r"'rwkv9', architectures RwkvModel"):
        build_arch(config, name="r", host=host())


def test_an_encoder_is_not_read_as_a_decoder_by_its_fields():
    with pytest.raises(SpecError, match="BertForMaskedLM"):
        build(model_type="bert", architectures=["BertForMaskedLM"])


def test_an_unknown_decoder_is_read_by_its_fields_and_says_so():
    arch = build(model_type="newcomer", architectures=["NewcomerForCausalLM"])
    assert text(arch) == SMALL_PARAMETERS
    assert any("newcomer" in note for note in arch.notes)
    assert not any("no plugin knows" in note for note in build().notes)


def test_a_known_class_stands_for_an_unknown_type():
    arch = build(model_type="qwen3_reupload", architectures=["Qwen3ForCausalLM"])
    assert text(arch) == SMALL_PARAMETERS + 3 * 2 * 16  # query and key norms
    assert any("Qwen3ForCausalLM is read as 'qwen3'" in note for note in arch.notes)


def test_nested_language_parts_are_found_with_the_whole_models_fields_beneath():
    inner = {k: v for k, v in SMALL.items() if k not in {"tie_word_embeddings", "torch_dtype"}}
    for key in ("text_config", "llm_config", "language_config", "decoder"):
        config = {"model_type": "chatty_vl", key: inner, "tie_word_embeddings": True, "dtype": "float16"}
        arch = build_arch(config, name="v", host=host())
        assert (arch.model_type, arch.tied_embeddings, arch.weight_dtype) == ("llama", True, "fp16")
        assert text(arch) == SMALL_PARAMETERS - 1000 * 64
    thinker = {"thinker_config": {"audio_config": {}, "text_config": inner}, "talker_config": {"text_config": inner}}
    assert build_arch(thinker, name="o", host=host()).num_layers == 3


def test_of_two_language_parts_the_deeper_is_taken():
    shallow = {**SMALL, "num_hidden_layers": 1}
    assert build_arch({"text_encoder": shallow, "text_config": SMALL}, name="t", host=host()).num_layers == 3
    assert build_arch({"text_encoder": SMALL, "text_config": shallow}, name="t", host=host()).num_layers == 3


def test_the_whole_models_tie_wins_over_the_language_parts():
    config = {"text_config": {**SMALL, "tie_word_embeddings": True}, "tie_word_embeddings": False, "model_type": "x"}
    assert not build_arch(config, name="v", host=host()).tied_embeddings


def test_an_absent_tie_follows_the_model_type_and_is_noted():
    for model_type, tied in (("llama", False), ("gemma", True), ("cohere", True), ("qwen2", False)):
        arch = build(model_type=model_type, tie_word_embeddings=...)
        assert arch.tied_embeddings is tied
        assert any("tie_word_embeddings" in note for note in arch.notes)
    assert not any("tie_word_embeddings" in note for note in build().notes)


def test_an_absent_dtype_is_noted_and_an_unknown_one_refused():
    arch = build(torch_dtype=...)
    assert arch.weight_dtype == "bf16"
    assert any("dtype" in note for note in arch.notes)
    assert build(torch_dtype=..., dtype="torch.float32").weight_dtype == "fp32"
    with pytest.raises(SpecError, match="complex64"):
        build(torch_dtype="complex64")


def test_defaults_of_a_model_type_are_noted():
    arch = build(model_type="gemma", vocab_size=..., head_dim=16)
    assert arch.vocab_size == 256000
    assert any("vocab_size" in note for note in arch.notes)


def test_fields_that_nothing_reads_are_listed_and_harmless_ones_are_not():
    arch = build(frobnication_rate=3, rope_theta=1e6, bos_token_id=1, _name_or_path="x", max_window_layers=3)
    assert arch.unknown_fields == ("frobnication_rate",)


def test_unread_fields_beside_the_language_part_are_listed_too():
    config = {"model_type": "x", "text_config": SMALL, "image_token_id": 7, "fusion_depth": 4}
    assert build_arch(config, name="v", host=host()).unknown_fields == ("fusion_depth",)


def test_facts_that_engines_ask_about():
    assert build(group_norm_size=4).fact("norm_groups") == 4
    assert build().fact("norm_groups") is None
    with pytest.raises(SpecError, match="group_norm_size"):
        build(group_norm_size="many")


def test_notes_of_a_catalogue_entry_are_shown():
    assert "a remark" in build(_notes=["a remark"]).notes
    assert build(_notes=7).unknown_fields == ()


def test_equal_layers_are_one_object():
    arch = build()
    assert len({id(b) for layer in arch.layers for b in layer.blocks}) == 2
    assert [len(where) for _, where in arch.layer_classes()] == [3]


def test_catalogue_names_are_found_whatever_their_case_and_without_the_organisation():
    assert load_model("QWEN/qwen3-8b", host()).name == load_model("Qwen3-8B", host()).name == "Qwen/Qwen3-8B"


def test_an_unknown_name_lists_the_near_ones():
    with pytest.raises(UnknownPlugin, match=r"did you mean .*Qwen/Qwen3-8B"):
        load_model("Qwen/Qwen3-9B", host())


CLAIM = """
from autoparallel_core.spec.arch import Block
@hookimpl
def parse_mixer(config, layer):
    return Block("{kind}", (), specificity={specificity})
@hookimpl
def parse_ffn(config, layer):
    return ()
"""
TOY = {"model_type": "toy", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16}


def claims(*specificities):
    names = "abc"
    sources = (CLAIM.format(kind=names[i], specificity=s) for i, s in enumerate(specificities))
    made = [plugin("models", source, names[i], f"{names[i]}-dist") for i, source in enumerate(sources)]
    made[1:] = [
        plugin(
            "models",
            CLAIM.format(kind=names[i], specificity=s).split("@hookimpl\ndef parse_ffn")[0],
            names[i],
            f"{names[i]}-dist",
        )
        for i, s in enumerate(specificities)
        if i
    ]
    return Host(entry_points=made)


def test_the_most_specific_claim_wins():
    for order in ((3, 7), (7, 3)):
        arch = build_arch(TOY, name="t", host=claims(*order))
        assert arch.layers[0].kind == "ab"[order.index(7)]


def test_equal_claims_are_a_conflict_that_names_both():
    with pytest.raises(PluginConflict, match=r"'a' \(a-dist\) and 'b' \(b-dist\)"):
        build_arch(TOY, name="t", host=claims(5, 5))


def test_a_claim_without_certainty_is_noted():
    assert any("no plugin knows model type 'toy'" in n for n in build_arch(TOY, name="t", host=claims(0)).notes)


FAMILY = """
@hookimpl
def parse_family(config):
    return {{"defaults": {{"vocab_size": {vocab}}}}}
"""


def test_plugins_that_disagree_on_a_model_types_default_are_a_conflict():
    config = {k: v for k, v in TOY.items() if k != "vocab_size"}
    two = [plugin("models", FAMILY.format(vocab=v), n, n) for n, v in (("p", 10), ("q", 11))]
    with pytest.raises(PluginConflict, match="'p' and 'q' disagree on vocab_size"):
        build_arch(config, name="t", host=Host(entry_points=two))


def test_description_is_plain_json():
    d = json.loads(json.dumps(describe(build())))
    assert d["parameters"]["text"] == SMALL_PARAMETERS
    assert d["kv_cache"] == {"dtype": "bf16", "from_checkpoint": False, "bytes_per_token": 3 * 2 * 2 * 16 * 2}
    assert d["layers"] == [
        {
            "kind": "gqa+dense",
            "count": 3,
            "positions": "1-3",
            "parameters": 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64,
            "kv_bytes_per_token": 2 * 2 * 16 * 2,
            "kv_limit_tokens": None,
            "state_bytes_per_sequence": 0,
        }
    ]
    assert d["weights"]["bytes"] == 2 * SMALL_PARAMETERS
    assert d["state_bytes_per_sequence"] == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=4) | st.just(10**12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
OTHER_FIELDS = [
    "head_dim",
    "layer_types",
    "sliding_window",
    "num_experts",
    "num_experts_per_tok",
    "moe_layer_freq",
    "mlp_only_layers",
    "quantization_config",
    "rope_parameters",
    "attention_bias",
    "n_shared_experts",
    "architectures",
    "text_config",
    "num_nextn_predict_layers",
    "kv_lora_rank",
    "dtype",
    "max_position_embeddings",
    "use_sliding_window",
    "vision_config",
]
FIELDS = st.sampled_from([*SMALL, *OTHER_FIELDS])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(FIELDS, JSON, max_size=3))
def test_whatever_a_file_says_the_answer_is_a_model_or_a_sentence(changes):
    own = Host()
    try:
        said = describe(build_arch({**SMALL, **changes}, name="fuzzed", host=own))["name"]
    except AutoparallelError as e:
        said = str(e)
    assert said
    assert "\n" not in said
    assert own.warnings == ()


@pytest.mark.parametrize(
    ("scaling", "reach"),
    [
        (None, 2048), ({"rope_type": "linear", "factor": 4.0}, 8192), ({"rope_type": "llama3", "factor": 8.0}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
    ],
)  # fmt: skip
def test_rotary_scaling_may_raise_the_longest_context(scaling, reach):
    arch = build(max_position_embeddings=2048, rope_scaling=scaling)
    assert arch.max_position_embeddings == 2048
    assert arch.longest_context == reach
