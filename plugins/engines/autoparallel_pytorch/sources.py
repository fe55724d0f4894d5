"""Make a module from what a plan records: functions of the user's, or a configuration that ``transformers`` knows."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import AutoparallelError, SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.module_source import BuiltModule, ModuleSource

if TYPE_CHECKING:
    import torch

    from autoparallel_core.spec.module_plan import ModulePlan

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def build(source: ModuleSource) -> BuiltModule:
    """Module and inputs on the meta device.

    Raises:
        SpecError: a function cannot be imported or fails, or ``transformers`` has no class for the configuration.
    """
    if source.config is not None:
        return _from_config(source, source.config)
    with _on_meta():
        return BuiltModule(_module(source.module), _called(source.inputs))


def to_verify(plan: ModulePlan, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``verify`` with a module in them.

    Without one it is built from ``options["source"]`` or from what the plan records: the small copy that the source names,
    else the module itself, with its data when it is small enough to run. The module has to be the planned one then.

    Raises:
        SpecError: there is nothing to build it from, it is another module, or the plan is of a pipeline.
    """
    if plan.document.get("pipeline"):
        raise SpecError("verify replays plans without a pipeline; plan the mesh without its pp to check the placements")
    out = {k: v for k, v in options.items() if k != "source"}
    if options.get("module") is not None:
        return out
    source = options.get("source") or plan.source
    if source is None:
        raise SpecError(
            "the plan was made from a module in Python and does not say how to build it: give --module and --inputs "
            "(in Python: module and inputs)"
        )
    if source.reduced:
        return {**out, "module": _module(source.reduced), "inputs": _called(source.reduced_inputs or source.inputs)}
    built = build(source)
    _same(plan, built.module)
    return {**out, "module": _with_data(source, built.module), "inputs": built.inputs}


def _same(plan: ModulePlan, module: torch.nn.Module) -> None:
    from autoparallel_pytorch.fingerprint import difference, fingerprint

    found = difference(plan.document["module"]["fingerprint"], fingerprint(module))
    if found is not None:
        raise SpecError(f"the plan is of another module: {found}")


def _with_data(source: ModuleSource, module: torch.nn.Module) -> torch.nn.Module:
    """A small module built again off the meta device; a large one as it is, for a copy to be made from its configuration."""
    from autoparallel_pytorch.reduce_module import LARGE

    n = sum(p.numel() for p in module.parameters())
    if source.config is not None or (n > LARGE and getattr(module, "config", None) is not None):
        return module
    if n > LARGE:
        raise SpecError(
            f"{source.module} makes a module of {n:,} parameters, too many to run here: name a function that makes a small copy "
            "of the same structure (--reduced pkg.mod:function)"
        )
    return _module(source.module)


# --- functions --------------------------------------------------------------------------------------------------------


def _module(name: str) -> torch.nn.Module:
    import torch

    made = _called(name)
    if not isinstance(made, torch.nn.Module):
        raise SpecError(f"{name} returns {type(made).__name__}, not a torch.nn.Module")
    return made


def _called(name: str) -> Any:
    function = _function(name)
    try:
        return function()
    except AutoparallelError:
        raise
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        raise SpecError(f"{name} failed: {type(e).__name__}: {e} ({frame.filename}:{frame.lineno})") from e


def _function(name: str) -> Callable[[], Any]:
    path, colon, attribute = name.partition(":")
    if path.endswith(".py"):
        dotted = path.removesuffix(".py").strip("./").replace("/", ".")
        raise SpecError(
            f"'{name}' names a file; write it as a module found from this directory: {dotted}:{attribute or 'function'}"
        )
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in path.split(".")):
        raise SpecError(f"'{name}' names no function; write it as package.module:function, found from this directory")
    try:
        module = import_module(path)
    except ImportError as e:
        raise SpecError(f"{name}: cannot import {path} from this directory: {e}") from e
    except Exception as e:
        raise SpecError(f"{name}: importing {path} fails: {type(e).__name__}: {e}") from e
    found = getattr(module, attribute, None)
    if found is None:
        known = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
        raise SpecError(f"{path} has no function '{attribute}'; {did_you_mean(attribute, known)}")
    if not callable(found):
        raise SpecError(f"{name} is a {type(found).__name__}, not a function of no arguments")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    import torch

    with torch.device("meta"):
        yield


# --- configurations ---------------------------------------------------------------------------------------------------


def _from_config(source: ModuleSource, config: Mapping[str, Any]) -> BuiltModule:
    """The causal language model of a configuration, and one batch of tokens with labels."""
    import torch

    module = _language_model(source, config)
    text = module.config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    notes = []
    if isinstance(positions, int) and source.seq_len > positions:
        notes.append(f"sequences of {source.seq_len:,} tokens, longer than the {positions:,} positions that the config states")
    shape = (source.global_batch_size, source.seq_len)
    with _on_meta():
        tokens = {name: torch.empty(shape, dtype=torch.int64) for name in ("input_ids", "labels")}
    return BuiltModule(module, {**tokens, "use_cache": False}, tuple(notes))


def _language_model(source: ModuleSource, config: Mapping[str, Any]) -> Any:
    import torch

    try:
        import transformers
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    except ImportError:
        raise SpecError("planning a model from its config needs the transformers library: pip install transformers") from None
    transformers.logging.set_verbosity_error()
    kind = str(config.get("model_type", ""))
    if kind not in CONFIG_MAPPING:
        known = did_you_mean(kind, list(CONFIG_MAPPING.keys()))
        raise SpecError(f"{source.name}: transformers {transformers.__version__} knows no model type '{kind}'; {known}")
    fields = {k: v for k, v in config.items() if k != "quantization_config" and not k.startswith("_")}
    dtype = getattr(torch, DTYPES[source.precision])
    try:
        made = CONFIG_MAPPING[kind].from_dict(fields)
        with _on_meta():
            model = AutoModelForCausalLM.from_config(made, dtype=dtype)
    except Exception as e:
        first = " ".join(str(e).split())[:300]
        raise SpecError(f"{source.name}: transformers cannot build it from its config: {type(e).__name__}: {first}") from e
    return model.train()
