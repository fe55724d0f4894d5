"""Runs inside the peer's own environment: reads run records on stdin, prints its predictions as JSON.

Only what the peer can express is asked: dense models, 16 bit, no context or virtual pipeline parallelism.
"""

import json
import logging
import sys
import time

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name

logging.disable(logging.CRITICAL)
GPUS = {"A100-SXM-80GB": "a100-sxm-80gb", "A100-SXM-40GB": "a100-sxm-40gb", "H100-SXM-80GB": "h100-sxm-80gb"}
EFFICIENCY = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5  # the peer's own comment: about 0.5 for training


def ask(row: dict) -> dict | None:
    """The peer's answer to one record, None when it cannot express it."""
    m, s, w = row["model"], row["strategy"], row["workload"]
    if row["cluster"]["gpu"] not in GPUS or m.get("n_routed_experts") or w["precision"] not in ("bf16", "fp16"):
        return None
    if (s["cp"] or 1) > 1 or (s["vpp"] or 1) > 1 or not w["seq_len"] or not s["micro_batch_size"] or not m.get("vocab_size"):
        return None
    tp, pp = s["tp"] or 1, s["pp"] or 1
    dp = s["dp"] or row["cluster"]["n_gpus"] // (tp * pp)
    model = ModelConfig(
        name=row["name"], num_layers=m["num_hidden_layers"], n_head=m["num_attention_heads"], hidden_dim=m["hidden_size"],
        vocab_size=m["vocab_size"], max_seq_len=w["seq_len"], num_key_value_heads=m["num_key_value_heads"],
        ffn_embed_dim=m["intermediate_size"], model_type=m["model_type"],
    )  # fmt: skip
    analysis = LLMAnalysis(
        model, get_gpu_config_by_name(GPUS[row["cluster"]["gpu"]]), get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp if s["sequence_parallel"] else 1),
        flops_efficiency=EFFICIENCY, hbm_memory_efficiency=0.9, intra_node_memory_efficiency=0.8,
        inter_node_memory_efficiency=0.8,
    )  # fmt: skip
    start = time.perf_counter()
    out = analysis.training(
        batch_size_per_gpu=s["micro_batch_size"], global_batch_size=w["global_batch_size"], seq_len=w["seq_len"],
        activation_recomputation=ActivationRecomputation.FULL if s["recompute"] == "full" else ActivationRecomputation.NONE,
        ds_zero=DSZeRO(s["zero_stage"] or 0), flash_attn=row["settings"].get("attention_kernel") != "unfused",
        mlp_gated_linear_units=bool(m.get("gated_mlp")),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    step = out.get("latency_per_iter") or out.get("iter_latency")
    tokens = w["seq_len"] * w["global_batch_size"]
    return {"tokens_per_s_per_gpu": tokens / step / row["cluster"]["n_gpus"], "question_s": seconds}


answers = {}
for line in sys.stdin:
    record = json.loads(line)
    try:
        answers[record["id"]] = ask(record)
    except Exception as e:  # noqa: BLE001  (a peer's failure is a result)
        answers[record["id"]] = {"error": f"{type(e).__name__}: {e}"}
print(json.dumps(answers))
