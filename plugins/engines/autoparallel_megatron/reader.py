"""Reading launches of Megatron-LM (argument lists in scripts and manifests) and configurations of Megatron-Bridge and NeMo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Leftover, Parsed, parse, sort_leftover
from autoparallel_core.launch.found import Found, find, has_flag, one_launch
from autoparallel_core.launch.result import said, shared_fields
from autoparallel_core.launch.sources import Sources, take_apart
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_megatron.bridge_fields import bridge_values
from autoparallel_megatron.flags import HARMLESS, NOTABLE, PER_NODE, TABLE
from autoparallel_megatron.model_flags import model_fields
from autoparallel_megatron.refusals import layout_stages, refusals
from autoparallel_megatron.software_flags import EXCHANGES, context_exchange, software_of
from autoparallel_megatron.stage_reading import UNDECIDED, by_stage, stages_stated

NAME = "megatron"
ANOTHER_ENGINE = ("--deepspeed", "--deepspeed-config")
"""Flags of forks that hand the training step to another engine."""
TELLTALE = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--expert-model-parallel-size", "--context-parallel-size",
    "--num-attention-heads", "--max-position-embeddings", "--use-distributed-optimizer", "--recompute-granularity",
)  # fmt: skip
"""Flags that no other engine has; enough to know a bare list of arguments."""
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` as ZeRO stages."""


@frozen
class Reading:
    """What was found, whatever its form."""

    parsed: Parsed
    form: str
    machines: Machines
    environment: Mapping[str, str] = field(factory=dict)
    leftover: Leftover = field(factory=Leftover)
    model: str | None = None
    notes: tuple[str, ...] = ()
    bridge: bool = False


def command_at(words: Sequence[str]) -> int | None:
    """Where Megatron's arguments begin: behind the training script, or at once for a bare list."""
    if not has_flag(words, *TELLTALE):
        return None
    first = next((i for i, w in enumerate(words) if w.split("=", 1)[0].replace("_", "-") in TELLTALE), 0)
    scripts = [i for i, w in enumerate(words[:first]) if w.endswith(".py")]
    if scripts:
        return scripts[-1]
    return -1 if words[0].startswith("-") else 0


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    sources = take_apart(files)
    reading = _from_arguments(sources) or _from_configuration(sources)
    return None if reading is None else _launch(sources, reading, problem)


def _from_arguments(sources: Sources) -> Reading | None:
    found = one_launch(find(sources, command_at), per_node=PER_NODE, program="Megatron")
    if found is not None and has_flag(found.words, *ANOTHER_ENGINE):
        return None
    if found is None:
        words = [w for values in sources.arrays() if values and values[0].startswith("-") for w in values]
        if not has_flag(words, *TELLTALE):
            return None
        found = Found(tuple(words), {}, Machines())
    parsed = parse([_dashed(w) for w in found.words], TABLE, program="Megatron-LM")
    leftover = sort_leftover(parsed.extra, harmless=HARMLESS, notable=NOTABLE)
    return Reading(parsed, "Megatron-LM arguments", found.machines, found.environment, leftover)


def _dashed(word: str) -> str:
    name, eq, value = word.partition("=")
    return name.replace("_", "-") + eq + value if name.startswith("--") else word


def _from_configuration(sources: Sources) -> Reading | None:
    """A Python or YAML configuration of Megatron-Bridge or NeMo."""
    found = bridge_values(sources)
    if found is None:
        return None
    values, model, file = found
    machines = Machines()
    for run in sources.runs:
        if any(w.rsplit("/", 1)[-1] == file for w in run.words):
            machines = machines.over(run.split(len(run.words) - 1)[1])
    return Reading(Parsed(values), "Megatron-Bridge configuration", machines, {}, Leftover(), model, bridge=True)


def _launch(sources: Sources, r: Reading, problem: Problem | None) -> Launch:
    p = r.parsed
    total = r.machines.total
    notes = list(r.notes)
    gbs = p.get("gbs")
    if gbs is None and total and p.given("mbs"):
        one = p.get("tp", 1) * p.get("pp", 1) * p.get("cp", 1)
        gbs = p.get("mbs") * max(total // one, 1)
        notes.append(f"no global batch size is given: {gbs} sequences (micro-batch × data-parallel ranks), as Megatron takes it")
    moe = bool(p.get("num_experts")) if problem is None else is_moe(problem.arch)
    etp = expert_tensor_parallel(p, moe=moe)
    if moe and not p.given("etp") and etp > 1:
        notes.append(f"--expert-tensor-parallel-size is not given: it is the tensor-parallel size, {etp}")
    vpp = virtual_stages(p, problem.arch.num_layers if problem else p.get("num_layers"))
    strategy = None if problem is None else strategy_of(p, problem, etp=etp, vpp=vpp, bridge=r.bridge)
    cut = None
    if problem is not None and strategy is not None:
        strategy, cut = stages_stated(p, problem, strategy, by_stage(sources))
        sources = evolve(sources, undecided=tuple(u for u in sources.undecided if u != UNDECIDED))
    exchange = context_exchange(p)
    if exchange is not None and exchange not in EXCHANGES and p.get("cp", 1) > 1:
        notes.append(f"--cp-comm-type {exchange} has no formula here; the ring of p2p is priced")
    software, more = software_of(p, r.environment, vpp=vpp, overlap_known=_may_overlap(problem), bridge=r.bridge)
    return Launch(
        engine=NAME,
        form=r.form,
        strategy=strategy,
        cut=cut,
        n_gpus=total,
        gpus_per_node=r.machines.gpus_per_node,
        model=r.model,
        model_fields=model_fields(p),
        workload=said(
            seq_len=p.get("seq"),
            global_batch_size=gbs,
            precision=more.get("precision"),
            grad_reduce_in_fp32=False if p.get("grad_reduce_in_bf16", default=False) else None,
        ),
        software=software,
        refusals=() if problem is None else tuple(refusals(p, problem, r.environment, vpp)),
        **shared_fields(sources, p, r.leftover, notes),
    )


def _may_overlap(problem: Problem | None) -> bool:
    return problem is None or parse_version(problem.engine_version) >= parse_version("0.14.0")


def expert_tensor_parallel(p: Parsed, *, moe: bool) -> int:
    """Unset, experts are cut like the dense layers."""
    stated = p.get("etp")
    if stated is not None:
        return int(stated) if moe or p.get("ep", 1) > 1 else 1
    return int(p.get("tp", 1)) if moe else 1


def virtual_stages(p: Parsed, layers: int | None) -> int:
    """Virtual stages per pipeline rank, from whichever flag states them."""
    pp = p.get("pp", 1)
    if p.get("layout"):
        return len(layout_stages(p.get("layout"))) // max(int(pp), 1) or 1
    if p.get("virtual"):
        return int(p.get("virtual"))
    per = p.get("layers_per_virtual")
    if per and layers:
        n = layers + p.get("account_embedding", default=False) + p.get("account_loss", default=False)
        return int(max(n // (max(pp, 1) * per), 1))
    return 1


def strategy_of(p: Parsed, problem: Problem, *, etp: int, vpp: int, bridge: bool = False) -> Strategy:
    """The layout on the problem's GPUs; what is left of them is data parallel."""
    tp, pp, cp = p.get("tp", 1), p.get("pp", 1), p.get("cp", 1)
    dp = max(problem.cluster.n_gpus // (tp * pp * cp), 1)
    zero = zero_stage(p, bridge=bridge)
    shard = max(dp * cp // max(p.get("instances", 1), 1), 1) if zero else 1
    if zero >= 2 and p.get("outer_sharding") in {None, "no_shard"} and p.get("instances", 1) == 1:
        shard = dp * cp
    code, layers = recompute(p, vpp, -(-problem.arch.num_layers // (pp * vpp)))
    return Strategy(
        tp=tp, sp=int(bool(p.get("sp", default=False)) and tp > 1), pp=pp, vpp=vpp, cp=cp, ep=p.get("ep", 1), etp=etp, dp=dp,
        zero=zero, shard=shard, mbs=p.get("mbs", 1), recompute=code, recompute_layers=layers,
        offload=int(bool(p.get("offload", default=False))),
    )  # fmt: skip


def zero_stage(p: Parsed, *, bridge: bool = False) -> int:
    """Which states the data-parallel ranks share out."""
    if p.get("mfsdp", default=False):
        return STRATEGIES.get(str(p.get("sharding", "no_shard")), 0)
    if p.get("torch_fsdp", default=False):
        return 3
    return int(bool(p.get("dist_opt", default=bridge)))


def recompute(p: Parsed, vpp: int, per_virtual_stage: int) -> tuple[int, int]:
    """Code and layers per stage; ``--recompute-num-layers`` of the block method counts those of each virtual stage."""
    granularity = p.get("recompute_granularity") or ("selective" if p.get("recompute_activations", default=False) else None)
    if granularity not in {"selective", "full"}:
        return 0, 0
    if granularity == "selective":
        return RECOMPUTE.index("selective"), 0
    n = p.get("recompute_layers") if p.get("recompute_method") == "block" else None
    return RECOMPUTE.index("full"), 0 if not n or n >= per_virtual_stage else n * vpp
