"""The dispatch mode that writes one node per operator, and knows which tensor came from where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from autoparallel_core.errors import SpecError
from autoparallel_pytorch.canonical import CANONICAL, IDENTITY
from autoparallel_pytorch.constant_values import evaluate
from autoparallel_pytorch.graph import FORWARD, Dtype, Meta, Node, Ref

CONSTANT_ELEMENTS = 4096
"""Tensors that a module made outside of its parameters and buffers are kept by value up to this size."""

_DROPPED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})
_FUNCTIONAL = {"zero_": "zeros_like", "fill_": "full_like"}
_RANDOM = frozenset({"bernoulli_", "normal_", "uniform_", "random_", "exponential_", "rand", "randn", "randint", "randperm",
                     "bernoulli", "rand_like", "randn_like", "multinomial", "native_dropout"})  # fmt: skip


class Recorder(TorchDispatchMode):
    """Active while a module runs; ``nodes`` grows by every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.notes: list[str] = []
        self.constants: dict[str, Any] = {}
        self.phase = FORWARD
        self._where: dict[int, tuple[Ref, int, int]] = {}
        """id of a tensor → its value, storage, and the storage's version when it was recorded."""
        self._kept: list[Any] = []
        """Keeps recorded tensors alive, so that ids stay unique."""
        self._versions: dict[int, int] = {}
        self._values: dict[int, Any] = {}
        """Placeholder → real tensor, where the caller gave one."""
        self._overloads: dict[int, Any] = {}
        self._same: dict[Any, tuple[Ref, ...]] = {}
        self._modules: list[str] = [""]
        self._names: dict[int, str] = {}
        self._raw = False
        """Operators run without being written."""
        self._by_sequence: dict[int, str] = {}
        self.regions: dict[str, Any] = {}
        self.group_sizes: dict[str, int] = {}
        """Ranks per process group, where a region's collectives are recorded."""

    # --- what the tracer uses -----------------------------------------------------------------------------------

    def placeholder(self, kind: str, name: str, tensor: torch.Tensor, *, value: torch.Tensor | None = None) -> int:
        """A node for a tensor from outside; ``value`` may be read by control flow of the module."""
        node = self._node(kind, (), {}, (_meta(tensor),))
        node.name = name
        self._keep(tensor, Ref(node.id))
        if value is not None and value.device.type != "meta":
            self._values[node.id] = value
        return node.id

    def ref(self, tensor: torch.Tensor) -> Ref:
        """The recorded value of a tensor. Raises SpecError when a later in-place operator changed it through an alias."""
        found = self._where.get(id(tensor))
        if found is None:
            return self._constant(tensor)
        ref, storage, version = found
        if self._versions.get(storage, 0) != version:
            raise SpecError(
                f"{self._modules[-1] or 'the module'} reads a tensor of shape {tuple(tensor.shape)} that was changed in place "
                "through another view of it; write the change without an in-place operator"
            )
        return ref

    def emit(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[torch.Tensor]) -> None:
        """A node of our own kind whose results are ``outs`` (meta tensors made by the caller)."""
        node = self._node(op, self._plain(args), {k: self._plain(v) for k, v in kwargs.items()}, tuple(_meta(x) for x in outs))
        for i, x in enumerate(outs):
            self._keep(x, Ref(node.id, i))

    @property
    def where(self) -> str:
        """The module whose forward runs."""
        return self._modules[-1] or "the module"

    def region(self, region: Any) -> str:
        """Keep a region; the name that nodes give it."""
        key = str(len(self.regions))
        self.regions[key] = region
        return key

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Operators run without being written."""
        raw, self._raw = self._raw, True
        try:
            yield
        finally:
            self._raw = raw

    @contextmanager
    def watching(self, root: torch.nn.Module) -> Iterator[None]:
        """Follow which submodule's forward is running."""
        self._names = {id(m): n for n, m in root.named_modules()}

        def enter(module: torch.nn.Module, _args: Any) -> None:
            self._modules.append(self._names.get(id(module), self._modules[-1]))

        def leave(_module: torch.nn.Module, _args: Any, _out: Any) -> None:
            self._modules.pop()

        before = module_hooks.register_module_forward_pre_hook(enter)
        after = module_hooks.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    # --- dispatch -----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._raw:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if self.phase == FORWARD:
            self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._modules[-1])
        if name == "_local_scalar_dense":
            return self._read(args[0])
        if name in _RANDOM or name.split(".")[0] in _RANDOM:
            raise SpecError(self._random(func))
        if torch.Tag.dynamic_output_shape in func.tags and _by_values(name, args, kwargs):
            raise SpecError(self._dynamic(func))
        if func.namespace == "_c10d_functional":
            return self._collective(func, args)
        rewrite = CANONICAL.get(name)
        if rewrite is not None:
            with self:
                return rewrite(self, *args, **kwargs)
        if name in IDENTITY and self._identity(name, args, kwargs):
            ref = self.ref(args[0])
            out = self._meta_run(func, args, kwargs)
            self._keep(out, ref)
            return out
        if func._schema.is_mutable:
            return self._in_place(func, name, args, kwargs)
        return self.run(func, args, kwargs)

    def _collective(self, func: Any, args: Sequence[Any]) -> torch.Tensor:
        """A functional collective of a region, for the group's size on the mesh that is planned for."""
        x, group = args[0], args[-1]
        if func is torch.ops._c10d_functional.wait_tensor.default:
            self._keep(out := self._meta_run(torch.ops.aten.alias.default, (x,), {}), self.ref(x))
            return out
        if group not in self.group_sizes:
            raise SpecError(
                f"{self.where} communicates with {func} outside of the device_mesh of a local_map; a plan does so by itself"
            )
        n, packet = self.group_sizes[group], func._schema.name.partition("::")[2]
        rows = {"all_gather_into_tensor": x.shape[0] * n, "reduce_scatter_tensor": x.shape[0] // n if x.ndim else 0}
        if packet not in {**rows, "all_reduce": 0, "all_to_all_single": 0}:
            raise SpecError(f"{self.where} communicates with {func}, which plans do not know")
        out = x.new_empty((rows[packet], *x.shape[1:])) if packet in rows else torch.empty_like(x)
        self.emit(str(func), args, {}, (out,))
        return out

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, name: str = "", plain: Any = None) -> Any:
        """Run an operator on meta tensors and write its node, or find an equal one of the same phase.

        ``name`` and ``plain`` record it under another name, with other arguments.
        """
        given = dict(kwargs)
        tensors = list(_tensors((args, tuple(kwargs.values()))))
        refs = {id(t): self.ref(t) for t in tensors}
        if not tensors or "device" in given:
            given["device"] = "meta"
        out = self._meta_run(func, args, given)
        outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        op = name or str(func)
        shown_args = self._plain(args, refs) if plain is None else plain
        shown = (
            {}
            if plain is not None
            else {k: self._plain(v, refs) for k, v in kwargs.items() if k not in _DROPPED and v is not None}
        )
        key = (op, shown_args, tuple(shown.items()), self.phase)
        found = self._same.get(key)
        if found is None:
            node = self._node(op, shown_args, shown, tuple(_meta(x) if isinstance(x, torch.Tensor) else None for x in outs))
            self._overloads[node.id] = (func, args, kwargs)
            found = tuple(Ref(node.id, i) for i in range(len(outs)))
            self._same[key] = found
        else:
            node = self.nodes[found[0].node]
            node.module = _common(node.module, self._here())
        for x, r in zip(outs, found, strict=True):
            if isinstance(x, torch.Tensor):
                self._keep(x, r)
        return out

    def _meta_run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raw, self._raw = self._raw, True
        try:
            return func(*(_to_meta(x) for x in args), **kwargs)
        finally:
            self._raw = raw

    def _identity(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
        if name == "_to_copy":
            return kwargs.get("dtype") in (None, args[0].dtype)
        return True

    def _in_place(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        base = name.removesuffix("_")
        written = [
            a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info is not None and s.alias_info.is_write
        ]
        if not name.endswith("_") or len(written) != 1 or kwargs.get("out") is not None:
            raise SpecError(
                f"{self._modules[-1] or 'the module'} uses {func}, which writes into its arguments; it cannot be recorded"
            )
        target = written[0]
        if name == "copy_":
            with self:
                value = torch.ops.aten._to_copy.default(args[1], dtype=target.dtype).expand(target.shape)
        else:
            packet = getattr(torch.ops.aten, _FUNCTIONAL.get(name, base))
            overload = getattr(packet, func._overloadname if func._overloadname in packet.overloads() else "default")
            with self:
                value = overload(*args, **kwargs)
                if value.dtype != target.dtype:
                    value = torch.ops.aten._to_copy.default(value, dtype=target.dtype)
                if value.shape != target.shape:
                    value = value.expand(target.shape)
        ref = self.ref(value)
        storage = _storage(target)
        if any(s == storage and i != id(target) for i, (_, s, _) in self._where.items()):
            self._versions[storage] = self._versions.get(storage, 0) + 1
        self._where[id(target)] = (ref, storage, self._versions.get(storage, 0))
        return target

    def _random(self, func: Any) -> str:
        return (
            f"{self._modules[-1] or 'the module'} draws random numbers with {func}; only torch.nn.functional.dropout is planned: "
            "set its probability to 0, call .eval(), or draw the numbers outside and pass them in"
        )

    def _dynamic(self, func: Any) -> str:
        return (
            f"{self._modules[-1] or 'the module'} uses {func}, whose result has a shape that depends on values; a plan needs "
            "fixed shapes: for experts give each a capacity, use torch.nn.functional.grouped_mm or "
            "autoparallel_pytorch.routed_experts (transformers: experts_implementation='grouped_mm'); for masks use torch.where"
        )

    def _read(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor that control flow asks for, when it follows from constants or from inputs given with values."""
        ref = self.ref(tensor)
        value, read = evaluate(self.nodes, ref, self._values)
        if value is None:
            raise SpecError(
                f"{self._modules[-1] or 'the module'} decides by the value of '{read}', which a plan does not know; pass the "
                "arguments that make the decision unnecessary, or give that input with its values instead of on the meta device"
            )
        if read:
            self.notes.append(f"{self._modules[-1]} decided by the values of {read}; the plan holds for inputs that decide alike")
        return value.item()

    # --- writing ------------------------------------------------------------------------------------------------

    def _node(self, op: str, args: Any, kwargs: dict[str, Any], outs: tuple[Meta | None, ...]) -> Node:
        node = Node(len(self.nodes), op, tuple(args), dict(kwargs), outs, self.phase, self._here())
        self.nodes.append(node)
        return node

    def _here(self) -> str:
        """The module whose forward runs, or whose forward's gradient is being computed."""
        where = self._modules[-1]
        if self.phase == FORWARD:
            return where
        current = torch._C._current_autograd_node()
        return where if current is None else self._by_sequence.get(current._sequence_nr(), where)

    def _keep(self, tensor: torch.Tensor, ref: Ref) -> None:
        self._kept.append(tensor)
        storage = _storage(tensor)
        self._where[id(tensor)] = (ref, storage, self._versions.get(storage, 0))

    def _constant(self, tensor: torch.Tensor) -> Ref:
        where = self._modules[-1] or "the module"
        if (tensor.device.type == "meta" and tensor.numel()) or tensor.numel() > CONSTANT_ELEMENTS:
            raise SpecError(
                f"{where} uses a tensor of shape {tuple(tensor.shape)} that is neither parameter, buffer "
                "nor input; register it as a buffer"
            )
        name = f"constant {len(self.constants)}"
        node = self._node("constant", (), {}, (_meta(tensor),))
        node.name = name
        value = torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.device.type == "meta" else tensor.detach()
        self.constants[name] = value.tolist()
        self._values[node.id] = value
        self._keep(tensor, Ref(node.id))
        return Ref(node.id)

    def _plain(self, value: Any, refs: Mapping[int, Ref] | None = None) -> Any:
        if isinstance(value, torch.Tensor):
            return refs[id(value)] if refs is not None and id(value) in refs else self.ref(value)
        if isinstance(value, torch.dtype):
            return Dtype(str(value).removeprefix("torch."))
        if isinstance(value, (tuple, list)):
            return tuple(self._plain(v, refs) for v in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise SpecError(f"{self._modules[-1] or 'the module'} passes {value!r} to an operator; it cannot be kept in a plan")


def _by_values(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a result's shape depends on values: of indexing by masks alone, of repetition without a given size."""
    if name == "index":
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1:]))
    return name != "repeat_interleave" or kwargs.get("output_size") is None


def _meta(x: torch.Tensor) -> Meta:
    return Meta(tuple(int(s) for s in x.shape), str(x.dtype).removeprefix("torch."))


def _common(a: str, b: str) -> str:
    """The innermost module that holds both: what several use belongs to none of them."""
    if a == b:
        return a
    shared = []
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        shared.append(x)
    return ".".join(shared)


def _storage(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _tensors(v)


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "meta" else value.to("meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_to_meta(v) for v in value)
    return value
