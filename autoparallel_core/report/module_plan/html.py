"""A plan as one page that opens from disk: graph, placements, cost by cause, memory over time. Nothing is loaded from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from autoparallel_core.module_reading.explain import explain_every
from autoparallel_core.module_reading.summary import placed_over, summary
from autoparallel_core.report import format as fmt
from autoparallel_core.report.module_plan import svg, words
from autoparallel_core.report.module_plan.graph import class_label, drawings
from autoparallel_core.spec.module_plan import ModulePlan

_COLOURS = 9
"""Placements that have a colour of their own; the rarer ones share the last."""


def page(plan: ModulePlan) -> str:
    """The page's text."""
    d, s = plan.document, summary(plan)
    nodes = explain_every(plan)
    colours = _colours(d)
    sections = {
        "cost": ("Step by cause", _cost(s)),
        "memory": ("Memory of one GPU over a step", _memory(d, s)),
        "graph": ("Operators by layer", _graphs(d, colours)),
        "parameters": ("Parameters", _parameters(s, colours)),
        "collectives": ("Collectives of one step", _collectives(s)),
        "operators": ("All operators", _operators(d, nodes, colours)),
    }
    if s["pipeline"] is not None:
        sections = {"pipeline": ("Pipeline stages", _stages(s["pipeline"])), **sections}
    room = files("autoparallel_core.report.module_plan")
    text = {name: (room / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    title = f"Plan of {s['module'].rpartition('.')[2]} on {words.mesh(s['mesh'])}"
    c = s["cluster"]
    made = ", ".join(f"{k} {v}" for k, v in s["made_by"].items())
    return Template(text["page.html"]).substitute(
        title=escape(title),
        subtitle=escape(f"{c['n_gpus']:,} × {c['gpu']}, {c['gpus_per_node']} per node · {made}"),
        style=text["page.css"],
        script=text["page.js"],
        tiles=_tiles(s),
        warnings=_warnings(s),
        nav="".join(f'<a href="#{key}">{escape(name)}</a>' for key, (name, _) in sections.items()),
        sections="".join(
            f'<section id="{key}"><h2>{escape(name)}</h2>{body}</section>' for key, (name, body) in sections.items()
        ),
        data=_json({slot: _detail(n) for slot, n in nodes.items()}),
    )


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _colours(d: Mapping[str, Any]) -> dict[str, int]:
    """The most frequent placements and their colours."""
    seen = Counter(o["out"][0] for o in d["operators"] if o["out"])
    return {p: i for i, (p, _) in enumerate(seen.most_common(_COLOURS))}


def _chip(placement: str, colours: Mapping[str, int]) -> str:
    return f'<span class="chip c{colours.get(placement, _COLOURS)}">{escape(placement or "–")}</span>'


def _tiles(s: Mapping[str, Any]) -> str:
    memory = s["memory"]
    found = [
        ("predicted step", fmt.seconds(s["step_s"]), words.search(s["search"])),
        ("memory per GPU at its highest", fmt.memory(memory["peak_bytes"]), f"limit {fmt.memory(memory['limit_bytes'])}"),
        ("mesh", words.mesh(s["mesh"]), f"{s['cluster']['n_gpus']:,} GPUs"),
        ("parameters", fmt.memory(s["parameter_bytes"]),
         f"{fmt.memory(s['local_parameter_bytes'])} per GPU"),
        ("collectives", f"{sum(c['count'] for c in s['collectives']):,}",
         f"{fmt.seconds(sum(c['seconds'] for c in s['collectives']))} in all"),
    ]  # fmt: skip
    return "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in found)


def _warnings(s: Mapping[str, Any]) -> str:
    pins = [f"pinned: {n} = {p}" for n, p in s["constraints"]["pins"].items()]
    sentences = [*words.unruled(s["unruled"]), *s["notes"], *pins]
    if not sentences:
        return ""
    return f'<div class="warnings"><ul>{"".join(f"<li>{escape(x)}</li>" for x in sentences)}</ul></div>'


def _cost(s: Mapping[str, Any]) -> str:
    cost = s["cost"]
    parts = [(f"computation: {kind}", v, fmt.seconds(v)) for kind, v in s["compute"].items()]
    kinds = ("exchange_s", "weights_s", "update_s", *(["bubble_s"] if "bubble_s" in cost else []))
    parts += [(words.COST[k], cost[k], fmt.seconds(cost[k])) for k in kinds]
    whole = sum(p[1] for p in parts)
    note = ""
    if cost["hidden_s"]:
        note = (
            f'<p class="dim">{escape(fmt.seconds(cost["hidden_s"]))} of this run at the same time (weights are gathered and '
            f"gradients reduced beside computation), so the step takes {escape(fmt.seconds(cost['step_s']))}.</p>"
        )
    return svg.stack(parts, whole) + _key([(name, said) for name, _, said in parts]) + note


def _key(rows: Iterable[tuple[str, str]]) -> str:
    items = (f'<li><i class="f{i % 8}"></i>{escape(name)} <b>{escape(said)}</b></li>' for i, (name, said) in enumerate(rows))
    return f'<ul class="key">{"".join(items)}</ul>'


def _stages(pipeline: Mapping[str, Any]) -> str:
    head = f"{pipeline['schedule']}, {fmt.plural(pipeline['micro_batches'], 'micro-batch', 'micro-batches')} per step"
    titles = (("stage", ""), ("rank", ""), ("layers", ""), ("one micro-batch", "n"), ("in flight", "n"), ("memory", "n"))
    rows = "".join(
        f"<tr><td>{i}{' (slowest)' if i == pipeline['slowest'] else ''}</td><td>{x['rank']}</td>"
        f'<td class="mono">{escape(x["layers"])}</td><td class="n">{escape(fmt.seconds(x["time_s"]))}</td>'
        f'<td class="n">{x["in_flight"]}</td><td class="n">{escape(fmt.memory(x["peak_bytes"]))}</td></tr>'
        for i, x in enumerate(pipeline["stages"])
    )
    head_cells = "".join(f'<th class="{c}">{t}</th>' for t, c in titles)
    return f'<p class="dim">{escape(head)}</p><table><tr>{head_cells}</tr>{rows}</table>'


def _memory(d: Mapping[str, Any], s: Mapping[str, Any]) -> str:
    memory = d["memory"]
    at = [i for i, _ in memory["timeline"]]
    causes = {words.MEMORY.get(k, k): v for k, v in memory["timeline_by_cause"].items()}
    peak = max(memory["timeline"], key=lambda p: p[1], default=(0, 0.0))
    chart = svg.area(at, causes, memory["limit_bytes"], (peak[0], peak[1]), memory["forward_steps"])
    rows = [(words.MEMORY.get(k, k), fmt.memory(v)) for k, v in memory["by_cause"].items()]
    where = s["memory"]["peak_at"].lstrip("/")
    note = f"At its highest, {fmt.memory(memory['peak_bytes'])} in {where or 'the update'}:"
    return f'{chart}<p class="dim">{escape(note)}</p>{_key(rows)}'


def _graphs(d: Mapping[str, Any], colours: Mapping[str, int]) -> str:
    legend = "".join(f"<li>{_chip(p, colours)}</li>" for p in colours)
    head = (
        f'<p class="dim">One word per mesh dimension ({escape(", ".join(placed_over(d)))}): S(d) cut along dimension d, '
        "R whole on every rank, P a sum that is still spread over the ranks. Orange lines change the placement on the way. "
        f'Click on a box to see what else it could be.</p><ul class="key">{legend}</ul>'
    )
    blocks = []
    for name, phases in drawings(d).items():
        for phase, drawing in phases.items():
            opened = " open" if name and phase == "forward" else ""
            title = escape(f"{class_label(d, name)}: {phase}")
            graph = svg.graph(drawing, colours)
            blocks.append(f'<details{opened}><summary>{title}</summary><div class="graphs">{graph}</div></details>')
    return head + "".join(blocks)


def _table(key: str, columns: Sequence[tuple[str, str]], rows: Iterable[tuple[str, Sequence[str]]], placeholder: str) -> str:
    """``columns``: title and class of the cells; rows: attributes and cells as HTML."""
    head = "".join(f'<th class="{cls}">{escape(title)}</th>' for title, cls in columns)
    lines = "".join(
        f"<tr{attributes}>{''.join(f'<td class={cls!r}>{c}</td>' for c, (_, cls) in zip(cells, columns, strict=True))}</tr>"
        for attributes, cells in rows
    )
    return (
        f'<input type="search" data-filter="{key}" placeholder="{escape(placeholder, quote=True)}" aria-label="filter">'
        f'<div class="scroll"><table id="{key}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _parameters(s: Mapping[str, Any], colours: Mapping[str, int]) -> str:
    rows = [
        (
            "",
            (
                escape(p["names"]),
                escape(words.shape(p["shape"])),
                escape(p["dtype"]),
                _chip(p["placement"], colours) + (" pinned" if p["pinned"] else ""),
                escape(fmt.memory(p["local_bytes"])),
                escape(fmt.memory(p["bytes"])),
            ),
        )
        for p in s["parameters"]
    ]
    columns = [("name", "mono"), ("shape", "n"), ("dtype", ""), ("placement", ""), ("per GPU", "n"), ("in all", "n")]
    ends = [(x["name"], x["placement"]) for x in s["inputs"]] + [(f"result {r['output']}", r["placement"]) for r in s["results"]]
    placed = "".join(f"<li><span class='mono'>{escape(n)}</span> {_chip(p, colours)}</li>" for n, p in ends)
    return (
        f'{_table("parameter-table", columns, rows, "filter: wq S(0)")}<h3>Inputs and results</h3><ul class="key">{placed}</ul>'
    )


def _collectives(s: Mapping[str, Any]) -> str:
    rows = [
        (
            "",
            (
                escape(words.COLLECTIVES.get(c["kind"], c["kind"])),
                escape(f"{c['mesh_dim']} ({c['ranks']})"),
                f"{c['count']:,}",
                escape(fmt.memory(c["bytes"])),
                escape(fmt.memory(c["total_bytes"])),
                escape(fmt.seconds(c["seconds"])),
                escape(c["for"]),
                escape(f"{c['from']} → {c['to']}"),
                escape(c["phase"]),
            ),
        )
        for c in s["collectives"]
    ]
    columns = [
        ("kind", ""), ("over (ranks)", ""), ("times", "n"), ("each", "n"), ("in all", "n"), ("seconds", "n"), ("for", "mono"),
        ("placement", "mono"), ("phase", ""),
    ]  # fmt: skip
    return _table("collective-table", columns, rows, "filter: all-reduce tp")


def _operators(d: Mapping[str, Any], nodes: Mapping[int, Mapping[str, Any]], colours: Mapping[str, int]) -> str:
    rows = []
    for o in d["operators"]:
        if o["op"] in {"parameter", "buffer", "constant"}:
            continue
        n = nodes[o["slot"]]
        cells = (
            escape(n["name"]),
            escape(o["op"]),
            " ".join(_chip(p, colours) for p in o["in"]),
            " ".join(_chip(p, colours) for p in o["out"]),
            str(o["copies"]),
            escape(fmt.seconds(sum(o["seconds"].values()))),
            "again" if o["recomputed"] else "",
            o["phase"],
        )
        rows.append((f' data-slot="{o["slot"]}"', cells))
    columns = [
        ("node", "mono"), ("operator", "mono"), ("reads", ""), ("gives", ""), ("times", "n"), ("seconds", "n"), ("recompute", ""),
        ("phase", ""),
    ]  # fmt: skip
    return _table("operator-table", columns, rows, "filter: mm backward")


def _detail(n: Mapping[str, Any]) -> dict[str, Any]:
    """What the panel beside the page says of a node: texts only."""
    shapes = ", ".join(words.shape(x) for x in n["shape"] if x is not None)
    facts = [["operator", n["op"]], ["times", str(n["copies"])], ["shape", shapes], ["reads", words.placed(n["in"])],
             ["gives", words.placed(n["out"])], ["options", str(n["options"])], ["rule", n["rules"]]]  # fmt: skip
    facts += [["pinned", "yes"]] if n["pinned"] else []
    facts += [["backward", "runs again"]] if n["recomputed"] else []
    cost = [["itself", words.KINDS[k], fmt.seconds(v)] for k, v in n["seconds"].items()]
    for side, verb in (("reads", "reads"), ("read_by", "read by")):
        for e in n[side]:
            other = e["from" if side == "reads" else "to"]
            what = e["given"] if e["given"] == e["taken"] else f"{e['given']} → {e['taken']}"
            cost.append([f"{verb} {other}", what, fmt.seconds(e["seconds"])])
    moves = [
        [f"{c['count']} × {words.COLLECTIVES.get(c['kind'], c['kind'])} over {c['mesh_dim']}, {fmt.memory(c['bytes'])} each",
         f"{c['from']} → {c['to']}", fmt.seconds(c["seconds"])]
        for c in n["collectives"]
    ]  # fmt: skip
    others = [
        {
            "placement": f"{words.placed(a['in'])} → {words.placed(a['out'])}" if a["in"] else words.placed(a["out"]),
            "adds": words.added(a["adds_s"]),
            "because": [f"{b['what']}: +{fmt.seconds(b['adds_s'])} {words.KINDS[b['kind']]}" for b in a["because"]],
        }
        for a in n["alternatives"]
    ]
    return {"name": n["name"], "facts": facts, "cost": cost, "collectives": moves, "alternatives": others}
