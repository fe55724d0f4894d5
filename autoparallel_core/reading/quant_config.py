"""Reading a checkpoint's quantisation: which weight is stored in which format, and what the KV cache asks for.

Formats and lists follow the checkpoint layouts of the tools that write them: block-scaled FP8, GPTQ, AWQ,
compressed-tensors, MXFP4, ModelOpt (``hf_quant_config.json``), bitsandbytes and Quark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.reading.module_patterns import ModulePatterns
from autoparallel_core.spec.config import ConfigView

_DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32", "fp32": "fp32",
    "float": "fp32",
}  # fmt: skip

_ALGORITHMS = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8_block128", "FP8_PB": "fp8_block128",
    "MXFP8": "mxfp8", "MXFP4": "mxfp4", "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "NVFP4_SVDQUANT": "nvfp4",
    "W4A16_NVFP4": "nvfp4_weight_only", "W4A8_NVFP4_FP8": "nvfp4", "W4A8_MXFP4_FP8": "mxfp4",
    "W8A8_SQ_PER_CHANNEL": "int8", "INT8_SQ": "int8", "W8A16": "int8_weight_only",
}  # fmt: skip
"""ModelOpt's ``quant_algo`` → format; the W4A16_AWQ family carries a group size and is built on the spot."""


@frozen
class QuantPlan:
    """What a quantisation config says, before it is applied to a model's weights."""

    method: str
    default: str | None
    """Format of every linear weight that no list mentions; None when only listed modules are quantised."""
    listed: tuple[tuple[str, ModulePatterns], ...] = ()
    """Formats by list of modules; the first list that covers a module wins."""
    ignored: ModulePatterns = field(factory=lambda: ModulePatterns(()))
    ignored_patterns: tuple[str, ...] = ()
    kv_dtype: str | None = None
    source: str = "config.json"


def checkpoint_dtype(view: ConfigView) -> str:
    """The dtype of unquantised weights; absent, null or "auto" is bf16 with a note. Raises SpecError for an unknown one."""
    stated = view.get("dtype", "torch_dtype")
    if stated is None or stated == "auto":
        view.note("config states no dtype: bf16 weights assumed")
        return "bf16"
    name = str(stated).removeprefix("torch.")
    if name not in _DTYPES:
        raise SpecError(f"{view.name}: dtype '{stated}' is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def read_quantization(view: ConfigView, sibling: Mapping[str, Any] | None) -> QuantPlan | None:
    """The plan in a config and its sibling ``hf_quant_config.json``; None for an unquantised checkpoint.

    Raises SpecError for a method that is not understood.
    """
    own = view.get("quantization_config", "compression_config")
    if own is not None and not isinstance(own, Mapping):
        raise SpecError(f"{view.name}: quantization_config must be an object, not {own!r}")
    beside = None
    if sibling is not None:
        beside = sibling.get("quantization", sibling)
        if not isinstance(beside, Mapping):
            raise SpecError(f"{view.name}: hf_quant_config.json has no 'quantization' object")
    if own is None and beside is None:
        return None
    base = _plan(own, view) if own is not None and (beside is None or own.get("quant_method") == "fp8") else None
    if beside is None:
        return base
    plan = _modelopt({**(own or {}), **beside}, view, source="hf_quant_config.json")
    if base is not None and base.default is not None:
        # Experts re-quantised on top of a block-FP8 checkpoint: what the list leaves out keeps the FP8 of config.json.
        return evolve(plan, default=base.default, ignored=base.ignored, ignored_patterns=base.ignored_patterns)
    return plan


def _plan(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    method = q.get("quant_method")
    if method is None:
        method = "modelopt" if "quant_algo" in q else "compressed-tensors" if "config_groups" in q or "weights" in q else None
    if method is None and q.get("bits") is not None:
        method = "gptq"
    readers = {
        "fp8": _fp8, "fbgemm_fp8": _fp8, "awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed,
        "compressed_tensors": _compressed, "mxfp4": _mxfp4, "modelopt": _modelopt, "modelopt_fp4": _modelopt,
        "bitsandbytes": _bitsandbytes, "quark": _quark,
    }  # fmt: skip
    reader = readers.get(str(method))
    if reader is None:
        raise SpecError(f"{view.name}: quant_method '{method}' is not understood; known: {', '.join(sorted(readers))}")
    return reader(q, view)


def _listing(q: Mapping[str, Any], view: ConfigView, *keys: str) -> tuple[str, ...]:
    for key in keys:
        v = q.get(key)
        if v is None:
            continue
        if isinstance(v, str):
            view.note(
                f"quantization_config.{key} is a summary ({v!r}), not a list: only routers, norms, embeddings and head are kept"
            )
            return ()
        if isinstance(v, Sequence):
            return tuple(str(x) for x in v)
        raise SpecError(f"{view.name}: quantization_config.{key} must be a list of module names, not {v!r}")
    return ()


def _simple(method: str, default: str, ignored: tuple[str, ...], **more: Any) -> QuantPlan:
    return QuantPlan(method, default, ignored=ModulePatterns(ignored), ignored_patterns=ignored, **more)


def _fp8(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    block = q.get("weight_block_size")
    default = "fp8"
    if block is not None:
        if not (isinstance(block, Sequence) and len(block) == 2 and block[0] == block[1] and isinstance(block[0], int)):
            raise SpecError(f"{view.name}: weight_block_size must be two equal whole numbers, not {block!r}")
        default = f"fp8_block{block[0]}"
    ignored = _listing(q, view, "modules_to_not_convert", "ignored_layers")
    listed: tuple[tuple[str, ModulePatterns], ...] = ()
    if view.get("expert_dtype") == "fp4":
        listed = (("mxfp4", ModulePatterns(("*.mlp.experts",))),)
    return _simple("fp8", default, ignored, listed=listed, kv_dtype=_kv(q, view))


def _awq(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    fmt = f"int{_bits(q, view)}_g{_group(q, view)}{'z' if q.get('zero_point', True) else ''}"
    return _simple("awq", fmt, _listing(q, view, "modules_to_not_convert"))


def _gptq(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    fmt = f"int{_bits(q, view)}_g{_group(q, view)}z"  # the layout stores zero points even when symmetric
    listed = ((fmt, ModulePatterns(("lm_head",))),) if q.get("lm_head") else ()
    return _simple("gptq", fmt, _listing(q, view, "modules_to_not_convert", "modules_in_block_to_not_quantize"), listed=listed)


def _bits(q: Mapping[str, Any], view: ConfigView) -> int:
    bits = q.get("bits", q.get("w_bit", q.get("num_bits")))
    if bits not in {2, 3, 4, 8}:
        raise SpecError(f"{view.name}: quantization_config bits must be 2, 3, 4 or 8, not {bits!r}")
    return int(bits)


def _group(q: Mapping[str, Any], view: ConfigView) -> int:
    group = q.get("group_size", q.get("q_group_size", -1))
    if group is None:
        return -1
    if isinstance(group, bool) or not isinstance(group, int) or group == 0 or group < -1:
        raise SpecError(f"{view.name}: quantization_config group_size must be -1 or positive, not {group!r}")
    return group


def _mxfp4(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    ignored = _listing(q, view, "modules_to_not_convert")
    experts = ModulePatterns(("*.mlp.experts",))
    return QuantPlan("mxfp4", None, listed=(("mxfp4", experts),), ignored=ModulePatterns(ignored), ignored_patterns=ignored)


def _weights_format(w: Mapping[str, Any], view: ConfigView, layout: str = "") -> str:
    """Format of one ``weights`` entry of compressed-tensors: {num_bits, type, group_size, strategy, symmetric}."""
    bits, kind, strategy = w.get("num_bits"), w.get("type", "int"), w.get("strategy")
    group = w.get("group_size")
    if "mxfp4" in layout or (bits == 4 and kind == "float" and group == 32):
        return "mxfp4"
    if bits == 4 and kind == "float":
        return "nvfp4"
    if bits == 8 and kind == "float":
        block = w.get("block_structure")
        if strategy == "block" and isinstance(block, Sequence) and not isinstance(block, str) and block:
            return f"fp8_block{block[0]}"
        return "mxfp8" if group == 32 else "fp8"
    if bits == 8 and kind == "int" and "pack" not in layout and not group:
        return "int8"
    if kind == "int" and bits in {2, 3, 4, 8}:
        return f"int{bits}_g{group if isinstance(group, int) and group > 0 else -1}{'' if w.get('symmetric', True) else 'z'}"
    raise SpecError(f"{view.name}: quantised weights of {bits!r} bits and type {kind!r} are not understood")


def _compressed(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    layout = str(q.get("format") or "")
    groups = q.get("config_groups") or ({"weights": q} if "weights" in q else None)
    if not isinstance(groups, Mapping):
        raise SpecError(f"{view.name}: compressed-tensors config has neither config_groups nor weights")
    default: str | None = None
    listed: list[tuple[str, ModulePatterns]] = []
    for group in groups.values():
        weights = group.get("weights")
        if weights is None:
            continue
        fmt = _weights_format(weights, view, str(group.get("format") or layout))
        if (
            weights.get("type") == "float"
            and weights.get("num_bits") == 4
            and group.get("input_activations") is None
            and "nvfp4" in fmt
        ):
            fmt = "nvfp4_weight_only"
        targets = [str(t) for t in group.get("targets", ("Linear",))]
        named = [t for t in targets if t != "Linear"]
        if "Linear" in targets:
            default = fmt
        if named:
            listed.append((fmt, ModulePatterns(named)))
    ignored = _listing(q, view, "ignore")
    if "ignore" not in q:
        view.note("quantization_config lists no ignored modules: every linear layer but routers and head is taken as quantised")
    return QuantPlan(
        "compressed-tensors", default, listed=tuple(listed), ignored=ModulePatterns(ignored), ignored_patterns=ignored,
        kv_dtype=_kv(q, view),
    )  # fmt: skip


def _algorithm(q: Mapping[str, Any], view: ConfigView) -> str:
    algo = str(q.get("quant_algo"))
    if algo in _ALGORITHMS:
        return _ALGORITHMS[algo]
    if algo in {"W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ", "W4A16", "W4A16_GPTQ"}:
        return f"int4_g{_group({'group_size': q.get('group_size') or 128}, view)}"
    raise SpecError(
        f"{view.name}: quant_algo '{algo}' is not understood; known: {', '.join(_ALGORITHMS)}, W4A16_AWQ, MIXED_PRECISION"
    )


def _modelopt(q: Mapping[str, Any], view: ConfigView, source: str = "config.json") -> QuantPlan:
    ignored = _listing(q, view, "exclude_modules", "ignore")
    common: dict[str, Any] = {
        "ignored": ModulePatterns(ignored), "ignored_patterns": ignored, "kv_dtype": _kv(q, view), "source": source,
    }  # fmt: skip
    if q.get("quant_algo") == "MIXED_PRECISION":
        layers = q.get("quantized_layers")
        if not isinstance(layers, Mapping):
            raise SpecError(f"{view.name}: quant_algo MIXED_PRECISION needs 'quantized_layers' (in hf_quant_config.json)")
        by_entry: dict[tuple[Any, Any], list[str]] = {}
        for module, entry in layers.items():
            by_entry.setdefault((entry.get("quant_algo"), entry.get("group_size")), []).append(module)
        by_format: dict[str, list[str]] = {}
        for (algo, group), modules in by_entry.items():
            by_format.setdefault(_algorithm({"quant_algo": algo, "group_size": group}, view), []).extend(modules)
        return QuantPlan("modelopt", None, listed=tuple((f, ModulePatterns(m)) for f, m in by_format.items()), **common)
    if not ignored and "exclude_modules" not in q and "ignore" not in q:
        view.note(
            "the quantisation config lists no excluded modules: every linear layer but routers and head is taken as quantised"
        )
    return QuantPlan("modelopt", _algorithm(q, view), **common)


def _bitsandbytes(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    ignored = _listing(q, view, "llm_int8_skip_modules")
    if q.get("load_in_4bit") or q.get("_load_in_4bit"):
        return _simple("bitsandbytes", "nf4_nested" if q.get("bnb_4bit_use_double_quant") else "nf4", ignored)
    if q.get("load_in_8bit") or q.get("_load_in_8bit"):
        return _simple("bitsandbytes", "int8", ignored)
    raise SpecError(f"{view.name}: bitsandbytes config sets neither load_in_4bit nor load_in_8bit")


def _quark(q: Mapping[str, Any], view: ConfigView) -> QuantPlan:
    def fmt(entry: Mapping[str, Any]) -> str:
        w: Any = entry.get("weight") or {}
        w = w[0] if isinstance(w, Sequence) and not isinstance(w, str) else w
        dtype, group = str(w.get("dtype")), w.get("group_size")
        if dtype.startswith("fp8"):
            return "mxfp8" if group == 32 else "fp8"
        if dtype == "fp4":
            return "mxfp4"
        if dtype in {"int8", "int4", "uint4"}:
            bits = int(dtype[-1])
            return "int8" if bits == 8 and not group else f"int{bits}_g{group or -1}{'z' if dtype[0] == 'u' else ''}"
        raise SpecError(f"{view.name}: quark weight dtype '{dtype}' is not understood")

    ignored = _listing(q, view, "exclude")
    listed = tuple(
        (fmt(e), ModulePatterns((name,))) for name, e in (q.get("layer_quant_config") or {}).items() if isinstance(e, Mapping)
    )
    whole = q.get("global_quant_config")
    if not isinstance(whole, Mapping):
        raise SpecError(f"{view.name}: quark config has no global_quant_config")
    kv = q.get("kv_cache_quant_config") or {}
    kv_dtype = "fp8" if "fp8" in str(kv) else None
    return _simple("quark", fmt(whole), ignored, listed=listed, kv_dtype=kv_dtype)


_KV_DTYPES: dict[tuple[Any, Any], str] = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}


def _kv(q: Mapping[str, Any], view: ConfigView) -> str | None:
    """KV-cache dtype from ``kv_cache_quant_algo`` (a name) or ``kv_cache_scheme`` (a name or {num_bits, type})."""
    v = q.get("kv_cache_quant_algo") or q.get("kv_cache_scheme")
    if v is None:
        return None
    if isinstance(v, Mapping):
        return _KV_DTYPES.get((v.get("num_bits"), v.get("type", "float")))
    name = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}.get(str(v).upper())
    if name is None:
        view.note(f"KV-cache dtype '{v}' of the checkpoint is not understood and left to the deployment")
    return name
