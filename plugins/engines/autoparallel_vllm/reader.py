"""Reading ``vllm serve`` commands (and the older module entry), alone or inside scripts, manifests and YAML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Parsed, dashed, parse, sort_leftover
from autoparallel_core.launch.found import Found, find, has_flag, image_at, one_launch, program_at
from autoparallel_core.launch.result import KV_DTYPES, said, server_copies, shared_fields
from autoparallel_core.launch.sources import Sources, keyword_words, take_apart
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy
from autoparallel_vllm.flags import HARMLESS, NOTABLE, PER_NODE, TABLE
from autoparallel_vllm.refusals import refusals

NAME = "vllm"
MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
IMAGES = ("vllm-openai", "vllm-openai-rocm", "rocm-vllm")
"""Container images whose entry point is the server."""
TELLTALE = ("--gpu-memory-utilization", "--max-model-len", "--enable-expert-parallel", "--max-num-batched-tokens")
"""Flags that no other engine has; enough to know a bare list of arguments."""


def command_at(words: Sequence[str], *, named: bool) -> int | None:
    """Where the arguments begin, None when this is no launch of vLLM."""
    at = program_at(words, "vllm", then="serve")
    if at is None:
        at = program_at(words, *MODULES, "vllm")
        if at is not None and words[at] not in MODULES:
            at = at if at + 1 < len(words) and words[at + 1].startswith("-") else None
    if at is None:
        at = image_at(words, *IMAGES)
    if at is None and words[0].startswith("-") and (named or has_flag(words, *TELLTALE)):
        return -1
    return at


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    sources = take_apart(files)
    found = one_launch(find(sources, lambda w: command_at(w, named=engine == NAME)), per_node=PER_NODE, program="vllm serve")
    if found is None and (called := keyword_words(sources, ("LLM", "EngineArgs", "AsyncEngineArgs"), NAME)) is not None:
        found = Found(called, {}, Machines())
    if found is None and (found := _from_yaml(sources, named=engine == NAME)) is None:
        return None
    words = [dashed(w) for w in found.words]
    parsed = parse(words, TABLE, program="vllm serve")
    parsed = _with_config(parsed, sources)
    model = parsed.get("model") or (found.words[0] if found.words and not found.words[0].startswith("-") else None)
    return _launch(sources, found, parsed, model, problem)


def _from_yaml(sources: Sources, *, named: bool) -> Found | None:
    """A YAML file of flags, as ``vllm serve --config`` takes it."""
    for base, document in sources.data.items():
        if sources.kinds.get(base) == "yaml" and isinstance(document, Mapping):
            words = _words_of(document)
            if has_flag(words, *TELLTALE) or (named and has_flag(words, "--tensor-parallel-size", "--pipeline-parallel-size")):
                return Found(tuple(words), {}, Machines(), (base,))
    return None


def _words_of(document: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in document.items():
        flag = "--" + str(key).replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value else []
        elif value is not None and not isinstance(value, Mapping | list):
            words += [flag, str(value)]
        elif value is not None:
            words.append(flag)
    return words


def _with_config(parsed: Parsed, sources: Sources) -> Parsed:
    """Flags win over the YAML file that ``--config`` names."""
    name = parsed.get("config")
    document = sources.data.get(str(name).rsplit("/", 1)[-1]) if name else None
    if not isinstance(document, Mapping):
        return parsed
    more = parse(_words_of(document), TABLE, program=f"vllm serve --config {name}")
    return Parsed({**more.values, **parsed.values}, (*parsed.extra, *more.extra), (*parsed.unset, *more.unset))


def _launch(sources: Sources, found: Found, parsed: Parsed, model: str | None, problem: Problem | None) -> Launch:
    tp, pp, dp, pcp = (parsed.get(k, 1) for k in ("tp", "pp", "dp", "pcp"))
    one = tp * pp * dp * pcp
    ranks = parsed.given("dp_rank") or parsed.get("external_lb", default=False)
    per_node = found.machines.gpus_per_node
    spread = parsed.get("nnodes", 1) > 1 or found.words != _first(found) or (per_node is not None and one > per_node)
    copies, notes = server_copies(sources, found, one, spread=spread, ranks=ranks)
    if parsed.given("kv_bytes"):
        notes.append("--kv-cache-memory-bytes fixes the cache; the prediction sizes it by the memory fraction")
    leftover = sort_leftover(parsed.extra, harmless=HARMLESS, notable=NOTABLE)
    return Launch(
        engine=NAME,
        form="vllm serve",
        version=found.image_version(*IMAGES),
        strategy=None if problem is None else strategy_of(parsed, problem, copies),
        n_gpus=max(found.machines.total or 0, one * copies),
        gpus_per_node=per_node,
        model=model,
        workload=_workload(parsed),
        longest_request=None if problem is None else parsed.get("max_model_len") or problem.arch.max_position_embeddings,
        refusals=() if problem is None else tuple(refusals(parsed, problem, found.environment)),
        **shared_fields(sources, parsed, leftover, notes, _unmodelled(parsed)),
    )


def _first(found: Found) -> tuple[str, ...]:
    """The arguments, unless they say that this is one node of several."""
    return () if has_flag(found.words, "--node-rank", "--headless", "--data-parallel-size-local", "-dpl") else found.words


def strategy_of(parsed: Parsed, problem: Problem, copies: int) -> Strategy:
    """Replicas of a model with experts share them (attention dp); replicas of a dense model are instances."""
    tp, pp, dp, pcp = (parsed.get(k, 1) for k in ("tp", "pp", "dp", "pcp"))
    common = {"tp": tp, "sp": int(tp > 1), "pp": pp, "cp": pcp}
    if not is_moe(problem.arch):
        return Strategy(**common, dp=dp * copies, ep=tp * dp if parsed.get("ep", default=False) else 1)
    ranks = tp * dp
    by_expert = parsed.get("ep", default=False)
    return Strategy(**common, attn_dp=dp, dp=copies, ep=ranks if by_expert else 1, etp=1 if by_expert else ranks)


def _workload(parsed: Parsed) -> dict[str, Any]:
    return said(
        max_model_len=parsed.get("max_model_len"),
        max_num_seqs=parsed.get("max_num_seqs"),
        max_num_batched_tokens=parsed.get("max_num_batched_tokens"),
        memory_fraction=parsed.get("memory_fraction"),
        kv_dtype=KV_DTYPES.get(str(parsed.get("kv_dtype", "auto"))),
        precision="fp8" if parsed.get("quantization") in {"fp8", "fbgemm_fp8", "ptpc_fp8"} else None,
    )


def _unmodelled(parsed: Parsed) -> list[str]:
    out = []
    if parsed.get("dcp", 1) > 1:
        out.append(f"--decode-context-parallel-size {parsed.get('dcp')} spreads the cache over tp ranks, which is not priced")
    if parsed.given("speculative_config") or parsed.given("speculative_model"):
        out.append("speculative decoding is priced by --accepted-length, 1 unless you give it; draft weights are not counted")
    if parsed.get("eplb", default=False):
        out.append("--enable-eplb balances experts; redundant copies are not counted")
    if parsed.get("enforce_eager", default=False):
        out.append("--enforce-eager turns graphs off: their memory is free for the cache, and steps take longer than predicted")
    if parsed.get("cpu_offload_gb", 0) > 0:
        out.append("--cpu-offload-gb keeps weights in host memory, which is not modelled")
    return out
