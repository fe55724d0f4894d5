"""Causes of time and memory in words, as tables and sentences print them."""

from __future__ import annotations

_WORDS = {
    "cp_comm": "CP exchange",
    "dp_comm": "DP sync",
    "ep_comm": "EP exchange",
    "expert_gemm": "expert GEMM",
    "fsdp_comm": "FSDP gather",
    "gemm": "GEMM",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "cuda_graph": "CUDA graphs",
    "layer": "layer overhead",
    "non_torch": "non-torch",
    "prefill_interference": "prefill interference",
    "bubble": "pipeline bubble",
    "host": "host wait",
    "kv_cache": "KV cache",
    "pp_comm": "PP sends",
    "pp_p2p": "PP sends",
    "straggler": "stragglers",
    "tp_comm": "TP collectives",
}


def words(cause: str) -> str:
    """``tp_comm`` → ``TP collectives``; an unknown cause with spaces for underscores."""
    part = cause.rsplit(": ", 1)[-1]  # "weights: rotary tables"
    return _WORDS.get(part, part.replace("_", " "))
