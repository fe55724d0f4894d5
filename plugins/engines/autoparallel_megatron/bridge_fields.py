"""Configurations of Megatron-Bridge and NeMo: Python that assigns fields, or YAML that lists them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from autoparallel_core.launch.sources import Sources

FIELDS = {
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "virtual_pipeline_model_parallel_size": "virtual",
    "context_parallel_size": "cp", "expert_model_parallel_size": "ep", "expert_tensor_parallel_size": "etp",
    "sequence_parallel": "sp", "pipeline_model_parallel_layout": "layout", "num_layers_in_first_pipeline_stage": "first",
    "num_layers_in_last_pipeline_stage": "last", "account_for_embedding_in_pipeline_split": "account_embedding",
    "account_for_loss_in_pipeline_split": "account_loss", "recompute_granularity": "recompute_granularity",
    "cpu_offloading_num_layers": "offloaded_layers",
    "recompute_method": "recompute_method", "recompute_num_layers": "recompute_layers", "recompute_modules": "recompute_modules",
    "moe_token_dispatcher_type": "dispatcher", "moe_flex_dispatcher_backend": "flex", "moe_enable_deepep": "old_deepep",
    "seq_length": "seq", "sequence_length": "seq", "micro_batch_size": "mbs", "global_batch_size": "gbs",
    "use_distributed_optimizer": "dist_opt", "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather", "use_megatron_fsdp": "mfsdp", "data_parallel_sharding_strategy": "sharding",
    "num_distributed_optimizer_instances": "instances", "use_torch_fsdp2": "torch_fsdp", "optimizer_cpu_offload": "offload",
    "use_precision_aware_optimizer": "precise_opt", "overlap_moe_expert_parallel_comm": "ep_overlap",
    "tp_comm_overlap": "tp_overlap", "num_layers": "num_layers", "hidden_size": "hidden_size",
    "ffn_hidden_size": "ffn_hidden_size", "num_attention_heads": "num_attention_heads", "num_query_groups": "num_query_groups",
    "kv_channels": "kv_channels", "vocab_size": "vocab_size", "num_moe_experts": "num_experts", "moe_router_topk": "topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size": "shared_ffn", "mtp_num_layers": "mtp",
    "cuda_graph_impl": "cuda_graph_impl", "cuda_graph_scope": "cuda_graph_scope", "fp8_recipe": "fp8_recipe",
    "mixed_precision": "mixed_precision", "cp_comm_type": "cp_comm_type", "grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "gated_linear_unit": "swiglu",
}  # fmt: skip
"""Field of a configuration → destination of the matching flag."""
TELLTALE = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_LISTS = ("recompute_modules", "cuda_graph_scope", "cp_comm_type")


def bridge_values(sources: Sources) -> tuple[dict[str, Any], str | None, str] | None:
    """Values by destination, the model that is loaded, and the file; None when no file is such a configuration."""
    for name, tree in sources.python.items():
        values = dict(_assigned(tree))
        if any(FIELDS[t] in values for t in TELLTALE):
            return _tidied(values), _pretrained(tree), name
    for name, document in sources.data.items():
        if sources.kinds.get(name) in {"yaml", "json"}:
            values = dict(_leaves(document))
            if any(FIELDS[t] in values for t in TELLTALE):
                return _tidied(values), None, name
    return None


def _tidied(values: dict[str, Any]) -> dict[str, Any]:
    """None means "not set"; lists where flags take several words; a wish for 16-bit reduction as its flag."""
    out = {k: v for k, v in values.items() if v is not None}
    for key in _LISTS:
        if isinstance(out.get(key), str):
            out[key] = [out[key]]
    if out.pop("grad_reduce_in_fp32", True) is False:
        out["grad_reduce_in_bf16"] = True
    if isinstance(out.get("layout"), list):
        letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        out["layout"] = "|".join("".join(letters.get(str(x), "?") for x in stage) for stage in out["layout"])
    if out.get("num_query_groups"):
        out["group_query_attention"] = True
    return out


def _assigned(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Fields that the module assigns (``cfg.model.x = 1``) or passes by name (``Provider(x=1)``), in order."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            ok, value = _literal(node.value, names)
            if ok:
                names[node.targets[0].id] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr in FIELDS:
                    ok, value = _literal(node.value, names)
                    if ok:
                        yield FIELDS[target.attr], value
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in FIELDS:
                    ok, value = _literal(keyword.value, names)
                    if ok:
                        yield FIELDS[keyword.arg], value


def _literal(node: ast.expr, names: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether an expression is a plain value or a name bound to one, and that value."""
    if isinstance(node, ast.Name) and node.id in names:
        return True, names[node.id]
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None


def _pretrained(tree: ast.Module) -> str | None:
    """The model of ``AutoBridge.from_hf_pretrained("…")``."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("from_")):
            continue
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            return node.args[0].value
    return None


def _leaves(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in FIELDS and not isinstance(value, Mapping):
                yield FIELDS[str(key)], value
            else:
                yield from _leaves(value)
    elif isinstance(node, list):
        for value in node:
            yield from _leaves(value)
