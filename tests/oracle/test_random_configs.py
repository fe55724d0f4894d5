"""Our parameter counts against the reference library's, total and per component, on random small configs."""

import random

import pytest
from drawers import DRAWERS
from reference import components

from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import parameter_counts

SEEDS = (11, 12, 13, 14)
CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in DRAWERS for seed in SEEDS]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_parameters_equal_the_reference_librarys(name, seed):
    config = DRAWERS[name](random.Random(f"{name}{seed}"))
    expected = components(config)
    counts = parameter_counts(build_arch(config, name=name, host=host()))
    assert counts["by_component"] == dict(sorted(expected.items())), config
    assert counts["total"] == sum(expected.values())
