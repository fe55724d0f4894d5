"""Which towers and prediction blocks a config has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Component, Weight
from autoparallel_extras import towers
from autoparallel_extras.towers import Part, Tower

PARTS = (
    "vision_config",
    "audio_config",
    "vision_tower_config",
    "vit_config",
    "audio_encoder_config",
    "sound_config",
    "vision_encoder",
)
_BY_TYPE: dict[str, Callable[[Part, int], Tower]] = {
    "qwen3_vl": towers.qwen3_vl,
    "qwen3_vl_moe": towers.qwen3_vl,
    "qwen3_5": towers.qwen3_vl,
    "qwen3_5_moe": towers.qwen3_vl,
    "qwen2_vl": towers.qwen2_vl,
    "qwen2_5_vl": towers.qwen2_5_vl,
    "gemma3": towers.gemma3,
    "gemma4": towers.gemma4,
    "kimi_k25": towers.moonvit,
    "step3p7": towers.step3p7,
    "llama4": towers.llama4,
}
_WITH_WHOLE: dict[str, Callable[[Part, int, Mapping[str, Any]], Tower]] = {
    "minimax_m3_vl": towers.minimax_m3,
    "mistral3": towers.pixtral,
}


def find_towers(config: ConfigView) -> tuple[Tower, ...]:
    """The encoders of the whole config (also inside a ``thinker_config``), each counted by its family's layout.

    An encoder of unknown layout is estimated from its depth and widths, with a note.
    """
    whole = config.whole
    model_type = str(whole.get("model_type") or "")
    hidden = config.size("hidden_size")
    found: list[Tower] = []
    config.read.add("language_model_only")
    if whole.get("language_model_only"):
        return ()
    for holder in (whole, whole.get("thinker_config")):
        if not isinstance(holder, Mapping):
            continue
        for name in PARTS:
            part = holder.get(name)
            if isinstance(part, Mapping) and part:
                found.append(_tower(config, model_type, Part(part, where=f"{config.name}: {name}"), name, hidden))
    if model_type == "step3p7" and not found:
        config.note("config has no vision_config: the released 1.96 B vision tower of model type 'step3p7' is assumed")
        found.append(towers.step3p7(Part(towers.STEP3P7_VISION, where="step3p7"), hidden))
    config.read.update(("vision_config", "audio_config"))
    return tuple(found)


def _tower(config: ConfigView, model_type: str, part: Part, name: str, hidden: int) -> Tower:
    if name == "vision_config" and model_type in _BY_TYPE:
        return _BY_TYPE[model_type](part, hidden)
    if name == "vision_config" and model_type in _WITH_WHOLE:
        return _WITH_WHOLE[model_type](part, hidden, config.whole)
    kind = "audio" if "audio" in name or "sound" in name else "vision"
    tower = towers.generic(part, kind)
    config.note(
        f"the layout of the {kind} tower of model type '{model_type or '(none)'}' is not known: about "
        f"{sum(tower.modules.values()) / 1e9:.2f} B parameters by its depth and widths"
    )
    return tower


def tower_layers(found: tuple[Tower, ...]) -> tuple[Layer, ...]:
    """One layer per tower, holding its parameters without a price; its projector is no tower component."""
    return tuple(
        Layer((Block(t.kind, (_bare(t.kind, t.modules, "tower"), _bare("projector", t.projector, "other"))),)) for t in found
    )


def _bare(name: str, sizes: Mapping[str, int], component: Component) -> Bare:
    weights = tuple(Weight(module, (Axis("latent", n),), component, linear=False) for module, n in sizes.items() if n)
    return Bare(name, weights=weights)
