"""What is worth measuring, most useful first: the shapes of a model at hand, or a general grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.op import Attention, ExpertGemm, Gemm
from autoparallel_profiler.request import Probe

TABLES = ("memory", "gemm", "attention", "collectives", "p2p", "launch", "expert_gemm")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_GPU_TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
_CPU_TOKENS = (16, 256, 1024, 4096)
_GPU_MATRICES = (
    (4096, 4096),
    (8192, 8192),
    (14336, 4096),
    (4096, 14336),
    (2048, 8192),
    (8192, 1024),
    (28672, 8192),
    (1024, 4096),
)
_CPU_MATRICES = ((256, 256), (1024, 256), (256, 1024), (1024, 1024), (2048, 512), (512, 128))
_MOST_MATRICES = 24


def probes(
    device: str,
    *,
    ranks_per_node: int,
    nodes: int,
    dtypes: Iterable[str],
    tables: Iterable[str] = TABLES,
    arch: ModelArch | None = None,
) -> tuple[Probe, ...]:
    """All measurements of a campaign in order: one of each kind first, so that a short budget knows a little of everything."""
    wanted = tuple(tables)
    by_table: dict[str, list[Probe]] = {
        "memory": list(_memory(device)),
        "gemm": list(_gemm(device, tuple(dtypes), arch)),
        "attention": list(_attention(device, arch)),
        "collectives": list(_collectives(device, ranks_per_node, nodes)),
        "p2p": list(_p2p(device, ranks_per_node, nodes)),
        "launch": list(_launch(ranks_per_node * nodes)),
        "expert_gemm": list(_experts(device, arch)),
    }
    lists = [_coarse_first(by_table[t]) for t in TABLES if t in wanted]
    total = max((len(x) for x in lists), default=0)
    # Every list is spread over the whole campaign.
    placed = [(i / len(rows), t, p) for t, rows in enumerate(lists) for i, p in enumerate(rows)]
    return tuple(p for _, _, p in sorted(placed, key=lambda x: x[:2])) if total else ()


def _coarse_first(rows: list[Probe]) -> list[Probe]:
    """Every fourth, then every second, then the rest: an early end leaves a coarse grid rather than half of a fine one."""
    order = [*range(0, len(rows), 4), *range(2, len(rows), 4), *range(1, len(rows), 2)]
    return [rows[i] for i in order]


def _gemm(device: str, dtypes: tuple[str, ...], arch: ModelArch | None) -> Iterator[Probe]:
    matrices = _matrices(arch) if arch is not None else (_CPU_MATRICES if device == "cpu" else _GPU_MATRICES)
    tokens = _CPU_TOKENS if device == "cpu" else _GPU_TOKENS
    for dtype, (n, k), m in product(dtypes, matrices, tokens):
        yield {"table": "gemm", "dtype": dtype, "m": m, "n": n, "k": k}


def _matrices(arch: ModelArch) -> list[tuple[int, int]]:
    """(n, k) of the model's products, whole, then split over two, four and eight ranks, as many as are worth the time."""
    blocks = [b for layer, _ in arch.layer_classes() for b in layer.blocks]
    products = [(sum(a.size for a in op.n), op.k.size) for b in (*blocks, arch.epilogue) for op in b.ops if isinstance(op, Gemm)]
    found: dict[tuple[int, int], None] = {}
    for tp, (n, k) in product((1, 2, 4, 8), products):
        if n % tp == 0 and k % tp == 0:
            found |= dict.fromkeys(x for x in ((n // tp, k), (n, k // tp)) if min(x) >= 64)
    return list(found)[:_MOST_MATRICES]


def _attention(device: str, arch: ModelArch | None) -> Iterator[Probe]:
    heads, kv_heads, width = _heads(arch) or ((8, 4, 32) if device == "cpu" else (32, 8, 128))
    lengths = (64, 128, 256, 512) if device == "cpu" else (1024, 2048, 4096, 8192, 16384)
    budget = 2048 if device == "cpu" else 32768
    kernels = ("fused",) if device == "cpu" else ("fused", "flash2")
    base = {"table": "attention", "dtype": "bf16", "heads": heads, "kv_heads": kv_heads, "head_dim": width}
    for s, kernel, phase in product(lengths, kernels, ("forward", "backward")):
        yield {**base, "phase": phase, "kernel": kernel, "batch": max(budget // s // 2, 1), "q_len": s, "kv_len": s}
    if device == "cpu":
        for s, phase in product(lengths, ("forward", "backward")):  # a smaller batch, too
            yield {**base, "phase": phase, "kernel": "fused", "batch": max(budget // s // 8, 1), "q_len": s, "kv_len": s}
        # On accelerators serving engines bring decode kernels of their own.
        for s, batch in product((128, 512, 2048), (1, 8)):
            yield {**base, "phase": "decode", "kernel": "fused", "batch": batch, "q_len": 1, "kv_len": s}


def _heads(arch: ModelArch | None) -> tuple[int, int, int] | None:
    ops = (op for layer, _ in arch.layer_classes() for b in layer.blocks for op in b.ops) if arch else ()
    op = next((op for op in ops if isinstance(op, Attention) and op.v_width == op.heads.width), None)
    if op is None:
        return None
    return op.heads.size // op.heads.width, op.kv_heads.size // op.kv_heads.width, op.heads.width


def _experts(device: str, arch: ModelArch | None) -> Iterator[Probe]:
    """On accelerators serving engines bring fused kernels of their own; torch's say nothing about those."""
    if device != "cpu" or arch is None:
        return
    blocks = [b for layer, _ in arch.layer_classes() for b in layer.blocks]
    for b in blocks:
        op = next((op for op in b.ops if isinstance(op, ExpertGemm)), None)
        if op is not None:
            experts, hidden, width = op.experts.units, op.k.size, min(a.size for a in op.n)
            for m in (16, 64, 256):
                yield {
                    "table": "expert_gemm", "dtype": "bf16", "tokens": m, "experts": experts, "top_k": op.top_k, "hidden": hidden,
                    "intermediate": width,
                }  # fmt: skip
            return


def _memory(device: str) -> Iterator[Probe]:
    sizes = (2**21, 2**23, 2**25) if device == "cpu" else (2**24, 2**27, 2**29, 2**31)
    for op, size in product(("copy", "add", "norm", "activation"), sizes):
        yield {"table": "memory", "op": op, "bytes": size}
    for op, size in (("adam", 2**25), ("loss", 2**22)) if device == "cpu" else (("adam", 2**31), ("loss", 2**30)):
        yield {"table": "memory", "op": op, "bytes": size}


def _launch(ranks: int) -> Iterator[Probe]:
    """One rank has nobody to share a tensor with."""
    yield from ({"table": "launch", "what": what} for what in ("kernel", "layer", *(("sharded_layer",) if ranks > 1 else ())))


def _group_sizes(ranks_per_node: int, nodes: int) -> Iterator[tuple[int, int]]:
    """(ranks, nodes): halves of the node down to two, then whole nodes, and one rank of each."""
    inside = [n for n in range(2, ranks_per_node + 1) if ranks_per_node % n == 0 and (n & (n - 1) == 0 or n == ranks_per_node)]
    yield from ((n, 1) for n in reversed(inside))
    across = [n for n in range(2, nodes + 1) if nodes % n == 0 and (n & (n - 1) == 0 or n == nodes)]
    for n in reversed(across):
        yield n * ranks_per_node, n
        if ranks_per_node > 1 and n == nodes:
            yield n, n


def _collectives(device: str, ranks_per_node: int, nodes: int) -> Iterator[Probe]:
    powers = (10, 14, 18, 20, 22, 23) if device == "cpu" else range(12, 31, 2)
    for (ranks, over), kind, power in product(_group_sizes(ranks_per_node, nodes), KINDS, powers):
        yield {"table": "collectives", "kind": kind, "bytes": 2**power, "ranks": ranks, "nodes": over}


def _p2p(device: str, ranks_per_node: int, nodes: int) -> Iterator[Probe]:
    powers = range(10, 24, 3) if device == "cpu" else range(12, 28, 3)
    for over, power in product([n for n, there in ((1, ranks_per_node > 1), (2, nodes > 1 and nodes % 2 == 0)) if there], powers):
        yield {"table": "p2p", "bytes": 2**power, "nodes": over}
