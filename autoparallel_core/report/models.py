"""Models: the catalogue as a table, one model in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, labelled, make_console, put
from autoparallel_core.report.document import envelope
from autoparallel_core.report.layout import Column, print_records

Description = Mapping[str, Any]


def model_document(description: Description) -> dict[str, Any]:
    return envelope("models show", description)


def catalogue_document(rows: Sequence[tuple[str, Description, str]]) -> dict[str, Any]:
    keys = ("model_type", "parameters", "num_layers", "hidden_size", "num_experts", "max_position_embeddings", "kv_cache")
    return envelope(
        "models", {"models": [{"name": name, **{k: d[k] for k in keys}, "plugin": plugin} for name, d, plugin in rows]}
    )


def _kinds(description: Description) -> str:
    seen: dict[str, int] = {}
    for row in description["layers"]:
        seen[row["kind"]] = seen.get(row["kind"], 0) + row["count"]
    return ", ".join(f"{n} {kind}" for kind, n in seen.items())


def _weights(description: Description) -> str:
    q = description["weights"]["quantization"]
    return str(q["default_format"] if q else description["weights"]["dtype"])


def print_catalogue(rows: Sequence[tuple[str, Description, str]]) -> None:
    console = make_console()
    described = [d for _, d, _ in rows]
    print_records(
        console,
        [
            Column("model", [name for name, _, _ in rows], right=False),
            Column("parameters", [fmt.parameters(d["parameters"]["text"]) for d in described]),
            Column("active", [fmt.parameters(d["parameters"]["active"]) for d in described]),
            Column("layers", [str(d["num_layers"]) for d in described]),
            Column("hidden", [f"{d['hidden_size']:,}" for d in described], main=False, words="hidden {}"),
            Column(
                "KV per\ntoken",
                [fmt.memory(d["kv_cache"]["bytes_per_token"]) for d in described],
                main=False,
                words="KV {} per token",
            ),
            Column("weights", [_weights(d) for d in described], right=False, main=False, words="weights {}"),
            Column("kinds of layer", [_kinds(d) for d in described], right=False, main=False, words="{}"),
        ],
    )
    put(console, f"{len(rows)} models. 'autoparallel models show NAME' for one; any other through --model-path.", style="dim")


def print_model(d: Description) -> None:
    """Parameters in all and by component, layers, cache and state, quantisation, what was not understood."""
    console = make_console()
    p = d["parameters"]
    put(console, f"{d['name']} · model type {d['model_type'] or 'none'}", style="bold")
    console.print()
    rows = [
        ("parameters", f"{p['text']:,} ({fmt.parameters(p['text'])}) in the language model"),
        ("active", f"{p['active']:,} ({fmt.parameters(p['active'])}) per token"),
    ]
    rows += [
        (name, f"{p[key]:,}")
        for name, key in (("multi-token prediction", "mtp"), ("vision", "vision"), ("in all", "total"))
        if p[key]
    ]
    experts = f"{d['num_experts']} experts, {d['top_k']} per token" if d["num_experts"] else ""
    kv_heads = f", {d['num_kv_heads']} KV heads" if d["num_kv_heads"] else ""
    shape = [
        f"{d['num_layers']} layers, hidden {d['hidden_size']:,}, {d['num_heads']} heads{kv_heads}",
        experts,
        f"vocabulary {d['vocab_size']:,}{' (tied embeddings)' if d['tied_embeddings'] else ''}",
        f"{d['max_position_embeddings']:,} positions" if d["max_position_embeddings"] else "",
    ]
    rows.append(("shape", "; ".join(filter(None, shape))))
    w, kv = d["weights"], d["kv_cache"]
    q = w["quantization"]
    how = f"{q['method']}, {q['default_format']} ({q['source']})" if q else w["dtype"]
    rows.append(("weights", f"{fmt.memory(w['bytes'])} stored as {how}"))
    rows.append(("KV cache", f"{fmt.count(kv['bytes_per_token'])} bytes per token in {kv['dtype']}"))
    if d["state_bytes_per_sequence"]:
        rows.append(("state", f"{fmt.memory(d['state_bytes_per_sequence'])} per sequence"))
    labelled(console, rows)
    heading(console, "Parameters by component")
    components = [(k, v) for k, v in p["by_component"].items() if v]
    print_records(
        console,
        [
            Column("component", [k.replace("_", " ") for k, _ in components], right=False),
            Column("parameters", [f"{v:,}" for _, v in components]),
            Column("share", [fmt.percent(v / p["total"]) for _, v in components]),
        ],
    )
    heading(console, "Layers")
    layers = d["layers"]
    print_records(
        console,
        [
            Column("kind", [r["kind"] for r in layers], right=False),
            Column("count", [str(r["count"]) for r in layers]),
            Column("parameters\neach", [f"{r['parameters']:,}" for r in layers]),
            Column("KV bytes\n/token", [fmt.count(r["kv_bytes_per_token"]) for r in layers]),
            Column("window", [f"{r['kv_limit_tokens']:,}" if r["kv_limit_tokens"] else "" for r in layers]),
            Column(
                "state\nbytes",
                [fmt.count(r["state_bytes_per_sequence"]) if r["state_bytes_per_sequence"] else "" for r in layers],
                main=False,
                words="state {} bytes per sequence",
            ),
            Column("positions", [r["positions"] for r in layers], right=False, main=False, words="layers {}"),
        ],
    )
    if len(w["formats"]) > 1:
        heading(console, "Parameters by storage format")
        labelled(console, [(name, f"{n:,}") for name, n in w["formats"].items()])
    if d["notes"]:
        heading(console, "Assumed")
        for note in d["notes"]:
            put(console, f"- {note}")
    if d["unknown_fields"]:
        heading(console, "Config fields that were not understood")
        put(console, ", ".join(d["unknown_fields"]), style="yellow")
