"""The hooks as typed methods, so that callers see what goes in and what comes out.

Each method names one hook of ``hookspecs`` and adds nothing but types to :meth:`HookCalls.call` (every plugin
answers) or :meth:`HookCalls.first` (at most one may).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from autoparallel_core.hookspecs import FloatArray
    from autoparallel_core.hosting.loading import PluginInfo
    from autoparallel_core.search.result import SearchResult
    from autoparallel_core.spec.arch import Block, Layer
    from autoparallel_core.spec.config import ConfigView
    from autoparallel_core.spec.launch import Launch
    from autoparallel_core.spec.module_plan import ModulePlanner, OperatorRule
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.rule import Rule
    from autoparallel_core.spec.space import Space
    from autoparallel_core.spec.strategy import Strategy, StrategyBatch

    Claims: TypeAlias = list[tuple[PluginInfo, Block | Sequence[Block]]]
    Arrays: TypeAlias = list[tuple[PluginInfo, Mapping[str, FloatArray]]]


class HookCalls(ABC):
    """Typed calls of every hook that takes arguments; the registries (GPUs, engines …) are the host's own methods."""

    @abstractmethod
    def call(self, group: str, hook: str, **arguments: Any) -> list[tuple[PluginInfo, Any]]:
        """Results of all plugins, in order of name."""

    @abstractmethod
    def first(self, group: str, hook: str, **arguments: Any) -> Any | None:
        """The result of the one plugin that answers, or None."""

    def parse_family(self, config: ConfigView) -> list[tuple[PluginInfo, Mapping[str, Mapping[str, Any]]]]:
        """Defaults and traits that a model type implies."""
        return self.call("models", "parse_family", config=config)

    def parse_mixer(self, config: ConfigView, layer: int) -> Claims:
        """Token mixers that plugins claim to see in a layer of a config."""
        return self.call("models", "parse_mixer", config=config, layer=layer)

    def parse_ffn(self, config: ConfigView, layer: int) -> Claims:
        """Feed-forward parts that plugins claim to see in a layer of a config."""
        return self.call("models", "parse_ffn", config=config, layer=layer)

    def parse_extras(self, config: ConfigView) -> list[tuple[PluginInfo, Mapping[str, Sequence[Layer]]]]:
        """Layers outside the decoder stack, by ``mtp`` and ``towers``."""
        return self.call("models", "parse_extras", config=config)

    def measure(self, probe: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Figures of one measurement on this machine, None when no plugin can make it."""
        return self.first("hardware", "measure", probe=probe)

    def profiles(self, gpu: str) -> list[tuple[PluginInfo, Sequence[Path]]]:
        """Measured profile files that plugins ship for a GPU."""
        return self.call("hardware", "profiles", gpu=gpu)

    def search_space(self, problem: Problem) -> Space | None:
        """The engine's axes, None for the core's full space."""
        space: Space | None = self.first("engines", "search_space", problem=problem)
        return space

    def rules(self, problem: Problem) -> list[tuple[PluginInfo, Sequence[Rule]]]:
        """Legality rules for a problem."""
        return self.call("engines", "rules", problem=problem)

    def memory(self, problem: Problem, batch: StrategyBatch) -> Arrays:
        """Bytes per GPU to add by cause, float64[S] each."""
        return self.call("engines", "memory", problem=problem, batch=batch)

    def adjust_cost(self, problem: Problem, batch: StrategyBatch, cost: Mapping[str, FloatArray]) -> Arrays:
        """Seconds per step to add by cause, float64[S] each."""
        return self.call("engines", "adjust_cost", problem=problem, batch=batch, cost=cost)

    def export(self, problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Launch files by relative path, None when the engine writes none."""
        return self.first("engines", "export", problem=problem, strategy=strategy, options=options)

    def read(self, files: Mapping[str, str], engine: str | None = None, problem: Problem | None = None) -> Launch | None:
        """What launch files say, None when no plugin knows their format."""
        launch: Launch | None = self.first("engines", "read", files=files, engine=engine, problem=problem)
        return launch

    def plan(self, planner: str, problem: Problem, options: Mapping[str, Any]) -> SearchResult | None:
        """The result of the named planner, None when no plugin has it."""
        result: SearchResult | None = self.first("planners", "plan", planner=planner, problem=problem, options=options)
        return result

    def module_planner(self) -> ModulePlanner | None:
        """Who plans modules of a tensor library, None when no plugin does."""
        planner: ModulePlanner | None = self.first("planners", "module_planner")
        return planner

    def operator_rules(self) -> list[tuple[PluginInfo, Mapping[str, OperatorRule]]]:
        """How operators may be sharded, by their full names."""
        return self.call("planners", "operator_rules")
