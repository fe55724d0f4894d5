"""Programs run on all ranks in one process and are compared with the module; import after ``pytest.importorskip("torch")``."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from autoparallel_pytorch.emit import check_shapes, emit
from autoparallel_pytorch.planner import Planning
from autoparallel_pytorch.ranks import Payload, run_local
from autoparallel_pytorch.recompute import AGAIN
from autoparallel_pytorch.structure import flatten
from autoparallel_pytorch.trace import bind, call
from autoparallel_pytorch.verify import loss_of

TOLERANCE = 1e-5


def compare(
    module: nn.Module, inputs: dict[str, torch.Tensor], made: Planning, placements: tuple[int, ...], again: frozenset[int],
    alone: nn.Module | None = None,
) -> None:  # fmt: skip
    """``alone`` is what the module does on one device, where that is another module of the same parameters."""
    graph = made.graph
    program = emit(graph, made.classes, made.form, placements, made.prices, made.transitions, again)
    check_shapes(program)
    mesh = made.machine.mesh
    named = bind(module.forward, (), inputs)
    got = run_local(Payload(program, graph.structure, graph.constants, mesh.names, mesh.sizes, module, named))
    alone = alone or module
    leaves, _ = flatten(call(alone, named))
    outputs = [x for x in leaves if isinstance(x, torch.Tensor)]
    alone.zero_grad()
    loss_of(outputs).backward()
    for a, b in zip(got.outputs, outputs, strict=True):
        assert relative(a, b) < TOLERANCE
    for name, p in alone.named_parameters():
        assert relative(got.gradients[name], p.grad) < TOLERANCE, name
    counted = {
        k: sum(s.op == f"move.{k}" for s in program.steps) for k in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    }
    assert dict(got.counted) == {k: n for k, n in counted.items() if n}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm().clamp_min(1e-30))


def drawn(module: nn.Module, inputs: dict[str, torch.Tensor], made: Planning, *, seeds: int = 1, alone: Any = None) -> None:
    """Placements and recomputation drawn at random for every operator change nothing."""
    for seed in range(seeds):
        rng = random.Random(seed)
        if made.n_dims > 2:  # a few rules per operator and dimension: all of them together are too many
            made.form = made.formulate(lambda _key, _m: (0, rng.randrange(1, 8)))  # noqa: B023  called at once
        placements = tuple(rng.randrange(len(s.picks)) for s in made.form.slots)
        states = made.states(made.form)
        again = {
            s.key[1]
            for s, z in zip(made.form.slots, states.of, strict=True)
            if s.key[0] == "op" and AGAIN in z and rng.random() < 0.3
        }
        nodes = frozenset(n.id for n in made.graph.nodes if made.classes.of[n.id] in again)
        compare(module, inputs, made, placements, nodes, alone)
