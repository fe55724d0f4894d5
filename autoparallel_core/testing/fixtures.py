"""pytest fixtures for plugin authors; have ``conftest.py`` say ``pytest_plugins = ["autoparallel_core.testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from autoparallel_core.host import Host, LocalPlugin, host
from autoparallel_core.spec.arch import ModelArch
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Problem
from autoparallel_core.testing import toys
from autoparallel_core.testing.toys import Mode


@pytest.fixture
def installed() -> Host:
    """The host over everything installed."""
    return host()


@pytest.fixture
def host_with() -> Callable[..., Host]:
    """``host_with(engines=module, hardware=module)``: a host of just these plugins, one per group, named for their group."""

    def build(**plugins: ModuleType | Any) -> Host:
        return Host(entry_points=[LocalPlugin(kind, kind, plugin) for kind, plugin in plugins.items()])

    return build


@pytest.fixture
def toy_gpu() -> Gpu:
    """A made-up accelerator with round figures."""
    return toys.toy_gpu()


@pytest.fixture
def toy_dense_arch() -> ModelArch:
    """A small dense decoder."""
    return toys.toy_dense_arch()


@pytest.fixture
def toy_moe_arch() -> ModelArch:
    """A small mixture of experts."""
    return toys.toy_moe_arch()


@pytest.fixture
def toy_problem(installed: Host) -> Callable[..., Problem]:
    """``toy_problem("engine", "training", …)`` with the installed plugins; see ``testing.toys.toy_problem``."""

    def build(engine: str, mode: Mode, **changes: Any) -> Problem:
        return toys.toy_problem(engine, mode, host=installed, **changes)

    return build
