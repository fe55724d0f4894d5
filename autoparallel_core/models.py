"""From a config to a :class:`~autoparallel_core.spec.arch.ModelArch`, layer by layer through the model plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from autoparallel_core.errors import PluginConflict, SpecError
from autoparallel_core.reading.quant_apply import apply_quantization
from autoparallel_core.reading.quant_config import checkpoint_dtype, read_quantization
from autoparallel_core.reading.report import describe
from autoparallel_core.reading.rotary import rotary_cache_elements, rotary_positions
from autoparallel_core.reading.source import from_catalogue, language_fields, looks_like_path, read_config_files
from autoparallel_core.spec.arch import Block, Layer, ModelArch
from autoparallel_core.spec.config import ALIASES, ConfigView
from autoparallel_core.spec.op import Attention, Elementwise, ExpertGemm, Op, Scan
from autoparallel_core.spec.standard import standard_epilogue, standard_prologue

__all__ = ["build_arch", "describe", "load_model"]

MAX_LAYERS = 2_000
"""More layers than this are taken for a mistake in the file."""

_PREDICTION_LAYERS = (
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "mtp_transformer_layers",
)  # fmt: skip


@cache
def harmless_fields() -> frozenset[str]:
    """Fields that say nothing about sizes, memory or time; they are not reported as unknown."""
    lines = (files("autoparallel_core.spec") / "harmless_fields.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


class HookCaller(Protocol):
    """What this module needs of the plugin host."""

    def call(self, group: str, hook: str, **arguments: Any) -> list[tuple[Any, Any]]:
        """The results that are not None, each with the plugin (``.name``, ``.distribution``) that gave it."""

    def catalogue(self) -> Mapping[str, Mapping[str, Any]]:
        """Models known by name."""


def load_model(source: str, host: HookCaller) -> ModelArch:
    """A model from a directory with ``config.json``, a config file, or a name of the catalogue.

    Raises:
        SpecError: the source is missing or malformed, or no plugin knows its architecture.
    """
    if not source:
        raise SpecError("no model is named: give a directory, a config.json or a name of the catalogue")
    if looks_like_path(source):
        name, config, quant = read_config_files(Path(source).expanduser())
        return build_arch(config, name=name, host=host, quant_config=quant)
    name, config = from_catalogue(source, host.catalogue())
    return build_arch(config, name=name, host=host)


def build_arch(
    config: Mapping[str, Any], *, name: str, host: HookCaller, quant_config: Mapping[str, Any] | None = None
) -> ModelArch:
    """Compose the layers of a config from what the model plugins make of them.

    Args:
        config: the fields of a ``config.json``.
        name: what to call the model.
        host: the plugin host.
        quant_config: a sibling ``hf_quant_config.json``, when there is one.

    Raises:
        SpecError: a field is missing or wrong, or no plugin claims a layer.
        PluginConflict: two plugins claim the same layer with equal specificity.
    """
    if not isinstance(config, Mapping):
        raise SpecError(f"{name}: a config must be a JSON object, not {type(config).__name__}")
    if not config:
        raise SpecError(f"{name}: the config is empty; it needs at least hidden_size, num_hidden_layers and num_attention_heads")
    view = ConfigView(language_fields(config), name=name, whole=config)
    if view.raw("is_encoder_decoder"):
        raise SpecError(f"{name}: encoder-decoder models (is_encoder_decoder) are not supported; give a decoder-only model")
    notes = config.get("_notes")
    for text in notes if isinstance(notes, list) else ():
        view.note(str(text))
    _adopt_family(view, host)
    n_layers = _num_layers(view)
    hidden = view.size("hidden_size")
    interned: dict[Block, Block] = {}
    layers = []
    for i in range(n_layers):
        blocks: list[Block] = []
        for hook in ("parse_mixer", "parse_ffn"):
            blocks += (interned.setdefault(b, b) for b in _claim(view, host, hook, i))
        layers.append(Layer(tuple(blocks)))
    view.built = tuple(layers)
    extras = _extras(view, host)
    tied = _tied(view)
    arch = ModelArch(
        name=name,
        model_type=view.model_type,
        hidden_size=hidden,
        vocab_size=view.size("vocab_size"),
        prologue=_single(extras, "prologue") or standard_prologue(view),
        layers=tuple(layers),
        epilogue=_single(extras, "epilogue") or standard_epilogue(view, tied=tied),
        tied_embeddings=tied,
        mtp=tuple(layer for _, layer in extras.get("mtp", ())),
        towers=tuple(layer for _, layer in extras.get("towers", ())),
        max_position_embeddings=_context(view),
        weight_dtype=checkpoint_dtype(view),
        **_facts(layers, view),
    )
    arch = apply_quantization(arch, read_quantization(view, quant_config))
    return _with_report(arch, view)


def _adopt_family(view: ConfigView, host: HookCaller) -> None:
    merged: dict[str, dict[str, Any]] = {"defaults": {}, "traits": {}, "fields": {}}
    owner: dict[tuple[str, str], str] = {}
    for plugin, family in host.call("models", "parse_family", config=view):
        for section, values in merged.items():
            for key, value in family.get(section, {}).items():
                before = owner.setdefault((section, key), plugin.name)
                if before != plugin.name and values[key] != value:
                    raise PluginConflict(
                        f"{view.name}: plugins '{before}' and '{plugin.name}' disagree on {key} of model type '{view.model_type}'"
                    )
                values[key] = value
    view.adopt(**merged)


def _num_layers(view: ConfigView) -> int:
    for field in ("num_hidden_layers", *_PREDICTION_LAYERS):
        if field in view and (n := view.count(field)) > MAX_LAYERS:
            raise SpecError(f"{view.name}: {field} is {n}; more than {MAX_LAYERS} layers are taken for a mistake")
    kinds = view.raw("layers_block_type")
    if "num_hidden_layers" not in view and isinstance(kinds, list) and kinds:
        return len(kinds)
    return view.size("num_hidden_layers")


def _claim(view: ConfigView, host: HookCaller, hook: str, layer: int) -> Sequence[Block]:
    """The blocks of the most specific plugin; an empty sequence is a claim, too (the layer has no such part)."""
    claims = []
    for plugin, result in host.call("models", hook, config=view, layer=layer):
        blocks = (result,) if isinstance(result, Block) else tuple(result)
        claims.append((max((b.specificity for b in blocks), default=10), plugin, blocks))
    if not claims:
        kind = {"parse_mixer": "token mixer (attention)", "parse_ffn": "feed-forward"}[hook]
        architectures = f", architectures {', '.join(view.architectures)}" if view.architectures else ""
        raise SpecError(
            f"{view.name}: no model plugin knows the {kind} of layer {layer + 1} of model type "
            f"'{view.model_type or '(none)'}'{architectures}"
        )
    best = max(s for s, _, _ in claims)
    winners = [(plugin, blocks) for s, plugin, blocks in claims if s == best]
    if len(winners) > 1:
        names = " and ".join(sorted(f"'{p.name}' ({p.distribution})" for p, _ in winners))
        raise PluginConflict(f"{view.name}: plugins {names} claim {hook} of layer {layer + 1} with equal specificity {best}")
    if best == 0:
        view.note(f"no plugin knows model type '{view.model_type or '(none)'}': its layers are read by the shape of their fields")
    return winners[0][1]


def _extras(view: ConfigView, host: HookCaller) -> dict[str, list[tuple[str, Layer]]]:
    joined: dict[str, list[tuple[str, Layer]]] = {}
    for plugin, extras in host.call("models", "parse_extras", config=view):
        for key, layers in extras.items():
            joined.setdefault(key, []).extend((plugin.name, layer) for layer in layers)
    return joined


def _single(extras: Mapping[str, Sequence[tuple[str, Layer]]], key: str) -> Block | None:
    found = extras.get(key, ())
    if len(found) > 1:
        raise PluginConflict(f"plugins {' and '.join(sorted(p for p, _ in found))} both give the model's {key}")
    return found[0][1].blocks[0] if found else None


def _tied(view: ConfigView) -> bool:
    stated = view.get("tie_word_embeddings")
    if stated is not None:
        if not isinstance(stated, bool):
            raise SpecError(f"{view.name}: config field 'tie_word_embeddings' must be true or false, not {stated!r}")
        return stated
    tied = bool(view.trait("tied", default=False))
    view.note(f"config has no 'tie_word_embeddings': {'tied' if tied else 'separate'} input and output embeddings assumed")
    return tied


def _context(view: ConfigView) -> int | None:
    v = view.get("max_position_embeddings")
    return v if isinstance(v, int) and not isinstance(v, bool) and v > 0 else None


def _facts(layers: Sequence[Layer], view: ConfigView) -> dict[str, Any]:
    """Counts that engines ask about, read off the operators rather than the config."""
    ops = [op for layer in dict.fromkeys(layers) for op in layer.ops]

    def most(kind: type[Op], count: Callable[[Any], int]) -> int:
        return max((count(op) for op in ops if isinstance(op, kind)), default=0)

    kv = [
        c.axis.units
        for layer in dict.fromkeys(layers)
        for b in layer.blocks
        for c in b.cache_per_token
        if c.axis.name == "kv_heads"
    ]
    heads = view.get("num_attention_heads")
    rules: dict[str, int] = {}
    for op in ops:
        if isinstance(op, Scan):
            prefix = "mamba" if op.algorithm.startswith("mamba") else "linear"
            rules[f"{prefix}_groups" if prefix == "mamba" else "linear_key_heads"] = op.key_heads.units
            rules[f"{prefix}_heads" if prefix == "mamba" else "linear_value_heads"] = op.heads.units
    if any(isinstance(op, Elementwise) and op.role == "rotary" for op in ops) and (elements := rotary_cache_elements(view)):
        rules["rotary_cache_elements"] = elements
        if (reach := rotary_positions(view)) > (_context(view) or 0):
            rules["rotary_positions"] = reach
    if "group_norm_size" in view:
        rules["norm_groups"] = view.size("group_norm_size")
    return {
        "num_heads": heads if isinstance(heads, int) else most(Attention, lambda op: op.heads.units),
        "num_kv_heads": min(kv, default=0),
        "num_experts": most(ExpertGemm, lambda op: op.experts.units),
        "top_k": most(ExpertGemm, lambda op: op.top_k),
        "rules": tuple(sorted(rules.items())),
    }


def _with_report(arch: ModelArch, view: ConfigView) -> ModelArch:
    from attrs import evolve

    top_level = {k for k, v in view.whole.items() if v is not None and not isinstance(v, dict)}
    understood = {n for name, others in ALIASES.items() for n in (name, *others)} | set(view.trait("understood", default=()))
    unknown = (set(view.unread()) | (top_level - view.read)) - harmless_fields() - understood
    unknown = {k for k in unknown if not k.endswith(("_token_id", "_token_index", "_token")) and not k.startswith("_")}
    return evolve(arch, unknown_fields=tuple(sorted(unknown)), notes=(*arch.notes, *view.notes))
