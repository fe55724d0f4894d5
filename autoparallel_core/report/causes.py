"""Causes of time and memory in words, as tables and sentences print them. docs/reference/cli.md says what each is."""

from __future__ import annotations

_WORDS = {
    "activation_offload": "waiting for activations",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "bubble": "pipeline bubble",
    "cast": "casts",
    "cp_comm": "CP exchange",
    "cuda_graph": "CUDA graphs",
    "dp_comm": "DP sync",
    "draft": "drafts",
    "elementwise": "element-wise",
    "ep_comm": "EP exchange",
    "expert_gemm": "expert GEMM",
    "fsdp_comm": "FSDP gather",
    "gathered": "gathered layers",
    "gemm": "GEMM",
    "head": "output layer",
    "host": "host wait",
    "kv_cache": "KV cache",
    "layer": "layer overhead",
    "missing_cache": "missing KV cache",
    "non_torch": "non-torch",
    "pipeline": "stage wait",
    "pp_comm": "PP sends",
    "pp_p2p": "PP sends",
    "step": "step activations",
    "straggler": "stragglers",
    "tp_comm": "TP collectives",
}


def words(cause: str) -> str:
    """``tp_comm`` → ``TP collectives``; an unknown cause with spaces for underscores."""
    part = cause.rsplit(": ", 1)[-1]  # "weights: rotary tables"
    return _WORDS.get(part, part.replace("_", " "))
