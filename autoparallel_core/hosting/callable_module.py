"""Modules that can be called like the function they are named for.

The public API has functions ``host()`` and ``search()`` and the package has a module and a sub-package of the same
names. Importing a sub-module sets it as an attribute of its package, so a function of that name would be there or
not depending on what was imported before. Instead the module itself is callable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function: Callable[..., Any] = self.__dict__["__callable_module_target__"]()
        return function(*args, **kwargs)


def make_callable(module: str, target: str) -> None:
    """Let the imported module ``module`` be called; calls go to ``target`` (``module:function``), imported on first use."""
    where, _, name = target.partition(":")
    this = sys.modules[module]
    this.__dict__["__callable_module_target__"] = lambda: getattr(import_module(where), name)
    this.__class__ = _CallableModule
