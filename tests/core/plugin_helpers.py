"""Makes plugins for the host's tests: modules from source, and whole distributions on the import path."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import ModuleType

from autoparallel_core.host import LocalPlugin

_numbers = count()
PRELUDE = "from autoparallel_core.hookspecs import hookimpl\n"


def module(source: str) -> ModuleType:
    """A module whose text starts with the import of hookimpl."""
    m = ModuleType(f"inline_plugin_{next(_numbers)}")
    exec(compile(PRELUDE + dedent(source), f"{m.__name__}.py", "exec"), m.__dict__)
    return m


def plugin(kind: str, source: str, name: str = "acme", distribution: str = "acme-dist") -> LocalPlugin:
    return LocalPlugin(name, kind, module(source), distribution, "1.2")


def engine_plugin(name: str, body: str = "", modes: str = "('training', 'inference')") -> LocalPlugin:
    """An engine of the plugin's own name, with further hooks in ``body``."""
    source = f"""
from autoparallel_core.spec.problem import EngineSpec
@hookimpl
def engines():
    return [EngineSpec(name={name!r}, modes={modes}, default_version="1.0", summary="A test engine.")]
"""
    return LocalPlugin(name, "engines", module(source + dedent(body)), f"{name}-dist", "1.2")


def install(directory: Path, distribution: str, modules: dict[str, str], entry_points: dict[str, dict[str, str]]) -> None:
    """Lay a distribution out as pip would: modules, METADATA and entry_points.txt."""
    directory.mkdir(exist_ok=True)
    for name, source in modules.items():
        sys.modules.pop(name, None)
        (directory / f"{name}.py").write_text(dedent(source))
    info = directory / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    lines = [f"[autoparallel.{kind}]\n" + "".join(f"{n} = {v}\n" for n, v in eps.items()) for kind, eps in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
