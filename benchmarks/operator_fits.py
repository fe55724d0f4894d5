"""What derive_efficiency.py fits to which table: shapes to FLOPs, bytes and messages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from operator_tables import L2_BYTES, Table, Tables, median_over_sources
from roofline_fit import Roofline, fit_roofline

AIC = "aiconfigurator tables"
INFERSIM = "InferSim tables"

DTYPES = {  # table's name: our key, dtype of the peak, bytes per weight
    "bfloat16": ("bf16", "bf16", 2.0),
    "fp8": ("fp8", "fp8", 1.0),
    "fp8_static": ("fp8", "fp8", 1.0),
    "fp8_block": ("fp8_block", "fp8", 1.0),
    "nvfp4": ("fp4", "fp4", 0.5625),
    "sq": ("int8", "int8", 1.0),
    "int8_wo": ("int8_wo", "bf16", 1.0),
    "int4_wo": ("int4_wo", "bf16", 0.5),
    "w4a16_mxfp4": ("mxfp4_wo", "bf16", 0.53125),
    "w4a8_mxfp4_mxfp8": ("mxfp4_fp8", "fp8", 0.53125),
}
EXPERT_PEERS = {  # pooled: the sample has too few rows per GPU
    "H100 SXM": ("H100 SXM", "H200 SXM"),
    "H200 SXM": ("H100 SXM", "H200 SXM"),
    "B200 SXM": ("B200 SXM", "GB200"),
    "GB200": ("B200 SXM", "GB200"),
    "B300 SXM": ("B300 SXM", "GB300"),
    "GB300": ("B300 SXM", "GB300"),
}
BLACKWELL = ("B200 SXM", "GB200", "B300 SXM", "GB300")
EXPERT_PAD_TOKENS = 20.0
"""Token slots that a touched expert's last tile leaves empty, on average."""
OWN_ROWS = 40
"""Rows of one engine from which its attention kernels get an entry of their own."""
NARROW = 256
"""Experts narrower than this per rank run at tile granularity and are not fitted."""
NEARLY_EMPTY_S = 5e-6
"""Grouped GEMMs with less work than this show their fixed time."""
TYPICAL_COMPUTE, TYPICAL_MEMORY = 0.3, 0.8
"""Efficiencies that tell which those are."""
EXPERT_SKEW = 0.7
"""Share of a batch that routing treats as independent draws, for the number of experts touched (power-law loads)."""
HOST_BOUND_S = 60e-6
"""A kernel with a fixed time above this was launched eagerly; the tables time its host."""
MLA_QK, MLA_V, MLA_LATENT, MLA_LATENT_V = 192, 128, 576, 512


@dataclass
class Preset:
    """What the fits need of one data file."""

    path: Path
    operator_name: str
    peak: Mapping[str, float]
    bandwidth: float

    @classmethod
    def read(cls, path: Path) -> Preset | None:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        name = raw.get("operator_data")
        return cls(path, name, raw["peak_flops"], raw["hbm_bytes_per_s"]) if name else None


# -- matrix products ------------------------------------------------------------------------------------------------


def gemm(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    table = tables.of("gemm", p.operator_name)
    for key in dict.fromkeys(k for k, _, _ in DTYPES.values()):
        names = [n for n, (k, _, _) in DTYPES.items() if k == key]
        _, dtype, width = DTYPES[names[0]]
        rows = table.where(lambda r, names=names: r["gemm_dtype"] in names)
        if len(rows) and dtype in p.peak:
            rows = median_over_sources(rows, ("m", "n", "k"), "latency_ms")
            yield key, _gemm(p, rows, dtype, width, "latency_ms", 1e-3), f"{AIC}, GEMM, median of engines"
    if p.operator_name in ("H20", "H800"):
        rows = tables.of("infersim_gemm", p.operator_name)
        for key in ("fp8", "fp8_block"):
            yield key, _gemm(p, rows, "fp8", 1.0, "latency_us", 1e-6), f"{INFERSIM}, fp8 GEMM"


def _gemm(p: Preset, rows: Table, dtype: str, width: float, latency: str, unit: float) -> Roofline:
    m, n, k, t = rows.number("m", "n", "k", latency)
    traffic = n * k * width + 2 * m * (k + n)
    keep = _not_cached(p, traffic, t * unit)
    return fit_roofline((2 * m * n * k / p.peak[dtype])[keep], (traffic / p.bandwidth)[keep], (t * unit)[keep])


def _not_cached(p: Preset, traffic: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """All rows, unless some beat the memory: then only those whose operands exceed the second-level cache."""
    if np.mean(seconds < traffic / p.bandwidth) < 0.01:
        return np.ones(len(traffic), bool)
    return traffic > L2_BYTES.get(p.operator_name, 126e6)


def expert_gemm(p: Preset, tables: Tables, presets: Mapping[str, Preset]) -> Iterator[tuple[str, Roofline, str]]:
    """Grouped GEMMs of one rank that holds all experts, or its share of them under balanced routing where those are few.

    With skewed routing over several ranks the tables measure the most loaded rank, whose tokens they do not state.
    The fixed time is read off the shapes with next to no work, which the fit of large ones would overrate.
    """
    if p.operator_name in ("H20", "H800"):
        yield from _infersim_experts(p, tables)
        return
    for name, (key, dtype, width) in DTYPES.items():
        if dtype not in p.peak:
            continue
        own = EXPERT_PEERS.get(p.operator_name, (p.operator_name,))
        pools = (own, BLACKWELL) if p.operator_name in BLACKWELL else (own,)
        for peers in pools:
            rows = _pooled(presets, tables, peers, name, dtype, width)
            if rows.keep.sum() >= (20 if peers is own and len(pools) > 1 else 12):
                fixed = _nearly_empty(_pooled(presets, tables, pools[-1], name, dtype, width))
                fit = fit_roofline(*rows.kept, softness=0.2, fixed_up_to_s=100e-6, fixed_s=fixed)
                if fit.median_error < 0.35:
                    yield key, fit, f"{AIC}, grouped expert GEMM of {', '.join(peers)}"
                break


@dataclass
class ExpertRows:
    """FLOPs and bytes as seconds at peak, measured seconds, and which rows to fit."""

    flops_s: np.ndarray
    bytes_s: np.ndarray
    seconds: np.ndarray
    keep: np.ndarray

    @property
    def kept(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.flops_s[self.keep], self.bytes_s[self.keep], self.seconds[self.keep]


def _pooled(
    presets: Mapping[str, Preset], tables: Tables, peers: tuple[str, ...], name: str, dtype: str, width: float
) -> ExpertRows:
    """Rows of several GPUs. Fitted are wide experts on one rank; where those are few, of all ranks; of integer weights, all."""
    known = [presets[n] for n in peers if n in presets]
    parts = [_expert_times(q, tables.of("moe_sample", q.operator_name), name, dtype, width) for q in known]
    f, b, t, wide, alone, even = (np.concatenate(column) for column in zip(*parts, strict=True))
    keep = wide.astype(bool) & alone.astype(bool)
    if keep.sum() < 12:
        keep = np.ones(len(t), bool) if name == "int4_wo" else wide.astype(bool) & even.astype(bool)
    return ExpertRows(f, b, t, keep)


def _nearly_empty(rows: ExpertRows) -> float | None:
    """Lower quartile of the time that shapes with next to no work take beside it: that of the better kernels."""
    work = np.hypot(rows.flops_s / TYPICAL_COMPUTE, rows.bytes_s / TYPICAL_MEMORY)
    empty = work < NEARLY_EMPTY_S
    return float(np.quantile(rows.seconds[empty] - work[empty], 0.25)) if empty.sum() >= 4 else None


def _infersim_experts(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    flops_s, bytes_s, seconds = [], [], []
    for file in ("infersim_grouped_gemm_prefill", "infersim_grouped_gemm_decode"):
        rows = tables.of(file, p.operator_name)
        local, tokens, h, f, up, down = rows.number(
            "num_local_experts", "tokens_per_expert", "hidden_size", "intermediate_size", "up_proj_us", "down_proj_us"
        )
        touched = np.where(tokens >= 4, local, local * (1 - np.exp(-tokens)))  # few tokens per expert miss some
        flops_s.append(6 * (local * tokens + EXPERT_PAD_TOKENS * touched) * h * f / p.peak["fp8"])
        bytes_s.append((3 * touched * h * f + 4 * local * tokens * (h + f)) / p.bandwidth)
        seconds.append((up + down) * 1e-6)
    fit = fit_roofline(*(np.concatenate(x) for x in (flops_s, bytes_s, seconds)), softness=0.2, fixed_up_to_s=100e-6)
    yield "fp8_block", fit, f"{INFERSIM}, grouped expert GEMM"


def _expert_times(p: Preset, table: Table, name: str, dtype: str, width: float) -> tuple[np.ndarray, ...]:
    """FLOPs and bytes as seconds at peak, measured seconds; whether experts are wide, all on this rank, or evenly routed."""
    rows = table.where(lambda r: r["moe_dtype"] == name)
    if not len(rows):
        return (np.empty(0),) * 6
    m, h, f, top_k, experts, tp, ep, t = rows.number(
        "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "latency_ms"
    )
    f /= tp
    matrices = 3.0 - np.char.find(rows.text("kernel_source"), "nongated").astype(bool).__invert__()  # two without a gate
    draws = 1 + EXPERT_SKEW * (m - 1)
    visits = m * top_k / ep
    balanced = np.minimum(experts / ep, np.maximum(visits, 1))  # tokens dealt out evenly touch an expert each
    even = rows.text("distribution") == "balanced"
    touched = np.where(even, balanced, experts / ep * (1 - (1 - top_k / experts) ** draws))
    flops = 2 * matrices * (visits + EXPERT_PAD_TOKENS * touched) * h * f
    traffic = touched * matrices * h * f * width + 4 * visits * (h + f)
    useful = 2 * matrices * visits * h * f
    t = t * 1e-3
    possible = t >= useful / p.peak[dtype]
    return tuple(x[possible] for x in (flops / p.peak[dtype], traffic / p.bandwidth, t, f >= NARROW, ep == 1, even | (ep == 1)))


# -- attention ------------------------------------------------------------------------------------------------------


def attention(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    yield from _prefill(p, tables)
    yield from _decode(p, tables)
    yield from _latent(p, tables)
    if p.operator_name in ("H20", "H800"):
        yield from _infersim(p, tables)


def by_engine(rows: Table, few: int = OWN_ROWS) -> Iterator[tuple[str, str, Table]]:
    """All rows under the bare key, then those of each engine that has many under ``@engine``: their kernels differ."""
    yield "", "", rows
    for (engine,), own in rows.groups("fw"):
        if len(own) >= few:
            yield f"@{engine}", f", {engine}'s kernels", own


def _prefill(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    table = tables.of("context_attention", p.operator_name).where(lambda r: r["kernel_source"] != "triton")
    for key, dtype, kv in (("prefill", "bfloat16", "bfloat16"), ("prefill_fp8", "fp8", "fp8")):
        for suffix, whose, rows in by_engine(
            table.where(lambda r, d=dtype, kv=kv: (r["attn_dtype"], r["kv_cache_dtype"]) == (d, kv))
        ):
            if len(rows) < 20:
                continue
            b, s, h, g, d, past, t = rows.number(
                "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step", "latency_ms"
            )
            width = 1.0 if kv == "fp8" else 2.0
            flops = 4 * b * h * d * (s * s / 2 + s * past)
            traffic = 4 * b * s * h * d + 2 * b * (s + past) * g * d * width
            fit = fit_roofline(flops / p.peak["fp8" if dtype == "fp8" else "bf16"], traffic / p.bandwidth, t * 1e-3)
            if fit.median_error < 0.25:
                yield key + suffix, fit, f"{AIC}, causal prefill attention{whose}"


def _decode(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    table = tables.of("generation_attention", p.operator_name).where(lambda r: r["kernel_source"] != "triton")
    for key, kv, width in (("decode", "bfloat16", 2.0), ("decode_fp8", "fp8", 1.0)):
        for suffix, whose, rows in by_engine(table.where(lambda r, kv=kv: r["kv_cache_dtype"] == kv)):
            fits = [_decode_fit(p, kernel, width) for _, kernel in rows.groups("kernel_source")] if suffix else []
            fits = [f for f in fits if f.rows >= OWN_ROWS and f.median_error < 0.25]
            if suffix and fits:
                yield key + suffix, max(fits, key=_speed), f"{AIC}, decode attention{whose}"
            elif not suffix and len(rows) >= 20:
                yield key, _decode_fit(p, rows, width), f"{AIC}, decode attention"


def _decode_fit(p: Preset, rows: Table, width: float) -> Roofline:
    b, n, h, g, d, t = rows.number("batch_size", "kv_len", "num_heads", "num_key_value_heads", "head_dim", "latency_ms")
    traffic = 2 * b * n * g * d * width
    keep = _not_cached(p, traffic, t * 1e-3)
    flops = 4 * b * h * d * n
    return fit_roofline((flops / p.peak["bf16"])[keep], (traffic / p.bandwidth)[keep], (t * 1e-3)[keep])


def _latent(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    """MLA: prefill in the expanded form (192 + 128 wide heads), decode in the absorbed one (576 + 512).

    Kernels differ several times over (some run prefill absorbed, some dequantise the cache), so each is fitted alone.
    """
    for key, file, kv, width in (
        ("mla_prefill", "context_mla_sample", "bfloat16", 2.0),
        ("mla_prefill_fp8", "context_mla_sample", "fp8", 1.0),
        ("mla_decode", "generation_mla_sample", "bfloat16", 2.0),
        ("mla_decode_fp8", "generation_mla_sample", "fp8", 1.0),
    ):
        for suffix, whose, rows in by_engine(tables.of(file, p.operator_name).where(lambda r, kv=kv: r["kv_cache_dtype"] == kv)):
            kernels = {
                k[0]: _latent_fit(p, kernel, decode="decode" in key, width=width) for k, kernel in rows.groups("kernel_source")
            }
            fits = {k: f for k, f in kernels.items() if f.rows >= 20 and f.fixed_s < HOST_BOUND_S}
            if fits:
                kernel, best = max(fits.items(), key=lambda item: _speed(item[1]))
                if best.median_error < (0.25 if suffix else 0.4):
                    what = "decode" if "decode" in key else "prefill"
                    yield key + suffix, best, f"{AIC}, MLA {what}{whose}, fastest kernel '{kernel}'"


def _latent_fit(p: Preset, rows: Table, *, decode: bool, width: float) -> Roofline:
    b, s, h, past, t = rows.number("batch_size", "isl", "num_heads", "step", "latency_ms")
    if decode:
        flops = 2 * b * h * (MLA_LATENT + MLA_LATENT_V) * (past + 1)
        traffic = b * (past + 1) * MLA_LATENT * width + 2 * b * h * (MLA_LATENT + MLA_LATENT_V)
    else:
        flops = b * h * (MLA_QK + MLA_V) * s * s
        traffic = 4 * b * s * h * (MLA_QK + MLA_V)
    keep = _not_cached(p, traffic, t * 1e-3)
    return fit_roofline((flops / p.peak["bf16"])[keep], (traffic / p.bandwidth)[keep], (t * 1e-3)[keep], fixed_up_to_s=200e-6)


def _speed(f: Roofline) -> float:
    """What tells two kernels apart: the product of the two efficiencies, over the fixed time."""
    return f.compute * f.memory / (f.fixed_s + 20e-6)


def _infersim(p: Preset, tables: Tables) -> Iterator[tuple[str, Roofline, str]]:
    rows = tables.of("infersim_mha_decode", p.operator_name).where(lambda r: r["kv_dtype"] == "bf16")
    shape = np.array([[float(x) for x in r["case"].split("-")] for r in rows.rows])  # heads-kv_heads-head_dim
    b, n, t = rows.number("batch_size", "kv_len", "latency_us")
    h, g, d = shape.T
    traffic, flops = 4 * b * n * g * d, 4 * b * h * d * n
    keep = _not_cached(p, traffic, t * 1e-6)
    fit = fit_roofline((flops / p.peak["bf16"])[keep], (traffic / p.bandwidth)[keep], (t * 1e-6)[keep])
    yield "decode", fit, f"{INFERSIM}, decode attention"
    rows = tables.of("infersim_mla_decode", p.operator_name)
    b, n, t = rows.number("batch_size", "kv_len", "latency_us")
    flops, traffic = 2 * b * 128 * (MLA_LATENT + MLA_LATENT_V) * n, 2 * b * n * MLA_LATENT
    fit = fit_roofline(flops / p.peak["bf16"], traffic / p.bandwidth, t * 1e-6)
    yield "mla_decode", fit, f"{INFERSIM}, MLA decode, 128 heads"
    rows = tables.of("infersim_mha_prefill", p.operator_name)
    if len(rows):
        shape = np.array([[float(x) for x in r["case"].split("-")] for r in rows.rows])
        s, t = rows.number("seq_len", "latency_us")
        h, g, d = shape.T
        fit = fit_roofline(4 * h * d * s * s / 2 / p.peak["bf16"], (4 * s * h * d + 4 * s * g * d) / p.bandwidth, t * 1e-6)
        yield "prefill", fit, f"{INFERSIM}, causal prefill attention"


# -- fixed times ----------------------------------------------------------------------------------------------------


def fixed_seconds(p: Preset, tables: Tables) -> Iterator[tuple[str, float, str]]:
    """Times of one layer's decode kernels at batch sizes where nothing but launches counts."""
    for key, file, kernels in (
        ("gated_delta_decode_s", "gdn_sample", ("causal_conv1d_update", "gated_delta_rule")),
        ("kda_decode_s", "kda_sample", ("causal_conv1d_update", "kda")),
    ):
        table = tables.of(file, p.operator_name).where(lambda r: r["phase"] == "generation" and float(r["batch_size"]) <= 16)
        parts = [table.where(lambda r, k=k: k in r["kernel_source"]) for k in kernels]
        if all(len(x) >= 3 for x in parts):
            total = sum(float(np.median(x.number("latency_ms")[0])) for x in parts) * 1e-3
            yield key, total, f"{AIC}, medians of {' + '.join(kernels)} at batch up to 16, {sum(map(len, parts))} rows"
    table = tables.of("dsa_generation_module_sample", p.operator_name).where(
        lambda r: r["fw"] == "sglang" and float(r["batch_size"]) <= 8 and float(r["step"]) <= 32768
    )
    whole = table.where(lambda r: "_dsa_indexer" in r["kernel_source"])
    without = table.where(lambda r: "skip_indexer" in r["kernel_source"])
    if len(whole) >= 5 and len(without) >= 5:
        t, rest = (float(np.median(x.number("latency_ms")[0])) * 1e-3 for x in (whole, without))
        source = f"{AIC}, sparse-attention module at batch up to 8, {len(whole) + len(without)} rows"
        yield "sparse_attention_decode_s", t, f"{source}: whole module with its projections"
        yield "sparse_indexer_decode_s", max(t - rest, 0.0), f"{source}: with less without indexer"
