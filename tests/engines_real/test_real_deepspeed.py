"""DeepSpeed's configuration class reads the JSON and its batch arithmetic holds."""

from __future__ import annotations

import json

import pytest
from samples import export, is_legal, needs, question, sample

pytestmark = needs("deepspeed")


class Ranks:
    """Stands for the process groups."""

    def __init__(self, n):
        self.n = n

    def get_data_parallel_world_size(self):
        return self.n


def read(config, ranks, monkeypatch):
    import deepspeed.runtime.config as module

    monkeypatch.setattr(module.dist, "get_rank", lambda: 0)
    return module.DeepSpeedConfig(config, mpu=Ranks(ranks))


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model, monkeypatch):
    problem = question("deepspeed", model)
    legal, _ = sample(problem)
    for strategy in legal:
        text = export(problem, strategy, model)["ds_config.json"]
        config = read(json.loads(text), strategy.dp, monkeypatch)
        assert config.train_batch_size == 512
        assert config.train_micro_batch_size_per_gpu == strategy.mbs
        assert config.zero_config.stage == strategy.zero
        offload = config.zero_config.offload_optimizer
        assert (offload is not None and str(offload.device) != "none") == bool(strategy.offload)
        assert config.tensor_parallel_config.autotp_size == (strategy.tp if strategy.tp > 1 else 0)


def test_a_batch_that_it_refuses_we_refuse(monkeypatch):
    problem = question("deepspeed", "dense", batch=100)
    _, illegal = sample(question("deepspeed", "dense", batch=512))
    refused = 0
    for strategy in illegal:
        config = {"train_batch_size": 100, "train_micro_batch_size_per_gpu": strategy.mbs,
                  "gradient_accumulation_steps": max(100 // (strategy.mbs * strategy.dp), 1)}  # fmt: skip
        try:
            read(config, strategy.dp, monkeypatch)
        except AssertionError:
            refused += 1
            assert not is_legal(problem, strategy)
    assert refused > 10
