"""The flags of ``autoparallel plan``, as data: read by the parser and held against docs/reference/plan.md by a test."""

from __future__ import annotations

from argparse import ArgumentTypeError

from autoparallel_core.cli.flags import Flag
from autoparallel_core.cli.values import MEMORY, number, one_of, quantity, whole

PRECISIONS = ("bf16", "fp16", "fp32")


def pin(text: str) -> tuple[str, str]:
    """``PATTERN=PLACEMENT``."""
    name, equals, placement = text.partition("=")
    if not equals or not name.strip() or not placement.strip():
        raise ArgumentTypeError(f"{text!r} is not PATTERN=PLACEMENT; write it like 'layers.*.wq=R S(0)'")
    return name.strip(), placement.strip()


FUNCTIONS = (
    Flag("--module", "function of no arguments that makes the module, found from this directory", str, "PKG.MOD:FUNCTION"),
    Flag("--inputs", "the same for the arguments of one call: a mapping, or a sequence", str, "PKG.MOD:FUNCTION"),
    Flag("--reduced", "makes a small copy to verify on, for a large module without a config", str, "PKG.MOD:FUNCTION"),
    Flag("--reduced-inputs", "arguments of the small copy (default: those of --inputs, made smaller)", str, "PKG.MOD:FUNCTION"),
)
MODEL = (
    Flag("--model-path", "a config.json, a directory that holds one, or a model known by name", str, "PATH"),
    Flag("--model", "a model known by name ('autoparallel models' lists them)", str, "NAME"),
    Flag("--seq-len", "tokens per sequence (default 4096)", whole()),
    Flag("--global-batch-size", "sequences per step, over all GPUs (default: one per GPU)", whole()),
    Flag("--precision", f"dtype of the parameters: one of {', '.join(PRECISIONS)} (default bf16)", one_of(*PRECISIONS), "P"),
)
MACHINE = (
    Flag("--mesh", "names and sizes, outermost first, as dp=32,tp=8; auto (default) searches the shape", str, "MESH"),
    Flag("--n-gpus", "GPUs of a searched mesh", whole()),
    Flag("--gpu-type", "GPU preset ('autoparallel gpus' lists them)", str, "NAME"),
    Flag("--gpus-per-node", "GPUs in one node (default: as the preset)", whole()),
    Flag("--cluster", "a cluster.toml instead of these flags", str, "FILE"),
)
SCHEDULES = ("1f1b", "gpipe", "interleaved")
PIPELINE = (
    Flag("--micro-batches", "with a mesh whose first dimension is pp: micro-batches per step (default twice pp)", whole()),
    Flag("--schedule", f"with pp: one of {', '.join(SCHEDULES)} (default 1f1b)", one_of(*SCHEDULES), "S"),
    Flag("--stages-per-rank", "with pp and --schedule interleaved (default 2)", whole(2)),
)
SEARCH = (
    Flag("--pin", "keep the placement of what the pattern matches (repeatable): 'layers.*.wq=R S(0)'", pin, "PATTERN=PLACEMENT"),
    Flag(
        "--memory-limit", "memory of one GPU to stay within, GB or with a unit (default: all of it)", quantity(MEMORY, "GB"), "GB"
    ),
    Flag("--optimizer-bytes", "optimizer state per parameter (default: Adam's, 12 with 16-bit parameters)", number(least=0), "B"),
    Flag("--time-limit", "seconds that the search may take (default 120)", number(above=0), "S"),
)
OUTPUT = (
    Flag("--out", "write the plan there, as JSON", str, "FILE"),
    Flag("--html", "write the page there: graph, placements, cost, memory over time", str, "FILE"),
    Flag("--force", "overwrite files that exist"),
    Flag("--all", "list every collective"),
    Flag("--json", "one JSON object on standard output"),
)
GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("a module", FUNCTIONS),
    ("or a model from its config", MODEL),
    ("mesh and cluster", MACHINE),
    ("pipeline", PIPELINE),
    ("search", SEARCH),
    ("output", OUTPUT),
)
PLAN_FLAGS: tuple[Flag, ...] = tuple(f for _, group in GROUPS for f in group)
