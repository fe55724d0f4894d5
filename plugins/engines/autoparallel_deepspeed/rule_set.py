"""What DeepSpeed accepts, from its configuration and engine checks (0.15 to 0.19 were read).

Mixture of experts: the native layers until 0.19.2, AutoEP since.
"""

from __future__ import annotations

from autoparallel_core.search import common_rules as common
from autoparallel_core.search.common_rules import simple
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.rule import Rule

ENGINE = "deepspeed/runtime/engine.py"
FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
AUTOEP = "0.19.2"

RULES: tuple[Rule, ...] = (
    common.world_product("world = tp × pp × sequence parallel × data parallel"),
    simple(
        "pipeline needs zero ≤ 1",
        lambda _p, s: (s.pp > 1) & (s.zero > 1),
        lambda _p, s: f"zero{s.zero} with pp {s.pp}: a PipelineModule works with ZeRO stage 0 or 1; zero1 would do, or pp 1",
        "deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
    ),
    simple(
        "autotp in a pipeline",
        lambda p, s: (s.tp > 1) & (s.pp > 1) & (not p.software.own_tensor_parallel),
        lambda _p, s: (
            f"tp {s.tp} with pp {s.pp}: the grid of a PipelineModule takes all {s.tp * s.dp * s.cp} ranks of a stage as data "
            "parallel, and AutoTP does not cut its layers; tp 1 or pp 1 would do, or layers that are cut by hand "
            "(Megatron-DeepSpeed)"
        ),
        "deepspeed/runtime/pipe/topology.py: PipelineParallelGrid; pipe/engine.py asserts its data-parallel size",
    ),
    simple(
        "autotp and ulysses",
        lambda p, s: (s.tp > 1) & (s.cp > 1) & (not p.software.own_tensor_parallel),
        lambda _p, s: (
            f"tp {s.tp} by AutoTP with sequence parallelism {s.cp}: its device mesh is data × tensor parallel only; "
            "tp 1 would do, or no sequence parallelism"
        ),
        "deepspeed/utils/groups.py: _init_tp_mesh_device",
    ),
    simple(
        "autotp and zero 3",
        lambda p, s: (s.tp > 1) & (s.zero == 3) & (not p.software.own_tensor_parallel),
        lambda p, s: (
            f"tp {s.tp} by AutoTP does not run under ZeRO-3 in DeepSpeed {p.engine_version} (since 0.19.4 it does); zero2 or tp 1"
        ),
        f"{ENGINE}: _configure_tensor_parallel_states",
        until="0.19.4",
    ),
    common.only_value("vpp", 1, "the pipeline engine has no interleaved schedule", "deepspeed/runtime/pipe/schedule.py"),
    simple(
        "pp ≤ layers",
        lambda p, s: s.pp > p.arch.num_layers,
        lambda p, s: f"pp {s.pp} stages, but {p.arch.name} has {p.arch.num_layers} layers",
        "deepspeed/runtime/pipe/module.py: partition_layers",
    ),
    simple(
        "offload needs zero",
        lambda _p, s: (s.offload > 0) & (s.zero == 0),
        lambda _p, _s: "the optimizer is offloaded by ZeRO, which stage 0 turns off; zero1 would do",
        "deepspeed/runtime/zero/config.py: offload_optimizer is valid with stage 1, 2 and 3",
    ),
    common.shard_group("deepspeed/runtime/zero: MiCS and hpZ groups divide the data-parallel ranks", with_cp=False),
    simple(
        "hpz and mics are zero 3",
        lambda _p, s: (s.zero > 0) & (s.zero < 3) & (s.shard != s.dp * s.cp),
        lambda _p, s: f"zero{s.zero} shards over all {s.dp * s.cp} ranks; a group of {s.shard} (hpZ, MiCS) needs zero3",
        "deepspeed/runtime/zero/config.py: zero_hpz_partition_size and mics_shard_size are ZeRO-3 options",
    ),
    common.batch_divisible("deepspeed/runtime/config.py: train_batch = micro_batch × accumulation × data-parallel ranks"),
    common.heads_divisible("tensor parallelism splits whole heads (Megatron layers; AutoTP)"),
    common.norm_groups_divisible("a group norm over heads is not reduced across ranks"),
    common.heads_divisible(
        "deepspeed/sequence/layer.py: heads % sequence parallel size",
        ("tp", "cp"),
        rule_id="heads % (tp cp)",
        until="0.15.4",
    ),
    common.divisible(
        "sequence % cp",
        "tokens of a sequence",
        lambda p: (p.training.seq_len,),
        ("cp",),
        "Ulysses shards the sequence evenly (deepspeed#5177)",
        modes=("training",),
    ),
    common.ep_needs_experts("deepspeed/moe/layer.py: expert parallelism needs MoE layers"),
    common.experts_divisible("deepspeed/moe/layer.py and auto_ep_config.py: num_experts % ep == 0"),
    simple(
        "dp % ep",
        lambda _p, s: (s.ep > 1) & ((s.dp * s.cp) % s.ep != 0),
        lambda _p, s: (
            f"ep {s.ep} does not divide the {s.dp * s.cp} data-parallel ranks"
            + common.instead("ep", s.ep, lambda v: s.dp * s.cp % v == 0)
        ),
        "deepspeed/utils/groups.py: expert groups are cut out of the data-parallel group",
        until=AUTOEP,
    ),
    simple(
        "experts and zero 3",
        lambda p, s: (s.zero == 3) & is_moe(p.arch),
        lambda p, _s: f"MoE layers do not run under ZeRO-3 in DeepSpeed {p.engine_version}; zero2, or AutoEP (since {AUTOEP})",
        f"{ENGINE}: MoE not supported with stage 3",
        until=AUTOEP,
    ),
    common.expert_grid(f"{FOLDING}: world / pp % (ep × etp) == 0", since=AUTOEP),
    common.only_value("etp", 1, "AutoEP reserves expert tensor parallelism", f"{FOLDING}: expert_tensor_parallel_size must be 1"),
    simple(
        "folding excludes",
        lambda p, s: is_moe(p.arch) & (s.tp > 1) & ((s.pp > 1) | (s.cp > 1) | (s.ep == 1)),
        lambda _p, s: (
            f"experts with AutoTP (tp {s.tp}) need pp 1, no Ulysses and ep > 1; here pp {s.pp} cp {s.cp} ep {s.ep}; tp 1 would do"
        ),
        f"{FOLDING}: validate_folding_global",
        since=AUTOEP,
    ),
    simple(
        "folding excludes offload",
        lambda p, s: is_moe(p.arch) & (s.tp > 1) & (s.offload > 0),
        lambda _p, s: f"optimizer offload with experts and tp {s.tp} is not validated; offload=none or tp 1",
        f"{FOLDING}: ZeRO offload with AutoEP+AutoTP folding",
        since=AUTOEP,
    ),
    simple(
        "autoep zero 3 excludes",
        lambda p, s: is_moe(p.arch) & (s.zero == 3) & ((s.cp > 1) | (s.shard != s.dp * s.cp)),
        lambda _p, s: (
            f"AutoEP with ZeRO-3 excludes Ulysses (cp {s.cp}) and hpZ/MiCS groups (shard {s.shard} of {s.dp * s.cp}); "
            "zero2 would do"
        ),
        f"{ENGINE}: AutoEP with ZeRO Stage 3",
        since=AUTOEP,
    ),
)
