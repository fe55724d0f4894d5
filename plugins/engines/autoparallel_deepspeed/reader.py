"""Reading DeepSpeed launches: its JSON configuration, accelerate's ``deepspeed_config``, and the launcher around a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Parsed, options, parse
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
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy

NAME = "deepspeed"
TELLTALE = ("zero_optimization", "train_micro_batch_size_per_gpu", "tensor_parallel", "sequence_parallel_size", "expert_parallel")
QUIET = (
    "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "bf16", "fp16", "amp",
    "prescale_gradients",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "communication_data_type", "flops_profiler",
    "tensorboard", "wandb",
    "comet", "csv_monitor", "comms_logger", "dump_state", "checkpoint", "data_types", "aio", "elasticity", "memory_breakdown",
    "gradient_predivide_factor", "seed", "data_efficiency", "disable_allgather", "sparse_gradients", "monitor_config", "compile",
    "timers", "use_node_local_storage", "dataloader_drop_last", "seq_parallel_communication_data_type", "graph_harvesting",
    "train_batch_size", "gradient_accumulation_steps", "activation_checkpointing", *TELLTALE,
)  # fmt: skip
_ZERO = "deepspeed/runtime/zero/config.py"
_CONFIG = "deepspeed/runtime/config.py"

CONFIG_FLAG = "--deepspeed|--deepspeed_config|--deepspeed-config|--ds_config=ds"
"""How training scripts name the configuration file."""
OWN_LAYERS = (
    *options("int", "--tensor-model-parallel-size=own_tp", "--pipeline-model-parallel-size=own_pp", "--zero-stage=zero"),
    *options("on", "--sequence-parallel=own_sp", "--checkpoint-activations|--deepspeed-activation-checkpointing=checkpointing"),
)
"""Flags of scripts whose layers are cut by hand (Megatron-DeepSpeed)."""
OWN = ("own_tp", "own_pp", "own_sp", "checkpointing")


@frozen
class Settings:
    """What the files say, in one place."""

    config: Mapping[str, Any]
    arguments: Parsed
    machines: Machines
    form: str
    precision: str | None = None

    @property
    def zero(self) -> Mapping[str, Any]:
        value = self.config.get("zero_optimization")
        return value if isinstance(value, Mapping) else {}

    def part(self, name: str) -> Mapping[str, Any]:
        value = self.config.get(name)
        return value if isinstance(value, Mapping) else {}

    def degree(self, name: str) -> int:
        """tp, cp (Ulysses), pp, ep."""
        stated = {
            "tp": whole_or_none(self.part("tensor_parallel").get("autotp_size"))
            or self.arguments.get("tp")
            or self.arguments.get("own_tp"),
            "cp": whole_or_none(self.config.get("sequence_parallel_size")),
            "pp": whole_or_none(self.part("pipeline").get("stages")) or self.arguments.get("pp") or self.arguments.get("own_pp"),
            "ep": (whole_or_none(self.part("expert_parallel").get("autoep_size")) or self.arguments.get("ep")),
        }[name]
        return stated or 1

    @property
    def mbs(self) -> int | None:
        return whole_or_none(self.config.get("train_micro_batch_size_per_gpu")) or self.arguments.get("mbs")

    @property
    def accumulation(self) -> int | None:
        return whole_or_none(self.config.get("gradient_accumulation_steps")) or self.arguments.get("accumulation")

    def ranks(self, n_gpus: int) -> int:
        """Data-parallel ranks."""
        return max(n_gpus // (self.degree("tp") * self.degree("cp") * self.degree("pp")), 1)


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    s = _settings(take_apart(files))
    return None if s is None else _launch(s, problem)


def _settings(sources: Sources) -> Settings | None:
    found = one_launch(find(sources, _script_at), per_node=PER_NODE, program="training")
    options = launcher_options(found) if found else {}
    arguments = _arguments(found.words) if found else Parsed({})
    machines = _launched_on(options, found.machines) if found else Machines()
    accelerate = named_document(sources, options.get("config_file")) or _accelerate(sources)
    config = named_document(sources, arguments.get("ds"))
    form = "DeepSpeed JSON"
    precision = None
    if accelerate is not None and "deepspeed_config" in accelerate:
        inner = accelerate.get("deepspeed_config") or {}
        config = config or named_document(sources, inner.get("deepspeed_config_file")) or _from_accelerate(inner)
        total = whole_or_none(accelerate.get("num_processes"))
        machines = machines.over(Machines(nodes=whole_or_none(accelerate.get("num_machines")), n_gpus=total))
        precision = str(accelerate.get("mixed_precision") or "") or None
        form = "accelerate configuration of DeepSpeed"
    config = config or _json(sources)
    if config is None:
        return None
    return Settings(config, arguments, machines, form, precision)


def _arguments(words: Sequence[str]) -> Parsed:
    """The script's flags; Megatron-DeepSpeed's ``--deepspeed`` is a switch beside the file's own flag."""
    kept = [w for w, after in zip(words, [*words, "--"][1:], strict=True) if w != "--deepspeed" or not after.startswith("-")]
    parsed = trainer_arguments(kept, "the training script", CONFIG_FLAG)
    own = parse([_dashed(w) for w in kept], OWN_LAYERS, program="the training script")
    return Parsed({**{k: v for k, v in own.values.items() if k in OWN}, **parsed.values}, (), parsed.unset)


def _dashed(word: str) -> str:
    name, eq, value = word.partition("=")
    return name.replace("_", "-") + eq + value if name.startswith("--") else word


def _launched_on(options: Mapping[str, str], machines: Machines) -> Machines:
    """GPUs that ``--include host:0,1@other:0,1`` lists; a hostfile that is not among the files leaves the nodes open."""
    listed = [part.partition(":")[2] for part in options.get("include", "").split("@")]
    if any(listed):
        return Machines(nodes=len(listed), n_gpus=sum(len(p.split(",")) for p in listed if p)).over(machines)
    if "hostfile" in options and machines.nodes is None:
        return evolve(machines, gpus_per_node=None, n_gpus=None)
    return machines


def _script_at(words: Sequence[str]) -> int | None:
    names = {w.rsplit("/", 1)[-1] for w in words}
    launched = names & {"deepspeed", "accelerate", "torchrun", "ds"} or any("torch.distributed" in w for w in words)
    return script_of(words) if launched else None


def _accelerate(sources: Sources) -> Mapping[str, Any] | None:
    for document in sources.data.values():
        if isinstance(document, Mapping) and "deepspeed_config" in document:
            return document
    return None


def _json(sources: Sources) -> Mapping[str, Any] | None:
    for name, document in sources.data.items():
        if sources.kinds.get(name) == "json" and isinstance(document, Mapping) and any(k in document for k in TELLTALE):
            return document
    return None


def _from_accelerate(inner: Mapping[str, Any]) -> dict[str, Any]:
    """The words of accelerate for the same settings."""
    zero: dict[str, Any] = {"stage": whole_or_none(inner.get("zero_stage")) or 0}
    for what in ("optimizer", "param"):
        device = inner.get(f"offload_{what}_device")
        if device not in {None, "none"}:
            zero[f"offload_{what}"] = {"device": device}
    return said(
        zero_optimization=zero,
        gradient_accumulation_steps=inner.get("gradient_accumulation_steps"),
        train_micro_batch_size_per_gpu=inner.get("train_micro_batch_size_per_gpu"),
    )


def _launch(s: Settings, problem: Problem | None) -> Launch:
    total = s.machines.total
    batch = whole_or_none(s.config.get("train_batch_size")) or s.arguments.get("gbs")
    if batch is None and s.mbs and total:
        batch = s.mbs * (s.accumulation or 1) * s.ranks(total)
    return Launch(
        engine=NAME,
        form=s.form,
        strategy=None if problem is None else strategy_of(s, problem),
        n_gpus=total,
        gpus_per_node=s.machines.gpus_per_node,
        model=s.arguments.get("model"),
        workload=said(
            seq_len=s.arguments.get("seq"), global_batch_size=batch, precision=_precision(s), task=task_of(s.arguments)
        ),
        software=_software(s),
        refusals=() if problem is None else tuple(refusals(s, problem)),
        notes=tuple(_notes(s)),
        unmodelled=tuple(_unmodelled(s)),
        unknown=tuple(k for k in s.config if k not in QUIET and k != "pipeline"),
        unset=s.arguments.unset,
    )


def _software(s: Settings) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if s.zero:
        out["dp_overlap"] = bool(s.zero.get("overlap_comm", s.zero.get("stage") == 3))
    if s.arguments.given("own_tp"):
        out["own_tensor_parallel"] = True
    return out


def _precision(s: Settings) -> str | None:
    for name in ("bf16", "fp16"):
        if s.part(name).get("enabled") in {True, "true"}:
            return name
    if s.precision in {"bf16", "fp16"}:
        return s.precision
    given = next((n for n in ("bf16", "fp16") if s.arguments.get(n)), None)
    return given or (
        "fp32" if s.part("bf16").get("enabled") is False and s.part("fp16").get("enabled") in {False, None} else None
    )


def strategy_of(s: Settings, problem: Problem) -> Strategy:
    """The layout on the problem's GPUs; what is left of them is data parallel."""
    tp, cp, pp = s.degree("tp"), s.degree("cp"), s.degree("pp")
    dp = s.ranks(problem.cluster.n_gpus)
    stage = min(whole_or_none(s.zero.get("stage")) or 0, 3)
    group = whole_or_none(s.zero.get("mics_shard_size")) or 0
    shard = (group if group > 0 else dp * cp) if stage else 1
    offloaded = any(_device(s.zero.get(f"offload_{what}")) for what in ("optimizer", "param"))
    code, layers = _recompute(s)
    return Strategy(
        tp=tp, sp=int(tp > 1 and _sequence_parallel(s)), pp=pp, cp=cp, dp=dp,
        ep=s.degree("ep") if is_moe(problem.arch) else 1, zero=stage, shard=shard,
        mbs=micro_batch(s, problem, dp), recompute=code, recompute_layers=layers, offload=int(offloaded),
    )  # fmt: skip


def _sequence_parallel(s: Settings) -> bool:
    """Layers cut by hand say it; the engine's own keep activations sharded unless told otherwise."""
    if s.arguments.given("own_tp"):
        return bool(s.arguments.get("own_sp", default=False))
    return not s.arguments.get("no_sequence_parallel", default=False)


def micro_batch(s: Settings, problem: Problem, dp: int) -> int:
    """Stated, or what the batch and the accumulation leave."""
    if s.mbs:
        return s.mbs
    per_rank = problem.training.global_batch_size // dp
    return max(per_rank // (s.accumulation or per_rank or 1), 1)


def _device(value: Any) -> bool:
    return isinstance(value, Mapping) and str(value.get("device", "none")) not in {"none", "None"}


def _recompute(s: Settings) -> tuple[int, int]:
    asked = str(s.arguments.get("recompute", "") or "")
    if asked in RECOMPUTE:
        return RECOMPUTE.index(asked), s.arguments.get("recompute_layers", 0) if asked == "full" else 0
    full = any(s.arguments.get(k, default=False) for k in ("gradient_checkpointing", "checkpointing"))
    return (RECOMPUTE.index("full"), 0) if full else (0, 0)


def refusals(s: Settings, problem: Problem) -> Iterator[Refusal]:
    """What DeepSpeed checks beyond a strategy."""
    dp = s.ranks(problem.cluster.n_gpus)
    batch, mbs, steps = whole_or_none(s.config.get("train_batch_size")), s.mbs, s.accumulation
    if batch and mbs and steps and batch != mbs * steps * dp:
        product = f"micro-batch {mbs} × accumulation {steps} × {dp} data-parallel ranks = {mbs * steps * dp}"
        text = f"train_batch_size {batch} is not {product}"
        yield Refusal("batch = micro × accumulation × dp", text, _CONFIG)
    stage = whole_or_none(s.zero.get("stage")) or 0
    if s.zero.get("stage") not in {None, 0, 1, 2, 3}:
        yield Refusal("zero stage", f"zero_optimization.stage is {s.zero['stage']!r}; it is 0, 1, 2 or 3", _ZERO)
    if _device(s.zero.get("offload_param")) and stage != 3:
        yield Refusal("offload_param", f"offload_param needs ZeRO stage 3, not {stage}", _ZERO)
    if _device(s.zero.get("offload_optimizer")) and stage == 0:
        yield Refusal("offload_optimizer", "offload_optimizer needs ZeRO stage 1, 2 or 3; stage is 0", _ZERO)
    if s.part("bf16").get("enabled") is True and s.part("fp16").get("enabled") is True:
        yield Refusal("one precision", "bf16 and fp16 are both enabled; enable one", _CONFIG)
    hpz = whole_or_none(s.zero.get("zero_hpz_partition_size")) or 1
    if hpz > 1 and (stage != 3 or dp % hpz):
        why = f"needs stage 3, not {stage}" if stage != 3 else f"does not divide {dp} data-parallel ranks"
        yield Refusal("hpz", f"zero_hpz_partition_size {hpz} {why}", _ZERO)


def _notes(s: Settings) -> Iterator[str]:
    if s.mbs is None:
        yield "the files do not state the micro-batch per GPU ('auto' or absent): it is taken from the global batch"
    if s.machines.total is None:
        yield "the files do not say on how many GPUs they run"


def _unmodelled(s: Settings) -> Iterator[str]:
    yield from quantised_weights(s.arguments)
    if _device(s.zero.get("offload_param")):
        yield "offload_param keeps parameters in host memory, which is not modelled (optimizer offload is)"
    for what in ("optimizer", "param"):
        part = s.zero.get(f"offload_{what}")
        if isinstance(part, Mapping) and part.get("device") == "nvme":
            yield f"offload_{what} to NVMe is priced as host memory"
    if (whole_or_none(s.zero.get("zero_hpz_partition_size")) or 1) > 1:
        yield "zero_hpz_partition_size keeps a second copy of the parameters per group, which is not modelled"
    if s.zero.get("zero_quantized_weights") or s.zero.get("zero_quantized_gradients"):
        yield "quantised ZeRO communication is not modelled"
    if s.part("activation_checkpointing").get("cpu_checkpointing"):
        yield "activation_checkpointing.cpu_checkpointing moves checkpoints to the host, which is not modelled"
