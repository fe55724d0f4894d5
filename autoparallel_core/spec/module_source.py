"""How a planned module and its inputs are made again: what a plan records, so that it can be verified from its file alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from autoparallel_core.errors import SpecError

_OF_FUNCTIONS = ("module", "inputs", "reduced", "reduced_inputs")
_OF_CONFIG = ("name", "config", "precision", "seq_len", "global_batch_size")


@frozen(kw_only=True)
class ModuleSource:
    """Either functions (``module`` and ``inputs``), or a configuration (``config``, ``seq_len``, ``global_batch_size``)."""

    module: str = ""
    """``pkg.mod:function`` of no arguments that makes the module."""
    inputs: str = ""
    """The same for the arguments of one call: a mapping of keywords, or a sequence."""
    reduced: str = ""
    """Makes a small copy to verify on, when the module is too large to run on a CPU and has no ``config``."""
    reduced_inputs: str = ""
    """Arguments of the small copy."""
    name: str = ""
    """Of the model whose ``config`` this is."""
    config: Mapping[str, Any] | None = field(default=None)
    """Fields of a ``config.json``."""
    precision: str = ""
    """dtype of the parameters: bf16, fp16 or fp32."""
    seq_len: int = 0
    global_batch_size: int = 0

    def document(self) -> dict[str, Any]:
        """Plain data."""
        if self.config is not None:
            return {"kind": "config", **{k: v for k, v in asdict(self, recurse=False).items() if k in _OF_CONFIG}}
        return {"kind": "functions", **{k: v for k, v in asdict(self).items() if k in _OF_FUNCTIONS}}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ModuleSource:
        """The inverse of :meth:`document`. Raises SpecError when it was damaged."""
        try:
            return cls(**{k: v for k, v in document.items() if k != "kind"})
        except TypeError as e:
            raise SpecError(f"the plan's 'source' is damaged: {e}") from e


@frozen
class BuiltModule:
    """A module with the arguments of one call."""

    module: Any
    inputs: Any
    notes: tuple[str, ...] = ()
    """What was assumed while making it."""
