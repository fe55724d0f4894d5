"""One engine or one plugin in detail, as text and as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict

from autoparallel_core.report.console import bullets, heading, labelled, make_console, put
from autoparallel_core.report.document import constant_document, envelope
from autoparallel_core.spec.problem import EngineSpec
from autoparallel_core.spec.serving import ServingPolicy

if TYPE_CHECKING:
    from autoparallel_core.host import PluginInfo


def engine_show_document(engine: EngineSpec, plugin: str) -> dict[str, Any]:
    """Everything that an engine registers."""
    return envelope("engines show", {"engine": {**engine_document(engine, plugin), **_more(engine)}})


def engine_document(engine: EngineSpec, plugin: str) -> dict[str, Any]:
    """What the list of engines says of each."""
    return {
        "name": engine.name,
        "modes": list(engine.modes),
        "default_for": list(engine.default_for),
        "default_version": engine.default_version,
        "oldest_version": engine.oldest_version,
        "summary": engine.summary,
        "plugin": plugin,
        "software": asdict(engine.software),
        "constants": {name: constant_document(c) for name, c in engine.constants.items()},
    }


def _more(engine: EngineSpec) -> dict[str, Any]:
    return {
        "abilities": {name: asdict(ability) for name, ability in engine.abilities.items()},
        "decides": dict(engine.decides),
        "serving": [
            {
                "since": p.since,
                "until": p.until,
                "budget": p.budget,
                "memory_fraction": p.memory_fraction,
                "page_tokens": p.page_tokens,
                "scheduler": [asdict(s) for s in p.scheduler],
                "source": p.source,
            }
            for p in engine.serving
        ],
    }


def print_engine(engine: EngineSpec, plugin: str) -> None:
    """Identity, versions, what its software does, what it can do beyond the usual, and the constants it sets."""
    console = make_console()
    put(console, f"{engine.name} · {' and '.join(engine.modes)} · from plugin {plugin}", style="bold")
    console.print()
    oldest = f", rules known from {engine.oldest_version} on" if engine.oldest_version else ""
    rows = [("what it does", engine.summary), ("version", f"{engine.default_version} unless given{oldest}")]
    if engine.default_for:
        rows.append(("default for", ", ".join(engine.default_for)))
    rows.append(("experts", "ep and etp chosen freely" if engine.moe_grid == "folded" else "sharded by ep or by tp, not both"))
    labelled(console, rows)
    if "training" in engine.modes:  # serving answers rest on none of these
        heading(console, "Software, unless stated otherwise")
        software = {k: v for k, v in asdict(engine.software).items() if k != "assumed" and v not in (None, ())}
        labelled(console, [(name, _setting(engine, name, value)) for name, value in software.items()])
    if engine.abilities:
        heading(console, "Beyond one strategy for all layers")
        labelled(console, [(name, f"since {a.since}: {a.how}") for name, a in engine.abilities.items()])
    if engine.serving:
        heading(console, "Memory when serving, by version")
        bullets(console, [_policy(p) for p in engine.serving])
    if engine.constants:
        heading(console, "Constants that it sets")
        bullets(console, [f"{n} = {c.value:g} [{c.origin}] {c.meaning} ({c.source})" for n, c in engine.constants.items()])


def _setting(engine: EngineSpec, name: str, value: Any) -> str:
    words = engine.decides.get(name) or ("on" if value is True else "off" if value is False else _listed(value))
    return words + (" (assumed)" if name in engine.software.assumed and name not in engine.decides else "")


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_BUDGETS = {
    "share_of_device": "a fraction of the device for everything, the rest of it being KV cache",
    "share_of_free": "a fraction of what is free at the start for weights and KV cache",
    "share_after_weights": "a fraction of what is left beside weights, activations and graphs for the KV cache",
}


def _policy(p: ServingPolicy) -> str:
    since = f"from {p.since}" if p.since else "from the first version" if p.until else "every version"
    when = since + (f" until {p.until}" if p.until else "")
    fraction = "as its memory hook reserves" if p.memory_fraction is None else f"{p.memory_fraction:g}"
    limits = "; ".join(f"{s.max_num_seqs:,} sequences, {s.max_num_batched_tokens:,} tokens per step" for s in p.scheduler[:1])
    return f"{when}: {_BUDGETS[p.budget]} ({fraction}); {limits}; pages of {p.page_tokens} tokens ({p.source})"


def plugin_show_document(plugins: Sequence[PluginInfo], provides: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Plugins of one name, and what they register."""
    return envelope("plugins show", {"plugins": [{**asdict(p), "provides": list(provides[p.kind])} for p in plugins]})


def print_plugin(plugins: Sequence[PluginInfo], provides: Mapping[str, Sequence[str]]) -> None:
    console = make_console()
    for i, p in enumerate(plugins):
        if i:
            console.print()
        put(console, f"{p.name} · {p.kind} · {p.status}", style="bold")
        rows = [("from", f"{p.distribution} {p.version}"), ("hooks", ", ".join(p.hooks) or "none")]
        if p.reason:
            rows.append(("reason", p.reason))
        if names := provides[p.kind]:
            rows.append(("provides", ", ".join(names)))
        labelled(console, rows)
