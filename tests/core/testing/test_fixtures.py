"""The fixtures that ship for plugin authors."""

from __future__ import annotations

from types import ModuleType

from autoparallel_core.hookspecs import hookimpl
from autoparallel_core.testing.fixtures import (  # noqa: F401  used by name
    host_with,
    installed,
    toy_dense_arch,
    toy_gpu,
    toy_moe_arch,
    toy_problem,
)


def test_a_host_of_given_modules(host_with, toy_gpu) -> None:  # noqa: F811
    module = ModuleType("mine")
    module.gpus = hookimpl(lambda: [toy_gpu])
    host = host_with(hardware=module)
    assert host.gpus() == {"toy-gpu": toy_gpu}
    assert host.engines() == {}
    assert host.warnings == ()


def test_problems_of_installed_engines(installed, toy_problem, toy_moe_arch, toy_dense_arch) -> None:  # noqa: F811
    problem = toy_problem("megatron", "training", arch=toy_moe_arch, n_gpus=16)
    assert problem.mode == "training"
    assert problem.cluster.n_gpus == 16
    assert problem.arch.num_experts == 32
    assert toy_problem("vllm", "inference").arch == toy_dense_arch
    assert "megatron" in installed.engines()
