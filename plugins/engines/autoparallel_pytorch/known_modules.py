"""What is recorded in another way than it runs: experts of ``transformers`` as one operator, checkpoints as plain calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from autoparallel_pytorch.experts import routed_experts

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@contextmanager
def no_checkpoints(notes: list[str]) -> Iterator[None]:
    """While active, ``torch.utils.checkpoint`` calls its function and nothing else: what runs again is for the plan to choose."""
    from torch.utils import checkpoint

    sentence = "activation checkpoints inside of the module are left to the plan, which chooses what runs again"

    def plain(*_: Any, **__: Any) -> Iterator[None]:
        if sentence not in notes:
            notes.append(sentence)
        yield

    class Plain:
        @staticmethod
        def apply(function: Any, _preserve: bool, *args: Any) -> Any:
            next(plain())
            return function(*args)

    with (
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", plain),
        patch.object(checkpoint, "CheckpointFunction", Plain),
    ):
        yield


@contextmanager
def one_operator(root: torch.nn.Module) -> Iterator[None]:
    """While active, such modules call :func:`~.experts.routed_experts`."""
    changed = []
    for module in root.modules():
        activation = _grouped_experts(module)
        if activation is not None and "forward" not in vars(module):
            module.forward = _forward(module, activation)
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _grouped_experts(module: Any) -> str | None:
    """The activation of a ``transformers`` module that was decorated with ``use_experts_implementation``; None for others."""
    fields = vars(module)
    config = fields.get("config")
    if getattr(config, "_experts_implementation", None) != "grouped_mm" or not {"has_gate", "is_concatenated"} <= set(fields):
        return None
    if not module.has_gate or not module.is_concatenated or module.is_transposed or module.has_bias:
        return None
    if getattr(module, "has_post_expert_norm", False) or getattr(module, "_is_expert_parallel", False):
        return None
    if type(module)._apply_gate.__name__ != "_default_apply_gate":
        return None
    return _ACTIVATIONS.get(str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)))


def _forward(module: Any, activation: str) -> Any:
    def forward(hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        return routed_experts(
            hidden_states, top_k_index, top_k_weights, module.gate_up_proj, None, module.down_proj, activation=activation
        )

    return forward
