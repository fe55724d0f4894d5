"""What vLLM turns down in its flags before a layout exists: context parallelism, redundant experts, layer partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from autoparallel_core.launch.flags import Parsed
from autoparallel_core.search.facts import has_latent_attention, is_moe, kv_heads, query_heads, routed_experts
from autoparallel_core.spec.launch import Refusal
from autoparallel_core.spec.problem import Problem

_PARALLEL = "vllm/config/parallel.py, ParallelConfig"
_MODEL = "vllm/config/model.py, verify_with_parallel_config"
_INDICES = "vllm/distributed/utils.py, get_pp_indices"


def refusals(parsed: Parsed, problem: Problem, environment: Mapping[str, str]) -> Iterator[Refusal]:
    """Every combination that the engine refuses, with the numbers."""
    yield from _context_parallel(parsed, problem)
    yield from _experts(parsed, problem)
    yield from _partition(parsed, problem, environment)


def _context_parallel(parsed: Parsed, problem: Problem) -> Iterator[Refusal]:
    tp, dp, dcp, pcp = (parsed.get(k, 1) for k in ("tp", "dp", "dcp", "pcp"))
    if pcp > 1 and dp > 1:
        sentence = f"prefill context parallelism {pcp} does not combine with data parallelism {dp}"
        yield Refusal("pcp and dp", sentence, _PARALLEL)
    if dcp == 1:
        return
    if tp % dcp:
        yield Refusal("tp % dcp", f"decode context parallelism {dcp} must divide tp {tp} (remainder {tp % dcp})", _PARALLEL)
        return
    if has_latent_attention(problem.arch):
        return
    heads, kv = max(query_heads(problem.arch), default=1), max(kv_heads(problem.arch), default=1)
    if tp <= kv or dcp > tp // kv:
        most = max(tp // kv, 1)
        yield Refusal(
            "dcp ≤ tp / kv heads",
            f"decode context parallelism {dcp} needs tp {tp} above the {kv} key/value heads, and is at most tp // {kv} = {most}",
            _MODEL,
        )
    elif (heads // kv) % dcp:
        sentence = f"{heads // kv} query heads per key/value head are no multiple of decode context parallelism {dcp}"
        yield Refusal("heads per kv head % dcp", sentence, _MODEL)


def _experts(parsed: Parsed, problem: Problem) -> Iterator[Refusal]:
    tp, dp, pcp = (parsed.get(k, 1) for k in ("tp", "dp", "pcp"))
    by_expert, balanced = parsed.get("ep", default=False), parsed.get("eplb", default=False)
    redundant = _redundant(parsed)
    if balanced and not by_expert:
        yield Refusal(
            "eplb needs ep", "--enable-eplb balances experts between ranks and needs --enable-expert-parallel", _PARALLEL
        )
    if balanced and tp * pcp * dp == 1:
        yield Refusal("eplb needs ranks", "--enable-eplb with tp 1 × dp 1: one rank has nothing to balance", _PARALLEL)
    if redundant and not balanced:
        yield Refusal("redundant experts need eplb", f"{redundant} redundant experts need --enable-eplb", _PARALLEL)
    if by_expert and balanced and is_moe(problem.arch):
        ranks = tp * pcp * dp
        for experts in routed_experts(problem.arch):
            if (experts + redundant) % ranks:
                want = -(-(experts + redundant) // ranks) * ranks - experts
                yield Refusal(
                    "experts + redundant % ep",
                    f"{experts} experts + {redundant} redundant ones = {experts + redundant} cannot be spread over ep {ranks} "
                    f"(remainder {(experts + redundant) % ranks}); {want} redundant ones would do",
                    _PARALLEL,
                )


def _redundant(parsed: Parsed) -> int:
    text = parsed.get("num_redundant_experts")
    config = parsed.get("eplb_config")
    if config:
        try:
            text = json.loads(config).get("num_redundant_experts", text)
        except (ValueError, AttributeError):
            return 0
    return int(text) if str(text or "").isdigit() else 0


def _partition(parsed: Parsed, problem: Problem, environment: Mapping[str, str]) -> Iterator[Refusal]:
    text = environment.get("VLLM_PP_LAYER_PARTITION")
    if not text:
        return
    parts, pp = text.split(","), parsed.get("pp", 1)
    if not all(p.strip().isdigit() for p in parts):
        return
    numbers = [int(p) for p in parts]
    if len(numbers) != pp:
        yield Refusal("layer partition", f"VLLM_PP_LAYER_PARTITION has {len(numbers)} parts and pp is {pp}", _INDICES)
    elif sum(numbers) != problem.arch.num_layers:
        yield Refusal(
            "layer partition",
            f"VLLM_PP_LAYER_PARTITION {text} adds up to {sum(numbers)} layers, and the model has {problem.arch.num_layers}",
            _INDICES,
        )
