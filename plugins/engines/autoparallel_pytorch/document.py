"""The plan's document: everything a reader, a diff or a replay asks for, as plain data (docs/reference/plan-json.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autoparallel_core.spec.module_plan import SCHEMA, VERSION, ModulePlan
from autoparallel_core.version import version
from autoparallel_pytorch import codec
from autoparallel_pytorch.fingerprint import fingerprint
from autoparallel_pytorch.formulate import KINDS, WEIGHTS, Slot
from autoparallel_pytorch.graph import BACKWARD, DTYPE_BYTES
from autoparallel_pytorch.placement import Placements, shards, text
from autoparallel_pytorch.program import Program, Step

if TYPE_CHECKING:
    import torch

    from autoparallel_pytorch.planner import Found, Planning

POINTS = 400
"""Points of the memory timeline that a document keeps."""
ALTERNATIVES = 6
REASONS = 3
NOTHING_S = 1e-8
"""Of a step; less is no reason."""


def document(module: torch.nn.Module, planning: Planning, found: Found) -> ModulePlan:
    """All of one plan."""
    import torch

    graph, machine = planning.graph, planning.machine
    outcome = found.outcome
    step = planning.objective.step_s(found.seconds)
    names = [n.name for n in graph.nodes]
    return ModulePlan(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "made_by": {"autoparallel": version(), "torch": torch.__version__},
            "module": {"class": f"{type(module).__module__}.{type(module).__qualname__}", "fingerprint": fingerprint(module)},
            "mesh": {"names": list(machine.mesh.names), "sizes": list(machine.mesh.sizes)},
            "cluster": _cluster(planning),
            "inputs": _inputs(planning, found.program),
            "structure": graph.structure,
            "parameters": _parameters(planning, found.program),
            "operators": _operators(planning, found),
            "hubs": _hubs(planning, found),
            "edges": _edges(planning, found),
            "collectives": collectives(found.program, names, planning),
            "recompute": sorted({names[n] for n in found.recomputed}),
            "cost": {
                "step_s": step,
                **{f"{k}_s": found.seconds[k] for k in KINDS},
                "hidden_s": planning.objective.hidden_s(found.seconds),
            },
            "memory": _memory(planning, found, names),
            "constraints": {
                "pins": dict(planning.request.pins),
                "memory_limit_bytes": planning.limit_bytes,
                "optimizer_bytes_per_parameter": planning.settings.optimizer_bytes,
            },
            "search": {
                "bound_s": min(outcome.bound_s, step),
                "gap": max(0.0, 1.0 - outcome.bound_s / step) if step else 0.0,
                "exact": outcome.exact,
                "programs": outcome.programs,
                "slots": len(planning.form.slots),
                "options": sum(len(s.picks) for s in planning.form.slots),
            },
            "regions": {k: list(v) for k, v in planning.classes.regions.items()},
            "unruled": _unruled(planning, found),
            "notes": [*graph.notes, *planning.notes],
            "constants": graph.constants,
            "program": codec.dump(found.program, names),
        }
    )


def _cluster(planning: Planning) -> dict[str, Any]:
    c = planning.request.cluster
    return {
        "gpu": c.gpu.name,
        "n_gpus": c.n_gpus,
        "gpus_per_node": c.gpus_per_node,
        "memory_bytes": c.gpu.memory_bytes,
        "tiers": [{"name": t.name, "ranks": t.ranks, "bytes_per_s": t.bytes_per_s, "latency_s": t.latency_s} for t in c.tiers],
        "overrides": list(c.overrides),
    }


def _inputs(planning: Planning, program: Program) -> dict[str, Any]:
    out = {}
    for name, node in planning.graph.inputs.items():
        meta = planning.graph.nodes[node].outs[0]
        assert meta is not None, "inputs are tensors"
        out[name] = {
            "shape": list(meta.shape),
            "dtype": meta.dtype,
            "placement": text(program.values[program.inputs[name]].placements),
        }
    return out


def _parameters(planning: Planning, program: Program) -> dict[str, Any]:
    out = {}
    for name, node in planning.graph.parameters.items():
        meta = planning.graph.nodes[node].outs[0]
        assert meta is not None, "parameters are tensors"
        info = program.values[program.parameters[name]]
        out[name] = {
            "shape": list(meta.shape),
            "dtype": meta.dtype,
            "placement": text(info.placements),
            "bytes": meta.bytes,
            "local_bytes": info.bytes,
            "trained": planning.graph.gradients.get(name) is not None,
        }
    return out


def _operators(planning: Planning, found: Found) -> list[dict[str, Any]]:
    """One entry per class of operators, with what else it could have been and what that would cost by itself."""
    alternatives = Alternatives(planning, found)
    out = []
    for i, (slot, k) in enumerate(zip(planning.form.slots, found.placements, strict=True)):
        if slot.key[0] != "op":
            continue
        node = planning.graph.nodes[slot.node]
        out.append(
            {
                "slot": i,
                "name": node.name,
                "op": node.op,
                "phase": "backward" if node.phase == BACKWARD else "forward",
                "copies": slot.copies,
                "rules": slot.source,
                "out": [text(p) for p in slot.outs[k]],
                "in": [text(p) for p in slot.ins[k]],
                "shape": [list(m.shape) if m is not None else None for m in node.outs],
                "seconds": {kind: float(c[k]) for kind, c in slot.cost.items()},
                "recomputed": node.id in found.recomputed,
                "options": len(slot.picks),
                "alternatives": alternatives.of(i),
            }
        )
    return out


def _hubs(planning: Planning, found: Found) -> list[dict[str, Any]]:
    """Tensors that several operators of one phase read, as they read them; and the results of the module."""
    out = []
    for i, (slot, k) in enumerate(zip(planning.form.slots, found.placements, strict=True)):
        kind, number, output, phase = slot.key
        if kind != "op":
            out.append(
                {
                    "slot": i,
                    "kind": kind,
                    "of": planning.graph.nodes[slot.node].name,
                    "output": number if kind == "result" else output,
                    "phase": "backward" if phase == BACKWARD else "forward",
                    "placement": text(slot.outs[k][0]),
                    "copies": slot.copies,
                }
            )
    return out


def _edges(planning: Planning, found: Found) -> list[dict[str, Any]]:
    """Who reads what of whom, hubs included: the placement given, the one taken (seen through the views between), the time."""
    out = []
    slots, chosen = planning.form.slots, found.placements
    for (u, v, kind), table in planning.form.edges.items():
        given, taken = _between(planning, u, v, chosen)
        out.append(
            {
                "from": u,
                "to": v,
                "kind": kind,
                "seconds": float(table[chosen[u], chosen[v]]),
                "given": "; ".join(dict.fromkeys(text(slots[u].outs[chosen[u]][o]) for o in given)),
                "taken": "; ".join(dict.fromkeys(text(p) for p in taken)),
            }
        )
    return out


def _between(planning: Planning, u: int, v: int, chosen: Sequence[int]) -> tuple[list[int], list[Placements]]:
    """Outputs of slot u that slot v reads, and how it takes them."""
    form = planning.form
    reader = form.slots[v]
    own = reader.outs[chosen[v]][0] if reader.outs[chosen[v]] else ()
    if reader.key[0] == "hub":
        return [reader.key[2]], [own]
    if reader.key[0] == "op" and not planning.graph.nodes[reader.node].placeholder:
        read = [(i, form.inputs.get((reader.node, i))) for i in range(len(reader.ins[chosen[v]]))]
        mine = [(i, at[1]) for i, at in read if at is not None and at[0] == u]
        if mine:
            return [o for _, o in mine], [reader.ins[chosen[v]][i] for i, _ in mine]
    return [0], [own]  # a result of the module, or a parameter that takes its gradient


class Alternatives:
    """What a slot's other options would add to the step when nothing else changes."""

    def __init__(self, planning: Planning, found: Found) -> None:
        self._planning, self._found = planning, found
        self._around: dict[int, list[tuple[str, Any, int, bool]]] = {}
        for (u, v, kind), table in planning.form.edges.items():
            self._around.setdefault(u, []).append((kind, table, v, True))
            self._around.setdefault(v, []).append((kind, table, u, False))
        self._base = planning.form.seconds(found.placements)

    def of(self, i: int) -> list[dict[str, Any]]:
        form, chosen = self._planning.form, self._found.placements
        slot, k = form.slots[i], chosen[i]
        n = len(slot.picks)
        if n < 2:
            return []
        seconds = {kind: np.zeros(n) for kind in KINDS}
        for kind, c in slot.cost.items():
            seconds[kind] += c
        for kind, table, other, giving in self._around.get(i, ()):
            seconds[kind] += table[:, chosen[other]] if giving else table[chosen[other], :]
        total = {kind: self._base[kind] + seconds[kind] - seconds[kind][k] for kind in KINDS}
        loss = self._planning.objective.loss
        c, w = total["compute"], total["weights"]
        step = total["exchange"] + total["update"] + loss * (c + w) + (1 - loss) * np.maximum(c, w)
        order = [int(j) for j in np.argsort(step, kind="stable") if j != k and np.isfinite(step[j])]
        return [
            _option(slot, j) | {"adds_s": float(step[j] - step[k]), "because": self._because(i, j)} for j in order[:ALTERNATIVES]
        ]

    def _because(self, i: int, j: int) -> list[dict[str, Any]]:
        """What gets dearer with option j, dearest first: the slot itself, or a neighbour that it gives to or takes from."""
        chosen = self._found.placements
        slot, k = self._planning.form.slots[i], chosen[i]
        parts = [(i, kind, float(c[j] - c[k])) for kind, c in slot.cost.items()]
        for kind, table, other, giving in self._around.get(i, ()):
            row = table[:, chosen[other]] if giving else table[chosen[other], :]
            parts.append((other, kind, float(row[j] - row[k])))
        dearer = sorted((p for p in parts if p[2] > NOTHING_S), key=lambda p: -p[2])
        return [{"slot": n, "kind": kind, "adds_s": s} for n, kind, s in dearer[:REASONS]]


def _option(slot: Slot, k: int) -> dict[str, Any]:
    return {"out": [text(p) for p in slot.outs[k]], "in": [text(p) for p in slot.ins[k]]}


def collectives(program: Program, names: Sequence[str], planning: Planning) -> list[dict[str, Any]]:
    """Every collective of a step, tensor by tensor: what it moves, where, and how long it takes."""
    gradients = {ref.node: name for name, ref in planning.graph.gradients.items() if ref is not None}
    found = []
    for i, step in enumerate(s for s in program.steps if s.collective):
        alone = sum(m.seconds for m in step.members)
        for m in step.members or (step,):
            share = m.seconds / alone if step.members else 1.0
            found.append(_collective(m, program, names, planning, gradients) | {"bucket": i, "seconds": share * step.seconds})
    return found


def _collective(
    step: Step, program: Program, names: Sequence[str], planning: Planning, gradients: Mapping[int, str]
) -> dict[str, Any]:
    (value,) = step.reads()
    before, after = program.values[value], program.values[step.outs[0]]
    m = step.args[1]
    mesh = planning.machine.mesh
    return {
        "kind": step.op.removeprefix("move."),
        "mesh_dim": mesh.names[m],
        "ranks": mesh.sizes[m],
        "bytes": max(before.bytes, after.bytes),
        "dtype": before.dtype,
        "from": text(before.placements),
        "to": text(after.placements),
        "for": names[step.node],
        "gradient_of": gradients.get(step.node) if step.kind == WEIGHTS and step.phase == BACKWARD else None,
        "phase": "backward" if step.phase == BACKWARD else "forward",
        "cause": step.kind,
        "seconds": step.seconds,
    }


def _memory(planning: Planning, found: Found, names: Sequence[str]) -> dict[str, Any]:
    memory, steps = found.memory, found.program.steps
    n = len(memory.live)
    at = sorted({int(i) for i in np.linspace(0, n - 1, min(n, POINTS))} | {memory.peak_step}) if n else []
    return {
        "peak_bytes": memory.peak_bytes,
        "peak_at": names[steps[memory.peak_step].node] if steps else "",
        "by_cause": dict(memory.by_cause),
        "limit_bytes": planning.limit_bytes,
        "timeline": [[i, float(memory.live[i])] for i in at],
        "timeline_by_cause": {cause: [float(b[i]) for i in at] for cause, b in memory.over_time.items()},
        "forward_steps": found.program.n_forward,
    }


def _unruled(planning: Planning, found: Found) -> list[dict[str, Any]]:
    """Operators that nobody gave a rule: they run whole on every GPU."""
    out = []
    for slot, k in zip(planning.form.slots, found.placements, strict=True):
        if slot.source == "none" and slot.ins[k]:
            node = planning.graph.nodes[slot.node]
            out.append({"name": node.name, "op": node.op, "copies": slot.copies, "seconds": float(slot.cost["compute"][k])})
    return out


def cut_bytes(shape: Sequence[int], dtype: str, placements: Sequence[int], sizes: Sequence[int]) -> int:
    n = DTYPE_BYTES[dtype]
    for s in shape:
        n *= s
    return n // shards(placements, sizes)


Document = Mapping[str, Any]
