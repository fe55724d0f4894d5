"""What a calibration is about: one engine version serving or training one model on one GPU in one precision.

A lesson holds for its own stack and no other: on published serving runs the bias of one stack makes the prediction of
another worse, even where only the version or the precision differs (benchmarks/calibration.py prints by how much).
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from attrs import evolve, frozen

from autoparallel_core.spec.problem import Problem


@frozen
class Stack:
    """One stack. ``model`` is a name for people, ``shape`` what identifies it."""

    mode: Literal["training", "inference"]
    engine: str
    version: str
    gpu: str
    model: str
    shape: str
    precision: str

    @classmethod
    def of(cls, problem: Problem) -> Stack:
        """The stack of a question."""
        return cls(
            mode=problem.mode,
            engine=problem.engine.name,
            version=problem.engine_version,
            gpu=problem.cluster.gpu.name,
            model=problem.arch.name,
            shape=shape_of(problem),
            precision=precision_of(problem),
        )

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.model} on {self.gpu}, {self.engine} {self.version}, {self.precision}"

    def same(self, other: Stack) -> bool:
        """Whether a lesson of the other holds here: all but the name that people give the model."""
        return evolve(self, model="") == evolve(other, model="")


def shape_of(problem: Problem) -> str:
    """What makes two models the same, whatever they are called."""
    a = problem.arch
    experts = f"-{a.num_experts}x{a.top_k}" if a.num_experts else ""
    return f"{a.model_type}-{a.hidden_size}x{a.num_layers}-{a.num_heads}-{a.vocab_size}{experts}"


def precision_of(problem: Problem) -> str:
    """Training: the workload's. Serving: the one asked for, else the format that most weights are stored in."""
    if problem.mode == "training":
        return problem.training.precision
    if problem.inference.precision is not None:
        return problem.inference.precision
    sizes: Counter[str] = Counter()
    for layer, where in problem.arch.layer_classes():
        for w in layer.weights():
            n = 1.0
            for axis in w.axes:
                n *= axis.size
            sizes[w.format or problem.arch.weight_dtype] += int(n) * len(where)
    return sizes.most_common(1)[0][0] if sizes else problem.arch.weight_dtype
