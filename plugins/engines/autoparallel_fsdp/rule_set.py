"""What PyTorch FSDP2 accepts, from accelerate's ParallelismConfig and the tensor-parallel plans of transformers."""

from __future__ import annotations

from autoparallel_core.search import common_rules as common
from autoparallel_core.search.common_rules import simple
from autoparallel_core.search.facts import has_latent_attention, kv_heads, query_heads
from autoparallel_core.spec.rule import Rule

CONFIG = "accelerate/parallelism_config.py"

RULES: tuple[Rule, ...] = (
    common.world_product(f"{CONFIG}: dp_replicate·dp_shard·tp·cp is the number of processes"),
    common.only_value("pp", 1, "FSDP2 has no pipeline parallelism", f"{CONFIG}: the mesh has no pipeline dimension"),
    common.only_value("vpp", 1, "FSDP2 has no pipeline parallelism", f"{CONFIG}: the mesh has no pipeline dimension"),
    simple(
        "zero 2 or 3",
        lambda _p, s: (s.zero < 2) & (s.dp * s.cp > 1),
        lambda _p, s: (
            f"zero{s.zero} on dp {s.dp} × cp {s.cp}: FSDP shards parameters (zero3) or keeps them gathered between forward and "
            "backward (zero2); replication alone is DDP, not FSDP"
        ),
        "torch.distributed.fsdp.fully_shard: reshard_after_forward true or false",
    ),
    simple(
        "fsdp shards over something",
        lambda _p, s: (s.dp * s.cp == 1) & (s.tp > 1),
        lambda _p, s: f"tp {s.tp} leaves no ranks for FSDP to shard over (dp × cp = 1); lower tp, or run tp alone",
        f"{CONFIG}: FSDP is enabled but no dimension is left to shard across",
    ),
    simple(
        "offload needs ranks",
        lambda _p, s: (s.offload > 0) & (s.dp * s.cp == 1),
        lambda _p, s: f"dp {s.dp} × cp {s.cp} is one rank, which runs without FSDP and its offloading; offload=none would do",
        "torch.distributed.fsdp.CPUOffloadPolicy",
    ),
    common.shard_group(f"{CONFIG}: dp_replicate × dp_shard = dp, sharding over dp_shard × cp"),
    simple(
        "hsdp shards nothing",
        lambda _p, s: (s.zero >= 2) & (s.shard == s.cp) & (s.dp > 1),
        lambda _p, s: (
            f"shard group {s.shard} with dp {s.dp} × cp {s.cp} leaves dp_shard = 1: nothing is sharded over data-parallel ranks; "
            f"use shard {2 * s.cp} or more, or DDP"
        ),
        f"{CONFIG}: dp_replicate_size > 1 with dp_shard_size == 1 is pure data parallelism, illegal with tp or cp and not FSDP",
    ),
    common.heads_divisible("transformers tensor-parallel plans shard whole query heads"),
    common.norm_groups_divisible("a group norm over heads is not reduced across ranks"),
    common.kv_heads_divisible(
        "transformers#48307: key/value heads are not replicated, the forward fails when tp does not divide them",
        facts=lambda p: query_heads(p.arch) if has_latent_attention(p.arch) else kv_heads(p.arch),
    ),
    common.sequence_divisible(
        "torch ring attention balances causal work over 2·cp chunks; sequence parallelism splits them over tp",
        lambda s: (1 + (s.cp > 1)) * s.cp * (1 + (s.tp - 1) * s.sp),
        common.sequence_degree_text,
    ),
    common.batch_divisible("global batch = micro-batch × accumulation steps × data-parallel ranks"),
    common.ep_needs_experts("expert parallelism shards routed experts"),
    common.experts_divisible("grouped experts are sharded whole over ep"),
    common.expert_grid("experts take ep of the dp·cp·tp ranks and are sharded over the others"),
    common.only_value("etp", 1, "experts are not cut inside", "grouped experts under FSDP2 are sharded over ep only"),
)
