"""One operator on one device: builds its operands, calls it, times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoparallel_core.errors import SpecError
from autoparallel_profiler.sharded import time_sharded_layer
from autoparallel_profiler.timing import Timed, Together, copies, time_calls

Call = Callable[[int], Any]
Shape = Mapping[str, Any]


class Unsupported(SpecError):
    """The device or this torch cannot run the operator."""


def time_kernel(
    table: str,
    shape: Shape,
    device: str | None = None,
    *,
    budget_s: float = 0.2,
    together: Together | None = None,
) -> dict[str, float]:
    """Seconds and spread of one operator.

    Args:
        table: gemm, expert_gemm, attention, memory or launch.
        shape: the table's columns.
        device: cuda or cpu; None for the accelerator if there is one.
        budget_s: time to spend on it.
        together: of the ranks that time it at the same time on one processor.

    Raises:
        Unsupported: it cannot run here.
    """
    import torch

    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if table == "launch":
            timed = _launch(torch, kind, shape, budget_s, together)
        else:
            with torch.set_grad_enabled(table == "attention" and shape["phase"] == "backward"):
                timed = time_calls(_BUILD[table](torch, kind, shape), kind, budget_s=budget_s, together=together)
    except (RuntimeError, NotImplementedError, AttributeError) as e:
        raise Unsupported(f"{table} {dict(shape)}: {' '.join(str(e).split())[:200]}") from e
    return {"seconds": timed.seconds, "spread": timed.spread}


def _filled(torch: Any, device: str, *shape: int, dtype: Any) -> Any:
    """Random numbers on an accelerator, whose power (and so clock) depends on them; a constant on a CPU, which is quick."""
    if device == "cpu":
        return torch.full(shape, 0.5, dtype=dtype)
    return torch.randn(*shape, device=device).to(dtype)


def _dtype(torch: Any, name: str) -> Any:
    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
    if name not in names:
        raise Unsupported(f"torch has no plain {name} operands")
    return names[name]


def _gemm(torch: Any, device: str, s: Shape) -> Call:
    """C[m,n] = A[m,k]·W[n,k]ᵀ, as a linear layer does it."""
    m, n, k = int(s["m"]), int(s["n"]), int(s["k"])
    if s["dtype"] == "fp8":
        return _gemm_fp8(torch, device, m, n, k)
    dtype = _dtype(torch, s["dtype"])
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = s["dtype"] == "tf32"
    count = copies(device, (m * k + n * k + m * n) * dtype.itemsize)
    a = [_filled(torch, device, m, k, dtype=dtype) for _ in range(count)]
    w = [_filled(torch, device, n, k, dtype=dtype) for _ in range(count)]
    linear = torch.nn.functional.linear
    return lambda i: linear(a[i % count], w[i % count])


def _gemm_fp8(torch: Any, device: str, m: int, n: int, k: int) -> Call:
    """Per-tensor scales, fast accumulation; the cast of the activations belongs to the call."""
    if device != "cuda":
        raise Unsupported("fp8 matrix products need an accelerator")
    count = copies(device, m * k + n * k + 2 * m * n)
    one = torch.tensor(1.0, device=device)
    kind = (
        torch.float8_e4m3fnuz
        if torch.version.hip and "gfx94" in torch.cuda.get_device_properties(0).gcnArchName
        else torch.float8_e4m3fn
    )
    a = [torch.randn(m, k, device=device, dtype=torch.bfloat16) for _ in range(count)]
    w = [torch.randn(n, k, device=device).to(kind).t() for _ in range(count)]

    def call(i: int) -> Any:
        return torch._scaled_mm(  # noqa: SLF001  the only fp8 product of torch
            a[i % count].to(kind), w[i % count], scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return call


def _expert(torch: Any, device: str, s: Shape) -> Call:
    """Both products of gated experts under balanced routing, as batched matrix products."""
    dtype = _dtype(torch, s["dtype"])
    experts, h, f = int(s["experts"]), int(s["hidden"]), int(s["intermediate"])
    visits = int(s["tokens"]) * int(s["top_k"])
    used = min(experts, visits)
    rows = -(-visits // used)
    count = copies(device, 3 * used * h * f * dtype.itemsize)
    x = _filled(torch, device, used, rows, h, dtype=dtype)
    up = [_filled(torch, device, used, h, 2 * f, dtype=dtype) for _ in range(count)]
    down = [_filled(torch, device, used, f, h, dtype=dtype) for _ in range(count)]

    def call(i: int) -> Any:
        gate, value = torch.bmm(x, up[i % count]).chunk(2, dim=-1)
        return torch.bmm(torch.nn.functional.silu(gate) * value, down[i % count])

    return call


def _attention(torch: Any, device: str, s: Shape) -> Call:
    dtype = _dtype(torch, s["dtype"])
    b, h, g, d = (int(s[c]) for c in ("batch", "heads", "kv_heads", "head_dim"))
    q_len, kv_len = int(s["q_len"]), int(s["kv_len"])
    backward = s["phase"] == "backward"
    count = copies(device, (b * h * q_len + 2 * b * g * kv_len) * d * dtype.itemsize)

    def operand(heads: int, length: int) -> Any:
        return _filled(torch, device, b, heads, length, d, dtype=dtype).requires_grad_(backward)

    sets = [(operand(h, q_len), operand(g, kv_len), operand(g, kv_len)) for _ in range(count)]
    attend = torch.nn.functional.scaled_dot_product_attention
    causal, shared = s["phase"] != "decode" and q_len == kv_len, h != g

    def forward(i: int) -> Any:
        q, k, v = sets[i % count]
        with _kernel(torch, device, str(s["kernel"])):
            return attend(q, k, v, is_causal=causal, enable_gqa=shared)

    if not backward:
        return forward
    outputs = [forward(i) for i in range(count)]
    grad = torch.randn_like(outputs[0])
    return lambda i: torch.autograd.grad(outputs[i % count], sets[i % count], grad, retain_graph=True)


def _kernel(torch: Any, device: str, name: str) -> Any:
    """The kernel class asked for; a CPU has one."""
    from contextlib import nullcontext

    if device != "cuda":
        return nullcontext()
    attention = torch.nn.attention
    backend = attention.SDPBackend.CUDNN_ATTENTION if name == "fused" else attention.SDPBackend.FLASH_ATTENTION
    return attention.sdpa_kernel(backend)


def _memory(torch: Any, device: str, s: Shape) -> Call:
    """Passes whose least traffic is ``bytes``: read and written 16-bit elements (32-bit state for adam)."""
    size, op = int(s["bytes"]), s["op"]
    if op == "adam":
        return _adam(torch, device, size // 16)
    if op == "loss":
        shape = (max(size // 2 // 32768, 1), 32768)
        logits = [_filled(torch, device, *shape, dtype=torch.bfloat16) for _ in range(copies(device, size))]
        target = torch.zeros(len(logits[0]), dtype=torch.long, device=device)

        def loss(i: int) -> Any:
            with torch.enable_grad():
                x = logits[i % len(logits)].detach().requires_grad_()
                return torch.autograd.grad(torch.nn.functional.cross_entropy(x.float(), target), x)

        return loss
    parts = {"copy": 2, "add": 3, "norm": 2, "activation": 3}[op]
    width = 4096
    rows = max(size // parts // 2 // width, 1)
    count = copies(device, size)
    a, b, out = ([_filled(torch, device, rows, width, dtype=torch.bfloat16) for _ in range(count)] for _ in range(3))
    weight = torch.ones(width, device=device).bfloat16()
    functional = torch.nn.functional
    calls: dict[str, Call] = {
        "copy": lambda i: out[i % count].copy_(a[i % count]),
        "add": lambda i: torch.add(a[i % count], b[i % count], out=out[i % count]),
        "norm": lambda i: functional.rms_norm(a[i % count], (width,), weight),
        "activation": lambda i: functional.silu(a[i % count]).mul_(b[i % count]),
    }
    return calls[op]


def _adam(torch: Any, device: str, elements: int) -> Call:
    weights = [torch.nn.Parameter(torch.randn(max(elements // 8, 1), device=device)) for _ in range(8)]
    for w in weights:
        w.grad = torch.randn_like(w)
    optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True)
    return lambda _: optimizer.step()


def _launch(torch: Any, device: str, s: Shape, budget_s: float, together: Together | None) -> Timed:
    """Host time to launch a kernel, or the forward pass of a small layer, without waiting for it."""
    if s["what"] == "sharded_layer":
        if not torch.distributed.is_initialized():
            raise Unsupported("a layer of sharded tensors needs the ranks of a campaign")
        return time_sharded_layer(torch, device, budget_s=budget_s, together=together)
    call = _tiny_layer(torch, device) if s["what"] == "layer" else _tiny_kernel(torch, device)
    timed = time_calls(call, "cpu", budget_s=budget_s, together=together)
    if device == "cuda":
        torch.cuda.synchronize()
    return timed


def _tiny_kernel(torch: Any, device: str) -> Call:
    x = torch.zeros(8, device=device)
    return lambda _: x.add_(1.0)


def _tiny_layer(torch: Any, device: str) -> Call:
    """A decoder layer so small that nothing but its launches takes time."""
    h, functional = 64, torch.nn.functional
    x = torch.zeros(1, 8, h, device=device).bfloat16()
    norm = torch.ones(h, device=device).bfloat16()
    qkv, proj, up, down = (
        torch.zeros(*shape, device=device).bfloat16() for shape in ((3 * h, h), (h, h), (4 * h, h), (h, 2 * h))
    )
    cosine = torch.ones(8, h // 4, device=device).bfloat16()

    def rotate(t: Any) -> Any:
        first, second = t.chunk(2, dim=-1)
        return torch.cat((first * cosine[:, : h // 8] - second * cosine[:, : h // 8], second + first), dim=-1)

    def call(_: int) -> Any:
        y = functional.rms_norm(x, (h,), norm)
        q, k, v = functional.linear(y, qkv).view(1, 8, 4, 3, h // 4).permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        y = x + functional.linear(attended.transpose(1, 2).reshape(1, 8, h), proj)
        gate, value = functional.linear(functional.rms_norm(y, (h,), norm), up).chunk(2, dim=-1)
        return y + functional.linear(functional.silu(gate) * value, down)

    return call


_BUILD: Mapping[str, Callable[[Any, str, Shape], Call]] = {
    "gemm": _gemm, "expert_gemm": _expert, "attention": _attention, "memory": _memory,
}  # fmt: skip
