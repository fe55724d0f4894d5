"""From what the user names (a directory, a file, a catalogue entry) to a config dictionary.

The language model's part of a nested config is found here too; what its fields mean is the plugins' business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoparallel_core.errors import SpecError, UnknownPlugin
from autoparallel_core.json_file import read_json_file

LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder", "generator", "text_encoder")
"""Names under which multimodal configs keep the language model, in order of preference."""

WHOLE_MODEL_FIELDS = (
    "quantization_config", "compression_config", "dtype", "torch_dtype", "architectures", "is_encoder_decoder",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip
"""Top-level fields that stay valid for a nested language model that does not state them itself."""


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file. Raises SpecError when it is missing, unreadable, no JSON or no object."""
    data = read_json_file(path, str(path))
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a config must be a JSON object, not {type(data).__name__}")
    return data


def read_config_files(source: Path) -> tuple[str, Mapping[str, Any], Mapping[str, Any] | None]:
    """Name, config and (when there is one) ``hf_quant_config.json`` of a model directory or a config file.

    The quantisation file lies beside ``config.json``, or beside ``NAME.json`` as ``NAME_hf_quant_config.json``.
    """
    if source.is_dir():
        config = source / "config.json"
        if not config.is_file():
            raise SpecError(f"{source}: the directory has no config.json")
        name = source.resolve().name
    else:
        config = source
        name = source.resolve().parent.name if source.name == "config.json" else source.stem
    sibling = config.with_name("hf_quant_config.json" if config.name == "config.json" else f"{config.stem}_hf_quant_config.json")
    return name, read_json(config), read_json(sibling) if sibling.is_file() else None


def looks_like_path(source: str) -> bool:
    """Whether the user means a file: it exists, is written as a path, or ends in .json."""
    return Path(source).exists() or source.endswith(".json") or source.startswith((".", "/", "~"))


def from_catalogue(name: str, catalogue: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Find a catalogue entry by full name or by the part after ``/``, ignoring case.

    Raises UnknownPlugin with the nearest names.
    """
    wanted = name.casefold()
    full = {k.casefold(): k for k in catalogue}
    if wanted in full:
        return full[wanted], catalogue[full[wanted]]
    short = [k for k in catalogue if k.rsplit("/", 1)[-1].casefold() == wanted]
    if len(short) == 1:
        return short[0], catalogue[short[0]]
    if short:
        raise UnknownPlugin(f"model '{name}' is ambiguous: {', '.join(sorted(short))}")
    raise UnknownPlugin(
        f"unknown model '{name}': neither a file nor one of the {len(catalogue)} models of the catalogue"
        f"{near_names(name, catalogue)}"
    )


def near_names(name: str, catalogue: Mapping[str, Any]) -> str:
    """`` (did you mean A, B?)``, or nothing when no name of the catalogue is near."""
    tails = {k.rsplit("/", 1)[-1].casefold(): k for k in catalogue}
    near = difflib.get_close_matches(name.casefold().rsplit("/", 1)[-1], tails, n=3, cutoff=0.6)
    return f" (did you mean {', '.join(tails[n] for n in near)}?)" if near else ""


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in LANGUAGE_PARTS:
        part = config.get(key)
        if not isinstance(part, dict) or not part:
            continue
        inner = [p for p in _parts(part) if _depth(p[1])]
        if inner and not _depth(part):
            yield from ((f"{key}.{k}", p) for k, p in inner)
        else:
            yield key, part


def _depth(config: Mapping[str, Any]) -> int:
    for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        v = config.get(key)
        if isinstance(v, int):
            return v
    kinds = config.get("layers_block_type")
    return len(kinds) if isinstance(kinds, list) else 0


def language_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's fields, with the whole model's own underneath (``tie_word_embeddings`` on top).

    Of several language parts the deepest is taken: a decoder goes before a small text encoder.
    """
    parts = [(key, p) for key, p in _parts(config) if _depth(p) or not _depth(config)]
    if not parts:
        return dict(config)
    _, part = max(parts, key=lambda kp: _depth(kp[1]))
    fields = {k: config[k] for k in WHOLE_MODEL_FIELDS if config.get(k) is not None}
    if config.get("model_type") is not None:
        fields["model_type"] = config["model_type"]
    fields |= {k: v for k, v in part.items() if v is not None or k not in fields}
    if config.get("architectures") is not None:
        fields["architectures"] = config["architectures"]
    if config.get("tie_word_embeddings") is not None:
        fields["tie_word_embeddings"] = config["tie_word_embeddings"]
    return fields
