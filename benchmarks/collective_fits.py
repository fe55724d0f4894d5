"""What derive_efficiency.py fits to the collectives' tables: messages to seconds, by kind and ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from operator_fits import AIC, Preset, by_engine
from operator_tables import Table, Tables, median_over_sources
from roofline_fit import Curve, fit_curve

MESSAGES = (*(2**k for k in range(13, 27)), 2**28, 2**30)
NCCL = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def collectives(p: Preset, tables: Tables) -> Iterator[tuple[str, Curve, str]]:
    nccl = tables.of("collectives_nccl_intranode", p.operator_name).where(lambda r: r["nccl_dtype"] == "half")
    for (op, ranks_text), rows in nccl.groups("op_name", "num_gpus"):
        ranks = int(ranks_text)
        share = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
        yield NCCL[op], _message_curve(rows, ranks, share, "bytes", 1.0), f"{AIC}, NCCL, 16 bit"
    custom = tables.of("collectives_custom_allreduce", p.operator_name).where(lambda r: not r["backend"].endswith("eager"))
    for (ranks_text,), rows in custom.groups("num_gpus"):
        ranks = int(ranks_text)
        share = 2 * (ranks - 1) / ranks
        for suffix, whose, own in by_engine(rows, few=20):
            curve = _message_curve(own, ranks, share, "message_elements", 2.0)
            yield f"all_reduce_custom{suffix}", curve, f"{AIC}, engines' all-reduce{whose}"
    yield from _exchange(p, tables)


def _message_curve(rows: Table, ranks: int, share: float, column: str, width: float) -> Curve:
    rows = median_over_sources(rows, (column,), "latency_ms")
    size, t = rows.number(column, "latency_ms")
    return fit_curve(ranks, share, size * width, t * 1e-3, knots=MESSAGES)


def _exchange(p: Preset, tables: Tables) -> Iterator[tuple[str, Curve, str]]:
    """Dispatch (fp8) and combine (16 bit) of tokens. A rank gets one copy of a token whichever of its experts want it:
    n(1−(1−1/n)^k) copies; the low-latency kernels send one per expert."""
    file = "moe_a2a_wideep_deepep_normal_perf"
    for name, rows, ranks in _nodes(tables.of(file, p.operator_name).where(lambda r: int(r["dispatch_sms"]) >= 20), "DeepEP"):
        m, h, top_k, send, notify, back, notify_back = rows.number(
            "num_token", "hidden_size", "num_topk", "dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us",
            "combine_notify_us",
        )  # fmt: skip
        copies = ranks * (1 - (1 - 1 / ranks) ** top_k)
        share = (ranks - 1) / ranks
        yield "dispatch", fit_curve(ranks, share, m * copies * h, (send + notify) * 1e-6), f"{AIC}, {name} normal, fp8"
        yield "combine", fit_curve(ranks, share, 2 * m * copies * h, (back + notify_back) * 1e-6), f"{AIC}, {name} normal, 16 bit"
    file = "moe_a2a_wideep_deepep_ll_perf"
    for name, rows, ranks in _nodes(tables.of(file, p.operator_name), "DeepEP"):
        m, h, top_k, send, back = rows.number("num_token", "hidden_size", "num_topk", "dispatch_avg_t_us", "combine_avg_t_us")
        share = (ranks - 1) / ranks
        yield "dispatch_low_latency", fit_curve(ranks, share, m * top_k * h, send * 1e-6), f"{AIC}, {name} low latency, fp8"
        yield "combine_low_latency", fit_curve(ranks, share, 2 * m * top_k * h, back * 1e-6), f"{AIC}, {name} low latency, 16 bit"
    table = tables.of("moe_a2a_trtllm_alltoall_perf", p.operator_name)
    for (op, ranks_text), rows in table.groups("op_name", "moe_ep_size"):
        kind = {"alltoall_dispatch": "dispatch", "alltoall_combine": "combine"}.get(op)
        if kind is None:
            continue
        ranks = int(ranks_text)
        m, h, top_k, t = rows.number("num_tokens", "hidden_size", "topk", "latency")
        width = np.array([{"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}[d] for d in rows.text("moe_dtype")])
        if kind == "combine":
            width = np.full_like(width, 2.0)
        copies = ranks * (1 - (1 - 1 / ranks) ** top_k)
        curve = fit_curve(ranks, (ranks - 1) / ranks, m * copies * h * width, t * 1e-3)
        yield kind, curve, f"{AIC}, TensorRT-LLM all-to-all over NVLink"


def _nodes(table: Table, name: str) -> Iterator[tuple[str, Table, int]]:
    for (nodes,), rows in table.groups("node_num"):
        if len(rows) >= 8:
            yield name, rows, 8 * int(nodes)
