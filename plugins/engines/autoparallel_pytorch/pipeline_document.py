"""The document of a pipeline: that of its slowest stage, the whole's figures, and every stage in ``pipeline``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.spec.module_plan import ModulePlan, ModuleRequest
from autoparallel_pytorch.document import document
from autoparallel_pytorch.machine import Machine
from autoparallel_pytorch.pipeline_cut import BOUNDARY, Chain
from autoparallel_pytorch.placement import text

if TYPE_CHECKING:
    import torch

    from autoparallel_pytorch.pipeline_plan import Stage
    from autoparallel_pytorch.pipeline_schedule import Pipelining


def pipeline_document(
    module: torch.nn.Module, request: ModuleRequest, machine: Machine, pipe: Pipelining, chain: Chain, stages: Sequence[Stage]
) -> ModulePlan:
    """All of one plan; ``machine`` is the whole one."""
    inner = [dict(document(module, s.planning, s.found).document) for s in stages]
    entering = [_entering(s, machine) for s in stages]
    times = [s.time_s for s in stages]
    update = max(sum(s.update_s for s in stages[r :: pipe.ranks]) for r in range(pipe.ranks))
    step = pipe.step_s(times, [sum(x["send_s"] for x in e) for e in entering]) + update
    slow = max(range(len(stages)), key=lambda i: times[i])
    m = pipe.micro_batches
    top = dict(inner[slow])
    cost = {k: v * (1.0 if k == "update_s" else m) for k, v in top["cost"].items()}
    cost["update_s"] = update
    cost["step_s"] = step
    parts = sum(cost[k] for k in ("compute_s", "exchange_s", "weights_s", "update_s")) - cost["hidden_s"]
    ranks = [_rank_memory(inner, r, pipe.ranks) for r in range(pipe.ranks)]
    worst = max(ranks, key=lambda x: x["peak_bytes"])
    gap = max(d["search"]["gap"] for d in inner)
    notes = list(dict.fromkeys([*chain.graph.notes, *(n for d in inner for n in d["notes"])]))
    notes.append(f"operators, collectives and memory over time are those of stage {slow}, the slowest, for one micro-batch")
    return ModulePlan(
        {
            **top,
            "mesh": {"names": list(machine.mesh.names), "sizes": list(machine.mesh.sizes)},
            "cluster": top["cluster"] | {"n_gpus": request.cluster.n_gpus, "gpus_per_node": request.cluster.gpus_per_node},
            "inputs": {n: _whole(x, m) for d in inner for n, x in d["inputs"].items() if not n.startswith(BOUNDARY)},
            "structure": chain.graph.structure,
            "parameters": {n: p | {"stage": i} for i, d in enumerate(inner) for n, p in d["parameters"].items()},
            "recompute": sorted({n for d in inner for n in d["recompute"]}),
            "cost": cost | {"bubble_s": step - parts},
            "memory": worst,
            "constraints": top["constraints"]
            | {"pins": dict(request.pins), "memory_limit_bytes": stages[0].planning.limit_bytes * pipe.per_rank},
            "search": top["search"]
            | {"gap": gap, "bound_s": step * (1.0 - gap), "exact": all(d["search"]["exact"] for d in inner)},
            "regions": {k: list(v) for k, v in stages[slow].planning.classes.regions.items()},
            "unruled": list({u["name"]: u for d in inner for u in d["unruled"]}.values()),
            "notes": notes,
            "pipeline": {
                "mesh_dim": machine.mesh.names[0],
                "ranks": pipe.ranks,
                "stages_per_rank": pipe.per_rank,
                "schedule": pipe.schedule,
                "micro_batches": m,
                "slowest": slow,
                "stages": [
                    {
                        "rank": i % pipe.ranks,
                        "layers": list(chain.units[s.first : s.last + 1]),
                        "time_s": s.time_s,
                        "update_s": s.update_s,
                        "in_flight": s.in_flight,
                        "peak_bytes": s.found.memory.peak_bytes,
                        "enters": e,
                        "gives": _gives(s),
                        "plan": {k: v for k, v in d.items() if k not in ("module", "cluster", "made_by", "schema", "version")},
                    }
                    for i, (s, e, d) in enumerate(zip(stages, entering, inner, strict=True))
                ],
            },
        }
    )  # fmt: skip


def side_by_side(plan: ModulePlan) -> ModulePlan:
    """The placements of all stages as one plan on the inner mesh, which a single program can follow."""
    stages = [s["plan"] for s in plan.document["pipeline"]["stages"]]
    return ModulePlan(
        {
            **plan.document,
            "mesh": stages[0]["mesh"],
            "operators": [o for s in stages for o in s["operators"]],
            "hubs": [h for s in stages for h in s["hubs"]],
        }
    )


def _entering(stage: Stage, machine: Machine) -> list[dict[str, Any]]:
    """What comes from the stage before: every rank's piece from the rank at the same place there."""
    program, graph = stage.found.program, stage.planning.graph
    out = []
    for name, node in graph.inputs.items():
        if name.startswith(BOUNDARY):
            info, meta = program.values[program.inputs[name]], graph.nodes[node].outs[0]
            assert meta is not None, "inputs are tensors"
            seconds = float(machine.network.send(info.bytes, float(machine.mesh.strides[0])))  # type: ignore[arg-type]
            out.append(
                {
                    "name": name, "shape": list(meta.shape), "local_shape": list(info.shape), "dtype": info.dtype,
                    "placement": text(info.placements), "bytes": info.bytes, "send_s": seconds,
                }
            )  # fmt: skip
    return out


def _gives(stage: Stage) -> list[dict[str, Any]]:
    program = stage.found.program
    infos = [program.values[v] for v in program.outputs]
    return [{"local_shape": list(x.shape), "dtype": x.dtype, "placement": text(x.placements)} for x in infos]


def _whole(given: dict[str, Any], micro_batches: int) -> dict[str, Any]:
    """An input of the whole step."""
    shape = list(given["shape"])
    return given | {"shape": [shape[0] * micro_batches, *shape[1:]] if shape else shape}


def _rank_memory(inner: Sequence[dict[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """Of the stages of one rank: that of the fullest, with what the others hold."""
    own = [d["memory"] for d in inner[rank::ranks]]
    fullest = max(own, key=lambda x: x["peak_bytes"])
    if len(own) == 1:
        return dict(fullest)
    by_cause = {k: sum(x["by_cause"][k] for x in own) for k in fullest["by_cause"]}
    return fullest | {
        "peak_bytes": sum(x["peak_bytes"] for x in own),
        "by_cause": by_cause,
        "limit_bytes": fullest["limit_bytes"] * len(own),
    }
