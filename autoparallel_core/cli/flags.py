"""Every flag that describes a question, as data: one table read by the parser, the mode check and the docs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from autoparallel_core.cli.software import software_settings
from autoparallel_core.cli.values import BANDWIDTH, FLOPS, MEMORY, number, one_of, quantity, whole
from autoparallel_core.errors import SpecError
from autoparallel_core.spec.workload import PRECISIONS

MODES = ("training", "inference")
GOALS = ("throughput", "latency", "cost")
GRANULARITIES = ("stage", "degrees", "layer", "operator")
TASKS = ("pretrain", "sft", "lora")
KV_DTYPES = ("bf16", "fp16", "fp8")


@frozen
class Flag:
    """One flag. ``read`` None makes it a switch; ``modes`` are those in which it means something."""

    name: str
    help: str
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    modes: tuple[str, ...] = MODES
    instead: str = field(default="")
    """What to use in the other mode, when there is a counterpart."""

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        if self.read is None:
            group.add_argument(self.name, action="store_true", default=None, help=self.help)
        else:
            group.add_argument(self.name, type=self.read, metavar=self.metavar or "N", default=None, help=self.help)


def _manual(name: str, meaning: str) -> Flag:
    return Flag(f"--{name}", meaning, whole(0 if name == "first-k-dense-replace" else 1))


TRAINING = ("training",)
INFERENCE = ("inference",)

QUESTION = (
    Flag("--mode", "training (default) or inference", one_of(*MODES), "MODE"),
    Flag("--engine", "the software that runs it ('autoparallel engines' lists them)", str, "NAME"),
    Flag("--engine-version", "its version; rules and memory policies depend on it", str, "V"),
    Flag("--precision", f"one of {', '.join(PRECISIONS)}; inference: overrides the checkpoint", one_of(*PRECISIONS), "P"),
    Flag("--planner", "how to search (default auto: two_level where stages of any size help, else grid)", str, "NAME"),
    Flag(
        "--granularity",
        f"two_level planner: one of {', '.join(GRANULARITIES)}: what is chosen one by one (default stage)",
        one_of(*GRANULARITIES),
        "G",
        modes=("training",),
    ),
)
MODEL = (
    Flag("--model-path", "a config.json, or a directory that holds one", str, "PATH"),
    Flag("--model", "a model known by name ('autoparallel models' lists them)", str, "NAME"),
)
MANUAL = (
    _manual("hidden-size", "width of the residual stream"),
    _manual("num-layers", "decoder layers"),
    _manual("num-heads", "query heads"),
    _manual("num-kv-heads", "key/value heads (default: as many as query heads)"),
    _manual("head-dim", "width of one head (default: hidden size / heads)"),
    _manual("intermediate-size", "width of the dense feed-forward"),
    _manual("vocab-size", "rows of the embedding"),
    _manual("num-experts", "routed experts"),
    _manual("num-experts-per-tok", "experts that each token visits"),
    _manual("expert-intermediate-size", "width of one routed expert"),
    _manual("n-shared-experts", "experts that every token visits"),
    _manual("kv-lora-rank", "MLA: width of the cached latent"),
    _manual("q-lora-rank", "MLA: width of the query latent"),
    _manual("qk-nope-head-dim", "MLA: unrotated width per head"),
    _manual("qk-rope-head-dim", "MLA: rotated width per head"),
    _manual("v-head-dim", "MLA: value width per head"),
    _manual("group-norm-size", "linear attention: groups of the output norm, which tp must divide"),
    _manual("first-k-dense-replace", "MoE: leading layers that stay dense"),
)
CLUSTER = (
    Flag("--gpu-type", "GPU preset ('autoparallel gpus' lists them)", str, "NAME"),
    Flag("--n-gpus", "GPUs in all (default: one node); with --find-min-nodes the most to consider", whole()),
    Flag("--gpus-per-node", "GPUs in one node (default: as the preset)", whole()),
    Flag("--cluster", "a cluster.toml instead of these flags", str, "FILE"),
    Flag("--gpu-memory-gb", "memory of one GPU, decimal GB or with a unit (80GiB)", quantity(MEMORY, "GB"), "GB"),
    Flag("--host-memory-gb", "training: host memory of one node, GB", quantity(MEMORY, "GB"), "GB", modes=("training",)),
    Flag("--gpu-flops", "dense bf16 peak of one GPU, TFLOP/s; other dtypes scale with it", quantity(FLOPS, "TFLOP/s"), "TFLOPS"),
    Flag("--bw-nvlink", "scale-up link per GPU and direction, GB/s", quantity(BANDWIDTH, "GB/s"), "GB/s"),
    Flag("--bw-ib", "network per GPU and direction, GB/s", quantity(BANDWIDTH, "GB/s"), "GB/s"),
)
BOTH_WORKLOADS = (
    Flag("--max-length", "training: tokens per sequence (default 4096); inference: longest request the engine admits", whole()),
    Flag("--max-tokens-per-mb", "most tokens in one micro-batch (training) or one engine step (inference)", whole()),
)
TRAINING_FLAGS = (
    Flag("--task", "pretrain (default), sft, or lora (frozen weights)", one_of(*TASKS), "T", modes=TRAINING),
    Flag(
        "--software",
        "what the software does, where it is not the engine's default: tp_overlap=on,recompute_modules=core_attn+mlp",
        software_settings,
        "NAME=VALUE,…",
        modes=TRAINING,
    ),
    Flag(
        "--batch-size",
        "global batch, in sequences (default: about 4 million tokens, 16,384 per GPU on more than 256)",
        whole(),
        modes=TRAINING,
        instead="--infer-batch-size",
    ),
    Flag("--optimizer-cpu-offload", "keep optimizer state in host memory", modes=TRAINING),
    Flag("--activation-offload", "let plans keep activations of some layers in host memory", modes=TRAINING),
    Flag("--no-recompute", "forbid activation recomputation", modes=TRAINING),
    Flag("--no-grad-reduce-in-fp32", "reduce gradients in 16 bit", modes=TRAINING),
)
INFERENCE_FLAGS = (
    Flag("--isl", "input tokens per request (default 1024)", whole(), modes=INFERENCE, instead="--max-length"),
    Flag("--osl", "output tokens per request (default 1024)", whole(), modes=INFERENCE),
    Flag(
        "--infer-batch-size",
        "requests in flight over the whole cluster (default: as many as fit)",
        whole(),
        modes=INFERENCE,
        instead="--batch-size",
    ),
    Flag(
        "--goal", "throughput (default), latency (of one request) or cost (per GPU in use)", one_of(*GOALS), "G", modes=INFERENCE
    ),
    Flag(
        "--request-rate",
        "requests per second that the whole cluster must sustain (default: none asked for)",
        number(above=0),
        "R",
        modes=INFERENCE,
    ),
    Flag("--ttft-ms", "most milliseconds to the first token", number(above=0), "MS", modes=INFERENCE),
    Flag("--tpot-ms", "most milliseconds between tokens", number(above=0), "MS", modes=INFERENCE),
    Flag(
        "--kv-dtype",
        f"KV cache: one of {', '.join(KV_DTYPES)} (default: the checkpoint's)",
        one_of(*KV_DTYPES),
        "D",
        modes=INFERENCE,
    ),
    Flag("--max-num-seqs", "most sequences in one engine step (default: the engine's)", whole(), modes=INFERENCE),
    Flag(
        "--memory-fraction", "the engine's memory fraction (default: the engine's)", number(above=0, most=1), "F", modes=INFERENCE
    ),
    Flag(
        "--prefix-hit-rate",
        "share of prompt tokens found in the cache (default 0)",
        number(least=0, most=1),
        "R",
        modes=INFERENCE,
    ),
    Flag(
        "--gpu-hour-price",
        "price of one GPU for an hour, in any currency: answers then price a million tokens",
        number(above=0),
        "X",
        modes=INFERENCE,
    ),
    Flag("--accepted-length", "mean tokens per step of speculative decoding (default 1)", number(least=1), "L", modes=INFERENCE),
)
DATA = (
    Flag("--profile-data", "measured efficiencies to use in place of the preset's", str, "FILE"),
    Flag("--no-profile", "presets only: leave out your cache of measured profiles, and those that plugins ship (none so far)"),
    Flag("--calibration", "factors learnt from your own runs ('autoparallel calibrate' writes the file)", str, "FILE"),
)

GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("question", QUESTION),
    ("model", MODEL),
    ("model by hand", MANUAL),
    ("cluster", CLUSTER),
    ("workload", BOTH_WORKLOADS),
    ("workload: training only", TRAINING_FLAGS),
    ("workload: inference only", INFERENCE_FLAGS),
    ("measured data", DATA),
)
PROBLEM_FLAGS: tuple[Flag, ...] = tuple(f for _, group in GROUPS for f in group)


def add_problem_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that describe a model, a cluster and a workload; all default to None (not given)."""
    for title, flags in GROUPS:
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)


def refuse_foreign_flags(args: argparse.Namespace, mode: str) -> None:
    """Raise SpecError for a given flag that means nothing in this mode, so that none is silently ignored."""
    for flag in PROBLEM_FLAGS:
        if mode not in flag.modes and getattr(args, flag.dest) is not None:
            hint = f"; for {mode} use {flag.instead}" if flag.instead else ""
            raise SpecError(f"{flag.name} belongs to --mode {flag.modes[0]} and this is {mode}{hint}")
