"""The commands end to end, on a small model and the plugins that are installed."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from autoparallel_core.cli import progress as progress_module
from autoparallel_core.cli.progress import Progress


@pytest.fixture
def small(model):
    return ("--model-path", model(), "--gpu-type", "H100", "--n-gpus", "16")


def test_the_bare_form_ranks_strategies(cli, small):
    ran = cli(*small, "--top", "4")
    assert ran.code == 0
    assert "Best 4 by tokens/s per GPU" in ran.out
    assert len(re.findall(r"^ ?[1-4]  tp\d+ pp\d+ dp\d+", ran.out, re.MULTILINE)) == 4
    assert "Assumed" in ran.out
    assert "refused" in ran.out or "none refused" in ran.out


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_json_is_one_object_and_consistent(cli, small, mode):
    ran = cli(*small, "--mode", mode, "--json", "--top", "3", "--pareto")
    body = ran.json
    assert ran.code == 0
    assert (body["schema_version"], body["command"], body["mode"], body["status"]) == (1, "advise", mode, "ok")
    assert 1 <= len(body["strategies"]) <= 3
    rates = [s["tokens_per_s_per_gpu"] for s in body["strategies"]]
    assert all(b <= a * 1.02 for a, b in pairwise(rates))  # ties within 1% are ordered by plainness
    for s in body["strategies"]:
        axes = s["axes"]
        assert axes["tp"] * axes["pp"] * axes["cp"] * axes["dp"] * axes["attn_dp"] == 16
        assert sum(s["cost_s"].values()) == pytest.approx(s["total_s"])
        for stage in s["memory"]["stages"]:
            assert sum(stage["bytes"].values()) == pytest.approx(stage["total_bytes"])
        assert s["memory"]["capacity_bytes"] - s["memory"]["reserved_bytes"] == pytest.approx(s["memory"]["margin_bytes"])
    assert sum(body["refusals"].values()) + body["search"]["evaluated"] == body["search"]["enumerated"]
    assert body["pareto"]


def test_the_figures_of_a_plan_agree_with_each_other(cli, small):
    body = cli(*small, "--json", "--top", "1", "--batch-size", "512", "--max-length", "4096").json
    plan = body["strategies"][0]
    step = plan["training"]["step_s"]
    assert step == pytest.approx(plan["total_s"])
    assert plan["tokens_per_s_per_gpu"] == pytest.approx(512 * 4096 / step / 16)
    assert plan["training"]["micro_batches"] == 512 / (plan["axes"]["dp"] * plan["axes"]["mbs"])
    assert sum(plan["training"]["layers_per_stage"]) == 16


def test_flags_change_the_answer(cli, small):
    def best(*argv):
        return cli(*small, "--json", "--top", "1", *argv).json["strategies"][0]

    plain = best()
    assert best("--bw-nvlink", "100", "--bw-ib", "5")["tokens_per_s_per_gpu"] <= plain["tokens_per_s_per_gpu"]
    assert best("--gpu-flops", "400")["tokens_per_s_per_gpu"] < plain["tokens_per_s_per_gpu"]
    assert best("--gpu-memory-gb", "24")["memory"]["reserved_bytes"] <= 24e9
    assert best("--max-tokens-per-mb", "4096")["axes"]["mbs"] == 1
    assert all(s["axes"]["recompute"] == 0 for s in cli(*small, "--json", "--no-recompute", "--top", "50").json["strategies"])
    assert best("--optimizer-cpu-offload")["axes"]["offload"] == 1
    assert best("--engine", "fsdp")["cost_s"] != plain["cost_s"]


def test_nothing_fits_says_what_is_missing(cli, model):
    argv = ("--model-path", model(), "--gpu-type", "A100", "--n-gpus", "8", "--gpu-memory-gb", "4", "--host-memory-gb", "8")
    ran = cli(*argv)
    assert ran.code == 3
    assert "Nothing fits" in ran.out
    assert "Nearest miss" in ran.out
    assert re.search(r"GPUs: [\d,]+ \([\d,]+ nodes\) would do, [\d,]+ more than the 8 given", ran.words)
    assert ran.err.splitlines()[-1].startswith("autoparallel: nothing fits: GPU memory: the nearest miss needs")
    body = cli(*argv, "--json").json
    assert body["status"] == "nothing fits"
    assert body["strategies"] == []
    assert body["nearest_miss"]["memory"]["margin_bytes"] < 0
    assert body["min_nodes"]["n_gpus"] > 8
    assert body["missing"]


def test_a_latency_limit_that_nothing_meets_is_named(cli, small):
    ran = cli(*small, "--mode", "inference", "--infer-batch-size", "64", "--tpot-ms", "0.01")
    assert ran.code == 3
    assert re.search(
        r"latency: the nearest strategy that fits, tp\d+ .*, has TPOT .* where at most 10.0 µs is allowed", ran.words
    )
    assert "TPOT limit" in ran.words
    body = cli(*small, "--mode", "inference", "--infer-batch-size", "64", "--tpot-ms", "0.01", "--json").json
    assert body["nearest_miss"]["strategy"] in body["missing"][0]
    assert body["nearest_miss"]["verdict"] == "fits"
    assert cli(*small, "--mode", "inference", "--infer-batch-size", "64", "--tpot-ms", "10000").code == 0


@pytest.mark.parametrize(
    ("mode", "engine"),
    [("training", e) for e in ("megatron", "fsdp", "torchtitan", "deepspeed")]
    + [("inference", e) for e in ("vllm", "sglang", "trtllm")],
)
def test_groups_of_an_output_norm_limit_tp(cli, mode, engine):
    model = [
        "--hidden-size",
        "4096",
        "--num-layers",
        "8",
        "--num-heads",
        "32",
        "--intermediate-size",
        "8192",
        "--vocab-size",
        "32000",
    ]
    argv = ["explain", *model, "--mode", mode, "--engine", engine, "--gpu-type", "H100", "--strategy", "tp8"]
    limited = cli(*argv, "--group-norm-size", "4", "--json").json
    assert [v["sentence"] for v in limited["violations"] if v["rule"] == "norm groups % tp"] == [
        "4 groups of the output norm cannot be divided by tp 8 (remainder 4); tp 4 would do"
    ]
    free = cli(*argv, "--group-norm-size", "8", "--json").json
    assert not any(v["rule"] == "norm groups % tp" for v in free.get("violations", ()))


def test_goals_rank_differently_and_say_so(cli, small):
    argv = (*small, "--mode", "inference", "--infer-batch-size", "256", "--top", "50")
    plans = cli(*argv, "--goal", "latency", "--json").json["strategies"]
    times = [p["serving"]["ttft_s"] + 1023 * p["serving"]["tpot_s"] for p in plans]
    assert all(b >= a * 0.98 for a, b in pairwise(times))  # ties within 1% are ordered by plainness
    assert "by end-to-end latency of a request" in cli(*argv, "--goal", "latency").out
    assert "by output tokens/s per GPU in use" in cli(*argv, "--goal", "cost").out


def test_fewer_gpus_than_a_node_are_tried_one_by_one(cli, model):
    big = model(num_hidden_layers=48, hidden_size=8192, num_attention_heads=64, intermediate_size=28672)
    argv = ("--model-path", big, "--gpu-type", "H100", "--mode", "inference")
    ran = cli(*argv, "--n-gpus", "1")
    assert ran.code == 3
    needed = int(re.search(r"GPUs: (\d) would do, \d more than the 1 given", ran.words)[1])
    assert 1 < needed < 8
    assert cli(*argv, "--n-gpus", str(needed)).code == 0
    assert cli(*argv, "--n-gpus", str(needed - 1)).code == 3


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_fewest_nodes(cli, model, mode):
    big = {"num_hidden_layers": 64, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28672}
    memory, path = ("4", model()) if mode == "training" else ("16", model(**big))
    argv = ("--model-path", path, "--gpu-type", "A100-SXM-40GB", "--mode", mode, "--gpu-memory-gb", memory)
    argv += ("--host-memory-gb", "8") if mode == "training" else ()
    body = cli(*argv, "--find-min-nodes", "--json", "--top", "1").json
    nodes = body["min_nodes"]["n_nodes"]
    assert nodes > 1
    assert body["cluster"]["n_nodes"] == nodes
    assert body["cluster"]["n_gpus"] == body["min_nodes"]["n_gpus"] == 8 * nodes
    assert body["strategies"][0]["verdict"] != "does not fit"
    assert cli(*argv, "--n-gpus", str(8 * (nodes - 1)), "--json").code == 3
    capped = cli(*argv, "--find-min-nodes", "--n-gpus", str(8 * (nodes - 1)))
    assert capped.code == 3


def test_the_most_nodes_to_consider_need_not_be_whole_nodes(cli, model):
    argv = ("--model-path", model(), "--gpu-type", "H100", "--find-min-nodes", "--top", "1", "--json")
    body = cli(*argv, "--n-gpus", "12").json
    assert (body["min_nodes"]["n_nodes"], body["min_nodes"]["most_nodes"], body["min_nodes"]["roomy_n_nodes"]) == (1, 1, 1)
    assert "--n-gpus 12, in whole nodes: at most 8 GPUs" in body["assumptions"]
    assert cli(*argv, "--n-gpus", "4").json["min_nodes"]["n_gpus"] == 4


def test_requests_asked_for_at_once_must_fit_on_the_fewest_nodes(cli, model):
    big = model(num_hidden_layers=64, hidden_size=8192, num_attention_heads=64, intermediate_size=28672)
    argv = ("--model-path", big, "--gpu-type", "H100", "--mode", "inference", "--json", "--top", "3")
    asked = ("--infer-batch-size", "4096", "--isl", "4000", "--osl", "1000")
    body = cli(*argv, *asked, "--find-min-nodes").json
    assert (
        body["min_nodes"]["n_nodes"]
        > cli(*argv, "--isl", "4000", "--osl", "1000", "--find-min-nodes").json["min_nodes"]["n_nodes"]
    )
    assert all(s["serving"]["max_concurrency"] >= 4096 for s in body["strategies"])
    fewer = cli(*argv, *asked, "--find-min-nodes", "--n-gpus", str(body["min_nodes"]["n_gpus"] - 8))
    assert fewer.code == 3
    assert fewer.json["nearest_miss"]["serving"]["max_concurrency"] < 4096
    assert "KV cache: room for" in fewer.json["missing"][0]


def test_training_on_a_gpu_without_bf16(cli, model):
    ran = cli("--model-path", model(num_hidden_layers=2), "--gpu-type", "T4", "--n-gpus", "8", "--json", "--top", "1")
    assert ran.code == 0
    figures = ran.json["strategies"][0]["training"]
    assert 0 < figures["mfu"] < 1
    assert ran.json["workload"]["precision"] == "fp16"
    assert "65.0 TFLOP/s fp16" in cli("explain", "--model-path", model(num_hidden_layers=2), "--gpu-type", "T4").words


def test_explain_a_given_strategy(cli, small):
    ran = cli("explain", *small, "--strategy", "tp2 pp2 dp4 zero1 mbs1")
    assert ran.code == 0
    for title in ("Where the time of one step goes", "Memory by pipeline stage", "What limits it", "Single changes"):
        assert title in ran.out
    assert "tp2 pp2 dp4 zero1 mbs1 · as given" in ran.words
    assert "Where the numbers come from" not in ran.out


def test_explain_the_best_agrees_with_the_search(cli, small):
    best = cli(*small, "--json", "--top", "1").json["strategies"][0]
    body = cli("explain", *small, "--json").json
    assert body["plan"]["strategy"] == best["strategy"]
    assert body["plan"]["cost_s"] == best["cost_s"]
    fitting = [c["throughput_ratio"] for c in body["changes"] if c["fits"]]
    assert fitting
    assert max(fitting) <= 1.02  # no single change of the best beats it, ties apart
    assert body["sources"] is None


def test_explain_sources_lists_every_constant(cli, small):
    body = cli("explain", *small, "--json", "--sources").json
    constants = body["sources"]["constants"]
    assert all(
        c["source"] and c["meaning"] and c["origin"] in {"measured", "vendor", "fitted", "assumed"} for c in constants.values()
    )
    text = cli("explain", *small, "--sources").words
    for name, c in constants.items():
        assert f"{name} = {c['value']:g} [{c['origin']}]" in text


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_sources_are_those_that_the_price_rests_on(cli, small, mode):
    sources = cli("explain", *small, "--mode", mode, "--json", "--sources").json["sources"]
    serving = [name for name in sources["constants"] if name.startswith("serving_")]
    assert bool(serving) == (mode == "inference")
    foreign = "memory_optimizer_bytes" if mode == "inference" else "serving_step_s"
    assert foreign not in sources["constants"]
    assert ("memory_optimizer_bytes" if mode == "training" else "serving_step_s") in sources["constants"]
    names = [figure["name"] for figure in sources["gpu"]]
    assert any("training." in n for n in names) == (mode == "training")
    assert any("attention decode" in n for n in names) == (mode == "inference")
    assert {f["origin"] for f in sources["gpu"]} <= {"measured", "vendor", "fitted", "assumed", "stated"}


def test_a_timeline_is_written(cli, small, tmp_path, refused):
    path = tmp_path / "step.json"
    ran = cli("explain", *small, "--strategy", "tp2 pp4 dp2 zero1 mbs1", "--batch-size", "16", "--trace", str(path))
    assert ran.code == 0
    assert "Trace" in ran.out
    events = json.loads(path.read_text())["traceEvents"]
    forward = [e for e in events if e.get("name", "").startswith("F")]
    assert len(forward) == 4 * 8  # pipeline ranks × micro-batches
    assert all(e["dur"] > 0 for e in forward)
    serving = ("explain", *small, "--mode", "inference", "--trace", str(path))
    assert "serving has none" in refused(*serving)


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.1", "megatron 0.1 is older than 0.9.0, the oldest version"), ("9.9", "megatron 9.9 is newer than 0.19.2")],
)
def test_a_version_that_nobody_looked_at_is_said(cli, small, version, says):
    ran = cli(*small, "--engine", "megatron", "--engine-version", version, "--top", "1")
    assert f"Note {says}" in ran.words
    body = cli(*small, "--engine", "megatron", "--engine-version", version, "--top", "1", "--json").json
    assert body["notes"][0].startswith(says)
    known = cli(*small, "--engine", "megatron", "--engine-version", "0.12.1", "--top", "1", "--json").json
    assert not any("megatron" in note for note in known["notes"])


def test_idle_gpus_are_said(cli, small):
    ran = cli("explain", *small, "--mode", "inference", "--strategy", "tp8 dp1")
    assert "Note 8 of the 16 GPUs stay idle" in ran.words


def test_the_longest_request_must_fit(cli, model):
    argv = ("--model-path", model(max_position_embeddings=4194304), "--gpu-type", "H100", "--n-gpus", "1", "--mode", "inference")
    assert cli(*argv).code == 0
    held = cli(*argv, "--json").json["strategies"][0]["serving"]["kv_tokens_per_instance"]
    assert cli(*argv, "--max-length", str(held // 2)).code == 0
    ran = cli(*argv, "--max-length", str(2 * held))
    assert ran.code == 3
    assert re.search(rf"(one request of {2 * held:,} tokens|GPU memory: the nearest miss needs)", ran.words)


def test_a_rate_of_requests_that_must_be_sustained(cli, small):
    argv = (*small, "--mode", "inference", "--json", "--top", "50")
    rates = [s["serving"]["requests_per_s"] for s in cli(*argv).json["strategies"]]
    asked = sorted(rates)[len(rates) // 2]
    kept = cli(*argv, "--request-rate", repr(asked)).json["strategies"]
    assert kept
    assert all(s["serving"]["requests_per_s"] >= asked for s in kept)
    ran = cli(*small, "--mode", "inference", "--request-rate", repr(1.7 * max(rates)))
    assert ran.code == 3
    assert "rate: the nearest strategy that fits" in ran.words
    assert re.search(r"GPUs: [\d,]+ \([\d,]+ nodes\) would do", ran.words)


def test_explain_lists_every_broken_rule(cli, small):
    argv = ("explain", *small, "--strategy", "tp16 pp1 dp1 cp1 vpp2 mbs1")
    ran = cli(*argv)
    assert ran.code == 3
    body = cli(*argv, "--json").json
    assert body["status"] == "illegal"
    assert body["violations"]
    for v in body["violations"]:
        assert " ".join(v["sentence"].split()) in ran.words
    assert f"breaks {len(body['violations'])} rule" in ran.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--strategy", "tp3"],
            "'tp3 pp1 dp1 mbs1' is for 3 GPUs and the cluster has 16; without dp it takes 3, which does not divide",
        ),
        (["--strategy", "tp4"], "is for 4 GPUs and the cluster has 16; with dp4 it would fill them"),
        (["--strategy", " "], "--strategy is empty"),
        (["--strategy", "tp4 xp2"], "'xp2' is not a dimension"),
        (["--strategy", "tp4", "--planner", "grid"], "--planner chooses a strategy and --strategy gives one"),
        (["--planner", "gird"], "unknown planner 'gird'; did you mean grid"),
    ],
)
def test_explain_refuses(refused, small, argv, says):
    assert says in refused("explain", *small, *argv)


def test_measured_profiles_change_the_answer_and_are_named(cli, small, tmp_path):
    path = tmp_path / "mine.json"
    kernel = {"bf16": {"compute": 0.3, "memory": 0.5}}
    path.write_text(json.dumps({"gpu": "H100", "source": "my bench", "gemm": kernel}))
    serving = (*small, "--mode", "inference", "--json", "--top", "1")
    with_profile, without = cli(*serving, "--profile-data", str(path)).json, cli(*serving, "--no-profile").json
    assert with_profile["strategies"][0]["tokens_per_s_per_gpu"] < without["strategies"][0]["tokens_per_s_per_gpu"]
    assert any(str(path) in a for a in with_profile["assumptions"])


def test_plugins_show_status_and_hooks(cli):
    rows = {(p["kind"], p["name"]): p for p in cli("plugins", "--json").json["plugins"]}
    assert rows["engines", "megatron"]["status"] == "loaded"
    assert "rules" in rows["engines", "megatron"]["hooks"]
    off = cli("plugins", "--no-plugin", "megatron")
    assert re.search(r"^megatron +engines .* disabled", off.out, re.MULTILINE)


def test_engines_show_modes_and_defaults(cli):
    rows = {e["name"]: e for e in cli("engines", "--json").json["engines"]}
    assert rows["megatron"]["default_for"] == ["training"]
    assert rows["sglang"]["default_for"] == ["inference"]
    assert all(name in cli("engines").out for name in rows)


def test_a_gpu_with_its_sources(cli, refused):
    body = cli("gpus", "show", "h100", "--json").json["gpu"]
    assert body["name"] == "H100-SXM-80GB"
    assert body["peak_flops"]["bf16"] == pytest.approx(989.4e12)
    assert body["sources"]["hbm_bytes_per_s"]
    assert "989 TFLOP/s" in cli("gpus", "show", "H100").words
    assert "did you mean" in refused("gpus", "show", "H101")
    assert "autoparallel gpus show H100" in refused("gpus", "H100")
    assert "exactly one GPU" in refused("gpus", "show", "H100", "H200")
    assert "exactly one GPU" in refused("gpus", "show")


def test_a_model_in_detail(cli, model, refused):
    path = model()
    body = cli("models", "show", path, "--json").json
    # 2·V·h + layers·(2h² q,o + 2·h·1024 k,v + 3·h·f + 2h) + h
    layer = 2 * 2048**2 + 2 * 2048 * 1024 + 3 * 2048 * 8192 + 2 * 2048
    assert body["parameters"]["text"] == 2 * 32000 * 2048 + 16 * layer + 2048
    assert body["kv_cache"]["bytes_per_token"] == 16 * 2 * 8 * 128 * 2
    shown = cli("models", "show", path)
    assert f"{body['parameters']['text']:,}" in shown.words
    assert "16 layers, hidden 2,048, 16 heads, 8 KV heads" in shown.words
    assert "unknown model" in refused("models", "show", "no/such-model")


def test_unknown_config_fields_are_listed(cli, model):
    assert "strange_gate" in cli("models", "show", model(strange_gate=7)).out


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_the_progress_bar_waits_a_second_and_needs_a_terminal(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    drawn = []
    monkeypatch.setattr(Progress, "_draw", lambda self: drawn.append(clock.now) or setattr(self, "_bar", Bar()))
    with Progress(enabled=True) as bar:
        bar(1, 10)
        clock.now = 0.9
        bar(2, 10)
        assert drawn == []
        clock.now = 1.1
        bar(3, 10)
        bar(4, 10)
        assert drawn == [1.1]
    with Progress(enabled=False) as bar:
        clock.now += 5
        bar(1, 10)
    assert drawn == [1.1]


class Bar:
    def update(self, *args, **kwargs):
        pass

    def stop(self):
        pass


def test_a_drawn_bar_goes_to_standard_error_and_is_cleared(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    with Progress(enabled=True, what="pricing") as bar:
        clock.now = 2.0
        bar(5, 10)
    out, err = capsys.readouterr()
    assert not out
    assert "pricing" in err
