"""Run `python benchmarks/golden.py --write` to accept a change, and review the diff."""

import json

import pytest

from golden.golden import PREDICTIONS, predict


@pytest.fixture(scope="module")
def predicted():
    return predict()


def test_the_cases_are_those_predicted(predicted):
    assert list(predicted) == list(json.loads(PREDICTIONS.read_text()))


@pytest.mark.parametrize("name", list(json.loads(PREDICTIONS.read_text())))
def test_prediction_has_not_moved(name, predicted):
    golden, now = json.loads(PREDICTIONS.read_text())[name], predicted[name]
    assert golden.keys() == now.keys()
    for key, value in golden.items():
        expected = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
        assert now[key] == expected, key
