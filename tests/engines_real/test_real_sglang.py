"""SGLang's own argument parser takes the exported command."""

from __future__ import annotations

import argparse

import pytest
from samples import export, needs, question, sample

pytestmark = needs("sglang")


@pytest.fixture(scope="module")
def parser():
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


@pytest.mark.parametrize("model", ["dense", "sparse"])
def test_exports_are_accepted(model, parser):
    from autoparallel_core.launch.sources import take_apart

    problem = question("sglang", model)
    legal, _ = sample(problem)
    for strategy in legal:
        sources = take_apart({"serve.sh": export(problem, strategy, model)["serve.sh"]})
        run = next(r for r in sources.runs if "sglang.launch_server" in r.words)
        words = [
            w.replace("$(…)", "0").replace("$((PORT", "30000") for w in run.words[run.words.index("sglang.launch_server") + 1 :]
        ]
        args = parser.parse_args(words)
        assert args.tp_size == strategy.tp * strategy.attn_dp
        assert args.pp_size == strategy.pp
        assert args.ep_size == (max(1, strategy.ep))
        assert args.attn_dp_size in ({strategy.attn_dp} if strategy.attn_dp > 1 else {None, 1})
        assert args.context_length == 1200


def test_every_flag_that_the_reader_knows_exists(parser):
    """Spellings that the engine dropped are only those of older releases."""
    from autoparallel_sglang.flags import TABLE

    known = set(parser._option_string_actions)
    old = {"--enable-ep-moe", "--enable-deepep-moe"}
    for option in TABLE:
        assert known & set(option.names) or set(option.names) & old, option.names
