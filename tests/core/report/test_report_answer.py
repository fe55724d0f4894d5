from __future__ import annotations

import re

import pytest
from attrs import evolve
from report_builders import PARAMETERS, problem, result, serving_plan, training_plan

from autoparallel_core.report.answer import print_answer, print_nothing_fits, refusals
from autoparallel_core.report.missing import min_nodes_document, min_nodes_line, what_is_missing
from autoparallel_core.search.min_nodes import MinNodes
from autoparallel_core.search.result import CostBreakdown


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_training_answer_says_everything_at_every_width(console_at, width):
    console, out = console_at(width)
    print_answer(console, result(), PARAMETERS, pareto=True)
    text = words(out.getvalue())
    for figure in (
        "70.60 B parameters",
        "64 × T-80 · 8 nodes of 8 · 80.0 GB each",
        "given: bw_ib=50 GB/s",
        "plain 1.2",
        "512 sequences × 4,096 tokens = 2,097,152 tokens per step",
        "--batch-size 512",
        "ep overlap: off",
        "tp8 pp4 dp2 zero1 mbs1",
        "1,000",
        "2.00 s",
        "45.0%",
        "60.0",
        "20.0",
        "fits",
        "4,096",
        "256",
        "4×20",
        "largest exposed cost: TP",
        "+5.3% over #2",
        "−10.0% against #1",
        "1,204 refused: 812 heads % tp, 392 experts % ep",
        "5,000 strategies · 3,796 legal and priced · 1,200 fit",
        "TP collectives: 375 ms in #1 after what plugin plain says",
    ):
        assert figure in text
    assert max(map(len, out.getvalue().splitlines())) <= width


@pytest.mark.parametrize("width", [80, 160])
def test_a_serving_answer_says_latencies_with_intervals(console_at, width):
    console, out = console_at(width)
    print_answer(console, result("inference"), PARAMETERS)
    text = words(out.getvalue())
    for figure in (
        "1,000 input + 500 output tokens per request · 96 requests in flight",
        "2 × 4 GPUs: tp 4",
        "200 ms",
        "150–300 ms",
        "17.0–25.0 ms",
        "20.4 ms",
        "80.0 ms",
        "366,000",
        "488",
        "4,000",
        "8.00",
        "48.0",
        "35.0",
        "30.0",
    ):
        assert figure in text


def test_only_the_first_three_are_reasoned(console_at):
    console, out = console_at(100)
    print_answer(console, result(n=5), PARAMETERS)
    assert out.getvalue().count("largest exposed cost: TP") == 3


def test_plans_that_do_not_fit_are_not_ranked(console_at):
    console, out = console_at(100)
    plans = (training_plan(), training_plan(verdict="does not fit"))
    print_answer(console, result(plans=plans), PARAMETERS)
    assert "does not fit" not in out.getvalue()


def test_refusals_are_counted_by_rule_and_the_rest_summed():
    assert refusals({"a": 2, "b": 1000, "c": 1}) == "1,003 refused: 1,000 b, 2 a, 1 c"
    assert refusals({"a": 2, "b": 1000, "c": 1}, 1) == "1,003 refused: 1,000 b, 3 by 2 other rules"
    assert refusals({}) == "none refused"


def found(nodes: int | None) -> MinNodes:
    return MinNodes(nodes, None if nodes is None else 8 * nodes, result(), (1, 2, 4, 3), (), 4096)


def test_what_is_missing_names_memory_and_gpus():
    miss = training_plan(verdict="does not fit")
    sentences = what_is_missing(result(plans=(), fitting=0, nearest_miss=miss), found(12))
    assert sentences == [
        "GPU memory: the nearest miss needs 92.0 GB on stage 0 of 80.0 GB, 12.0 GB too much per GPU",
        "GPUs: 96 (12 nodes) would do, 32 more than the 64 given",
    ]


def test_what_is_missing_when_no_strategy_is_legal():
    sentences = what_is_missing(result(plans=(), fitting=0, nearest_miss=None), found(None))
    assert sentences[0].startswith("no strategy is legal on 64 GPUs")
    assert "nothing fits on 1, 2, 3, 4 nodes of 8 either" in sentences[1]


def test_what_is_missing_names_the_kv_cache():
    miss = serving_plan()
    miss = evolve(miss, verdict="does not fit", serving=evolve(miss.serving, max_concurrency=40))
    sentences = what_is_missing(result("inference", plans=(), fitting=0, nearest_miss=miss), None)
    assert sentences == ["KV cache: room for 40 requests of the 96 asked for"]


def test_nothing_fits_shows_the_nearest_miss(console_at):
    console, out = console_at(80)
    miss = training_plan(verdict="does not fit")
    print_nothing_fits(console, result(plans=(), fitting=0, nearest_miss=miss), PARAMETERS, ["12 GB too much"])
    text = words(out.getvalue())
    assert "Nothing fits - 12 GB too much" in text
    assert "peak 92.0 GB · −12.0 GB free" in text


def test_the_fewest_nodes_in_one_sentence():
    assert min_nodes_line(found(3)) == "3 nodes of 8 is the fewest that fits: 24 GPUs (tried 1, 2, 3, 4)"
    assert min_nodes_line(found(None)) == "nothing fits on up to 4,096 nodes (tried 1, 2, 3, 4)"


def test_the_fewest_nodes_say_what_they_need_and_where_there_is_room():
    plan = training_plan("tp8 pp4 dp2 zero1 mbs1 offload=optimizer", verdict="tight")
    plan = evolve(plan, memory=evolve(plan.memory, host_bytes_per_node=1.5e12))
    edge = evolve(found(3), result=result(plans=(plan,)), roomy_nodes=8, roomy_most=48)
    assert min_nodes_line(edge) == (
        "3 nodes of 8 is the fewest that fits: 24 GPUs (tried 1, 2, 3, 4); #1 there needs 1,500.0 GB of 2,000.0 GB host memory "
        "per node and is tight (2.0 GB free); a plan with room to spare (not tight, nothing in host memory) needs 8 nodes, "
        "64 GPUs"
    )
    none = min_nodes_line(evolve(edge, roomy_nodes=None))
    assert none.endswith("no plan on up to 48 nodes has room to spare (not tight, nothing in host memory)")
    assert min_nodes_line(evolve(edge, roomy_nodes=3)).endswith(
        "a plan there has room to spare (not tight, nothing in host memory)"
    )
    body = min_nodes_document(edge)
    assert (body["host_bytes_per_node"], body["roomy_n_nodes"], body["roomy_n_gpus"], body["roomy_most_nodes"]) == (
        1.5e12, 8, 64, 48,
    )  # fmt: skip


def test_long_runs_of_tried_nodes_are_ranges():
    tried = evolve(found(9), tried=(1, 2, 4, 8, 16, *range(9, 16)))
    assert "(tried 1, 2, 4, 8–16)" in min_nodes_line(tried)


def test_host_memory_alone_is_not_blamed_on_the_gpu():
    plan = training_plan("tp8 pp4 dp2 zero1 mbs1 offload=optimizer")
    miss = evolve(plan, verdict="does not fit", memory=evolve(plan.memory, host_bytes_per_node=2.5e12))
    assert what_is_missing(result(plans=(), fitting=0, nearest_miss=miss)) == [
        "host memory: the nearest miss needs 2,500.0 GB per node of 2,000.0 GB, 500.0 GB too much"
    ]


def test_unknown_config_fields_are_shown(console_at):
    console, out = console_at(80)
    p = problem()
    p = evolve(p, arch=evolve(p.arch, unknown_fields=("strange_gate",)))
    print_answer(console, result(problem=p), PARAMETERS)
    assert "Config fields that were not understood: strange_gate" in out.getvalue()


def test_only_labels_are_bold(console_at):
    import io

    from rich.console import Console

    from autoparallel_core.report.console import labelled

    out = io.StringIO()
    labelled(Console(file=out, width=80, force_terminal=True, color_system="standard"), [("Model", "x y")])
    assert out.getvalue() == "\x1b[1mModel  \x1b[0mx y\n"


def test_ties_with_the_row_above_are_marked(console_at):
    console, out = console_at(120)
    plans = tuple(training_plan(f"tp8 pp4 dp2 zero1 mbs{i + 1}", rate) for i, rate in enumerate((1000.0, 991.0, 970.0, 969.0)))
    print_answer(console, result(plans=plans), PARAMETERS)
    rows = re.findall(r"^(\d)  (tp8.*)$", out.getvalue(), re.MULTILINE)
    assert [(n, "≈" in row) for n, row in rows] == [("1", False), ("2", True), ("3", False), ("4", True)]


def test_equal_plans_are_called_as_fast(console_at):
    console, out = console_at(100)
    print_answer(console, result(plans=(training_plan(rate=1000.0), training_plan("tp4 pp4 dp4 zero1 mbs1", 1000.1))), PARAMETERS)
    assert "#1 tp8 pp4 dp2 zero1 mbs1 · as fast as #2" in words(out.getvalue())
    assert "0.0%" not in out.getvalue().split("Why these")[1].split("largest")[0]


def test_the_columns_of_memory_sum_to_the_peak(console_at):
    console, out = console_at(200)
    print_answer(console, result(n=1), PARAMETERS)
    text = out.getvalue()
    assert "context" in text
    assert "allocator" in text
    row = re.search(r"^ *1  .*4×20 +(.*)$|^1  +4,096.*4×20 +(.*)$", text, re.MULTILINE)
    figures = [float(x) for x in (row[1] or row[2]).split()]
    assert sum(figures) == pytest.approx(60.0)


def test_mfu_names_its_peak_below_16_bit(console_at):
    found = result(n=1)
    low = evolve(found, problem=found.problem.with_workload(evolve(found.problem.workload, precision="fp8")))
    for answer, title in ((found, "MFU"), (low, "MFU of bf16 peak")):
        console, out = console_at(100)
        print_answer(console, answer, PARAMETERS)
        head = out.getvalue().split("Best")[1].splitlines()
        assert ("bf16 peak" in words(" ".join(head[1:3]))) == (title != "MFU")


def test_host_memory_is_in_the_header_when_a_plan_uses_it(console_at):
    console, out = console_at(100)
    plan = training_plan()
    print_answer(console, result(plans=(plan,)), PARAMETERS)
    assert "host memory" not in out.getvalue()
    console, out = console_at(100)
    offloaded = evolve(plan, memory=evolve(plan.memory, host_bytes_per_node=1e12))
    print_answer(console, result(plans=(plan, offloaded)), PARAMETERS)
    assert "host memory 2,000.0 GB per node" in words(out.getvalue().split("Best")[0])


def test_idle_gpus_and_small_batches_are_noted(console_at):
    console, out = console_at(100)
    plan = training_plan("tp8 pp4 dp1 zero1 mbs1")
    plan = evolve(plan, training=evolve(plan.training, micro_batches=4), cost=CostBreakdown({"gemm": 1.0, "bubble": 0.75}))
    print_answer(console, result(plans=(plan,)), PARAMETERS)
    text = words(out.getvalue())
    assert "Note 32 of the 64 GPUs stay idle" in text
    assert (
        "the batch is small for this cluster: 4 micro-batches on 4 pipeline stages; 16 sequences per step would spread the"
        in text
    )


def test_small_effects_of_the_engine_are_not_mentioned(console_at):
    console, out = console_at(100)
    tiny = evolve(training_plan(), cost=CostBreakdown({"gemm": 1.99, "tp_comm": 0.009}))
    print_answer(console, result(plans=(tiny,)), PARAMETERS)
    assert "What the engine changed" not in out.getvalue()


def test_the_goal_is_the_first_figure_of_a_serving_answer(console_at):
    for goal, column in (("latency", "end-to-end"), ("cost", "in use")):
        console, out = console_at(160)
        asked = problem("inference")
        asked = evolve(asked, workload=evolve(asked.inference, goal=goal))
        print_answer(console, result("inference", problem=asked), PARAMETERS)
        head = out.getvalue().split("Best ")[1].split("\n 1  ")[0].split("\n1  ")[0]
        assert head.index(column) < head.index("TTFT")
    assert "10.2 s" in _latency_answer(console_at)  # 20.4 ms × 500 output tokens


def _latency_answer(console_at) -> str:
    console, out = console_at(160)
    asked = problem("inference")
    print_answer(
        console, result("inference", problem=evolve(asked, workload=evolve(asked.inference, goal="latency"))), PARAMETERS
    )
    return out.getvalue()


def test_the_version_is_assumed_as_a_flag_and_one_request_is_singular(console_at):
    console, out = console_at(120)
    asked = problem("inference")
    asked = evolve(asked, workload=evolve(asked.inference, concurrency=1), assumptions=("plain 1.2",))
    print_answer(console, result("inference", problem=asked), PARAMETERS)
    head = words(out.getvalue().split("Best")[0])
    assert "1 request in flight" in head
    assert "--engine-version 1.2" in head
    assert head.count("plain 1.2") == 1
