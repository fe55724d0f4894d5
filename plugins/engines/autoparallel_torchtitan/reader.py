"""Reading torchtitan launches: TOML of 0.2, Python configurations of 0.3, and ``--section.option`` overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.result import said
from autoparallel_core.launch.sources import take_apart
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_torchtitan.fields import PRICED, QUIET, settings

NAME = "torchtitan"
FLAVORS = {
    "llama3": {"8B": "meta-llama/Llama-3.1-8B", "70B": "meta-llama/Llama-3.1-70B", "405B": "meta-llama/Llama-3.1-405B"},
    "llama4": {
        "17bx16e": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "17bx128e": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    },
    "deepseek_v3": {"671B": "deepseek-ai/DeepSeek-V3"},
    "qwen3": {
        **{s: f"Qwen/Qwen3-{s}" for s in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
        "30B-A3B": "Qwen/Qwen3-30B-A3B", "235B-A22B": "Qwen/Qwen3-235B-A22B",
    },
    "gpt_oss": {"20b": "openai/gpt-oss-20b", "120b": "openai/gpt-oss-120b"},
}  # fmt: skip
"""Models that torchtitan ships, by family and flavour (torchtitan/models/*/__init__.py), as public names."""
PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
SINGLE = ("1F1B", "GPipe")
TWO_STAGE_V = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "1f1b", "GPipe": "gpipe", "ZBVZeroBubble": "zero_bubble",
             "InterleavedZeroBubble": "zero_bubble", "DualPipeV": "dualpipe_v", "LoopedBFS": "gpipe"}  # fmt: skip


class Settings:
    """Typed access to the dotted settings."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def whole(self, name: str, default: int = 1) -> int:
        value = self.values.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))

    def flag(self, name: str, *, default: bool) -> bool:
        return bool(self.values.get(name, default))

    def degree(self, kind: str) -> int:
        return self.whole(f"parallelism.{kind}_parallel_degree")


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    found = settings(take_apart(files))
    if found is None:
        return None
    values, form, machines = found
    s = Settings(values)
    total = machines.total or stated_world(s)
    unknown = tuple(k for k in values if k not in PRICED and k.split(".")[0] not in QUIET)
    strategy = None if problem is None else strategy_of(s, problem)
    return Launch(
        engine=NAME,
        form=form,
        strategy=strategy,
        version="0.2.2" if form.startswith("torchtitan TOML") else None,
        n_gpus=total,
        gpus_per_node=machines.gpus_per_node,
        model=model_of(values, files),
        workload=said(
            seq_len=values.get("training.seq_len") or values.get("training.max_context_length"),
            global_batch_size=_batch(s, total),
            precision=_precision(values),
        ),
        software=_software(s),
        refusals=() if problem is None else tuple(refusals(s, problem)),
        notes=tuple(_notes(s, total, machines)),
        unmodelled=tuple(_unmodelled(s, problem)),
        unknown=unknown,
    )


def model_of(values: Mapping[str, Any], files: Mapping[str, str]) -> str | None:
    """The model that the settings name: a family and its flavour, or a configuration named after both (``llama3_70b``)."""
    family, flavor = str(values.get("model.name", "")), str(values.get("model.flavor", ""))
    if family:
        return FLAVORS.get(family, {}).get(flavor, f"{family} {flavor}".strip())
    names = {f"{f}_{size}".lower().replace("-", "_"): m for f, sizes in FLAVORS.items() for size, m in sizes.items()}
    text = " ".join([*files, *files.values()]).lower().replace("-", "_")
    found = {m for name, m in names.items() if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)}
    return found.pop() if len(found) == 1 else None


def stated_world(s: Settings) -> int | None:
    """The product of the degrees, when none is left open."""
    shard = s.whole("parallelism.data_parallel_shard_degree", -1)
    if shard < 1:
        return None
    return (
        shard
        * s.whole("parallelism.data_parallel_replicate_degree")
        * s.degree("tensor")
        * s.degree("pipeline")
        * s.degree("context")
    )


def _batch(s: Settings, total: int | None) -> int | None:
    """``global_batch_size``, or one local batch per data-parallel rank."""
    stated = s.whole("training.global_batch_size", -1)
    if stated > 0:
        return stated
    local = s.whole("training.local_batch_size", 0)
    inner = s.degree("tensor") * s.degree("pipeline") * s.degree("context")
    return local * max(total // inner, 1) if local and total else None


def strategy_of(s: Settings, problem: Problem) -> Strategy:
    """The layout on the problem's GPUs; an open ``data_parallel_shard_degree`` takes what is left."""
    tp, pp, cp = s.degree("tensor"), s.degree("pipeline"), s.degree("context")
    replicate, shard = (
        s.whole("parallelism.data_parallel_replicate_degree"),
        s.whole("parallelism.data_parallel_shard_degree", -1),
    )
    if shard < 1:
        shard = max(problem.cluster.n_gpus // (tp * pp * cp * replicate), 1)
    sharded = shard * cp > 1
    etp = s.whole("parallelism.expert_tensor_parallel_degree") if is_moe(problem.arch) else 1
    code = RECOMPUTE.index({"full": "full", "selective": "selective", "memory_budget": "selective"}.get(_mode(s), "none"))
    return Strategy(
        tp=tp, sp=int(s.flag("parallelism.enable_sequence_parallel", default=True) and tp > 1), pp=pp,
        vpp=virtual_stages(s, problem.arch.num_layers), cp=cp, ep=s.degree("expert"), etp=etp, dp=replicate * shard,
        zero=(3 if reshards(s) else 2) if sharded else 0, shard=shard * cp if sharded else 1, mbs=micro_batch(s), recompute=code,
    )  # fmt: skip


def _mode(s: Settings) -> str:
    return s.text("activation_checkpoint.mode", "selective").lower()


def reshards(s: Settings) -> bool:
    """Whether gathered parameters are dropped after the forward; by default, unless there is a pipeline."""
    policy = s.text("parallelism.fsdp_reshard_after_forward", "default")
    return policy == "always" or (policy == "default" and s.degree("pipeline") == 1)


def micro_batch(s: Settings) -> int:
    """Sequences of one pass: the local batch, or its pipeline micro-batches."""
    if s.degree("pipeline") > 1:
        return s.whole("parallelism.pipeline_parallel_microbatch_size")
    return s.whole("training.local_batch_size", 8)


def virtual_stages(s: Settings, layers: int) -> int:
    """Stages per rank: from the layers per stage, else 1 or 2 by the kind of schedule."""
    pp, per = s.degree("pipeline"), s.whole("parallelism.pipeline_parallel_layers_per_stage", 0)
    if pp == 1:
        return 1
    if per:
        return max(ceil((layers + 2) / per) // pp, 1)
    return 1 if s.text("parallelism.pipeline_parallel_schedule", "1F1B") in SINGLE else 2


def refusals(s: Settings, problem: Problem) -> Iterator[Refusal]:
    """What torchtitan checks beyond a strategy."""
    pp, schedule = s.degree("pipeline"), s.text("parallelism.pipeline_parallel_schedule", "1F1B")
    per, layers = s.whole("parallelism.pipeline_parallel_layers_per_stage", 0), problem.arch.num_layers
    if pp > 1 and per:
        stages = ceil((layers + 2) / per)
        if stages % pp:
            text = f"{layers} layers + 2 in stages of {per} make {stages} stages, no multiple of pp {pp}"
            yield Refusal("layers per stage", text, PIPELINE)
        elif (schedule in SINGLE) != (stages == pp):
            needs = "exactly 1 stage" if schedule in SINGLE else "at least 2 stages"
            yield Refusal(
                "schedule",
                f"schedule {schedule} needs {needs} per rank; {stages} stages over pp {pp} give {stages // pp}",
                PIPELINE,
            )
    if pp > 1 and schedule in TWO_STAGE_V and virtual_stages(s, layers) != 2:
        text = f"schedule {schedule} needs 2 stages per rank, not {virtual_stages(s, layers)}"
        yield Refusal("schedule", text, PIPELINE)
    local, micro = s.whole("training.local_batch_size", 8), s.whole("parallelism.pipeline_parallel_microbatch_size")
    if pp > 1 and local % micro:
        text = f"local batch {local} is no multiple of pipeline micro-batches of {micro}"
        yield Refusal("local batch % micro-batch", text, "torchtitan/config/configs.py")
    if _mode(s) == "memory_budget" and not s.flag("compile.enable", default=False):
        text = "a memory budget for activations needs compile.enable with the model among its components"
        yield Refusal("memory budget needs compile", text, "torchtitan/trainer.py")


def _precision(values: Mapping[str, Any]) -> str | None:
    converters = " ".join(map(str, values.get("model.converters") or ())).lower()
    for word, precision in (("nvfp4", "nvfp4"), ("mx", "mxfp8"), ("float8", "fp8")):
        if word in converters:
            return precision
    return {"bfloat16": "bf16", "float32": "fp32"}.get(str(values.get("training.mixed_precision_param", "bfloat16")))


def _software(s: Settings) -> dict[str, Any]:
    out: dict[str, Any] = {"elementwise": "compiled" if s.flag("compile.enable", default=False) else "eager"}
    schedule = SCHEDULES.get(s.text("parallelism.pipeline_parallel_schedule", "1F1B"))
    if s.degree("pipeline") > 1 and schedule:
        out["pipeline_schedule"] = schedule
    if s.flag("compile.enable_async_tensor_parallel", default=False):
        out["tp_overlap"] = True
    if s.text("parallelism.context_parallel_rotate_method", "allgather") == "alltoall":  # keys rotate around the ring
        out["cp_comm"] = "p2p"
    return out


def _notes(s: Settings, total: int | None, machines: Machines) -> Iterator[str]:
    if machines.total is None and total is None:
        yield "the files do not say on how many GPUs they run"
    if "training.local_batch_size" not in s.values and s.degree("pipeline") == 1:
        yield "no local batch size is given: 8, torchtitan's default"


def _unmodelled(s: Settings, problem: Problem | None) -> Iterator[str]:
    if s.flag("training.enable_cpu_offload", default=False):
        yield "training.enable_cpu_offload keeps parameters, gradients and optimizer in host memory, which is not modelled"
    if _mode(s) == "memory_budget":
        yield "a memory budget for activations is priced as selective recomputation"
    if _mode(s) == "selective" and s.text("activation_checkpoint.selective_ac_option", "op").isdigit():
        yield "selective_ac_option by layers is priced as the per-operator policy"
    if problem is not None and s.degree("pipeline") > 1:
        strategy = strategy_of(s, problem)
        local = s.whole("training.local_batch_size", 8)
        if local * strategy.dp < problem.training.global_batch_size:
            times = problem.training.global_batch_size // (local * strategy.dp)
            yield f"the pipeline drains after each local batch of {local} sequences, {times} times per step, the prediction once"
