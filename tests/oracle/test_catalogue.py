"""The catalogue's entries against the reference library, where it knows their model type."""

import pytest
from reference import components
from transformers import CONFIG_MAPPING

from autoparallel_core.host import host
from autoparallel_core.models import load_model
from autoparallel_core.ops.params import parameter_counts
from autoparallel_core.spec.config import ALIASES

SAME_AS = {"kimi_k2": "deepseek_v3", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "llama4": "llama4_text"}
"""Model types that the library reads, or builds without a tower, only as another one."""
OTHER_LAYOUT = {"dbrx", "step3p5"}
"""Types whose configs the library nests in its own way, or builds only with a tower."""


def language_part(config):
    """The config of the language model alone, in the field names that the library has for it.

    The catalogue states each fact under one name; the library looks under its own and ignores all others.
    """
    text = config.get("text_config")
    part = dict(text or config)
    if "tie_word_embeddings" in config:
        part["tie_word_embeddings"] = config["tie_word_embeddings"]
    part["model_type"] = SAME_AS.get(part["model_type"], part["model_type"])
    if part["model_type"] not in CONFIG_MAPPING or part["model_type"] in OTHER_LAYOUT:
        return None
    fields = CONFIG_MAPPING[part["model_type"]].__dataclass_fields__
    for name, others in ALIASES.items():
        stated = next((part[n] for n in (name, *others) if part.get(n) is not None), None)
        if stated is not None:
            part |= {n: stated for n in (name, *others) if n in fields and part.get(n) is None}
    # where the library has a default of its own, the catalogue's silence means none
    if "kv_lora_rank" in part:
        part.setdefault("q_lora_rank", None)
    if "moe_num_shared_experts" in fields:
        part |= {"moe_num_shared_experts": part.get("n_shared_experts", 0)}
        part |= {"moe_layer_start_index": part.get("first_k_dense_replace", 0)}
    return part


KNOWN = {name: part for name, c in host().catalogue().items() if (part := language_part(c)) is not None}


def test_the_library_knows_most_of_the_catalogue():
    assert len(KNOWN) >= 0.6 * len(host().catalogue())


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_language_parameters_equal_the_reference_librarys(name):
    expected = components(dict(KNOWN[name]))
    found = parameter_counts(load_model(name, host()))
    projector = found["by_component"].get("other", 0) - expected.get("other", 0)  # belongs to a tower, which is not built here
    assert projector >= 0
    assert found["text"] - projector == sum(expected.values())
