"""Pipeline stages as launch files state them: layers of each, and recompute by stage."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from attrs import evolve

from autoparallel_core.cost.stages import first_recomputed, stage_layout
from autoparallel_core.launch.flags import Parsed
from autoparallel_core.launch.sources import Sources
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.stages import StageCut
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_megatron.refusals import layout_stages
from autoparallel_megatron.stage_recompute import BY_STAGE

FULL = RECOMPUTE.index("full")
UNDECIDED = "((RECOMPUTE > 0))"
"""The condition of our own scripts that differs from node to node and is read here for all."""


def stages_stated(p: Parsed, problem: Problem, s: Strategy, first: Sequence[int]) -> tuple[Strategy, StageCut | None]:
    """The strategy with its stages, None where they are the usual ones; ``first`` layers recompute by stage, if any."""
    usual = stage_layout(problem.arch, s.pp, s.vpp, embedding_as_layer=problem.software.embedding_as_layer).chunk_layers
    layers = _layers(p, problem, s) or usual
    if len(first) == s.pp and sum(layers) == problem.arch.num_layers:
        full = first_recomputed(problem.arch, s.pp, layers, first)
        return evolve(s, recompute=FULL if any(first) else 0, recompute_layers=0), StageCut(layers, full)
    if layers == usual or s.pp == 1 or len(layers) != s.pp * s.vpp or sum(layers) != problem.arch.num_layers:
        return s, None  # what does not add up is refused elsewhere
    if s.recompute != FULL or not s.recompute_layers:
        return s, StageCut(layers)
    return s, StageCut(layers, first_recomputed(problem.arch, s.pp, layers, [s.recompute_layers // s.vpp] * s.pp))


def _layers(p: Parsed, problem: Problem, s: Strategy) -> tuple[int, ...]:
    """Layers of every virtual stage, in order; () where the files leave them to Megatron."""
    text, pp, vpp = p.get("layout"), s.pp, s.vpp
    if text:
        return tuple(stage.count("t") for stage in layout_stages(text))
    ends = [n // vpp if n is not None else None for n in (p.get("first"), p.get("last"))]
    embedding, loss = (bool(p.get(k, default=False)) for k in ("account_embedding", "account_loss"))
    if any(n is not None for n in ends):
        inner = pp - sum(n is not None for n in ends)
        rest = problem.arch.num_layers - sum((n or 0) * vpp for n in ends)
        if not inner or rest % (inner * vpp):
            return ()
        row = [rest // (inner * vpp)] * inner
        return tuple([*([ends[0]] if ends[0] is not None else []), *row, *([ends[1]] if ends[1] is not None else [])] * vpp)
    total = problem.arch.num_layers + embedding + loss
    if not (embedding or loss) or total % (pp * vpp):
        return ()
    chunks = [total // (pp * vpp)] * (pp * vpp)
    chunks[0] -= embedding
    chunks[-1] -= loss
    return tuple(chunks)


def by_stage(sources: Sources) -> tuple[int, ...]:
    """The numbers of :mod:`stage_recompute`, from a launch script or a Python configuration; () where there are none."""
    words = (sources.variables(BY_STAGE) or "").split()
    if words and all(w.isdigit() for w in words):
        return tuple(map(int, words))
    for tree in sources.python.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and isinstance(node.value.value, ast.List):
                target = node.targets[0]
                values = [x.value for x in node.value.value.elts if isinstance(x, ast.Constant)]
                numbers = [v for v in values if isinstance(v, int)]
                if isinstance(target, ast.Name) and target.id == "recompute" and len(numbers) == len(node.value.value.elts):
                    return tuple(numbers)
    return ()
