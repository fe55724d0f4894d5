"""What a plan holds for: the module's tree, its tensors and its settings, and the first place where another differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PATHS = frozenset({"name_or_path"})
"""Attributes of any module that say where it came from."""
_VOLATILE = frozenset({
    "_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "architectures", "_attn_implementation_internal",
    "dtype", "torch_dtype", "bos_token_id", "eos_token_id",
})  # fmt: skip
"""Fields of a configuration: where it came from, what only generation reads, and what the tensors themselves say."""


def fingerprint(module: torch.nn.Module) -> dict[str, Any]:
    """Plain data: ``modules`` (name → class and settings), ``tensors`` (name → shape, dtype, kind), and their digest."""
    modules = {name or "(root)": [_class(m), _settings(m, root=not name)] for name, m in module.named_modules()}
    tensors = {
        n: [list(p.shape), _dtype(p), "parameter" if p.requires_grad else "frozen parameter"]
        for n, p in module.named_parameters()
    }
    tensors |= {n: [list(b.shape), _dtype(b), "buffer"] for n, b in module.named_buffers()}
    found: dict[str, Any] = {"modules": modules, "tensors": tensors}
    found["digest"] = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    return found


def difference(planned: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first difference, in words: name, what the plan has, what the module has."""
    if planned["digest"] == here["digest"]:
        return None
    for name, old in planned["tensors"].items():
        new = here["tensors"].get(name)
        if new is None:
            return f"the module has no {old[2]} {name}"
        for what, a, b in zip(("shape", "dtype", "kind"), old, new, strict=True):
            if a != b:
                return f"{name}: {what} {a} in the plan, {b} in the module"
    extra = next((n for n in here["tensors"] if n not in planned["tensors"]), None)
    if extra is not None:
        return f"{extra} is in the module and not in the plan"
    for name, (kind, settings) in planned["modules"].items():
        if name not in here["modules"]:
            return f"the module has no submodule {name}"
        kind_here, settings_here = here["modules"][name]
        if kind != kind_here:
            return f"{name} is a {kind} in the plan, a {kind_here} in the module"
        for key in sorted({*settings, *settings_here}):
            a, b = settings.get(key), settings_here.get(key)
            if a != b:
                return f"{name}.{key} is {a!r} in the plan, {b!r} in the module"
    extra = next((n for n in here["modules"] if n not in planned["modules"]), None)
    return f"submodule {extra} is in the module and not in the plan" if extra is not None else "its digest differs"


def _class(module: torch.nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _settings(module: torch.nn.Module, *, root: bool) -> dict[str, Any]:
    """Plain attributes, and the configuration object's fields where there is one."""
    found = {k: _plain(v) for k, v in vars(module).items() if not k.startswith("_") and k not in _PATHS and _simple(v)}
    config = getattr(module, "config", None)
    if root and config is not None and hasattr(config, "to_dict"):
        fields = {k: v for k, v in config.to_dict().items() if k not in _VOLATILE and _simple(v)}
        found |= {f"config.{k}": _plain(v) for k, v in fields.items()}
    return found


def _simple(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    return isinstance(value, (tuple, list)) and all(_simple(v) for v in value)


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value
