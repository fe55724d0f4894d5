"""Reading FSDP launches: accelerate YAML, ``accelerate launch`` flags, and the ``--fsdp`` flags of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Parsed
from autoparallel_core.launch.found import find, one_launch
from autoparallel_core.launch.result import said
from autoparallel_core.launch.sources import Sources, take_apart
from autoparallel_core.launch.trainer_flags import (
    PER_NODE,
    launcher_options,
    named_document,
    quantised_weights,
    script_of,
    task_of,
    trainer_arguments,
    whole_or_none,
)
from autoparallel_core.ops.params import parameter_counts
from autoparallel_core.search.facts import is_moe, kv_heads, query_heads
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy

NAME = "fsdp"
CONFIG = "accelerate/parallelism_config.py"
ROTATION = {"allgather": "all_gather", "alltoall": "p2p"}
"""How torch's context parallelism brings keys to queries → Software.cp_comm."""
ZERO = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": 3,
    "5": 2,
}
"""FSDP1 sharding strategies, by name and number."""
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
QUIET = (
    "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_cpu_ram_efficient_loading",
    "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch", "fsdp_use_orig_params",
    "fsdp_sync_module_states", "fsdp_min_num_params", "fsdp_version", "fsdp_reshard_after_forward", "fsdp_sharding_strategy",
    "fsdp_offload_params", "fsdp_activation_checkpointing", "fsdp_limit_all_gathers", "fsdp_xla", "fsdp_xla_fsdp_v2",
    "fsdp_xla_fsdp_grad_ckpt", "fsdp_xla_fsdp_settings",
)  # fmt: skip


@frozen
class Settings:
    """What the files say, in one place."""

    config: Mapping[str, Any]
    fsdp: Mapping[str, Any]
    sizes: Mapping[str, int]
    arguments: Parsed
    machines: Machines
    form: str
    trainer_fsdp: str = ""
    """Value of the Trainer's ``--fsdp``."""

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.fsdp.get(name, default)
        return value if isinstance(value, bool) else str(value).lower() == "true"

    @property
    def processes(self) -> int | None:
        stated = whole_or_none(self.config.get("num_processes"))
        return stated or self.machines.total


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    sources = take_apart(files)
    s = _settings(sources, named=engine == NAME)
    return None if s is None else _launch(s, problem)


def _settings(sources: Sources, *, named: bool) -> Settings | None:
    found = one_launch(find(sources, _script_at), per_node=PER_NODE, program="training")
    options = launcher_options(found) if found else {}
    arguments = trainer_arguments(found.words, "the training script") if found else Parsed({})
    config = named_document(sources, options.get("config_file")) or _accelerate_yaml(sources)
    trainer = str(arguments.get("fsdp", ""))
    if config is None and not trainer and not any(k.startswith(("fsdp", "use_fsdp")) for k in options):
        return None
    config = dict(config or {})
    kind = str(config.get("distributed_type", "FSDP")).upper()
    if "DEEPSPEED" in kind or "MEGATRON" in kind or (kind not in {"FSDP", "NO", "MULTI_GPU"} and not named):
        return None
    if kind != "FSDP" and not trainer and not config.get("parallelism_config") and not named:
        return None
    config.update({k: v for k, v in options.items() if k in {"num_processes", "num_machines", "mixed_precision"}})
    fsdp = {**(config.get("fsdp_config") or {}), **(named_document(sources, arguments.get("fsdp_config")) or {})}
    fsdp.update({k: v for k, v in options.items() if k.startswith("fsdp_")})
    fsdp = {k if k.startswith("fsdp_") else f"fsdp_{k}": v for k, v in fsdp.items()}  # the Trainer's file has bare names
    stated = {
        **(config.get("parallelism_config") or {}),
        **{k: v for k, v in options.items() if k.startswith("parallelism_config_")},
    }
    sizes = {k.removeprefix("parallelism_config_").removesuffix("_size"): n for k, v in stated.items() if (n := whole_or_none(v))}
    machines = found.machines if found else Machines()
    if whole_or_none(config.get("num_machines")) is not None:
        machines = Machines(nodes=whole_or_none(config["num_machines"])).over(machines)
    form = "accelerate configuration" if config.get("fsdp_config") is not None else "trainer flags"
    return Settings(config, fsdp, sizes, arguments, machines, form, trainer)


def _script_at(words: Sequence[str]) -> int | None:
    launcher = {w.rsplit("/", 1)[-1] for w in words}
    known = launcher & {"accelerate", "accelerate-launch", "torchrun"} or any(
        "torch.distributed" in w or "accelerate.commands" in w for w in words
    )
    return script_of(words) if known else None


def _accelerate_yaml(sources: Sources) -> Mapping[str, Any] | None:
    for name, document in sources.data.items():
        if sources.kinds.get(name) not in {"yaml", "json"} or not isinstance(document, Mapping):
            continue
        if "fsdp_config" in document or ("distributed_type" in document and "num_processes" in document):
            return document
    return None


def _launch(s: Settings, problem: Problem | None) -> Launch:
    a = s.arguments
    total = s.processes
    nodes = s.machines.nodes
    mbs, gbs = a.get("mbs"), a.get("gbs")
    if gbs is None and mbs and total:
        dp = max(total // (s.sizes.get("tp", 1) * s.sizes.get("cp", 1) * s.sizes.get("sp", 1)), 1)
        gbs = mbs * a.get("accumulation", 1) * dp
    precision = str(s.config.get("mixed_precision", "")) or None
    if a.get("bf16") or a.get("fp16"):
        precision = "bf16" if a.get("bf16") else "fp16"
    return Launch(
        engine=NAME,
        form=s.form,
        strategy=None if problem is None else strategy_of(s, problem),
        n_gpus=total,
        gpus_per_node=total // nodes if total and nodes and total % nodes == 0 else s.machines.gpus_per_node,
        model=a.get("model"),
        workload=said(
            seq_len=a.get("seq"),
            global_batch_size=gbs,
            precision={"no": "fp32"}.get(str(precision), precision),
            task=task_of(a),
        ),
        software=_software(s),
        loading_host_bytes=0.0 if problem is None or loads_once(s) is not False else whole_copies_bytes(problem),
        refusals=() if problem is None else tuple(refusals(s, problem)),
        notes=tuple(_notes(s, problem)),
        unmodelled=tuple(_unmodelled(s)),
        unknown=tuple(k for k in s.fsdp if k.startswith("fsdp_") and k not in QUIET),
        unset=a.unset,
    )


def _software(s: Settings) -> dict[str, Any]:
    """The exchange of context parallelism: torch's ``alltoall`` rotates keys around the ring; ``sp`` is Ulysses."""
    if s.sizes.get("sp", 1) > 1:
        return {"cp_comm": "a2a"}
    stated = (s.config.get("parallelism_config") or {}).get("parallelism_config_cp_comm_strategy")
    return {"cp_comm": ROTATION[stated]} if stated in ROTATION else {}


def loads_once(s: Settings) -> bool | None:
    """Whether one process of a node reads the checkpoint and the others receive their shards; None: not stated."""
    stated = s.fsdp.get("fsdp_cpu_ram_efficient_loading")
    return None if stated is None else str(stated).lower() == "true"


def whole_copies_bytes(problem: Problem) -> float:
    """Host memory of one node whose processes load a copy each, in 32 bit (accelerate/utils/fsdp_utils.py upcasts)."""
    processes = min(problem.cluster.gpus_per_node, problem.cluster.n_gpus)
    return 4.0 * float(parameter_counts(problem.arch)["total"]) * processes


def zero_stage(s: Settings) -> int:
    """3 drops gathered parameters after the forward, 2 keeps them."""
    if s.trainer_fsdp:
        return 2 if "shard_grad_op" in s.trainer_fsdp else 0 if "no_shard" in s.trainer_fsdp else 3
    old = s.fsdp.get("fsdp_sharding_strategy")
    if old is not None and "fsdp_reshard_after_forward" not in s.fsdp:
        return ZERO.get(str(old).upper(), 3)
    value = str(s.fsdp.get("fsdp_reshard_after_forward", "true"))
    return ZERO.get(value.upper(), 3 if value.lower() == "true" else 2)


def hybrid(s: Settings) -> bool:
    """Whether FSDP1 shards inside a node only."""
    return str(s.fsdp.get("fsdp_sharding_strategy", "")).upper() in HYBRID or "hybrid_shard" in s.trainer_fsdp


def degrees(s: Settings, n_gpus: int, gpus_per_node: int) -> tuple[int, int, int, int]:
    """(dp_replicate, dp_shard, tp, cp): as stated, or everything sharded."""
    tp, cp = s.sizes.get("tp", 1), max(s.sizes.get("cp", 1), s.sizes.get("sp", 1))
    rest = max(n_gpus // (tp * cp), 1)
    if "dp_shard" in s.sizes or "dp_replicate" in s.sizes:
        replicate, shard = s.sizes.get("dp_replicate", 1), s.sizes.get("dp_shard", 1)
        return replicate, shard, tp, cp
    if hybrid(s) and rest > gpus_per_node:
        return rest // gpus_per_node, gpus_per_node, tp, cp
    return 1, rest, tp, cp


def strategy_of(s: Settings, problem: Problem) -> Strategy:
    """The layout on the problem's GPUs."""
    replicate, shard, tp, cp = degrees(s, problem.cluster.n_gpus, problem.cluster.gpus_per_node)
    a = s.arguments
    sharded = replicate * shard * cp > 1
    stage = zero_stage(s) if sharded else 0
    code, layers = _recompute(s)
    ep = a.get("ep", 1) if is_moe(problem.arch) else 1
    return Strategy(
        tp=tp, sp=int(tp > 1 and not a.get("no_sequence_parallel", default=False)), cp=cp, dp=replicate * shard, ep=ep,
        zero=stage, shard=shard * cp if stage else 1, mbs=a.get("mbs", 1), recompute=code, recompute_layers=layers,
        offload=int(s.flag("fsdp_offload_params") or "offload" in s.trainer_fsdp),
    )  # fmt: skip


def _recompute(s: Settings) -> tuple[int, int]:
    asked = str(s.arguments.get("recompute", "") or "")
    if asked in RECOMPUTE:
        return RECOMPUTE.index(asked), s.arguments.get("recompute_layers", 0) if asked == "full" else 0
    full = s.flag("fsdp_activation_checkpointing") or bool(s.arguments.get("gradient_checkpointing", default=False))
    return (RECOMPUTE.index("full"), 0) if full else (0, 0)


def refusals(s: Settings, problem: Problem) -> Iterator[Refusal]:
    """What accelerate checks beyond a strategy."""
    replicate, shard, tp, cp = degrees(s, problem.cluster.n_gpus, problem.cluster.gpus_per_node)
    processes = whole_or_none(s.config.get("num_processes"))
    sp = s.sizes.get("sp", 1)
    if sp > 1 and s.sizes.get("cp", 1) > 1:
        text = f"cp_size {s.sizes['cp']} and sp_size {sp} exclude each other; set one of them to 1"
        yield Refusal("cp or sp", text, CONFIG)
    if sp > 1:
        yield from _traded_heads(problem, sp)
    product = replicate * shard * tp * cp
    if s.sizes and processes and product != processes:
        text = f"dp_replicate {replicate} × dp_shard {shard} × tp {tp} × cp {cp} = {product} is not num_processes {processes}"
        yield Refusal("parallelism = processes", text, CONFIG)
    if s.sizes and str(s.fsdp.get("fsdp_version", "1")) == "1" and s.fsdp:
        text = "parallelism_config needs fsdp_version 2"
        yield Refusal("fsdp 2 for parallelism", text, "accelerate/commands/launch.py")
    if replicate > 1 and shard == 1 and (tp > 1 or cp > 1):
        text = f"dp_replicate {replicate} with dp_shard 1 does not combine with tp {tp} cp {cp}; set dp_shard above 1"
        yield Refusal("replication alone", text, CONFIG)
    names = {"cp_backend": "torch", "sp_backend": "deepspeed"}
    for key, legal in names.items():
        value = (s.config.get("parallelism_config") or {}).get(f"parallelism_config_{key}")
        if value not in {None, legal}:
            yield Refusal(key, f"{key} is {value}; it must be {legal}", CONFIG)


def _traded_heads(problem: Problem, sp: int) -> Iterator[Refusal]:
    """Ulysses scatters query heads; fewer key/value heads than ranks are replicated whole."""
    source = "deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF"
    for n in query_heads(problem.arch):
        if n % sp:
            yield Refusal("heads % sp", f"{n} query heads cannot be scattered over sp {sp} (remainder {n % sp})", source)
    for n in kv_heads(problem.arch):
        if n % sp and sp % n:
            text = f"{n} key/value heads are neither a multiple nor a divisor of sp {sp}"
            yield Refusal("kv heads vs sp", text, source)


def _notes(s: Settings, problem: Problem | None) -> Iterator[str]:
    if problem is not None and s.fsdp and loads_once(s) is None:
        yield (
            "fsdp_cpu_ram_efficient_loading is not set: unless the script builds the model on the meta device, every process "
            f"loads a whole copy, {whole_copies_bytes(problem) / 1e9:,.0f} GB of host memory per node in 32 bit"
        )
    if s.arguments.get("mbs") is None:
        yield "the files do not state the batch per device: 1 is taken"
    if s.sizes.get("tp", 1) > 1:
        yield "whether activations between tensor-parallel regions are sharded is the model's plan; taken as on"


def _unmodelled(s: Settings) -> Iterator[str]:
    yield from quantised_weights(s.arguments)
    if s.flag("fsdp_offload_params") or "offload" in s.trainer_fsdp:
        yield "offloading moves parameters and gradients to the host with the optimizer; the prediction counts the optimizer only"
    if str(s.arguments.get("attention", "")) == "eager":
        yield "eager attention keeps the score matrix of every head; the prediction assumes fused attention"
