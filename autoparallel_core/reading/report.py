"""What ``models show`` says about a model, as plain data."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from autoparallel_core.ops.params import (
    block_cache,
    kv_bytes_per_token,
    kv_dtype_bytes,
    parameter_counts,
    state_bytes_per_sequence,
    weight_bytes,
)
from autoparallel_core.spec.arch import Layer, ModelArch


def describe(arch: ModelArch, *, kv_dtype: str | None = None) -> dict[str, Any]:
    """Parameters, layers, cache, state, quantisation, what was assumed and what was not understood.

    Args:
        arch: the model.
        kv_dtype: dtype of the KV cache; default: the checkpoint's, else its 16-bit dtype.
    """
    width = kv_dtype_bytes(arch, kv_dtype)
    q = arch.quantization
    return {
        "name": arch.name,
        "model_type": arch.model_type,
        "parameters": parameter_counts(arch),
        "hidden_size": arch.hidden_size,
        "vocab_size": arch.vocab_size,
        "num_layers": arch.num_layers,
        "num_heads": arch.num_heads,
        "num_kv_heads": arch.num_kv_heads,
        "num_experts": arch.num_experts,
        "top_k": arch.top_k,
        "tied_embeddings": arch.tied_embeddings,
        "max_position_embeddings": arch.max_position_embeddings,
        "layers": layer_ranges(arch, width),
        "weights": {
            "dtype": arch.weight_dtype,
            "bytes": weight_bytes(arch),
            "quantization": None
            if q is None
            else {"method": q.method, "default_format": q.default_format, "ignored_patterns": len(q.ignored), "source": q.source},
            "formats": formats(arch),
        },
        "kv_cache": {
            "dtype": kv_dtype or arch.kv_dtype or ("bf16" if arch.weight_dtype == "fp32" else arch.weight_dtype),
            "from_checkpoint": kv_dtype is None and arch.kv_dtype is not None,
            "bytes_per_token": kv_bytes_per_token(arch, width),
        },
        "state_bytes_per_sequence": state_bytes_per_sequence(arch, width),
        "mtp_layers": len(arch.mtp),
        "unknown_fields": list(arch.unknown_fields),
        "notes": list(arch.notes),
    }


def layer_ranges(arch: ModelArch, kv_width_bytes: float) -> list[dict[str, Any]]:
    """Each distinct kind of layer once: its positions as ranges (1-based), parameters and cache of one layer."""
    where: dict[Layer, list[int]] = {}
    for i, layer in enumerate(arch.layers):
        where.setdefault(layer, []).append(i)
    out = []
    for layer, positions in where.items():
        caches = [block_cache(b, kv_width_bytes) for b in layer.blocks]
        windows = [c.limit_tokens for c in caches if c.limit_tokens is not None]
        out.append(
            {
                "kind": layer.kind,
                "count": len(positions),
                "positions": ranges([p + 1 for p in positions]),
                "parameters": sum(w.size for w in layer.weights()),
                "kv_bytes_per_token": sum(c.bytes_per_token for c in caches),
                "kv_limit_tokens": min(windows) if windows else None,
                "state_bytes_per_sequence": sum(c.state_bytes for c in caches),
            }
        )
    return out


def ranges(numbers: list[int]) -> str:
    """``1-3,5`` for [1, 2, 3, 5]; evenly spaced ones as ``1-9:2``."""
    if len(numbers) > 2 and len({b - a for a, b in pairwise(numbers)}) == 1 and numbers[1] - numbers[0] > 1:
        return f"{numbers[0]}-{numbers[-1]}:{numbers[1] - numbers[0]}"
    parts = []
    for _, group in groupby(enumerate(numbers), key=lambda iv: iv[1] - iv[0]):
        run = [v for _, v in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def formats(arch: ModelArch) -> dict[str, int]:
    """Parameters (of language model, without multi-token prediction) by storage format."""
    out: dict[str, int] = {}
    for layer in (*arch.layers, Layer((arch.prologue, arch.epilogue))):
        for w in layer.weights():
            key = w.format or arch.weight_dtype
            out[key] = out.get(key, 0) + w.size
    return dict(sorted(out.items()))
