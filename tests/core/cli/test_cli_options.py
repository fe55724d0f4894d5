"""Every flag reaches the problem, and a bad or foreign one is refused with a sentence."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoparallel_core.cli.flags import PROBLEM_FLAGS, add_problem_flags
from autoparallel_core.cli.options import DEFAULT_GPU_TOKENS, DEFAULT_STEP_TOKENS, Question, default_batch
from autoparallel_core.cli.parser import Parser
from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.spec.problem import Problem


def parsed(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="autoparallel")
    add_problem_flags(parser)
    return parser.parse_args(argv)


def problem(*argv: str) -> Problem:
    return Question(parsed(*argv), host()).problem()


@pytest.fixture
def base(model):
    return ("--model-path", model(), "--gpu-type", "H100", "--n-gpus", "16")


def test_defaults_are_stated(model):
    p = problem("--model-path", model())
    assert (p.mode, p.engine.name) == ("training", "megatron")
    assert p.cluster.gpu.name.startswith("H200")
    assert (p.cluster.n_gpus, p.cluster.gpus_per_node) == (8, 8)
    assert (p.training.seq_len, p.training.global_batch_size, p.training.precision) == (4096, 1024, "bf16")
    said = " ".join(p.assumptions)
    for flag in (
        "--engine megatron",
        "--gpu-type H200",
        "--n-gpus 8",
        "--max-length 4096",
        "--batch-size 1024",
        "--precision bf16",
    ):
        assert flag in said


def test_inference_defaults_are_stated(model):
    p = problem("--model-path", model(), "--mode", "inference")
    assert p.engine.name == "sglang"
    assert (p.inference.isl, p.inference.osl, p.inference.concurrency, p.inference.load) == (1024, 1024, None, "closed")
    said = " ".join(p.assumptions)
    assert "--isl 1024 --osl 1024" in said
    assert "as many requests in flight as the KV cache holds" in said


def test_nothing_given_is_assumed(base):
    p = problem(*base, "--engine", "megatron", "--max-length", "2048", "--batch-size", "64", "--precision", "bf16")
    assert not any(a.startswith("--") for a in p.assumptions)


@pytest.mark.parametrize(
    ("argv", "read", "value"),
    [
        (["--max-length", "2048"], lambda p: p.training.seq_len, 2048),
        (["--batch-size", "96"], lambda p: p.training.global_batch_size, 96),
        (["--max-tokens-per-mb", "8192"], lambda p: p.training.max_tokens_per_micro_batch, 8192),
        (["--no-recompute"], lambda p: p.training.recompute_allowed, False),
        (["--optimizer-cpu-offload"], lambda p: p.training.optimizer_cpu_offload, True),
        (["--no-grad-reduce-in-fp32"], lambda p: p.software.grad_dtype, "bf16"),
        (["--precision", "fp8"], lambda p: p.training.precision, "fp8"),
        (["--engine", "fsdp"], lambda p: p.engine.name, "fsdp"),
        (["--engine-version", "0.14.0"], lambda p: p.engine_version, "0.14.0"),
        (["--gpus-per-node", "4"], lambda p: p.cluster.n_nodes, 4),
        (["--gpu-memory-gb", "60"], lambda p: p.cluster.gpu.memory_bytes, 60e9),
        (["--gpu-memory-gb", "60GiB"], lambda p: p.cluster.gpu.memory_bytes, 60 * 2**30),
        (["--host-memory-gb", "512"], lambda p: p.cluster.host_memory_bytes_per_node, 512e9),
        (["--gpu-flops", "500"], lambda p: p.cluster.gpu.peak("bf16"), 500e12),
        (["--bw-nvlink", "200"], lambda p: p.cluster.tiers[0].bytes_per_s, 200e9),
        (["--bw-ib", "200Gb/s"], lambda p: p.cluster.tiers[-1].bytes_per_s, 25e9),
        (["--mode", "inference", "--isl", "300"], lambda p: p.inference.isl, 300),
        (["--mode", "inference", "--osl", "200"], lambda p: p.inference.osl, 200),
        (
            ["--mode", "inference", "--infer-batch-size", "32"],
            lambda p: (p.inference.concurrency, p.inference.load),
            (32, "closed"),
        ),
        (["--mode", "inference", "--max-length", "4096"], lambda p: p.inference.max_model_len, 4096),
        (["--mode", "inference", "--max-tokens-per-mb", "4096"], lambda p: p.inference.max_num_batched_tokens, 4096),
        (["--mode", "inference", "--precision", "fp8"], lambda p: p.inference.precision, "fp8"),
        (["--mode", "inference", "--engine", "vllm"], lambda p: p.engine.name, "vllm"),
        (["--mode", "inference", "--goal", "latency"], lambda p: p.inference.goal, "latency"),
        (["--mode", "inference", "--request-rate", "2.5"], lambda p: p.inference.request_rate_per_s, 2.5),
        (["--mode", "inference", "--ttft-ms", "250"], lambda p: p.inference.ttft_limit_s, 0.25),
        (["--mode", "inference", "--tpot-ms", "12.5"], lambda p: p.inference.tpot_limit_s, 0.0125),
        (["--mode", "inference", "--kv-dtype", "fp8"], lambda p: p.inference.kv_dtype, "fp8"),
        (["--mode", "inference", "--max-num-seqs", "64"], lambda p: p.inference.max_num_seqs, 64),
        (["--mode", "inference", "--memory-fraction", "0.8"], lambda p: p.inference.memory_fraction, 0.8),
        (["--mode", "inference", "--prefix-hit-rate", "0.5"], lambda p: p.inference.prefix_hit_rate, 0.5),
        (["--mode", "inference", "--accepted-length", "2.4"], lambda p: p.inference.accepted_length, 2.4),
    ],
)
def test_every_flag_reaches_the_problem(base, argv, read, value):
    assert read(problem(*base, *argv)) == pytest.approx(value)


MANUAL = ["--hidden-size", "4096", "--num-layers", "12", "--num-heads", "32", "--vocab-size", "32000"]


@pytest.mark.parametrize(
    ("argv", "parameters"),
    [
        # 2·V·h + layers·(q, o: 2·h² ; k, v ; 3·h·f ; 2 norms) + final norm
        (["--intermediate-size", "11008"], 2 * 32000 * 4096 + 12 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096),
        (
            ["--intermediate-size", "11008", "--num-kv-heads", "8", "--head-dim", "64"],
            2 * 32000 * 4096 + 12 * (4096 * 64 * (2 * 32 + 2 * 8) + 3 * 4096 * 11008 + 2 * 4096) + 4096,
        ),
        (
            # one dense layer, eleven of 8 experts with a router and one shared expert
            [
                *("--intermediate-size", "11008", "--num-experts", "8", "--num-experts-per-tok", "2"),
                *("--expert-intermediate-size", "1024", "--n-shared-experts", "1", "--first-k-dense-replace", "1"),
            ],
            2 * 32000 * 4096 + 12 * (4 * 4096**2 + 2 * 4096) + 3 * 4096 * 11008 + 11 * (9 * 3 * 4096 * 1024 + 8 * 4096) + 4096,
        ),
        (
            # MLA: q down and up, kv down (latent and rope) and up, o; norms of both latents
            [
                *("--intermediate-size", "11008", "--kv-lora-rank", "512", "--q-lora-rank", "1536"),
                *("--qk-nope-head-dim", "128", "--qk-rope-head-dim", "64", "--v-head-dim", "128"),
            ],
            2 * 32000 * 4096
            + 12
            * (
                (4096 * 1536 + 1536 + 1536 * 32 * 192)
                + (4096 * 576 + 512 + 512 * 32 * 256)
                + 32 * 128 * 4096
                + 3 * 4096 * 11008
                + 2 * 4096
            )
            + 4096,
        ),
    ],
)
def test_a_model_by_hand_has_the_parameters_that_its_flags_say(argv, parameters):
    from autoparallel_core.ops.params import parameter_counts

    arch = Question(parsed(*MANUAL, *argv), host()).arch
    assert parameter_counts(arch)["text"] == parameters
    assert any("by hand" in note for note in arch.notes)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--hidden-size", "4096"], "also needs --num-layers, --num-heads, --vocab-size, --intermediate-size"),
        (
            [*MANUAL, "--intermediate-size", "1", "--num-kv-heads", "7"],
            "--num-kv-heads 7 does not divide --num-heads 32; it may be 1, 2, 4",
        ),
        ([*MANUAL, "--intermediate-size", "1", "--num-experts", "8"], "--num-experts also needs --num-experts-per-tok"),
        ([*MANUAL, "--intermediate-size", "1", "--kv-lora-rank", "8"], "--kv-lora-rank also needs --qk-nope-head-dim"),
        ([*MANUAL, "--intermediate-size", "1", "--n-shared-experts", "8"], "--n-shared-experts also needs --num-experts"),
        (
            ["--hidden-size", "4095", *MANUAL[2:], "--intermediate-size", "1"],
            "--hidden-size 4095 is not a multiple of --num-heads 32; give --head-dim",
        ),
        (
            [*MANUAL, "--num-experts", "8", "--num-experts-per-tok", "9", "--expert-intermediate-size", "64"],
            "--num-experts-per-tok 9 is more than --num-experts 8",
        ),
    ],
)
def test_contradictory_sizes_are_refused(argv, says):
    with pytest.raises(SpecError, match=says.replace("(", r"\(")):
        Question(parsed(*argv), host())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--model-path", "/nowhere/at/all"], "--model-path /nowhere/at/all: no such file"),
        (["--model", "x", "--model-path", "y"], "both name a model"),
        (["--model", "x", "--num-layers", "3"], "--num-layers describes a model by hand and cannot be combined with --model"),
        ([], "no model is given"),
    ],
)
def test_models_that_cannot_be_found(argv, says):
    with pytest.raises(SpecError, match=says):
        Question(parsed(*argv), host())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--n-gpus", "12"], "--n-gpus 12: 12 GPUs do not fill nodes of 8; use 8 or 16 GPUs"),
        (["--max-tokens-per-mb", "1000"], "--max-tokens-per-mb 1000 is below one sequence of 4096 tokens; give at least 4096"),
        (["--isl", "8"], "--isl belongs to --mode inference and this is training; for training use --max-length"),
        (["--infer-batch-size", "8"], "for training use --batch-size"),
        (["--mode", "inference", "--batch-size", "8"], "for inference use --infer-batch-size"),
        (["--mode", "inference", "--host-memory-gb", "512"], "--host-memory-gb belongs to --mode training"),
        (["--mode", "inference", "--no-recompute"], "--no-recompute belongs to --mode training"),
        (["--mode", "inference", "--optimizer-cpu-offload"], "belongs to --mode training"),
        (["--mode", "inference", "--no-grad-reduce-in-fp32"], "belongs to --mode training"),
        (["--mode", "inference", "--max-length", "9"], "--max-length 9 is below --isl 1024 \\+ --osl 1024; give at least 2048"),
        (["--mode", "inference", "--engine", "megatron"], "engine 'megatron' is for training, not inference"),
        (["--engine", "megatrn"], "did you mean megatron"),
        (["--gpu-type", "H1000"], "unknown GPU 'H1000'; did you mean H100"),
        (["--gpu-type", "A100", "--precision", "fp8"], "--precision fp8: A100.* has no fp8 tensor cores; it supports bf16"),
        (["--profile-data", "/no/such.json"], "profile /no/such.json: no such file"),
        (["--profile-data", "x", "--no-profile"], "contradict"),
        (["--cluster", "/no/such.toml", "--bw-ib", "3"], "--gpu-type and --cluster both describe the cluster"),
    ],
)
def test_bad_questions_are_refused(base, argv, says):
    drop = [a for a in ("--gpu-type", "--n-gpus") if a in argv]
    kept = [w for i, w in enumerate(base) if not (w in drop or (i and base[i - 1] in drop))]
    with pytest.raises(SpecError, match=says):
        problem(*kept, *argv)


def test_a_missing_cluster_file_is_refused(model):
    with pytest.raises(SpecError, match=r"cluster file /no/such\.toml"):
        problem("--model-path", model(), "--cluster", "/no/such.toml")


def test_a_cluster_file_replaces_the_flags(model, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[[gpus]]\ntype = "H100"\nnodes = 4\ngpu_memory_gb = 70\n[[network]]\nname = "spine"\ngb_per_s = 25\n')
    question = Question(parsed("--model-path", model(), "--cluster", str(path)), host())
    assert question.cluster.n_gpus == 32
    assert question.cluster.gpu.memory_bytes == 70e9
    assert question.cluster.tiers[-1].bytes_per_s == 25e9
    smaller, larger = question.resized(16), question.resized(64)
    assert (smaller.tiers[-1].name, smaller.tiers[-1].ranks) == ("spine", 16)
    assert (larger.tiers[-1].name, larger.tiers[-1].ranks) == ("spine", 64)
    assert smaller.gpu.memory_bytes == larger.gpu.memory_bytes == 70e9


def test_settings_of_experts_are_assumed_for_models_with_experts_only(model):
    assert not any("ep overlap" in a for a in problem("--model-path", model()).assumptions)
    moe = [*MANUAL, "--num-experts", "8", "--num-experts-per-tok", "2", "--expert-intermediate-size", "64"]
    assert any("ep overlap" in a for a in problem(*moe).assumptions)


def test_longer_than_the_models_positions_is_said(model):
    p = problem("--model-path", model(), "--max-length", "16384")
    assert any("longer than the 8,192 positions" in a for a in p.assumptions)
    serving = problem("--mode", "inference", "--model-path", model(), "--max-length", "16384")
    assert any("requests of 16,384 tokens, longer than the 8,192" in a for a in serving.assumptions)


def test_a_short_model_lowers_the_default_length(model):
    assert problem("--model-path", model(max_position_embeddings=2048)).training.seq_len == 2048


@given(st.integers(1, 16384), st.sampled_from([128, 2048, 4096, 131072]))
def test_the_default_batch_keeps_the_odd_part_of_the_gpus(n_gpus, seq_len):
    batch = default_batch(n_gpus, seq_len)
    odd = n_gpus & -n_gpus
    assert batch % (n_gpus // odd) == 0
    # within a factor of the square root of two of the aim, unless the odd part alone exceeds it
    ratio = batch * seq_len / max(DEFAULT_STEP_TOKENS, DEFAULT_GPU_TOKENS * n_gpus)
    assert ratio >= 0.5**0.5 * 0.99
    assert ratio <= 2**0.5 * 1.01 or batch == n_gpus // odd


def test_every_flag_says_what_it_means():
    assert all(f.help and f.name.startswith("--") for f in PROBLEM_FLAGS)
    assert len({f.name for f in PROBLEM_FLAGS}) == len(PROBLEM_FLAGS)
