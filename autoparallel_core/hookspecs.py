"""The contract with plugins: every hook, its arguments, what it returns, and a worked example.

Implementations are plain functions of a module (or methods of an object) that an entry point names,
decorated with :data:`hookimpl`. Arguments are keyword-only by convention and may be left out when
unused. A hook that does not concern a plugin returns ``None``. Hooks are pure: same arguments,
same result, no state; those that receive a :class:`~autoparallel_core.spec.strategy.StrategyBatch`
are called once per batch and return arrays of its length.

Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.spec.arch import Block, Layer
    from autoparallel_core.spec.cluster import Gpu
    from autoparallel_core.spec.config import ConfigView
    from autoparallel_core.spec.launch import Launch
    from autoparallel_core.spec.module_plan import ModulePlanner, OperatorRule
    from autoparallel_core.spec.problem import EngineSpec, Problem
    from autoparallel_core.spec.rule import Rule
    from autoparallel_core.spec.space import Space
    from autoparallel_core.spec.strategy import Strategy, StrategyBatch

    FloatArray = NDArray[np.float64]

PROJECT = "autoparallel"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

GROUPS = ("models", "hardware", "engines", "planners")


class ModelHooks:
    """Group ``autoparallel.models``: recognise one's part of a config and lower it to blocks."""

    @hookspec
    def parse_family(self, config: ConfigView) -> Mapping[str, Mapping[str, Any]] | None:
        """What a model type implies beyond its config file: ``{"defaults": {…}, "traits": {…}, "fields": {…}}``, each optional.

        ``defaults`` are values of config fields that the type's reference implementation assumes when the file
        omits them; reading one leaves a visible note. ``traits`` are facts that no config field states (kind of
        norm, biases, gating …), read with ``config.trait(name)``. ``fields`` are what the config says in its type's
        own way, under the usual names. Return None for types that are not yours.
        Two plugins that disagree on a value are a conflict that names both.

        Example::

            @hookimpl
            def parse_family(config):
                if config.model_type != "toy":
                    return None
                return {"defaults": {"vocab_size": 32000}, "traits": {"norm": "layer", "tied": True}}
        """

    @hookspec
    def parse_mixer(self, config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
        """The token mixer (attention, MLA, linear attention, Mamba …) of decoder layer ``layer`` (0-based).

        Return None when the config's layer is not yours. Read fields through ``config`` so that unread ones
        can be reported. Raise SpecError for a field that is yours and wrong. Two claims of equal
        ``specificity`` are a conflict that names both plugins.

        Example::

            @hookimpl
            def parse_mixer(config, layer):
                if config.get("model_type") != "toy":
                    return None
                return attention_block(
                    hidden=config.size("hidden_size"), heads=config.size("num_attention_heads"),
                    kv_heads=config.size("num_key_value_heads"), head_dim=config.size("head_dim"), specificity=10,
                )
        """

    @hookspec
    def parse_ffn(self, config: ConfigView, layer: int) -> Block | Sequence[Block] | None:
        """The feed-forward part (dense, MoE, both, none: an empty sequence) of layer ``layer``; rules as parse_mixer.

        Example::

            @hookimpl
            def parse_ffn(config, layer):
                if config.model_type != "toy":
                    return None
                hidden = config.size("hidden_size")
                if layer < config.count("first_dense_layers"):
                    return mlp_block(hidden=hidden, intermediate=config.size("intermediate_size"), specificity=10)
                return moe_block(
                    hidden=hidden, experts=config.size("num_experts"), top_k=config.size("num_experts_per_tok"),
                    expert_intermediate=config.size("moe_intermediate_size"), specificity=10,
                )
        """

    @hookspec
    def parse_extras(self, config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
        """Blocks outside the decoder stack: ``{"mtp": [Layer…], "towers": [Layer…]}``.

        Each key is optional; the results of all plugins are joined. ``"prologue"`` and ``"epilogue"`` (one layer of
        one block each) replace the embedding and the head that the core would build from the config's fields; two
        plugins giving the same one are a conflict. ``config.built`` holds the decoder layers as built.

        Example::

            @hookimpl
            def parse_extras(config):
                if config.model_type != "toy":
                    return None
                return {"mtp": config.built[-1:] * config.count("num_nextn_predict_layers")}
        """

    @hookspec
    def catalogue(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Models known by name: ``{"org/Model-8B": {config.json fields …}}``. Duplicate names are refused.

        Example::

            @hookimpl
            def catalogue():
                return {"toy-org/Toy-8B": {"model_type": "toy", "hidden_size": 4096, "num_hidden_layers": 32}}
        """


class HardwareHooks:
    """Group ``autoparallel.hardware``: GPUs, topologies, measurements."""

    @hookspec
    def gpus(self) -> Sequence[Gpu] | None:
        """GPU presets; names and aliases are unique over all plugins.

        Example::

            @hookimpl
            def gpus():
                return [Gpu(
                    name="T-1000", vendor="acme", memory_bytes=95.6e9, marketing_memory_bytes=96e9, hbm_bytes_per_s=2e12,
                    peak_flops={"bf16": 4e14}, scale_up_bytes_per_s=2e11, scale_up_domain=8, nic_bytes_per_s=25e9,
                    gpus_per_node=8, host_memory_bytes_per_node=1e12, sources={"peak_flops": "acme data sheet 7, dense"},
                )]
        """

    @hookspec
    def measure(self, probe: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Run one measurement on the machine at hand and return its figures in SI units, or None when this plugin cannot.

        ``probe`` names the ``kind`` of measurement and its shapes. At most one plugin may answer.

        Example::

            @hookimpl
            def measure(probe):
                if probe["kind"] != "copy":
                    return None
                source = bytearray(probe["bytes"])
                started = time.perf_counter()
                bytes(source)
                return {"seconds": time.perf_counter() - started, "bytes": probe["bytes"]}
        """

    @hookspec
    def profiles(self, gpu: str) -> Sequence[Path] | None:
        """Measured profile files that ship for a GPU (the name of its preset).

        Example::

            @hookimpl
            def profiles(gpu):
                return sorted((Path(__file__).parent / "profiles").glob(f"{gpu}*.json"))
        """


class EngineHooks:
    """Group ``autoparallel.engines``: what an engine allows, keeps in memory, hides and writes.

    All hooks but ``engines`` receive the problem and return None unless ``problem.engine.name`` is theirs.
    """

    @hookspec
    def engines(self) -> Sequence[EngineSpec] | None:
        """Engines of this plugin: identity, modes, software defaults, constants.

        Example::

            @hookimpl
            def engines():
                return [EngineSpec(name="toy", modes=("training",), default_version="1.0", summary="shards nothing")]
        """

    @hookspec
    def search_space(self, problem: Problem) -> Space | None:
        """The axes to enumerate for this problem, each with its legal values; None keeps the core's full space.

        An axis left out keeps the core's values. At most one plugin may answer.

        Example::

            @hookimpl
            def search_space(problem):
                return Space(vpp=(1,), zero=(1, 3)) if problem.engine.name == "toy" else None
        """

    @hookspec
    def rules(self, problem: Problem) -> Sequence[Rule] | None:
        """Legality rules that hold for ``problem.engine_version``; predicates are called per batch.

        ``autoparallel_core.search.common_rules`` makes the usual ones.

        Example::

            @hookimpl
            def rules(problem):
                if problem.engine.name != "toy":
                    return None
                return [Rule(
                    "tp in node",
                    broken=lambda problem, batch: batch.tp > problem.cluster.gpus_per_node,
                    sentence=lambda problem, s: f"tp {s.tp} exceeds the {problem.cluster.gpus_per_node} GPUs of a node",
                    source="toy manual, section 2",
                )]
        """

    @hookspec
    def memory(self, problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray] | None:
        """Bytes per GPU that this engine adds to (or, negative, saves from) the core's count, by cause: float64[S] each.

        Example::

            @hookimpl
            def memory(problem, batch):
                if problem.engine.name != "toy":
                    return None
                return {"gradient buckets": np.where(batch.dp > 1, 2 * 256e6, 0.0)}
        """

    @hookspec
    def adjust_cost(
        self, problem: Problem, batch: StrategyBatch, cost: Mapping[str, FloatArray]
    ) -> Mapping[str, FloatArray] | None:
        """Seconds to add per step by cause, float64[S] each.

        The deltas of all plugins are summed; the result may not fall below the hardware bound. ``cost`` holds the
        core's seconds by cause; a negative delta under the same cause says what the engine hides. Called for training;
        a serving engine states its host times as ``constants`` of its EngineSpec.

        Example::

            @hookimpl
            def adjust_cost(problem, batch, cost):
                if problem.engine.name != "toy":
                    return None
                return {"dp_comm": -np.minimum(0.5 * cost["dp_comm"], 0.5 * cost["gemm"])}
        """

    @hookspec
    def export(self, problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str] | None:
        r"""Launch files as ``{relative path: text}`` for one strategy. At most one plugin may answer.

        ``options`` may hold ``model`` (what the engine is to load: a path or public name), ``config`` (the model's
        config.json fields, for what the engine wants stated), ``figures`` (sentences for the head of each file),
        ``chunks`` (decoder layers of each virtual stage, where a planner chose them one by one) and ``question`` (flags
        of the command that state the problem again). ``autoparallel_core.launch.write`` has the usual parts.

        Example::

            @hookimpl
            def export(problem, strategy, options):
                if problem.engine.name != "toy":
                    return None
                return {"launch.sh": f"toy-train --tp {strategy.tp} --pp {strategy.pp} --dp {strategy.dp}\n"}
        """

    @hookspec
    def read(self, files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
        r"""What launch files ``{name: text}`` say, or None when they start another engine.

        ``engine`` is the one the user named, None when the format has to tell. The hook is called twice: first with
        ``problem`` None, to learn model, machines and workload; then with the problem made of them, for the strategy
        (which may depend on the model). ``autoparallel_core.launch`` takes scripts, manifests and documents apart.
        Raise SpecError for a file of this engine that cannot be read.

        Example::

            @hookimpl
            def read(files, engine, problem):
                text = files.get("launch.sh", "")
                found = re.search(r"toy-train --tp (\d+) --pp (\d+) --dp (\d+)", text)
                if found is None or engine not in {None, "toy"}:
                    return None
                tp, pp, dp = map(int, found.groups())
                strategy = Strategy(tp=tp, sp=int(tp > 1), pp=pp, dp=dp)
                return Launch(engine="toy", form="launch script", strategy=strategy, n_gpus=strategy.world)
        """


class PlannerHooks:
    """Group ``autoparallel.planners``: ways to search."""

    @hookspec
    def planners(self) -> Mapping[str, str] | None:
        """Planner names of this plugin with one sentence each.

        Example::

            @hookimpl
            def planners():
                return {"first": "takes the first strategy of the space"}
        """

    @hookspec
    def plan(self, planner: str, problem: Problem, options: Mapping[str, Any]) -> Any | None:
        """Search with the named planner and return a SearchResult, or None when the name is not this plugin's.

        ``options`` holds ``host`` (whose hooks to ask), ``top`` (plans to return) and what else the planner documents.

        Example::

            @hookimpl
            def plan(planner, problem, options):
                if planner != "first":
                    return None
                host = options["host"]
                space, rules = host.search_space(problem) or Space(), rules_for(problem, host)
                batch = next(iter(enumerate_space(problem, space, rules)))
                return SearchResult(problem, plans=(explain_strategy(problem, batch[0], host),), evaluated=1, planner="first")
        """

    @hookspec
    def module_planner(self) -> ModulePlanner | None:
        """Who traces, plans and replays modules of a tensor library. At most one plugin may answer.

        The object's methods are called with the module itself; see ``autoparallel_core.spec.module_plan``.

        Example::

            @hookimpl
            def module_planner():
                class Replicating:
                    def build(self, source):
                        return BuiltModule(module=None, inputs={})

                    def plan(self, module, args, kwargs, request):
                        return ModulePlan({"mesh": {"names": request.mesh_names, "sizes": request.mesh_sizes}})

                    def apply(self, module, plan, options):
                        return module

                    def verify(self, plan, options):
                        return {"output_error": 0.0}

                return Replicating()
        """

    @hookspec
    def operator_rules(self) -> Mapping[str, OperatorRule] | None:
        """How operators that the tensor library has no rule for may be sharded, by full name (``namespace.name.overload``).

        A rule gives, for one mesh dimension, the placements of outputs and tensor inputs with which the operator may run
        on pieces: ``S(0)`` a piece of dimension 0, ``R`` the whole, ``P`` a part of a sum. Backward operators have rules of
        their own. Two plugins with a rule for one operator are a conflict that names both.

        Example::

            @hookimpl
            def operator_rules():
                def rows(shapes, arguments):
                    return [(["S(0)"], ["S(0)", "R"]), (["P"], ["P", "R"])]

                return {"toy.blend.default": OperatorRule(rows, flops=lambda shapes: 2.0 * shapes[0][0] * shapes[0][1])}
        """


HOOKS_BY_GROUP: dict[str, type] = {
    "models": ModelHooks,
    "hardware": HardwareHooks,
    "engines": EngineHooks,
    "planners": PlannerHooks,
}
