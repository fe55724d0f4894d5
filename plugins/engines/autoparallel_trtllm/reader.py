"""Reading ``trtllm-serve`` commands and their YAML of options, alone or inside scripts and manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoparallel_core.launch.batch import Machines
from autoparallel_core.launch.flags import Option, Parsed, options, parse, sort_leftover
from autoparallel_core.launch.found import Found, find, one_launch, program_at
from autoparallel_core.launch.result import KV_DTYPES, said, server_copies, shared_fields
from autoparallel_core.launch.sources import Sources, keyword_words, take_apart
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.launch import Launch, Refusal
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

NAME = "trtllm"
PROGRAMS = ("trtllm-serve", "tensorrt_llm.commands.serve")
TABLE: tuple[Option, ...] = (
    *options(
        "int", "--tp_size|--tensor_parallel_size=tp", "--pp_size|--pipeline_parallel_size=pp",
        "--ep_size|--moe_expert_parallel_size=ep",
        "--cp_size|--context_parallel_size=cp", "--cluster_size=cluster", "--gpus_per_node", "--max_batch_size=sequences",
        "--max_num_tokens=tokens", "--max_seq_len=length", "--max_beam_width",
    ),
    *options("float", "--kv_cache_free_gpu_memory_fraction|--free_gpu_memory_fraction=fraction"),
    *options("str", "--config|--extra_llm_api_options|--extra_llm_api_config=config", "--kv_cache_dtype=kv_dtype", "--model",
             "--backend"),
)  # fmt: skip
YAML_KEYS = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "moe_expert_parallel_size": "ep",
    "moe_tensor_parallel_size": "etp",
    "moe_cluster_parallel_size": "cluster", "context_parallel_size": "cp", "enable_attention_dp": "attention_dp",
    "gpus_per_node": "gpus_per_node", "max_batch_size": "sequences", "max_num_tokens": "tokens", "max_seq_len": "length",
    "kv_cache_dtype": "kv_dtype", "free_gpu_memory_fraction": "fraction", "model": "model",
}  # fmt: skip
TELLTALE = ("kv_cache_config", "enable_attention_dp", "moe_expert_parallel_size", "moe_tensor_parallel_size", "cuda_graph_config",
            "moe_config", "enable_lm_head_tp_in_adp")  # fmt: skip
PER_NODE = ("port", "host", "node-rank")
HARMLESS = r"""
    host port log[-_]level tokenizer trust[-_]remote[-_]code reasoning[-_]parser tool[-_]parser metadata.* server[-_]role
    num[-_]postprocess.* fail[-_]fast.* custom[-_]tokenizer chat[-_]template served[-_]model[-_]name revision backend
"""
QUIET = (
    "print_iter_log", "enable_iter_perf_stats", "trust_remote_code", "tokenizer", "backend", "postprocess_tokenizer_dir",
    "num_postprocess_workers",
    "return_perf_metrics", "stream_interval", "enable_chunked_prefill", "guided_decoding_backend",
    "perf_metrics_max_requests", "dtype",
    "max_input_len", "max_beam_width", "moe_config", "cuda_graph_config", "kv_cache_config", "enable_lm_head_tp_in_adp",
    *YAML_KEYS,
)  # fmt: skip
_MAPPING = "tensorrt_llm/mapping.py, Mapping"


def read_launch(files: Mapping[str, str], engine: str | None, problem: Problem | None) -> Launch | None:
    """What the files say; the strategy once the model is known."""
    if engine not in {None, NAME}:
        return None
    sources = take_apart(files)
    found = one_launch(find(sources, command_at), per_node=PER_NODE, program="trtllm-serve")
    if found is None and (words := keyword_words(sources, ("LLM",), "tensorrt_llm")) is not None:
        found = Found(words, {}, Machines())
    name, document = _options_file(sources, found, named=engine == NAME)
    if found is None and document is None:
        return None
    found = found or Found((), {}, Machines())
    parsed = parse([_underscored(w) for w in found.words], TABLE, program="trtllm-serve")
    parsed = Parsed({**_values(document or {}), **parsed.values}, parsed.extra, parsed.unset)
    return _launch(sources, found, parsed, document or {}, name, problem)


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    flag, eq, value = word[2:].partition("=")
    return "--" + flag.replace("-", "_") + eq + value


def command_at(words: Sequence[str]) -> int | None:
    """Where the arguments begin (``trtllm-serve serve MODEL`` too), None when this is no launch of TensorRT-LLM."""
    at = program_at(words, *PROGRAMS)
    if at is not None and at + 1 < len(words) and words[at + 1] == "serve":
        return at + 1
    return at


def _options_file(sources: Sources, found: Found | None, *, named: bool) -> tuple[str, Mapping[str, Any] | None]:
    """The YAML of options: the one that the command names, or the one that looks like it."""
    named_file = ""
    for i, word in enumerate(found.words if found else ()):
        flag, eq, value = word.partition("=")
        if flag.replace("-", "_").lstrip("_") in {"config", "extra_llm_api_options"} and found:
            named_file = (value if eq else found.words[i + 1] if i + 1 < len(found.words) else "").rsplit("/", 1)[-1]
    if named_file:
        document = sources.data.get(named_file)
        return named_file, document if isinstance(document, Mapping) else None
    for name, document in sources.data.items():
        if sources.kinds.get(name) != "yaml" or not isinstance(document, Mapping):
            continue
        if any(k in document for k in TELLTALE) or (named and "tensor_parallel_size" in document):
            return name, document
    return "", None


def _values(document: Mapping[str, Any]) -> dict[str, Any]:
    cache = document.get("kv_cache_config")
    flat = {**document, **(cache if isinstance(cache, Mapping) else {})}
    out = {dest: flat[key] for key, dest in YAML_KEYS.items() if flat.get(key) is not None}
    if isinstance(cache, Mapping) and cache.get("dtype"):
        out["kv_dtype"] = cache["dtype"]
    return out


def _launch(sources: Sources, found: Found, p: Parsed, document: Mapping[str, Any], name: str, problem: Problem | None) -> Launch:
    one = p.get("tp", 1) * p.get("pp", 1) * p.get("cp", 1)
    per_node = p.get("gpus_per_node") or found.machines.gpus_per_node
    mpi = any(w.rsplit("/", 1)[-1] == "trtllm-llmapi-launch" for w in found.before)
    copies, notes = server_copies(sources, found, one, spread=mpi)
    leftover = sort_leftover(p.extra, harmless=HARMLESS, notable={"is not modelled": r".*speculative.* .*lora.* disagg.*"})
    words = [w for w in found.words if not w.startswith("-")]
    model = p.get("model") or (found.words[0] if found.words and words and found.words[0] == words[0] else None)
    shared = shared_fields(sources, p, leftover, notes, _unmodelled(document))
    return Launch(
        engine=NAME,
        form="trtllm-serve" + (f" with {name}" if name else ""),
        strategy=None if problem is None else strategy_of(p, problem, copies),
        n_gpus=max(found.machines.total or 0, one * copies),
        gpus_per_node=per_node,
        model=model,
        workload=said(
            max_model_len=p.get("length"),
            max_num_seqs=p.get("sequences"),
            max_num_batched_tokens=p.get("tokens"),
            memory_fraction=p.get("fraction"),
            kv_dtype=KV_DTYPES.get(str(p.get("kv_dtype", "auto")).lower()),
        ),
        refusals=() if problem is None else tuple(refusals(p, problem)),
        notes=shared["notes"],
        unmodelled=shared["unmodelled"],
        unknown=(*shared["unknown"], *(k for k in document if k not in QUIET and k not in dict(_effects(document)))),
        unset=shared["unset"],
    )


def experts(p: Parsed) -> tuple[int, int]:
    """(ep, etp): what is unset is made up for by the other; both unset, experts are cut by width."""
    tp, ep, etp, cluster = p.get("tp", 1), p.get("ep"), p.get("etp"), p.get("cluster", 1) or 1
    if ep in {None, -1} and etp in {None, -1}:
        return 1, tp // cluster
    if ep in {None, -1}:
        return max(tp // (etp * cluster), 1), etp
    return ep, max(tp // (ep * cluster), 1) if etp in {None, -1} else etp


def strategy_of(p: Parsed, problem: Problem, copies: int) -> Strategy:
    """With attention dp every rank of the group runs its own attention."""
    tp = p.get("tp", 1)
    inside = tp if p.get("attention_dp", default=False) and tp > 1 else 1
    attention = tp // inside
    ep, etp = experts(p) if is_moe(problem.arch) else (1, 1)
    return Strategy(
        tp=attention, sp=int(attention > 1), pp=p.get("pp", 1), cp=p.get("cp", 1), attn_dp=inside, ep=ep, etp=etp, dp=copies
    )


def refusals(p: Parsed, problem: Problem) -> Iterator[Refusal]:
    """What the mapping checks beyond a strategy."""
    tp, ep, etp, cluster = p.get("tp", 1), p.get("ep"), p.get("etp"), p.get("cluster", 1) or 1
    if is_moe(problem.arch) and ep not in {None, -1} and etp not in {None, -1} and ep * etp * cluster != tp:
        text = f"moe_tp {etp} × moe_ep {ep} × moe_cluster {cluster} = {ep * etp * cluster} must equal tp {tp}"
        yield Refusal("tp = moe_tp moe_ep", text, _MAPPING)
    if is_moe(problem.arch) and ep not in {None, -1} and tp % ep:
        yield Refusal("tp % moe_ep", f"moe_ep {ep} must divide tp {tp} (remainder {tp % ep})", _MAPPING)
    if ep not in {None, -1, 1} and p.get("cp", 1) > 1:
        yield Refusal("moe_ep with cp", f"moe_ep {ep} does not combine with context parallelism {p.get('cp')}", _MAPPING)


def _effects(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, why in (
        ("speculative_config", "speculative decoding is priced by --accepted-length, 1 unless you give it"),
        ("disaggregated_params", "a split deployment is priced as one server that does both"),
        ("cache_transceiver_config", "a split deployment is priced as one server that does both"),
        ("lora_config", "adapter weights are not counted"),
        ("sparse_attention_config", "sparse attention settings are not modelled"),
        ("disable_overlap_scheduler", "the overlap scheduler is taken as on"),
        ("attention_dp_config", "balancing between attention ranks is not modelled"),
        ("scheduler_config", "the scheduling policy is the default's here"),
        ("cp_config", "context parallelism is not priced"),
        ("torch_compile_config", "compilation is not modelled"),
        ("attn_backend", "speeds are those of the default kernels"),
        ("allreduce_strategy", "speeds are those of the default collectives"),
    ):
        if document.get(key):
            yield key, f"{key}: {why}"


def _unmodelled(document: Mapping[str, Any]) -> list[str]:
    out = [sentence for _, sentence in _effects(document)]
    if "cuda_graph_config" in document and document["cuda_graph_config"] is None:
        out.append("cuda_graph_config null turns graphs off: steps take longer than predicted")
    return out
