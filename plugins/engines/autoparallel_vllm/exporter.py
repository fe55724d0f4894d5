"""Launch files of ``vllm serve``: the command per node, a batch script, a Kubernetes manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoparallel_core.launch.serving import Cell, Limits, load_note, place, serving_kubernetes, serving_slurm, start
from autoparallel_core.launch.write import array, exports, group, script, title
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

PORT = 8000
NODES_SINCE = "0.12"
"""From here on ``--nnodes`` starts an instance over several nodes; before, a Ray cluster does."""
KV_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    cell = Cell.of(problem, strategy)
    head = title(problem, strategy, options)
    return {
        "serve.sh": script(head, "set -euo pipefail", place(cell, PORT), _environment(cell),
                           _arguments(problem, strategy, options), _start(problem, strategy, cell)),
        "slurm.sh": serving_slurm(problem, cell, head, "serve.sh"),
        "kubernetes.yaml": serving_kubernetes(problem, cell, head, file="serve.sh", port=PORT, files=("serve.sh",),
                                              image=f"vllm/vllm-openai:v{problem.engine_version}"),
    }  # fmt: skip


def _environment(cell: Cell) -> str:
    if cell.nodes == 1:
        return ""
    why = "The interface that reaches the other nodes of the instance."
    return exports([("GLOO_SOCKET_IFNAME", "${GLOO_SOCKET_IFNAME:-eth0}", why)])


def _arguments(problem: Problem, s: Strategy, options: Mapping[str, Any]) -> str:
    limits, work = Limits.of(problem), problem.inference
    parallel: list[Any] = [("--tensor-parallel-size", s.tp)]
    if s.pp > 1:
        parallel.append(("--pipeline-parallel-size", s.pp))
    if s.attn_dp > 1:
        parallel.append(("--data-parallel-size", s.attn_dp))
    by_expert = group("Experts: whole ones spread over all ranks of the instance.", "--enable-expert-parallel")
    precision = None if work.precision in {None, "bf16", "fp16", "fp32"} else work.precision
    dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(work.precision or "")
    groups = [
        group("Layout of one instance.", *parallel),
        by_expert if s.ep > 1 else group(""),
        group("Numbers: what the checkpoint is, unless stated.", ("--dtype", dtype), ("--quantization", precision),
              ("--kv-cache-dtype", KV_DTYPES.get(limits.kv_dtype or ""))),
        group(
            f"Memory: the plan's fit depends on these. {load_note(problem)}",
            ("--gpu-memory-utilization", limits.memory_fraction),
            ("--max-model-len", limits.max_model_len),
            ("--max-num-seqs", limits.max_num_seqs),
            ("--max-num-batched-tokens", limits.max_num_batched_tokens),
        ),
    ]  # fmt: skip
    return f"MODEL=${{MODEL:-{options.get('model') or problem.arch.name}}}\n" + array("ARGS", groups)


def _start(problem: Problem, s: Strategy, cell: Cell) -> str:
    command = 'vllm serve "$MODEL" "${ARGS[@]}"'
    if cell.nodes == 1:
        return start(cell, command)
    if parse_version(problem.engine_version) < parse_version(NODES_SINCE):
        return _ray(cell, command)
    if s.attn_dp > 1 and s.tp * s.pp <= cell.gpus_per_node:
        local = cell.gpus_per_node // (s.tp * s.pp)
        more = f'--data-parallel-size-local {local} --data-parallel-address "$HEAD_ADDR" --data-parallel-rpc-port 13345'
        return start(
            cell, command, first_node=more, other_nodes=f"{more} --data-parallel-start-rank $((RANK * {local})) --headless"
        )
    more = f'--nnodes {cell.nodes} --node-rank "$RANK" --master-addr "$HEAD_ADDR" --master-port 29501'
    return start(cell, command, first_node=more, other_nodes=f"{more} --headless")


def _ray(cell: Cell, command: str) -> str:
    return f"""\
# This version joins nodes through Ray.
if [ "$RANK" = 0 ]; then
    ray start --head --port 6379
    until [ "$(ray status 2>/dev/null | grep -c node_)" -ge {cell.nodes} ]; do sleep 5; done
    {command} --distributed-executor-backend ray --port "$PORT"
else
    until ray start --address "$HEAD_ADDR:6379" --block; do sleep 5; done
fi"""
