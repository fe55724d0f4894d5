"""Checks of model plugins: the blocks they build, and that they answer the same way twice and only for their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import AutoparallelError
from autoparallel_core.spec.arch import Block, Layer, ModelArch
from autoparallel_core.spec.config import ConfigView

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.hosting.loading import PluginInfo

STRANGER: Mapping[str, Any] = {
    "model_type": "a-type-of-nobody",
    "architectures": ["NobodyForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
}
"""A config that says nothing of any layer's parts: no plugin can claim one."""


def block_complaints(block: Block) -> list[str]:
    """Names and sizes inside one block."""
    return [f"block '{block.kind}': {c}" for c in _block(block)]


def _block(block: Block) -> Iterator[str]:
    if not block.kind or block.kind != block.kind.casefold() or " " in block.kind:
        yield "the kind must be a short lower-case name"
    if not 0 <= block.specificity <= 100:
        yield f"specificity {block.specificity} is outside 0 to 100"
    names = [op.name for op in block.ops]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"two operators are named '{name}'"
    modules = [m for op in block.ops for m in {w.module for w in op.weights}]  # one operator may own several parts of a tensor
    for module in sorted({m for m in modules if modules.count(m) > 1}):
        yield f"two operators own the weight '{module}'"
    for w in block.weights():
        if not w.axes or w.size < 1:
            yield f"weight '{w.module}' has no elements"
    for tensor in (*block.cache_per_token, *block.cache_per_sequence):
        if tensor.axis.size < 1 or tensor.tokens_per_entry < 1:
            yield f"cache '{tensor.name}' has no elements"


class _OneProvider:
    """A host seen through one plugin's answers, which it keeps."""

    def __init__(self, host: Host, plugin: str) -> None:
        self._host = host
        self._plugin = plugin
        self.answers: list[tuple[str, Any]] = []

    def call(self, group: str, hook: str, **arguments: Any) -> list[tuple[Any, Any]]:
        given = self._host.call(group, hook, **arguments)
        self.answers += [(hook, result) for info, result in given if info.name == self._plugin]
        return given

    def catalogue(self) -> Mapping[str, Mapping[str, Any]]:
        return self._host.catalogue()


def answers_about(host: Host, plugin: str, config: Mapping[str, Any], name: str) -> tuple[ModelArch, list[tuple[str, Any]]]:
    """The model as all plugins compose it, and everything that one of them said about it, as (hook, result)."""
    from autoparallel_core.models import build_arch

    watched = _OneProvider(host, plugin)
    return build_arch(config, name=name, host=watched), watched.answers


def config_complaints(host: Host, plugin: str, config: Mapping[str, Any], name: str) -> list[str]:
    """What is wrong with a plugin's answers about one config: repeated answers differ, or its blocks are malformed."""
    arch, answers = answers_about(host, plugin, config, name)
    again, repeated = answers_about(host, plugin, config, name)
    out = []
    if arch != again or answers != repeated:
        out.append("gives another answer when asked again")
    blocks = {b for _, result in answers for b in _blocks_of(result)}
    out += [c for b in sorted(blocks, key=lambda b: (b.kind, len(b.ops))) for c in block_complaints(b)]
    return [f"{name}: {c}" for c in dict.fromkeys(out)]


def stranger_complaints(host: Host, plugin: PluginInfo) -> list[str]:
    """A plugin must claim nothing of a model type it does not know and whose fields say nothing of its parts."""
    out = []
    for hook, extra in (("parse_family", {}), ("parse_mixer", {"layer": 0}), ("parse_ffn", {"layer": 0}), ("parse_extras", {})):
        if hook not in plugin.hooks:
            continue
        view = ConfigView(STRANGER, name="stranger")
        try:
            if host.implementation(plugin, hook)({"config": view, **extra}):
                out.append(
                    f"{hook} claims part of a model of unknown type '{STRANGER['model_type']}' without any field of its own"
                )
        except AutoparallelError as e:
            out.append(f"{hook} refuses a model that is not its own: {e}")
    return out


def catalogue_complaints(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names and the least a config must say."""
    out = []
    for name, config in configs.items():
        if name != name.strip() or "/" not in name:
            out.append(f"catalogue name '{name}' is not of the form organisation/model")
        if not config.get("model_type"):
            out.append(f"{name}: model_type is missing")
    return out


def _blocks_of(result: Any) -> Iterator[Block]:
    if isinstance(result, Block):
        yield result
    elif isinstance(result, Layer):
        yield from result.blocks
    elif isinstance(result, Mapping):
        for part in result.values():
            yield from _blocks_of(part)
    elif isinstance(result, list | tuple):
        for part in result:
            yield from _blocks_of(part)
