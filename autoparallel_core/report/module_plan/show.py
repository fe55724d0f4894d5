"""A plan as text: what it achieves, where every parameter lies, what is moved, what is kept in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autoparallel_core.module_reading.names import Regions
from autoparallel_core.report import format as fmt
from autoparallel_core.report.bars import bar
from autoparallel_core.report.console import bullets, heading, labelled, put
from autoparallel_core.report.layout import Column, print_records
from autoparallel_core.report.module_plan import words

_MOST_COLLECTIVES = 12
_BAR = 24


def print_plan(console: Console, s: Mapping[str, Any], *, every: bool = False) -> None:
    """The tables of one plan; ``every`` lists all collectives rather than the dearest."""
    _head(console, s)
    _warnings(console, s)
    _cost(console, s)
    _memory(console, s)
    _stages(console, s["pipeline"])
    _parameters(console, s["parameters"], s["placed_over"])
    _ends(console, s)
    _collectives(console, s["collectives"], every=every)
    _recompute(console, s["recompute"])


def _head(console: Console, s: Mapping[str, Any]) -> None:
    c = s["cluster"]
    put(console, f"Plan of {s['module'].rpartition('.')[2]} on {words.mesh(s['mesh'])}", style="bold")
    memory = s["memory"]
    rows: list[tuple[str, str | Text]] = [
        ("cluster", f"{c['n_gpus']:,} × {c['gpu']}, {c['gpus_per_node']} per node"),
        ("step", f"{fmt.seconds(s['step_s'])} predicted; {words.search(s['search'])}"),
        (
            "memory",
            f"{fmt.memory(memory['peak_bytes'])} of {fmt.memory(memory['limit_bytes'])} per GPU at its highest, {_where(memory)}",
        ),
        *([("speed", f"{fmt.significant(s['tokens_per_s_per_gpu'], 4)} tokens/s per GPU")] if s["tokens_per_s_per_gpu"] else []),
        ("parameters", f"{fmt.memory(s['parameter_bytes'])} in all, {fmt.memory(s['local_parameter_bytes'])} per GPU"),
    ]
    if s["constraints"]["pins"]:
        rows.append(("pinned", "; ".join(f"{n} = {p}" for n, p in s["constraints"]["pins"].items())))
    if s["meshes"]:
        rows.append(("meshes", "; ".join(s["meshes"])))
    labelled(console, rows)


def _where(memory: Mapping[str, Any]) -> str:
    return f"in {memory['peak_at'].lstrip('/')}" if memory["peak_at"] else "in the update"


def _warnings(console: Console, s: Mapping[str, Any]) -> None:
    sentences = [*words.unruled(s["unruled"]), *s["notes"]]
    if sentences:
        heading(console, "Look at this")
        for sentence in sentences:
            put(console, f"! {sentence}", style="yellow")


def _bars(console: Console, rows: Sequence[tuple[str, float, str]], whole: float) -> None:
    if not rows:
        return
    name, figure = (max(len(r[i]) for r in rows) for i in (0, 2))  # type: ignore[arg-type]
    room = min(_BAR, console.width - name - figure - len("      100.0%"))
    for label, amount, text in rows:
        share = amount / whole if whole else 0.0
        console.print(
            Text.assemble(
                f"{label:<{name}}  {text:>{figure}}  ", (bar(share, room) if room > 3 else "", "blue"), f" {fmt.percent(share)}"
            ),
            soft_wrap=True,
        )


def _cost(console: Console, s: Mapping[str, Any]) -> None:
    heading(console, "Step by cause")
    cost = s["cost"]
    rows = []
    for key in ("compute_s", "exchange_s", "weights_s", "update_s", *(["bubble_s"] if "bubble_s" in cost else [])):
        rows.append((words.COST[key], cost[key], fmt.seconds(cost[key])))
        if key == "compute_s":
            rows += [(f"  {kind}", v, fmt.seconds(v)) for kind, v in s["compute"].items()]
    _bars(console, rows, cost["step_s"])
    if cost["hidden_s"]:
        put(console, f"{fmt.seconds(cost['hidden_s'])} of weight traffic and computation run at the same time.", style="dim")


def _memory(console: Console, s: Mapping[str, Any]) -> None:
    heading(console, "Memory of one GPU at its highest, by cause")
    rows = [(words.MEMORY.get(k, k), v, fmt.memory(v)) for k, v in s["memory"]["by_cause"].items() if v]
    _bars(console, rows, s["memory"]["peak_bytes"])


def _stages(console: Console, pipeline: Mapping[str, Any] | None) -> None:
    if pipeline is None:
        return
    how = f"{pipeline['schedule']}, {fmt.plural(pipeline['micro_batches'], 'micro-batch', 'micro-batches')} per step"
    heading(console, f"Stages ({how})")
    stages = pipeline["stages"]
    print_records(
        console,
        [
            Column("stage", [f"{i}{' (slowest)' if i == pipeline['slowest'] else ''}" for i in range(len(stages))], right=False),
            Column("rank", [str(x["rank"]) for x in stages]),
            Column("micro-batch", [fmt.seconds(x["time_s"]) for x in stages]),
            Column("in flight", [str(x["in_flight"]) for x in stages]),
            Column("memory", [fmt.memory(x["peak_bytes"]) for x in stages]),
            Column("layers", [x["layers"] for x in stages], right=False, main=False, words="{}"),
        ],
    )


def _parameters(console: Console, entries: Sequence[Mapping[str, Any]], mesh: Sequence[str]) -> None:
    heading(console, "Parameters")
    put(console, f"One word per mesh dimension ({', '.join(mesh)}): S(d) cut along dimension d, R whole.", style="dim")
    print_records(
        console,
        [
            Column("name", [p["names"] for p in entries], right=False),
            Column("placement", [p["placement"] for p in entries], right=False),
            Column("per GPU", [fmt.memory(p["local_bytes"]) for p in entries]),
            Column("shape", [words.shape(p["shape"]) for p in entries], main=False, words="{}"),
            Column("in all", [fmt.memory(p["bytes"]) for p in entries], main=False, words="{} in all"),
            Column("", [_marks(p) for p in entries], right=False, main=False, words="{}"),
        ],
    )


def _marks(p: Mapping[str, Any]) -> str:
    return ", ".join([*(["pinned"] if p["pinned"] else []), *([] if p["trained"] else ["frozen"])])


def _ends(console: Console, s: Mapping[str, Any]) -> None:
    heading(console, "Inputs and results")
    rows = [(x["name"], f"{x['placement']}  ({x['dtype']} {words.shape(x['shape'])})") for x in s["inputs"]]
    rows += [(f"result {r['output']}", r["placement"]) for r in s["results"]]
    labelled(console, rows)


def _collectives(console: Console, entries: Sequence[Mapping[str, Any]], *, every: bool) -> None:
    heading(console, "Collectives of one step")
    if not entries:
        put(console, "none")
        return
    shown = entries if every else entries[:_MOST_COLLECTIVES]
    print_records(
        console,
        [
            Column("kind", [words.COLLECTIVES.get(c["kind"], c["kind"]) for c in shown], right=False),
            Column("over", [c["mesh_dim"] for c in shown], right=False),
            Column("times", [f"{c['count']:,}" for c in shown]),
            Column("each", [fmt.memory(c["bytes"]) for c in shown]),
            Column("seconds", [fmt.seconds(c["seconds"]) for c in shown]),
            Column("for", [c["for"] for c in shown], right=False, words="{}", main=False),
            Column("", [f"{c['from']} → {c['to']}" for c in shown], right=False, main=False, words="{}"),
        ],
    )
    rest = entries[len(shown) :]
    if rest:
        total = sum(c["seconds"] for c in rest)
        many = sum(c["count"] for c in rest)
        put(console, f"and {fmt.plural(many, 'more', 'more')} that take {fmt.seconds(total)} together (--all)", style="dim")


def _recompute(console: Console, entries: Sequence[Mapping[str, Any]]) -> None:
    dear = [r for r in entries if r["seconds"] > 0]
    if not entries:
        return
    heading(console, "Run again in the backward instead of kept")
    if dear:
        print_records(
            console,
            [
                Column("operator", [r["names"] for r in dear], right=False),
                Column("seconds", [fmt.seconds(r["seconds"]) for r in dear]),
            ],
        )
    free = [r["names"] for r in entries if not r["seconds"]]
    if free:
        put(console, f"at no cost that counts: {', '.join(free)}", style="dim")


def print_operators(console: Console, document: Mapping[str, Any]) -> None:
    """Every operator with its placement and time, in the order in which they run."""
    regions = Regions(document["regions"])
    rows = [o for o in document["operators"] if o["op"] != "parameter"]
    heading(console, "Operators")
    print_records(
        console,
        [
            Column("node", [regions.label(o["name"]) for o in rows], right=False),
            Column("reads", [words.placed(o["in"]) for o in rows], right=False),
            Column("gives", [words.placed(o["out"]) for o in rows], right=False),
            Column("seconds", [fmt.seconds(sum(o["seconds"].values())) for o in rows]),
            Column("", ["again in the backward" if o["recomputed"] else "" for o in rows], right=False, main=False, words="{}"),
        ],
    )


def print_verified(console: Console, figures: Mapping[str, Any]) -> None:
    """Errors and counts of a replay."""
    ok = figures["passed"]
    put(console, "The plan computes what the module computes." if ok else "The plan does NOT compute what the module computes.",
        style="bold green" if ok else "bold red")  # fmt: skip
    counted, predicted = figures["collectives_counted"], figures["collectives_predicted"]
    kinds = dict.fromkeys([*predicted, *counted])
    counts = ", ".join(
        f"{words.COLLECTIVES.get(k, k)} {counted.get(k, 0)}"
        + ("" if counted.get(k, 0) == predicted.get(k, 0) else f" (planned {predicted.get(k, 0)})")
        for k in kinds
    )
    labelled(
        console,
        [
            ("how", f"{figures['how']}, mesh of {' × '.join(map(str, figures['mesh']))}, {figures['parameters']:,} parameters"),
            ("outputs", f"{figures['output_error']:.2g} relative error (at most {figures['tolerance']:g})"),
            ("gradients", f"{figures['gradient_error']:.2g}, the largest in {figures['worst_gradient'] or 'none'}"),
            ("collectives", f"{counts or 'none'}: as planned" if counted == predicted else counts),
        ],
    )


def print_notes(console: Console, sentences: Sequence[str]) -> None:
    """What was assumed while building the module."""
    if sentences:
        heading(console, "Assumed")
        bullets(console, sentences)
