"""vLLM's configuration class takes the exported degrees, and its argument parser the exported command."""

from __future__ import annotations

import pytest
from samples import export, needs, question, sample

pytestmark = needs("vllm")


@pytest.fixture(scope="module")
def parser():
    """The engine's own, told that the platform is a CPU (it looks for a GPU otherwise)."""
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    made = FlexibleArgumentParser()
    EngineArgs.add_cli_args(made)
    made.add_argument("--port")  # the server's own flags
    made.add_argument("--headless", action="store_true")
    return made


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model, parser):
    from vllm.config.parallel import ParallelConfig

    from autoparallel_core.launch.sources import take_apart

    problem = question("vllm", model)
    legal, _ = sample(problem)
    for strategy in legal:
        sources = take_apart({"serve.sh": export(problem, strategy, model)["serve.sh"]})
        run = next(r for r in sources.runs if r.words[:2] == ("vllm", "serve"))
        args = parser.parse_args([w.replace("$(…)", "0") for w in run.words[3:]])
        assert args.max_model_len == 1200
        config = ParallelConfig(
            tensor_parallel_size=args.tensor_parallel_size, pipeline_parallel_size=args.pipeline_parallel_size,
            data_parallel_size=args.data_parallel_size, enable_expert_parallel=args.enable_expert_parallel,
            distributed_executor_backend="mp", nnodes=args.nnodes,
        )  # fmt: skip
        assert config.world_size == strategy.tp * strategy.pp
        assert config.data_parallel_size == strategy.attn_dp
        assert bool(args.enable_expert_parallel) == (strategy.ep > 1)


OLD = {"--speculative-model", "--num-speculative-tokens", "--num-redundant-experts", "--config", "--cpu-offload-gb"}
"""Of earlier releases, of the server, or inside a JSON option now."""


def test_every_flag_that_the_reader_knows_exists(parser):
    from autoparallel_vllm.flags import TABLE

    known = set(parser._option_string_actions)
    for option in TABLE:
        assert known & set(option.names) or set(option.names) & OLD, option.names
