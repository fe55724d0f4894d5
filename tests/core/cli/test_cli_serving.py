"""The bare command in inference: price, loads that nobody can use, the frontier, pools, what nothing meets."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

LARGE = {"hidden_size": 8192, "num_hidden_layers": 64, "num_attention_heads": 64, "intermediate_size": 28672}


@pytest.fixture
def serve(cli, model):
    """Runs the command on a model of 60 billion parameters."""
    path = model(**LARGE)

    def run(*argv):
        return cli("--mode", "inference", "--model-path", path, "--gpu-type", "H100", "--n-gpus", "8", *argv)

    return run


def test_price_in_table_and_json_is_gpu_hours_over_tokens(serve):
    plan = serve("--gpu-hour-price", "2.5", "--json").json["strategies"][0]["serving"]
    gpus = plan["instances"] * plan["gpus_per_instance"]
    assert plan["price_per_million_output_tokens"] == pytest.approx(gpus * 2.5 / 3600 / plan["output_tokens_per_s"] * 1e6)
    assert plan["price_per_million_tokens"] == pytest.approx(plan["price_per_million_output_tokens"] / 2)
    assert "price per 1M" in serve("--gpu-hour-price", "2.5").out
    assert "price per" not in serve().out


def test_cost_with_a_rate_takes_the_fewest_gpus_that_serve_it(serve):
    best = serve("--goal", "cost", "--request-rate", "1", "--gpu-hour-price", "2", "--json").json["strategies"][0]["serving"]
    gpus = best["instances"] * best["gpus_per_instance"]
    assert gpus < 8
    assert 1 <= best["requests_per_s"] < 1.2
    assert serve("--n-gpus", str(gpus // 2), "--goal", "cost", "--request-rate", "1").code == 3


def test_a_load_that_nobody_can_use_is_called_so(serve):
    ran = serve("--isl", "3000", "--osl", "300")
    assert "too slow for people" in ran.words
    body = serve("--isl", "3000", "--osl", "300", "--json").json
    usable = body["usable"]["same_layout"]
    assert usable["ttft_s"] <= body["usable"]["ttft_limit_s"]
    assert usable["concurrency"] < body["strategies"][0]["serving"]["concurrency"]
    assert body["notes"][0].startswith("too slow for people")
    assert "too slow" not in serve("--infer-batch-size", "4").out


def test_more_requests_than_the_cache_holds_wait_and_the_answer_says_so(serve):
    ran = serve("--infer-batch-size", "20000", "--max-num-seqs", "8192")
    assert "of these" in ran.out
    assert "waiting" in ran.out
    assert "wait for a place, which the time to first token includes: the KV cache holds" in ran.words
    limited = serve("--infer-batch-size", "500", "--max-num-seqs", "16")
    assert "the engine runs at most 16 sequences together (--max-num-seqs)" in limited.words


def test_the_frontier_as_table_and_plot(serve):
    ran = serve("--pareto")
    assert "Pareto frontier" in ran.out
    assert "tok/s/user" in ran.out
    points = serve("--pareto", "--json").json["frontier"]["points"]
    assert len(points) > 4
    for a, b in pairwise(points):
        assert a["output_tokens_per_s_per_gpu"] >= b["output_tokens_per_s_per_gpu"]
        assert a["tokens_per_s_per_user"] <= b["tokens_per_s_per_user"]


def test_pools_beside_the_answer(serve):
    ran = serve("--disaggregate", "--gpu-hour-price", "2")
    assert "two pools" in ran.out
    assert "moving a prompt's KV cache takes" in ran.words
    body = serve("--decode-gpu-type", "H200", "--decode-n-gpus", "4", "--json").json["disaggregated"]
    assert {d["decode"]["gpu"] for d in body["deployments"]} == {"H200-SXM-141GB"}
    assert all(d["decode"]["gpus"] <= 4 for d in body["deployments"])


def test_pools_may_keep_limits_that_no_aggregated_deployment_keeps(serve):
    argv = ("--isl", "4000", "--osl", "200", "--ttft-ms", "400", "--tpot-ms", "40", "--request-rate", "10")
    alone = serve(*argv)
    together = serve(*argv, "--disaggregate", "--json")
    if alone.code == 3 and together.json["disaggregated"]["deployments"]:
        assert together.code == 0
        assert together.json["status"] == "ok"
        assert together.json["disaggregated"]["gain"] is None


def test_limits_that_nothing_keeps_say_which_and_by_how_much(serve):
    ran = serve("--ttft-ms", "1", "--tpot-ms", "1")
    assert ran.code == 3
    assert "has TTFT" in ran.err
    assert "where at most 1.00 ms is allowed" in ran.err
    assert "too slow)" in ran.err
    assert serve("--ttft-ms", "1", "--disaggregate").code == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--decode-n-gpus", "8"), "give --decode-gpu-type, too"),
        (("--decode-gpu-type", "H200", "--decode-gpu-hour-price", "1"), "--gpu-hour-price"),
        (("--mode", "training", "--disaggregate"), "--disaggregate belongs to --mode inference"),
        (("--gpu-hour-price", "0"), "--gpu-hour-price"),
        (("--mode", "training", "--gpu-hour-price", "1"), "--gpu-hour-price belongs to --mode inference"),
    ],
)
def test_flags_that_make_no_sense_are_refused(refused, model, argv, words):
    mode = () if "--mode" in argv else ("--mode", "inference")
    assert words in refused(*mode, "--model-path", model(), "--gpu-type", "H100", "--n-gpus", "8", *argv)


def test_too_many_requests_for_the_limits_say_how_many_would_do(serve):
    limits = ("--ttft-ms", "1500", "--tpot-ms", "60")
    ran = serve(*limits, "--infer-batch-size", "5000")
    assert ran.code == 3
    n = int(re.search(r"requests in flight: ([\d,]+) would do", ran.err)[1].replace(",", ""))
    assert serve(*limits, "--infer-batch-size", str(n)).code == 0


def test_a_rate_that_the_limits_do_not_allow_says_the_most_and_how_many_nodes(serve):
    ran = serve("--ttft-ms", "1500", "--tpot-ms", "60", "--request-rate", "30")
    assert ran.code == 3
    assert "requests/s at most within the limits where 30.0 are asked for" in ran.err
    nodes = int(re.search(r"\((\d+) nodes\) would do", ran.err)[1])
    assert serve("--ttft-ms", "1500", "--tpot-ms", "60", "--request-rate", "30", "--n-gpus", str(8 * nodes)).code == 0
    capped = serve("--ttft-ms", "1500", "--tpot-ms", "60", "--request-rate", "30", "--find-min-nodes")
    assert "where 30.0 are asked for" in capped.err


def test_a_server_may_take_a_part_of_a_node(serve):
    found = serve("--find-min-nodes", "--json").json["min_nodes"]
    assert (found["n_nodes"], found["n_gpus"]) == (1, 2)
    assert serve("--n-gpus", "1").code == 3
    assert "2 GPUs of one node are the fewest that fit" in serve("--find-min-nodes").words


@pytest.mark.parametrize("goal", ["throughput", "latency", "cost"])
def test_one_output_token_is_an_answer(serve, goal):
    ran = serve("--isl", "100", "--osl", "1", "--goal", goal, "--pareto", "--disaggregate", "--gpu-hour-price", "1")
    assert ran.code == 0
    assert "warning" not in ran.err
    assert serve("--isl", "100", "--osl", "1", "--goal", goal, "--disaggregate", "--json").json["frontier"]["points"]
