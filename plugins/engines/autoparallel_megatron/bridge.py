"""The plan as a Megatron-Bridge configuration in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.launch.write import title
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import RECOMPUTE, Strategy
from autoparallel_megatron.layout import layout_string
from autoparallel_megatron.stage_recompute import python_lines, without

PRECISIONS = {
    ("bf16", None): "bf16_mixed", ("fp16", None): "fp16_mixed", ("fp8", "delayed"): "bf16_with_fp8_delayed_scaling_mixed",
    ("fp8", "blockwise"): "bf16_with_fp8_subchannel_scaling_mixed", ("fp8", None): "bf16_with_fp8_current_scaling_mixed",
    ("mxfp8", None): "bf16_with_mxfp8_mixed", ("nvfp4", None): "bf16_with_nvfp4_mixed",
}  # fmt: skip
"""Names of mixed-precision recipes by precision and scaling."""


def bridge_config(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> str:
    """A module with ``config()`` and a main part: ``torchrun … bridge.py``."""
    from autoparallel_megatron.exporter import DISPATCHERS, SHARDING, overlaps_experts, split_of

    work, software = problem.training, problem.software
    split = split_of(problem, s, options.get("chunks", ()))
    model: dict[str, Any] = {
        "tensor_model_parallel_size": s.tp,
        "sequence_parallel": bool(s.sp and s.tp > 1),
        "pipeline_model_parallel_size": s.pp,
        "virtual_pipeline_model_parallel_size": s.vpp if s.vpp > 1 else None,
        "context_parallel_size": s.cp,
    }
    if s.cp > 1:
        model["cp_comm_type"] = software.cp_comm
    if split is not None and s.pp > 1:
        if split.kind == "layout":
            model["pipeline_model_parallel_layout"] = layout_string(split, mtp_layers=len(problem.arch.mtp))
        elif split.kind == "first_last":
            model |= {"num_layers_in_first_pipeline_stage": split.first, "num_layers_in_last_pipeline_stage": split.last}
        elif split.kind == "account_for_ends":
            model |= {
                "account_for_embedding_in_pipeline_split": split.account_for_embedding,
                "account_for_loss_in_pipeline_split": split.account_for_loss,
            }
    if problem.arch.num_experts:
        kind, backend = DISPATCHERS[software.dispatcher]
        model |= {"expert_model_parallel_size": s.ep, "expert_tensor_parallel_size": s.etp, "moe_token_dispatcher_type": kind}
        if backend:
            model["moe_flex_dispatcher_backend"] = backend
    model |= _recompute(problem, without(s, options))
    if layers := options.get("offloaded_layers"):
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    model |= {"seq_length": work.seq_len, "make_vocab_size_divisible_by": 128}
    ddp: dict[str, Any] = {
        "use_distributed_optimizer": s.zero >= 1,
        "overlap_grad_reduce": software.dp_overlap,
        "overlap_param_gather": software.dp_overlap and s.zero >= 1,
        "grad_reduce_in_fp32": work.grad_reduce_in_fp32,
        "use_megatron_fsdp": s.zero >= 2,
    }
    if s.zero >= 2:
        ddp["data_parallel_sharding_strategy"] = SHARDING[s.zero]
    if s.zero and s.shard < s.dp * s.cp:
        ddp["num_distributed_optimizer_instances"] = s.dp * s.cp // s.shard
    recipe = software.low_precision_recipe
    precision = PRECISIONS.get((work.precision, recipe)) or PRECISIONS.get((work.precision, None), "bf16_mixed")
    return _module(
        title(problem, s, options),
        options.get("model") or problem.arch.name,
        _assignments("cfg.model", model),
        python_lines(s, options),
        _assignments("cfg.train", {"micro_batch_size": s.mbs, "global_batch_size": work.global_batch_size, "train_iters": 1000}),
        _assignments("cfg.dataset", {"seq_length": work.seq_len}),
        _assignments("cfg.ddp", ddp),
        _assignments("cfg.optimizer", _optimizer(problem, s)),
        f"    cfg.mixed_precision = {precision!r}",
        _overlap(overlaps_experts(problem, s) and bool(problem.arch.num_experts), software.tp_overlap),
    )


def _recompute(problem: Problem, s: Strategy) -> dict[str, Any]:
    name = RECOMPUTE[s.recompute]
    if name == "none":
        return {"recompute_granularity": None}
    if name == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(problem.software.recompute_modules)}
    if s.recompute_layers:
        return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": s.recompute_layers // s.vpp}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _optimizer(problem: Problem, s: Strategy) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if problem.software.precision_aware_optimizer or s.offload:
        out["use_precision_aware_optimizer"] = True
    if s.offload:
        out["optimizer_cpu_offload"] = True
    return out


def _overlap(experts: bool, tensor: bool) -> str:
    if not experts and not tensor:
        return ""
    arguments = f"tp_comm_overlap={tensor}" + (", overlap_moe_expert_parallel_comm=True" if experts else "")
    return f"    cfg.comm_overlap = CommOverlapConfig({arguments})"


def _assignments(prefix: str, values: Mapping[str, Any]) -> str:
    return "\n".join(f"    {prefix}.{name} = {value!r}" for name, value in values.items())


def _module(head: str, model: str, *parts: str) -> str:
    body = "\n\n".join(p for p in parts if p)
    return f'''{head}
# Run with torchrun on every node: torchrun --nnodes … --nproc_per_node … bridge.py
"""Megatron-Bridge configuration of one plan."""

import os

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained({model!r}).to_megatron_provider(load_weights=False)
    cfg.dataset.blend = None  # mock data

{body}
    return cfg


if __name__ == "__main__":
    pretrain(config=config(), forward_step_func=forward_step)
'''
