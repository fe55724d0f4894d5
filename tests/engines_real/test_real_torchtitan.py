"""torchtitan builds the exported configuration and its mesh; its pipeline splitter takes the stages."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from samples import export, is_legal, needs, question, sample

pytestmark = needs("torchtitan")


def load(path):
    spec = importlib.util.spec_from_file_location("plan", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["plan"] = module
    spec.loader.exec_module(module)
    return module.plan()


def dims(config, world):
    from torchtitan.distributed import ParallelDims

    p = config.parallelism
    return ParallelDims(
        dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, world_size=world,
    )  # fmt: skip


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model, written):
    from torchtitan.distributed.pipeline_parallel import _get_pipeline_metadata

    problem = question("torchtitan", model)
    legal, _ = sample(problem)
    for strategy in legal[:25]:
        config = load(written(export(problem, strategy, model)) / "plan.py")
        mesh = dims(config, 64)
        assert (mesh.tp, mesh.pp, mesh.cp, mesh.ep) == (strategy.tp, strategy.pp, strategy.cp, strategy.ep)
        assert config.training.seq_len == 4096
        assert len(config.model_spec.model.layers) == problem.arch.num_layers
        if strategy.pp > 1:
            stages, *_ = _get_pipeline_metadata(mesh, config.parallelism, config.model_spec.model)
            assert stages == strategy.pp * strategy.vpp, str(strategy)
            assert config.training.local_batch_size % config.parallelism.pipeline_parallel_microbatch_size == 0


def test_meshes_that_it_refuses_we_refuse():
    """Degrees whose product is not the world, and expert degrees that do not divide."""
    from torchtitan.distributed import ParallelDims

    from autoparallel_core.spec.strategy import Strategy

    problem = question("torchtitan", "sparse")
    refused = 0
    for tp in (1, 2, 3, 4, 8):
        for pp in (1, 2, 4):
            for shard in (4, 8, 16, 32, 64):
                try:
                    ParallelDims(dp_replicate=1, dp_shard=shard, cp=1, tp=tp, pp=pp, ep=1, world_size=64)
                except AssertionError:
                    refused += 1
                    strategy = Strategy(tp=tp, sp=int(tp > 1), pp=pp, dp=shard, zero=3, shard=shard)
                    assert not is_legal(problem, strategy), f"tp {tp} pp {pp} dp_shard {shard}"
    assert refused > 20


def test_stage_counts_that_it_refuses_we_refuse(written):
    """Layers per stage that give a number of stages which is no multiple of pp: read back, they are refused."""
    from torchtitan.distributed.pipeline_parallel import _get_pipeline_metadata

    from autoparallel_core.host import host

    problem = question("torchtitan", "dense")
    strategy = next(s for s in sample(problem)[0] if s.pp == 4 and s.vpp == 1)
    files = dict(export(problem, strategy, "dense"))
    agreed = 0
    for per in range(1, 42):
        changed = files["plan.py"].replace(
            "pipeline_parallel_schedule='1F1B',",
            f"pipeline_parallel_schedule='1F1B',\n            pipeline_parallel_layers_per_stage={per},",
        )
        config = load(written({"plan.py": changed}) / "plan.py")
        try:
            _get_pipeline_metadata(dims(config, 64), config.parallelism, config.model_spec.model)
            accepted = True
        except ValueError:
            accepted = False
        launch = host().read({"plan.py": changed}, "torchtitan", problem)
        assert (launch.refusals == ()) == accepted, f"{per} layers per stage"
        agreed += 1
    assert agreed == 41
