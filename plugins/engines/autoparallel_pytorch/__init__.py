"""PyTorch modules planned as they are: traced, placed on a device mesh, replayed as DTensors and plain collectives.

Loading this plugin imports no torch; planning does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from autoparallel_core.spec.module_plan import ModulePlan, ModulePlanner, ModuleRequest
    from autoparallel_core.spec.module_source import BuiltModule, ModuleSource


class PyTorchPlanner:
    """See ``autoparallel_core.spec.module_plan.ModulePlanner``."""

    def build(self, source: ModuleSource) -> BuiltModule:
        _torch()
        from autoparallel_pytorch.sources import build

        return build(source)

    def plan(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], request: ModuleRequest) -> ModulePlan:
        _torch()
        from autoparallel_pytorch.planner import plan_module

        return plan_module(module, args, kwargs, request)

    def apply(self, module: Any, plan: ModulePlan, options: Mapping[str, Any]) -> Any:
        _torch()
        from autoparallel_pytorch.replay import replay

        return replay(module, plan, options)

    def verify(self, plan: ModulePlan, options: Mapping[str, Any]) -> Mapping[str, Any]:
        _torch()
        from autoparallel_pytorch.sources import to_verify
        from autoparallel_pytorch.verify import verify

        return verify(plan, to_verify(plan, options))


def _torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SpecError("planning a module needs PyTorch: pip install 'autoparallel-advisor[torch]'") from None


def __getattr__(name: str) -> Any:
    """What modules may call: loaded with torch when it is asked for."""
    if name == "routed_experts":
        _torch()
        from autoparallel_pytorch.experts import routed_experts

        return routed_experts
    raise AttributeError(f"module {__name__} has no attribute {name}")


@hookimpl
def module_planner() -> ModulePlanner:
    return PyTorchPlanner()
