"""``engines show``, ``plugins show``, ``gpus show``: one thing in detail."""

from __future__ import annotations

import pytest


def test_an_engine_in_detail(cli, refused):
    body = cli("engines", "show", "vllm", "--json").json
    assert (body["command"], body["engine"]["name"], body["engine"]["modes"]) == ("engines show", "vllm", ["inference"])
    newest = body["engine"]["serving"][-1]
    assert (newest["until"], newest["memory_fraction"], newest["budget"]) == (None, 0.92, "share_of_device")
    shown = cli("engines", "show", "Megatron").words
    for said in ("megatron · training · from plugin megatron", "0.19.2 unless given, rules known from 0.9.0 on",
                 "pipeline_schedule 1f1b", "uneven_stages since 0.13.0"):  # fmt: skip
        assert said in shown
    assert "pipeline_schedule" not in cli("engines", "show", "vllm").out
    constant = next(iter(cli("engines", "show", "sglang", "--json").json["engine"]["constants"].values()))
    assert constant["meaning"] in cli("engines", "show", "sglang").words
    assert "unknown engine 'vlm'; did you mean vllm?" in refused("engines", "show", "vlm")
    assert "exactly one ENGINE" in refused("engines", "show")


def test_a_plugin_in_detail(cli, refused):
    (plugin,) = cli("plugins", "show", "nvidia", "--json").json["plugins"]
    assert plugin["kind"] == "hardware"
    assert "H100-SXM-80GB" in plugin["provides"]
    assert not any("MI300" in name for name in plugin["provides"])
    shown = cli("plugins", "show", "megatron").words
    assert "megatron · engines · loaded" in shown
    assert "provides megatron" in shown
    off = cli("plugins", "show", "megatron", "--no-plugin", "megatron", "--json").json["plugins"][0]
    assert (off["status"], off["provides"]) == ("disabled", [])
    assert "unknown plugin 'megatrn'; did you mean megatron" in refused("plugins", "show", "megatrn")


def test_every_constant_of_a_gpu_has_its_source(cli):
    gpu = cli("gpus", "show", "H100", "--json").json["gpu"]
    shown = cli("gpus", "show", "H100").words
    for table in ("training", "serving"):
        assert gpu[table]
        for name, value in gpu[table].items():
            assert f"{name} {value:g} ({gpu['sources'][f'{table}.{name}']})" in shown


def test_unknown_names_list_few(refused):
    text = refused("gpus", "show", "qqqqqq")
    assert text.count(",") <= 5
    assert " more" in text
    assert refused("models", "show", "foo").endswith("models of the catalogue")


@pytest.mark.parametrize("command", ["engines", "plugins"])
def test_details_load_neither_numpy_nor_torch(command):
    import subprocess
    import sys

    code = (
        "import sys\nfrom autoparallel_core.cli.main import main\n"
        "main(sys.argv[1:])\nprint(sorted({'numpy', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", code, command, "show", "megatron"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
