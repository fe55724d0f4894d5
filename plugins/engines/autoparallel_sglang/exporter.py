"""Launch files of ``sglang.launch_server``: the command per node, a batch script, a Kubernetes manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.launch.serving import Cell, Limits, load_note, place, serving_kubernetes, serving_slurm, start
from autoparallel_core.launch.write import array, exports, group, script, title
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

PORT = 30000
ATTENTION_DP_SINCE = "0.5.23"
"""``--attn-dp-size`` replaces ``--enable-dp-attention``."""
EP_SIZE_SINCE = "0.5"
"""Before, ``--enable-ep-moe`` spread the experts over the whole group."""
KV_DTYPES = {"bf16": "bfloat16", "fp16": "auto", "fp8": "fp8_e4m3"}


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    cell = Cell.of(problem, strategy)
    head = title(problem, strategy, options)
    image = f"lmsysorg/sglang:v{problem.engine_version}"
    return {
        "serve.sh": script(
            head, "set -euo pipefail", place(cell, PORT), _environment(cell), _arguments(problem, strategy, options), _start(cell)
        ),
        "slurm.sh": serving_slurm(problem, cell, head, "serve.sh"),
        "kubernetes.yaml": serving_kubernetes(problem, cell, head, file="serve.sh", port=PORT, files=("serve.sh",), image=image),
    }


def _environment(cell: Cell) -> str:
    if cell.nodes == 1:
        return ""
    return exports([("GLOO_SOCKET_IFNAME", "${GLOO_SOCKET_IFNAME:-eth0}", "The interface that reaches the other nodes.")])


def _arguments(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> str:
    limits, work = Limits.of(problem), problem.inference
    version = parse_version(problem.engine_version)
    parallel: list[Any] = [("--tp-size", s.tp * s.attn_dp)]
    if s.pp > 1:
        parallel.append(("--pp-size", s.pp))
    attention: tuple[Any, ...] = ()
    if s.attn_dp > 1:
        new = version >= parse_version(ATTENTION_DP_SINCE)
        attention = (("--attn-dp-size", s.attn_dp),) if new else ("--enable-dp-attention", ("--dp-size", s.attn_dp))
    experts: tuple[Any, ...] = ()
    if is_moe(problem.arch) and s.ep > 1:
        experts = (("--ep-size", s.ep),) if version >= parse_version(EP_SIZE_SINCE) else ("--enable-ep-moe",)
    groups = [
        group("Layout of one server: GPUs = tp-size × pp-size.", *parallel),
        group(f"Attention: {s.attn_dp} data-parallel ranks of tp {s.tp} inside the group, so that each keeps its own cache.",
              *attention),
        group(f"Experts: {s.ep} groups of ranks hold whole ones" + (f", each cut {s.etp} ways." if s.etp > 1 else "."), *experts),
        group("Numbers: what the checkpoint is, unless stated.",
              ("--quantization", None if work.precision in {None, "bf16", "fp16", "fp32"} else work.precision),
              ("--dtype", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(work.precision or "")),
              ("--kv-cache-dtype", KV_DTYPES.get(limits.kv_dtype or ""))),
        group(
            f"Memory: the plan's fit depends on these. {load_note(problem)}",
            ("--mem-fraction-static", limits.memory_fraction),
            ("--context-length", limits.max_model_len),
            ("--max-running-requests", limits.max_num_seqs * s.attn_dp),
            ("--chunked-prefill-size", limits.max_num_batched_tokens),
        ),
    ]  # fmt: skip
    return f"MODEL=${{MODEL:-{options.get('model') or problem.arch.name}}}\n" + array("ARGS", groups)


def _start(cell: Cell) -> str:
    command = 'python3 -m sglang.launch_server --model-path "$MODEL" "${ARGS[@]}" --host 0.0.0.0'
    if cell.nodes == 1:
        return start(cell, command)
    more = f'--nnodes {cell.nodes} --node-rank "$RANK" --dist-init-addr "$HEAD_ADDR:20000"'
    return start(cell, command, first_node=more, other_nodes=more)
