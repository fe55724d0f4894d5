"""Reading ``python -m sglang.launch_server`` commands, alone or inside scripts and manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Parsed, dashed, parse, sort_leftover
from autoparallel_core.launch.found import Found, find, has_flag, one_launch, program_at
from autoparallel_core.launch.result import KV_DTYPES, said, server_copies, shared_fields
from autoparallel_core.launch.sources import Sources, keyword_words, take_apart
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy
from autoparallel_sglang.flags import HARMLESS, NOTABLE, PER_NODE, TABLE

NAME = "sglang"
PROGRAMS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang_router.launch_server", "launch_server.py")
TELLTALE = ("--mem-fraction-static", "--enable-dp-attention", "--attn-dp-size", "--chunked-prefill-size", "--dist-init-addr")
A2A_NEEDS_ALL = ("deepep", "mooncake", "ascend_fuseep", "flashinfer", "mori", "nixl")
"""Token exchanges that spread the experts over the whole tensor-parallel group."""
_ARGS = "python/sglang/srt/server_args.py, check_server_args"


def command_at(words: Sequence[str], *, named: bool) -> int | None:
    """Where the arguments begin, None when this is no launch of SGLang."""
    at = program_at(words, *PROGRAMS)
    if at is None:
        at = program_at(words, "sglang", then="serve")
    if at is None and words[0].startswith("-") and (named or has_flag(words, *TELLTALE)):
        return -1
    return at


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    sources = take_apart(files)
    found = one_launch(find(sources, lambda w: command_at(w, named=engine == NAME)), per_node=PER_NODE, program="sglang")
    if found is None and (words := keyword_words(sources, ("Engine", "ServerArgs"), NAME)) is not None:
        found = Found(words, {}, Machines())
    if found is None:
        return None
    parsed = parse([dashed(w) for w in found.words], TABLE, program="sglang", abbreviations=True)
    return _launch(sources, found, parsed, problem)


def attention_dp(parsed: Parsed) -> int:
    """Data-parallel attention ranks inside the tensor-parallel group."""
    stated = parsed.get("attn_dp")
    if stated is not None:
        return int(stated)
    return int(parsed.get("dp", 1)) if parsed.get("dp_attention", default=False) else 1


def expert_parallel(parsed: Parsed) -> int:
    """Ranks that the experts are split over whole."""
    whole = parsed.get("ep_moe", default=False) or parsed.get("deepep", default=False) or parsed.get("a2a") in A2A_NEEDS_ALL
    return int(parsed.get("tp", 1)) if whole else int(parsed.get("ep", 1))


def replicas(parsed: Parsed) -> int:
    """Independent engines that one server starts."""
    inside = parsed.get("dp_attention", default=False)
    return 1 if inside else int(parsed.get("dp", 1))


def _launch(sources: Sources, found: Found, parsed: Parsed, problem: Problem | None) -> Launch:
    tp, pp = parsed.get("tp", 1), parsed.get("pp", 1)
    one = tp * pp * replicas(parsed)
    spread = parsed.get("nnodes", 1) > 1 or parsed.given("node_rank")
    copies, notes = server_copies(sources, found, one, spread=spread)
    leftover = sort_leftover(parsed.extra, harmless=HARMLESS, notable=NOTABLE)
    return Launch(
        engine=NAME,
        form="sglang server",
        version=found.image_version("sglang"),
        strategy=None if problem is None else strategy_of(parsed, problem, copies),
        n_gpus=max(found.machines.total or 0, one * copies),
        gpus_per_node=found.machines.gpus_per_node or (tp * pp // parsed.get("nnodes", 1) if spread else None),
        model=parsed.get("model"),
        workload=_workload(parsed),
        refusals=() if problem is None else tuple(_refusals(parsed, problem)),
        **shared_fields(sources, parsed, leftover, notes, _unmodelled(parsed)),
    )


def strategy_of(parsed: Parsed, problem: Problem, copies: int) -> Strategy:
    """tp_size is attention tp × attention dp; experts split over it, ep_size of them whole and the rest by width."""
    tp, ranks, ep = int(parsed.get("tp", 1)), attention_dp(parsed), expert_parallel(parsed)
    attention = max(tp // ranks, 1) if tp % ranks == 0 else 1
    etp = max(tp // (ep * parsed.get("moe_dp", 1)), 1) if is_moe(problem.arch) else 1
    return Strategy(
        tp=attention, sp=int(attention > 1), pp=parsed.get("pp", 1), cp=parsed.get("attn_cp", 1), attn_dp=ranks,
        ep=ep, etp=etp, dp=replicas(parsed) * copies,
    )  # fmt: skip


def _workload(parsed: Parsed) -> dict[str, Any]:
    running = parsed.get("running")
    return said(
        max_model_len=parsed.get("context"),
        max_num_seqs=max(running // attention_dp(parsed), 1) if running else None,
        max_num_batched_tokens=parsed.get("chunk") if (parsed.get("chunk") or 0) > 0 else None,
        memory_fraction=parsed.get("memory_fraction"),
        kv_dtype=KV_DTYPES.get(str(parsed.get("kv_dtype", "auto"))),
        precision="fp8" if parsed.get("quantization") in {"fp8", "w8a8_fp8"} else None,
        accepted_length=None,
    )


def _refusals(parsed: Parsed, problem: Problem) -> Iterator[Refusal]:
    tp, pp, ranks, ep = parsed.get("tp", 1), parsed.get("pp", 1), attention_dp(parsed), expert_parallel(parsed)
    nodes, dense, moe_dp = parsed.get("nnodes", 1), parsed.get("dense_tp"), parsed.get("moe_dp", 1)
    if tp % ranks:
        yield Refusal("tp % attention dp", f"attention dp {ranks} must divide tp {tp} (remainder {tp % ranks})", _ARGS)
    if (tp * pp) % nodes:
        yield Refusal("tp pp % nodes", f"tp {tp} × pp {pp} = {tp * pp} GPUs cannot be spread over {nodes} nodes", _ARGS)
    if dense not in {None, 1, tp}:
        yield Refusal("moe dense tp", f"--moe-dense-tp-size {dense} must be 1 or tp {tp}", _ARGS)
    if is_moe(problem.arch) and tp % (ep * moe_dp):
        yield Refusal("tp % (ep moe_dp)", f"ep {ep} × moe_dp {moe_dp} = {ep * moe_dp} must divide tp {tp}", _ARGS)
    if pp > 1 and parsed.get("speculation"):
        sentence = f"speculative decoding ({parsed.get('speculation')}) does not run with pp {pp}; pp 1 would do"
        yield Refusal("speculation in a pipeline", sentence, _ARGS)
    if replicas(parsed) > 1 and nodes > 1:
        sentence = f"--dp-size {replicas(parsed)} over {nodes} nodes needs data-parallel attention; start one server per replica"
        yield Refusal("dp over nodes", sentence, _ARGS)
    chunk, page = parsed.get("chunk"), parsed.get("page", 1)
    if chunk and chunk > 0 and page > 1 and chunk % page:
        yield Refusal("chunk % page", f"--chunked-prefill-size {chunk} is no multiple of --page-size {page}", _ARGS)
    if parsed.get("dwdp") not in {None, 1, tp}:
        yield Refusal("dwdp", f"--dwdp-size {parsed.get('dwdp')} must equal tp {tp}", _ARGS)


def _unmodelled(parsed: Parsed) -> list[str]:
    out = []
    if parsed.get("speculation"):
        out.append("speculative decoding is priced by --accepted-length, 1 unless you give it; draft weights are not counted")
    if parsed.get("disaggregation_mode") in {"prefill", "decode"}:
        out.append(f"a {parsed.get('disaggregation_mode')} server of a split deployment is priced as one that does both")
    if parsed.get("disable_cuda_graph", default=False):
        out.append("--disable-cuda-graph: steps take longer than predicted")
    if parsed.get("cpu_offload_gb", 0) > 0:
        out.append("--cpu-offload-gb keeps weights in host memory, which is not modelled")
    if parsed.get("enable_two_batch_overlap", default=False):
        out.append("--enable-two-batch-overlap hides token exchange, which is not modelled")
    if parsed.get("pool"):
        out.append("--max-total-tokens caps the cache; the prediction sizes it by the memory fraction")
    if parsed.get("dense_tp") == 1:
        out.append("--moe-dense-tp-size 1 replicates dense layers, which are counted as sharded here")
    return out
