"""What Megatron-Core accepts, from its argument and configuration checks.

Sources name files of Megatron-Core 0.19 (``core/``) or of the Megatron-LM training scripts (``training/``);
``since`` and ``until`` were read off the releases 0.9 to 0.19.
"""

from __future__ import annotations

from typing import Any

from autoparallel_core.search import common_rules as common
from autoparallel_core.search.common_rules import simple
from autoparallel_core.search.facts import (
    expert_widths,
    is_moe,
    kv_heads,
    linear_attention_heads,
    query_heads,
    state_space_groups,
    state_space_heads,
)
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_megatron.layout import Abilities, pipeline_split

FULL = RECOMPUTE.index("full")
CONFIG = "core/transformer/transformer_config.py"
ARGUMENTS = "training/arguments.py"
ALIGNMENT = {"fp8": 16, "mxfp8": 32, "nvfp4": 32}
"""Rows of a local activation that a quantised GEMM needs a multiple of; blockwise FP8 wants 128."""


def _layout_rule(abilities: Abilities, how: str, **bounds: Any) -> Rule:
    """The decoder stack can be cut into pp·vpp stages by some option of these versions."""

    def condition(problem: Problem, s: Any) -> Any:
        import numpy as np

        pp, vpp = np.atleast_1d(s.pp), np.atleast_1d(s.vpp)
        key, inverse = np.unique(pp * 4096 + vpp, return_inverse=True)
        layers = problem.arch.num_layers
        bad = np.array([pipeline_split(layers, int(k) // 4096, int(k) % 4096, abilities) is None for k in key])
        return bad[inverse].reshape(np.shape(s.pp)) & (s.pp > 1)

    def sentence(problem: Problem, s: Strategy) -> str:
        layers = problem.arch.num_layers
        hint = common.instead("pp", s.pp, lambda p: pipeline_split(layers, p, s.vpp, abilities) is not None, limit=layers)
        return (
            f"{layers} layers cannot be spread over pp {s.pp} × vpp {s.vpp} = {s.pp * s.vpp} stages: {how} "
            f"(Megatron-Core {problem.engine_version}){hint}"
        )

    return simple("pipeline layout", condition, sentence, f"{CONFIG} __post_init__; pipeline_parallel_layer_layout.py", **bounds)


def _micro_batches(problem: Problem, s: Any) -> Any:
    return problem.training.global_batch_size // (s.mbs * s.dp)


def _token_rows(problem: Problem, s: Any) -> Any:
    """Tokens of one micro-batch on one rank, times the parts they are split into: (tokens, parts)."""
    parts = s.cp * (1 + (s.tp - 1) * s.sp)
    return s.mbs * problem.training.seq_len, parts


def _misaligned_rows(problem: Problem, s: Any) -> Any:
    rows = 128 if problem.software.low_precision_recipe == "blockwise" else ALIGNMENT.get(problem.training.precision, 0)
    if not rows:
        return False
    tokens, parts = _token_rows(problem, s)
    return tokens % (parts * rows) != 0


def _rows_sentence(problem: Problem, s: Strategy) -> str:
    rows = 128 if problem.software.low_precision_recipe == "blockwise" else ALIGNMENT[problem.training.precision]
    tokens, parts = _token_rows(problem, s)
    return (
        f"micro-batch {s.mbs} × {problem.training.seq_len} tokens over {parts} ranks gives {tokens / parts:g} rows per rank, "
        f"and {problem.training.precision} GEMMs need a multiple of {rows}"
    )


def _uneven_expert_width(problem: Problem, s: Any) -> Any:
    result: Any = False
    for width in expert_widths(problem.arch):
        result = (width % s.etp != 0) | result
    return result


def _groups_clash(problem: Problem, s: Any) -> Any:
    """With context parallelism a rank has whole groups, or several ranks share one."""
    import numpy as np

    result: Any = False
    for groups in state_space_groups(problem.arch):
        local = np.maximum(groups // s.tp, 1)
        result = (local % s.cp != 0) & (s.cp % local != 0) & (groups % s.tp == 0) | result
    return result


def _heads_to_trade(problem: Problem, tp: Any) -> tuple[Any, Any]:
    """Query and key/value heads of one tensor-parallel rank: what context parallelism by all-to-all scatters."""
    import numpy as np

    most = max(query_heads(problem.arch), default=0)
    keys = max(kv_heads(problem.arch), default=0)
    return most // tp, np.maximum(keys // tp, min(keys, 1))


RULES: tuple[Rule, ...] = (
    common.world_product("training/arguments.py and core/parallel_state.py: world size divisible by tp·pp·cp"),
    common.expert_grid(
        "core/parallel_state.py: the expert grid etp·ep·pp covers the same ranks; ep does not multiply the world",
        since="0.10.0",
    ),
    simple(
        "experts folded before 0.10",
        lambda _p, s: (s.ep > 1) & ((s.etp != s.tp) | (s.dp % s.ep != 0)),
        lambda _p, s: (
            f"ep {s.ep} with etp {s.etp}: before Megatron-Core 0.10 experts are cut like the dense layers (etp = tp = {s.tp}) "
            f"and ep divides dp {s.dp}; use a newer version or etp {s.tp}"
        ),
        "Megatron-Core changelog 0.10.0: MoE parallel folding",
        until="0.10.0",
    ),
    common.ep_needs_experts(f"{CONFIG}: num_moe_experts must be set for expert parallelism"),
    common.experts_divisible("core/transformer/moe/moe_layer.py: num_moe_experts % ep == 0"),
    simple(
        "expert width % etp",
        _uneven_expert_width,
        lambda p, s: f"the expert width {expert_widths(p.arch)[0]} cannot be divided by etp {s.etp}",
        "core/tensor_parallel/utils.py: divide",
    ),
    common.heads_divisible(f"{CONFIG}: num_attention_heads % tp == 0"),
    common.norm_groups_divisible("a group norm over heads is not reduced across ranks"),
    common.kv_heads_divisible(f"{CONFIG}: num_query_groups % tp == 0", until="0.16.0"),
    common.kv_heads_divisible_or_replicated(
        f"{CONFIG}: num_query_groups % tp == 0 or tp % num_query_groups == 0", since="0.16.0"
    ),
    common.divisible(
        "linear attention heads % (tp cp)",
        "heads of linear attention",
        lambda p: linear_attention_heads(p.arch),
        ("tp", "cp"),
        f"{CONFIG}: linear_num_key_heads and linear_num_value_heads % (tp·cp)",
        since="0.18.0",
    ),
    common.divisible(
        "linear attention heads % tp",
        "heads of linear attention",
        lambda p: linear_attention_heads(p.arch),
        ("tp",),
        f"{CONFIG}: linear_num_key_heads % tp and linear_num_value_heads % tp",
        until="0.18.0",
    ),
    common.divisible(
        "mamba heads % (tp cp)",
        "Mamba heads",
        lambda p: state_space_heads(p.arch),
        ("tp", "cp"),
        "core/ssm/mamba_mixer.py and mamba_context_parallel.py: nheads % (tp·cp)",
    ),
    common.divisible(
        "mamba groups % tp",
        "Mamba groups",
        lambda p: state_space_groups(p.arch),
        ("tp",),
        "core/ssm/mamba_mixer.py: ngroups % tp",
    ),
    simple(
        "mamba groups vs cp",
        _groups_clash,
        lambda p, s: (
            f"{state_space_groups(p.arch)[0] // s.tp} Mamba groups per rank of tp {s.tp} are neither a multiple nor a divisor "
            f"of cp {s.cp}"
        ),
        "core/ssm/mamba_context_parallel.py: groups are sharded or replicated whole",
    ),
    simple(
        "heads % a2a cp",
        lambda p, s: (p.software.cp_comm == "a2a") & (_heads_to_trade(p, s.tp)[0] % s.cp != 0),
        lambda p, s: (
            f"{_heads_to_trade(p, s.tp)[0]} heads per tensor-parallel rank cannot be scattered over cp {s.cp} "
            "(--cp-comm-type a2a)" + common.instead("cp", s.cp, lambda v: _heads_to_trade(p, s.tp)[0] % v == 0)
        ),
        f"{CONFIG}: cp_comm_type a2a scatters heads",
    ),
    simple(
        "kv heads % a2a cp",
        lambda p, s: (p.software.cp_comm == "a2a") & (_heads_to_trade(p, s.tp)[1] % s.cp != 0),
        lambda p, s: (
            f"{_heads_to_trade(p, s.tp)[1]} key/value heads per tensor-parallel rank cannot be scattered over cp {s.cp}, and "
            "--cp-comm-type a2a replicates none; p2p would do"
            + common.instead("cp", s.cp, lambda v: _heads_to_trade(p, s.tp)[1] % v == 0)
        ),
        "transformer_engine/pytorch/attention, AttnFuncWithCPAndQKVOA2A: query and key heads % cp",
    ),
    common.sequence_divisible(
        f"{ARGUMENTS}: seq_length % (2·cp) when cp > 1; sequence parallelism splits it over tp as well",
        lambda s: (1 + (s.cp > 1)) * s.cp * (1 + (s.tp - 1) * s.sp),
        common.sequence_degree_text,
    ),
    simple(
        "experts with tp need sp",
        lambda p, s: (s.tp > 1) & (s.sp == 0) & is_moe(p.arch),
        lambda _p, s: f"tp {s.tp} on a mixture of experts needs sequence parallelism; set sp=on, or tp 1",
        "core/transformer/moe/moe_layer.py: training with experts and tensor parallelism requires sequence parallelism",
    ),
    simple(
        "tp overlap needs sp",
        lambda p, s: p.software.tp_overlap and (s.tp > 1) & (s.sp == 0),
        lambda _p, s: f"overlap of tensor-parallel communication is on with tp {s.tp} but sequence parallelism is off; set sp=on",
        f"{ARGUMENTS}: tp_comm_overlap requires sequence_parallel",
    ),
    simple(
        "vpp needs pp",
        lambda p, s: (s.vpp > 1) & (s.pp < (2 if p.software.p2p_overlap else 3)),
        lambda p, s: (
            f"vpp {s.vpp} interleaves pipeline stages, but pp is {s.pp}; it needs pp of at least "
            + ("2" if p.software.p2p_overlap else "3 (point-to-point overlap is off)")
        ),
        f"{ARGUMENTS}: the interleaved schedule needs pp > 1 with overlapped p2p, pp > 2 without",
    ),
    _layout_rule(
        Abilities(first_last=False, first_last_interleaved=False, account_for_ends=False, layout=False),
        "only an even split exists",
        until="0.9.0",
    ),
    _layout_rule(
        Abilities(first_last_interleaved=False, account_for_ends=False, layout=False),
        "neither an even split nor first and last layer counts work out",
        since="0.9.0",
        until="0.11.0",
    ),
    _layout_rule(
        Abilities(layout=False),
        "neither an even split, nor embedding and loss as layers, nor first and last counts divisible by vpp work out",
        since="0.11.0",
        until="0.13.0",
    ),
    _layout_rule(Abilities(), "a layout string needs at most one stage per layer, embedding and loss", since="0.13.0"),
    common.batch_divisible("core/num_microbatches_calculator.py: global batch % (micro batch · dp) == 0"),
    simple(
        "interleaving % pp",
        lambda p, s: (s.vpp > 1) & (_micro_batches(p, s) % s.pp != 0),
        lambda p, s: (
            f"{_micro_batches(p, s)} micro-batches per rank (batch {p.training.global_batch_size} over micro-batch {s.mbs} × "
            f"dp {s.dp}) are not a multiple of pp {s.pp}, which interleaving (vpp {s.vpp}) needs; vpp 1 would do, or a batch of "
            f"{-(-p.training.global_batch_size // (s.mbs * s.dp * s.pp)) * s.mbs * s.dp * s.pp}"
        ),
        "core/pipeline_parallel/schedules.py: pp ≤ microbatch group size (default pp) ≤ M, and M % group is 0 or ≥ pp",
    ),
    simple(
        "recompute layers",
        lambda p, s: (s.recompute == FULL) & (s.recompute_layers * s.pp > p.arch.num_layers + s.pp - 1),
        lambda p, s: (
            f"full recompute of {s.recompute_layers} layers, but a stage of pp {s.pp} has at most "
            f"{-(-p.arch.num_layers // s.pp)} of {p.arch.num_layers}"
        ),
        f"{CONFIG}: recompute_num_layers is at most the layers of a pipeline rank",
    ),
    simple(
        "recompute layers % vpp",
        lambda _p, s: s.recompute_layers % s.vpp != 0,
        lambda _p, s: (
            f"full recompute of {s.recompute_layers} layers of a stage cannot be spread evenly over its {s.vpp} virtual stages"
            + common.instead("vpp", s.vpp, lambda v: s.recompute_layers % v == 0)
        ),
        f"{CONFIG}: recompute_num_layers counts layers of each virtual stage",
    ),
    simple(
        "activation offload",
        lambda p, s: p.software.activation_offload_layers > 0 and (s.pp > 1) | (s.recompute > 0),
        lambda p, s: (
            f"offloading the activations of {p.software.activation_offload_layers} layers excludes pipelines "
            f"(pp {s.pp}) and recompute ({RECOMPUTE[s.recompute]})"
        ),
        f"{CONFIG}: cpu_offloading with pp > 1 or recompute",
    ),
    simple(
        "graphs and full recompute",
        lambda p, s: p.software.cuda_graph == "partial" and s.recompute == FULL,
        lambda _p, _s: "full recompute works with full-iteration CUDA graphs only, and the graphs here cover part of a layer",
        f"{CONFIG}: full recompute is only supported with full iteration CUDA graph",
    ),
    simple(
        "expert overlap",
        lambda p, s: p.software.ep_overlap and (s.ep > 1) & (((s.pp > 1) & (s.vpp == 1)) | (s.recompute == FULL)),
        lambda _p, s: (
            "overlapping expert communication needs interleaving when pp > 1 and no full recompute, here "
            f"pp {s.pp} vpp {s.vpp} recompute {RECOMPUTE[s.recompute]}"
        ),
        f"{CONFIG}: overlap_moe_expert_parallel_comm",
        since="0.14.0",
    ),
    simple(
        "expert overlap not yet",
        lambda p, s: p.software.ep_overlap and s.ep > 1,
        lambda p, _s: f"overlapping expert communication exists since Megatron-Core 0.14.0, not in {p.engine_version}",
        "Megatron-Core 0.14.0",
        until="0.14.0",
    ),
    common.shard_group("core/parallel_state.py: num_distributed_optimizer_instances divides the dp·cp ranks", with_cp=False),
    simple(
        "fp16 experts",
        lambda p, s: (s.ep > 1) & (p.training.precision == "fp16"),
        lambda _p, s: f"expert parallelism (ep {s.ep}) does not run in fp16; use bf16",
        f"{ARGUMENTS}: expert parallelism is not supported with fp16 training",
    ),
    simple(
        "optimizer offload",
        lambda _p, s: (s.offload > 0) & (s.zero == 0),
        lambda _p, _s: (
            "offloading the optimizer goes through the precision-aware optimizer, which needs the distributed one: zero1"
        ),
        "core/optimizer/optimizer_config.py: use_precision_aware_optimizer requires use_distributed_optimizer",
    ),
    simple(
        "fsdp needs 0.10",
        lambda _p, s: s.zero >= 2,
        lambda p, s: f"zero{s.zero} needs Megatron-FSDP, which Megatron-Core {p.engine_version} does not have (since 0.10)",
        "Megatron-Core: custom FSDP since 0.10, Megatron-FSDP since 0.14",
        until="0.10.0",
    ),
    simple(
        "rows % alignment",
        _misaligned_rows,
        _rows_sentence,
        "Transformer Engine: rows of FP8 GEMM operands are a multiple of 16, MXFP8 of 32, blockwise of 128",
    ),
)
