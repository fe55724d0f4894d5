"""Parameters of vision towers and their projectors against the reference library's."""

import random

import pytest
from draw_towers import TOWERS
from reference import components

from autoparallel_core.host import host
from autoparallel_core.models import build_arch
from autoparallel_core.ops.params import parameter_counts

CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in TOWERS for seed in (21, 22, 23)]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_tower_text_and_total_equal_the_reference_librarys(name, seed):
    config = TOWERS[name](random.Random(f"{name}{seed}"))
    expected = components(config)
    counts = parameter_counts(build_arch(config, name=name, host=host()))
    assert counts["vision"] == expected["tower"] > 0, config
    assert counts["text"] == sum(n for kind, n in expected.items() if kind != "tower"), config
    assert counts["by_component"] == dict(sorted(expected.items())), config
