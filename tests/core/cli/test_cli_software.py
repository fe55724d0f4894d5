"""``--software`` and ``--task``: every setting reaches the problem, wrong ones are refused with the legal ones."""

from __future__ import annotations

import pytest
from test_cli_options import problem

from autoparallel_core.cli.software import software_settings, written

ASKED = ("--gpu-type", "H100", "--n-gpus", "16")


def test_settings_reach_the_problem(model):
    text = (
        "tp_overlap=on,dp_overlap=off,cp_comm=a2a,recompute_modules=core_attn+mlp,"
        "low_precision_recipe=delayed,nic_bytes_per_s=5e10"
    )
    soft = problem("--model-path", model(), *ASKED, "--software", text).software
    assert (soft.tp_overlap, soft.dp_overlap, soft.cp_comm) == (True, False, "a2a")
    assert soft.recompute_modules == ("core_attn", "mlp")
    assert (soft.low_precision_recipe, soft.nic_bytes_per_s) == ("delayed", 5e10)
    assert soft.p2p_overlap, "what nobody states stays the engine's"


@pytest.mark.parametrize("text", ["tp_overlap=on,cp_comm=all_gather", "recompute_modules=core_attn+moe_act", "dispatcher=deepep"])
def test_settings_are_written_as_they_are_read(text):
    assert written(software_settings(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tp_overlap", "'tp_overlap' is not NAME=VALUE"),
        ("tp_overlp=on", "unknown software setting 'tp_overlp'; did you mean tp_overlap"),
        ("tp_overlap=maybe", "tp_overlap is on or off, not 'maybe'"),
        ("dispatcher=fast", "dispatcher is one of alltoall, allgather, deepep, hybridep, not 'fast'"),
        ("recompute_modules=core_atn", "unknown module 'core_atn'; did you mean core_attn"),
        ("tp_overlap=on,tp_overlap=off", "tp_overlap is given twice"),
        ("activation_offload_layers=few", "activation_offload_layers is a number, not 'few'"),
        ("nic_bytes_per_s=-1", "nic_bytes_per_s must not be negative"),
    ],
)
def test_wrong_settings_are_refused(cli, model, text, sentence):
    done = cli("--model-path", model(), *ASKED, "--software", text)
    assert done.code == 2
    assert sentence in done.err


def test_settings_belong_to_training(cli, model):
    done = cli("--mode", "inference", "--model-path", model(), *ASKED, "--software", "tp_overlap=on")
    assert done.code == 2
    assert "--software belongs to --mode training" in done.err


def test_hidden_tensor_parallel_communication_is_faster(cli, model):
    import json

    def step(*more):
        argv = ("explain", "--model-path", model(), *ASKED, "--strategy", "tp4 pp1 dp4 zero1 mbs1", "--json", *more)
        return json.loads(cli(*argv).out)["plan"]["total_s"]

    assert step("--software", "tp_overlap=on") < step()


def test_frozen_weights_need_neither_gradients_nor_optimizer(model):
    p = problem("--model-path", model(), *ASKED, "--task", "lora")
    assert p.training.task == "lora"
    assert any("adapters" in a for a in p.assumptions)


def test_launch_files_of_adapters_are_not_made_up(cli, model, tmp_path):
    argv = ("export", "--model-path", model(), *ASKED, "--task", "lora", "--out", str(tmp_path / "x"))
    done = cli(*argv)
    assert done.code == 2
    assert "--task lora" in done.err
    assert not (tmp_path / "x").exists()
