"""What Megatron-LM turns down in its arguments before a layout exists, with the numbers.

Source: megatron/training/arguments.py (validate_args) and core/transformer/transformer_config.py (__post_init__).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autoparallel_core.cost.recompute import MODULES
from autoparallel_core.launch.flags import Parsed
from autoparallel_core.spec.launch import Refusal
from autoparallel_core.spec.problem import Problem

ARGUMENTS = "megatron/training/arguments.py, validate_args"
CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
OTHER_MODULES = ("gdn", "gdn_conv", "gdn_norm", "mhc", "attn_norm", "mlp_norm", "qkv_linear", "attn_proj", "expert_fc1")
NEEDS_ONE_CONNECTION = ("volta", "turing", "ampere", "ada", "hopper")
"""Generations before the one that lifted the requirement on CUDA_DEVICE_MAX_CONNECTIONS."""


def layout_stages(text: str) -> list[str]:
    """The stages of a layout string: ``Et*3|(tt|)*29,m|L`` → ``["Ettt", "tt", …, "m", "L"]``.

    ``x*n`` repeats a letter, ``(…)*n`` a group; commas and blanks mean nothing.
    """
    plain = re.sub(r"[\s,\"']", "", text)
    while (m := re.search(r"\(([^()]*)\)\*(\d+)", plain)) is not None:
        plain = plain[: m.start()] + m[1] * int(m[2]) + plain[m.end() :]
    plain = re.sub(r"([A-Za-z|])\*(\d+)", lambda m: m[1] * int(m[2]), plain)
    return plain.split("|")


def refusals(p: Parsed, problem: Problem, environment: Mapping[str, str], vpp: int) -> Iterator[Refusal]:
    """Every combination that is refused."""
    yield from _dead(p)
    yield from _virtual(p, problem)
    yield from _uneven(p, problem, vpp)
    yield from _layout(p, problem)
    yield from _context(p)
    yield from _recompute(p)
    yield from _sharding(p, problem, environment)
    yield from _optimizer(p, environment)


def _dead(p: Parsed) -> Iterator[Refusal]:
    for key, flag, new in (
        ("dead_tp", "--model-parallel-size", "--tensor-model-parallel-size"),
        ("dead_batch", "--batch-size", "--micro-batch-size"),
        ("dead_ckpt", "--checkpoint-activations", "--recompute-activations"),
    ):
        if p.given(key):
            yield Refusal("removed flag", f"{flag} is no longer valid; use {new}", ARGUMENTS)


def _virtual(p: Parsed, problem: Problem) -> Iterator[Refusal]:
    stated = [f for k, f in (
        ("layers_per_virtual", "--num-layers-per-virtual-pipeline-stage"), ("virtual", "--num-virtual-stages-per-pipeline-rank"),
        ("layout", "--pipeline-model-parallel-layout"),
    ) if p.get(k)]  # fmt: skip
    if len(stated) > 1:
        yield Refusal(
            "one way to interleave", f"{' and '.join(stated)} all state the virtual stages; give one of them", ARGUMENTS
        )
    per, pp = p.get("layers_per_virtual"), p.get("pp", 1)
    if not per:
        return
    if p.given("first") or p.given("last"):
        sentence = (
            "uneven first or last layers with --num-layers-per-virtual-pipeline-stage; use --num-virtual-stages-per-pipeline-rank"
        )
        yield Refusal("uneven interleaving", sentence, ARGUMENTS)
        return
    layers = _counted(p, problem)
    if layers % pp:
        yield Refusal("layers % pp", f"{layers} layers (with the ends counted) cannot be divided by pp {pp}", ARGUMENTS)
    elif (layers // pp) % per:
        yield Refusal(
            "layers per stage % virtual",
            f"{layers // pp} layers of a stage are no multiple of {per} layers per virtual stage",
            ARGUMENTS,
        )


def _counted(p: Parsed, problem: Problem) -> int:
    return problem.arch.num_layers + sum(bool(p.get(k, default=False)) for k in ("account_embedding", "account_loss"))


def _uneven(p: Parsed, problem: Problem, vpp: int) -> Iterator[Refusal]:
    first, last, pp, layers = p.get("first"), p.get("last"), p.get("pp", 1), problem.arch.num_layers
    if p.get("layout") or p.get("layers_per_virtual"):
        return
    if first is None and last is None:
        counted = _counted(p, problem)
        if counted % pp:
            hint = _uneven_hint(layers, pp)
            yield Refusal(
                "layers % pp",
                f"{counted} layers{' (embedding or loss counted)' if counted != layers else ''} cannot be divided by pp {pp} "
                f"(remainder {counted % pp}) and no flag spreads them unevenly{hint}",
                ARGUMENTS,
            )
        elif (counted // pp) % vpp:
            yield Refusal(
                "layers per stage % vpp", f"{counted // pp} layers of a stage cannot be divided by {vpp} virtual stages", CONFIG
            )
        return
    given = [n for n in (first, last) if n is not None]
    rest, middle = layers - sum(given), pp - len(given)
    words = " + ".join(f"{name} {n}" for name, n in (("first", first), ("last", last)) if n is not None)
    if middle <= 0:
        if rest:
            yield Refusal(
                "first + last = layers",
                f"{words} = {sum(given)} layers of {layers}: with pp {pp} there is no stage for the other {rest}, "
                "which would never be built",
                f"{CONFIG}; issue 2718",
            )
        return
    if rest < 0 or rest % middle:
        yield Refusal(
            "middle layers % stages",
            f"{layers} layers minus {words} leave {rest} for {middle} stages (remainder {rest % middle if rest > 0 else rest})",
            CONFIG,
        )
    elif vpp > 1 and any(n % vpp for n in (*given, rest // middle)):
        counts = ", ".join(map(str, (*given, rest // middle)))
        yield Refusal("uneven % vpp", f"layers per rank {counts} must all be multiples of {vpp} virtual stages", CONFIG)


def _uneven_hint(layers: int, pp: int) -> str:
    for last in range(layers // pp + 1, 0, -1):
        if pp > 1 and (layers - last) % (pp - 1) == 0:
            return f"; --decoder-last-pipeline-num-layers {last} would do"
    return ""


def _layout(p: Parsed, problem: Problem) -> Iterator[Refusal]:
    text = p.get("layout")
    if not text:
        return
    stages, pp = layout_stages(text), p.get("pp", 1)
    joined = "".join(stages)
    if unknown := sorted(set(joined) - set("EtmL")):
        yield Refusal("layout letters", f"the layout holds {', '.join(unknown)}; known: E, t, m, L and | between stages", LAYOUT)
    if len(stages) % pp:
        yield Refusal("layout stages % pp", f"the layout has {len(stages)} stages, no multiple of pp {pp}", LAYOUT)
    if joined.count("t") != problem.arch.num_layers:
        yield Refusal(
            "layout layers", f"the layout has {joined.count('t')} decoder layers and the model {problem.arch.num_layers}", LAYOUT
        )
    if joined.count("E") != 1 or joined.count("L") != 1 or not joined.startswith("E") or not joined.endswith("L"):
        yield Refusal("layout ends", "the layout must begin with the one embedding E and end with the one loss L", LAYOUT)
    stated = p.get("mtp") or 0
    if joined.count("m") != stated and (joined.count("m") or stated):
        yield Refusal("layout mtp", f"the layout has {joined.count('m')} MTP layers and --mtp-num-layers is {stated}", LAYOUT)


def _context(p: Parsed) -> Iterator[Refusal]:
    cp, kinds, levels = p.get("cp", 1), p.get("cp_comm_type") or [], p.get("hierarchical")
    seq, positions = p.get("seq"), p.get("positions")
    if levels and all(str(n).isdigit() for n in levels) and math.prod(int(n) for n in levels) != cp:
        product = " × ".join(levels)
        yield Refusal("hierarchical cp", f"--hierarchical-context-parallel-sizes {product} must multiply to cp {cp}", ARGUMENTS)
    if "a2a+p2p" in kinds and not levels:
        yield Refusal("hierarchical cp", "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes", ARGUMENTS)
    if seq and positions and positions < seq:
        yield Refusal("positions", f"--max-position-embeddings {positions} is below --seq-length {seq}", ARGUMENTS)


def _recompute(p: Parsed) -> Iterator[Refusal]:
    granularity, method, n = p.get("recompute_granularity"), p.get("recompute_method"), p.get("recompute_layers")
    if granularity == "full" and not method:
        yield Refusal("recompute method", "full recompute needs --recompute-method uniform or block", CONFIG)
    if granularity == "full" and method and not n:
        yield Refusal("recompute layers", "full recompute needs --recompute-num-layers", CONFIG)
    if granularity == "selective" and (method or n):
        given = " and ".join(f for f, v in (("--recompute-method", method), ("--recompute-num-layers", n)) if v)
        yield Refusal("selective recompute", f"selective recompute takes no {given}; --recompute-modules chooses what", CONFIG)
    unknown = [m for m in p.get("recompute_modules") or () if m not in MODULES and m not in OTHER_MODULES]
    if unknown:
        yield Refusal("recompute modules", f"unknown recompute module {', '.join(unknown)}; known: {', '.join(MODULES)}", CONFIG)


def _sharding(p: Parsed, problem: Problem, environment: Mapping[str, str]) -> Iterator[Refusal]:
    connections = environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    tp, pp, cp, ep = (p.get(k, 1) for k in ("tp", "pp", "cp", "ep"))
    fsdp = "Megatron-FSDP" if p.get("mfsdp", default=False) else "Torch FSDP2" if p.get("torch_fsdp", default=False) else None
    if fsdp and connections == "1":
        yield Refusal("fsdp connections", f"{fsdp} needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1; it is 1", ARGUMENTS)
    if p.get("mfsdp", default=False) and p.get("ckpt_format") not in {"fsdp_dtensor", None}:
        yield Refusal(
            "fsdp checkpoint", f"Megatron-FSDP writes --ckpt-format fsdp_dtensor only, not {p.get('ckpt_format')}", ARGUMENTS
        )
    if p.get("torch_fsdp", default=False):
        for bad, why in (
            (pp > 1, f"pp {pp}"), (ep > 1, f"ep {ep}"), (p.get("dist_opt", default=False), "--use-distributed-optimizer"),
            (p.get("fp16", default=False), "fp16"), (not p.get("untied", default=False), "tied embeddings"),
        ):  # fmt: skip
            if bad:
                yield Refusal("torch fsdp2", f"--use-torch-fsdp2 does not combine with {why}", ARGUMENTS)
    old = problem.cluster.gpu.architecture.lower() in NEEDS_ONE_CONNECTION
    several = connections is not None and connections.isdigit() and connections != "1"
    if old and several and not fsdp and (tp > 1 or cp > 1) and not p.get("ep_overlap", default=False):
        yield Refusal(
            "connections",
            f"tp {tp} cp {cp} on {problem.cluster.gpu.architecture} needs CUDA_DEVICE_MAX_CONNECTIONS=1; it is {connections}",
            ARGUMENTS,
        )


def _optimizer(p: Parsed, environment: Mapping[str, str]) -> Iterator[Refusal]:
    if p.get("offload", default=False) and not p.get("precise_opt", default=False):
        yield Refusal("offload needs precision", "--optimizer-cpu-offload needs --use-precision-aware-optimizer", ARGUMENTS)
    if p.get("overlap_param_gather", default=False):
        sharded = p.get("dist_opt", default=False) or p.get("mfsdp", default=False)
        if not sharded:
            yield Refusal(
                "param gather", "--overlap-param-gather needs --use-distributed-optimizer or --use-megatron-fsdp", ARGUMENTS
            )
        if not p.get("overlap_grad_reduce", default=False):
            yield Refusal("param gather", "--overlap-param-gather needs --overlap-grad-reduce", ARGUMENTS)
    graphs = p.get("cuda_graph_impl", "none") != "none" or p.get("enable_cuda_graph", default=False)
    segments = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + environment.get("PYTORCH_ALLOC_CONF", "")
    if graphs and "expandable_segments:True" in segments and environment.get("NCCL_GRAPH_REGISTER") != "0":
        sentence = (
            "CUDA graphs with expandable_segments:True reach into memory that moved unless NCCL registers none: "
            "set NCCL_GRAPH_REGISTER=0, or leave the allocator's setting out"
        )
        yield Refusal("graphs and expandable segments", sentence, ARGUMENTS)
    if p.get("bf16", default=False) and p.get("fp16", default=False):
        yield Refusal("one precision", "--bf16 and --fp16 exclude each other", ARGUMENTS)
    if p.get("fp8_format") and p.get("fp4_format"):
        yield Refusal("one precision", "--fp8-format and --fp4-format exclude each other", ARGUMENTS)
