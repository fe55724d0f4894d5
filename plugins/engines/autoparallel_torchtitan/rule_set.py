"""What torchtitan accepts, from its parallel_dims, pipeline and trainer checks (0.2.0 and 0.3.0 were read)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from autoparallel_core.search import common_rules as common
from autoparallel_core.search.common_rules import simple
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.strategy import Strategy

DIMS = "torchtitan/distributed/parallel_dims.py"
PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
TRAINER = "torchtitan/trainer.py"
DECODER = "torchtitan/models/common/decoder.py"


@lru_cache(maxsize=4096)
def layers_per_stage(layers: int, stages: int) -> int | None:
    """A value of pipeline_parallel_layers_per_stage that gives this many virtual stages, or None.

    The embedding and the output each count as one layer (first and last stage less, by default).
    """
    effective = layers + 2
    n = math.ceil(effective / stages)
    while n >= 1 and math.ceil(effective / n) <= stages:
        if math.ceil(effective / n) == stages:
            return n
        n -= 1
    return None


def _no_such_stages(problem: Problem, s: Any) -> Any:
    """More than two virtual stages per rank need a layers_per_stage that gives exactly them."""
    import numpy as np

    layers = problem.arch.num_layers
    stages = np.asarray(s.pp * s.vpp)
    unique, inverse = np.unique(stages, return_inverse=True)
    missing = np.array([n > layers + 2 or layers_per_stage(layers, int(n)) is None for n in unique])
    return missing[inverse].reshape(stages.shape) & (s.vpp > 2)


def _stages_sentence(problem: Problem, s: Strategy) -> str:
    layers = problem.arch.num_layers

    def legal(v: int) -> bool:
        return s.pp * v <= layers + 2 and (v <= 2 or layers_per_stage(layers, s.pp * v) is not None)

    return (
        f"no pipeline_parallel_layers_per_stage turns {layers} layers (+ embedding and output) into pp {s.pp} × vpp {s.vpp} = "
        f"{s.pp * s.vpp} stages{common.instead('vpp', s.vpp, legal, limit=layers)}"
    )


def _ep_grid_0_2(_problem: Problem, s: Any) -> Any:
    """Experts borrow all of cp, all of tp when etp is 1, and part of the shard group."""
    shard = _dp_shard(s) * s.cp
    whole = (s.ep % s.cp != 0) | (shard % s.ep != 0)
    cut = (s.ep % (s.cp * s.tp) != 0) | ((shard * s.tp) % s.ep != 0)
    same = s.etp == s.tp
    return (s.ep > 1) & ((same & whole) | ((s.etp == 1) & (s.tp > 1) & cut))


def _dp_shard(s: Any) -> Any:
    """dp_shard·cp is the shard group of FSDP; plain DDP has dp_shard = 1."""
    import numpy as np

    return np.where(np.asarray(s.zero) >= 2, np.maximum(np.asarray(s.shard) // s.cp, 1), 1)


RULES: tuple[Rule, ...] = (
    common.world_product(f"{DIMS}: dp_replicate·dp_shard·cp·tp·pp == world size"),
    simple(
        "zero 0, 2 or 3",
        lambda _p, s: s.zero == 1,
        lambda _p, _s: "zero1 does not exist here: dp_replicate is zero0, dp_shard is zero3 (or zero2 with reshard never)",
        f"{DIMS}; fsdp_reshard_after_forward",
    ),
    simple(
        "ddp is one-dimensional",
        lambda _p, s: (s.zero == 0) & (s.dp > 1) & (s.tp * s.cp * s.pp > 1),
        lambda _p, s: f"replication alone (zero0, dp {s.dp}) does not combine with tp {s.tp}, cp {s.cp} or pp {s.pp}; use zero3",
        "torchtitan/models/llama3/infra/parallelize.py: DDP has not supported > 1D parallelism",
        until="0.3.0",
    ),
    simple(
        "cp shards",
        lambda _p, s: (s.zero == 0) & (s.cp > 1),
        lambda _p, s: f"zero0 with cp {s.cp}: context-parallel ranks are part of the FSDP group and always shard; use zero3",
        f"{DIMS}: the fsdp mesh is dp_shard × cp",
    ),
    common.only_value(
        "recompute_layers", 0, "activation checkpointing covers every layer", "torchtitan/distributed/activation_checkpoint.py"
    ),
    common.shard_group(f"{DIMS}: dp_replicate × dp_shard = dp, sharding over dp_shard × cp"),
    simple(
        "ep grid",
        lambda _p, s: (s.ep > 1) & ((_dp_shard(s) * s.cp * s.tp) % s.ep != 0),
        lambda _p, s: (
            f"ep {s.ep} does not divide dp_shard {int(_dp_shard(s))} × cp {s.cp} × tp {s.tp} = {int(_dp_shard(s)) * s.cp * s.tp}"
            + common.instead("ep", s.ep, lambda v: int(_dp_shard(s)) * s.cp * s.tp % v == 0)
        ),
        f"{DIMS}: (dp_shard·cp·tp) % ep == 0",
        since="0.3.0",
    ),
    common.only_value("etp", 1, "expert tensor parallelism was removed", f"{DIMS} of 0.3: no etp", since="0.3.0"),
    simple(
        "etp is 1 or tp",
        lambda p, s: (s.etp != 1) & (s.etp != s.tp) & is_moe(p.arch),
        lambda _p, s: f"etp {s.etp} is neither 1 nor tp {s.tp}",
        f"{DIMS} of 0.2: only etp = tp or etp = 1",
        until="0.3.0",
    ),
    simple(
        "ep borrows cp and tp",
        _ep_grid_0_2,
        lambda _p, s: (
            f"ep {s.ep} must take all of cp {s.cp}"
            + (f" and tp {s.tp}" if s.etp == 1 else "")
            + f" and a divisor of dp_shard {int(_dp_shard(s))}"
        ),
        f"{DIMS} of 0.2",
        until="0.3.0",
    ),
    common.ep_needs_experts(f"{DECODER}: expert parallelism of a model without experts"),
    common.experts_divisible(f"{DECODER}: num_experts % ep == 0 for every MoE module"),
    common.heads_divisible(f"{DECODER}: n_heads % tp == 0"),
    common.norm_groups_divisible("a group norm over heads is not reduced across ranks"),
    common.kv_heads_divisible(f"{DECODER}: n_kv_heads % tp == 0, no replication (MLA has one key per query head)"),
    common.sequence_divisible(
        f"{TRAINER}: seq_len % ((tp if sequence parallel) · (2·cp if cp > 1)) == 0",
        lambda s: (1 + (s.cp > 1)) * s.cp * (1 + (s.tp - 1) * s.sp),
        common.sequence_degree_text,
    ),
    common.batch_divisible(f"{TRAINER}: global batch % (local batch · dp) == 0"),
    simple(
        "tied embeddings in a pipeline",
        lambda p, s: p.arch.tied_embeddings & (s.pp > 1),
        lambda p, s: f"{p.arch.name} ties its embeddings, which does not work with pp {s.pp}; pp 1 would do",
        f"{DECODER}: weight tying with pipeline parallelism is not implemented",
        since="0.2.0",
    ),
    simple(
        "vpp needs pp",
        lambda _p, s: (s.vpp > 1) & (s.pp == 1),
        lambda _p, s: f"vpp {s.vpp} interleaves pipeline stages, but pp is 1",
        f"{PIPELINE}: multi-stage schedules",
    ),
    simple(
        "stages ≤ layers + 2",
        lambda p, s: s.pp * s.vpp > p.arch.num_layers + 2,
        lambda p, s: (
            f"pp {s.pp} × vpp {s.vpp} = {s.pp * s.vpp} stages, but {p.arch.num_layers} layers, embedding and output make "
            f"at most {p.arch.num_layers + 2}"
        ),
        f"{PIPELINE}: number of stages against effective layers",
    ),
    simple("layers per stage", _no_such_stages, _stages_sentence, f"{PIPELINE}: ceil((layers + 2) / layers_per_stage) % pp == 0"),
    simple(
        "context length",
        lambda p, s: (s.tp > 0) & ((p.arch.max_position_embeddings or p.training.seq_len) < p.training.seq_len),
        lambda p, _s: (
            f"sequence length {p.training.seq_len} is above the model's max_context_length {p.arch.max_position_embeddings}"
        ),
        f"{TRAINER}: seq_len ≤ max_context_length",
        since="0.3.0",
    ),
    simple(
        "graphs exclude pipelines",
        lambda p, s: p.software.cuda_graph != "none" and s.pp > 1,
        lambda _p, s: f"CUDA graphs do not work with pp {s.pp}; set training.disable_cuda_graphs or pp 1",
        TRAINER,
        since="0.3.0",
    ),
    simple(
        "graphs exclude ep",
        lambda p, s: p.software.cuda_graph != "none" and p.software.dispatcher != "hybridep" and s.ep > 1,
        lambda p, s: (
            f"CUDA graphs with ep {s.ep} need the HybridEP dispatcher with a capacity factor, not {p.software.dispatcher}"
        ),
        TRAINER,
        since="0.3.0",
    ),
    common.only_value("offload", 0, "optimizer offload is not built in", "torchtitan has no CPU optimizer"),
)
