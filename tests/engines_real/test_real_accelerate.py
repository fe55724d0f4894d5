"""accelerate reads the YAML, and its mesh takes the degrees."""

from __future__ import annotations

import pytest
from samples import export, is_legal, needs, question, sample

pytestmark = needs("accelerate")


def mesh(parallelism):
    from accelerate.parallelism_config import ParallelismConfig

    return ParallelismConfig(**{k.removeprefix("parallelism_config_"): v for k, v in parallelism.items() if k.endswith("_size")})


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model, written):
    from accelerate.commands.config.config_args import load_config_from_file

    problem = question("fsdp", model)
    legal, _ = sample(problem)
    for strategy in legal:
        directory = written(export(problem, strategy, model))
        config = load_config_from_file(str(directory / "accelerate.yaml"))
        assert config.num_processes == 64
        assert str(config.distributed_type).endswith("FSDP")
        assert str(config.fsdp_config["fsdp_reshard_after_forward"]).lower() == str(strategy.zero == 3).lower()
        assert mesh(config.parallelism_config).total_size == 64


def test_what_the_mesh_refuses_we_refuse():
    """Every factorisation of 64 ranks over (replicate, shard, tp, cp)."""
    from autoparallel_core.spec.strategy import Strategy

    problem = question("fsdp", "dense")
    refused = 0
    powers = [1 << i for i in range(7)]
    for replicate in powers:
        for shard in powers:
            for tp in powers[:4]:
                if 64 % (replicate * shard * tp):
                    continue
                cp = 64 // (replicate * shard * tp)
                sizes = {"dp_replicate_size": replicate, "dp_shard_size": shard, "tp_size": tp, "cp_size": cp}
                strategy = Strategy(tp=tp, sp=int(tp > 1), cp=cp, dp=replicate * shard, zero=3, shard=shard * cp)
                try:
                    mesh(sizes)
                except ValueError:
                    refused += 1
                    assert not is_legal(problem, strategy), f"accelerate refuses {sizes}"
    assert refused > 0
