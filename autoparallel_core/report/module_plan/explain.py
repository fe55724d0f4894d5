"""One node of a plan as text: its placement, its cost, what is moved around it, and what the other placements would add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from autoparallel_core.report import format as fmt
from autoparallel_core.report.console import heading, labelled, put
from autoparallel_core.report.layout import Column, print_records
from autoparallel_core.report.module_plan import words

_RULES = {
    "torch": "the tensor library's own",
    "planner": "the planner's own, checked against the operator",
    "none": "nobody's: it runs whole on every GPU",
    "constant": "computed on every GPU, as it depends on no input",
}


def print_node(console: Console, e: Mapping[str, Any]) -> None:
    """``e`` is what ``module_reading.explain_node`` found."""
    put(console, e["name"], style="bold")
    many = f", {fmt.plural(e['copies'], 'time')}" if e["copies"] > 1 else ""
    rows = [
        ("is", f"{e['op']} of the {e['phase']}{many}" if "." in e["op"] else f"{e['op']}{many}"),
        ("shape", ", ".join(words.shape(s) for s in e["shape"] if s is not None)),
    ]
    if e["in"]:
        rows += [("reads", words.placed(e["in"])), ("gives", words.placed(e["out"]))]
    else:
        rows.append(("lies", words.placed(e["out"])))
    rows.append(("chosen", _chosen(e)))
    if e["op"] not in {"parameter", "input", "buffer"}:
        rows.append(("rule", _RULES.get(e["rules"], e["rules"])))
    if e["recomputed"]:
        rows.append(("again", "runs again in the backward"))
    labelled(console, rows)
    _cost(console, e)
    _moves(console, e["collectives"])
    _alternatives(console, e)


def _chosen(e: Mapping[str, Any]) -> str:
    if e["pinned"]:
        return "because it is pinned"
    return "the only option" if e["options"] < 2 else f"out of {e['options']} options"


def _cost(console: Console, e: Mapping[str, Any]) -> None:
    heading(console, "What it costs where it is")
    total = sum(e["seconds"].values())
    rows = [("itself", words.KINDS[k], fmt.seconds(v), "") for k, v in e["seconds"].items() if v]
    gradient = e["op"] == "parameter"
    for r in e["reads"]:
        who = f"gradient from {r['from']}" if gradient else f"reads {r['from']}"
        rows.append((who, words.KINDS[r["kind"]], fmt.seconds(r["seconds"]), _change(r)))
        total += r["seconds"]
    for r in e["read_by"]:
        rows.append((f"read by {r['to']}", words.KINDS[r["kind"]], fmt.seconds(r["seconds"]), _change(r)))
        total += r["seconds"]
    rows.append(("in all", "", fmt.seconds(total), ""))
    print_records(
        console,
        [
            Column("", [r[0] for r in rows], right=False, words="{}"),
            Column("seconds", [r[2] for r in rows]),
            Column("placement", [r[3] for r in rows], right=False, words="{}", main=False),
            Column("kind", [r[1] for r in rows], right=False, words="{}", main=False),
        ],
    )


def _change(r: Mapping[str, Any]) -> str:
    return r["given"] if r["given"] == r["taken"] else f"{r['given']} → {r['taken']}"


def _moves(console: Console, entries: Sequence[Mapping[str, Any]]) -> None:
    if entries:
        heading(console, "Collectives for it")
        print_records(
            console,
            [
                Column("kind", [words.COLLECTIVES.get(c["kind"], c["kind"]) for c in entries], right=False),
                Column("over", [c["mesh_dim"] for c in entries], right=False),
                Column("times", [str(c["count"]) for c in entries]),
                Column("each", [fmt.memory(c["bytes"]) for c in entries]),
                Column("seconds", [fmt.seconds(c["seconds"]) for c in entries]),
                Column("", [f"{c['from']} → {c['to']}" for c in entries], right=False, words="{}"),
            ],
        )


def _alternatives(console: Console, e: Mapping[str, Any]) -> None:
    if not e["alternatives"]:
        return
    heading(console, "Other placements, and what each adds to the step when nothing else changes")
    for x in e["alternatives"]:
        placement = f"{words.placed(x['in'])} → {words.placed(x['out'])}" if x["in"] else words.placed(x["out"])
        put(console, f"{placement}: {words.added(x['adds_s'])}")
        for b in x["because"]:
            put(console, f"{b['what']}: +{fmt.seconds(b['adds_s'])} {words.KINDS[b['kind']]}", indent=4, style="dim")
