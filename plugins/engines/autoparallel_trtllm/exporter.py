"""Launch files of ``trtllm-serve``: the YAML of options, the command, a batch script, a Kubernetes manifest."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from autoparallel_core.launch.serving import Cell, Limits, load_note, place, serving_kubernetes, serving_slurm, start
from autoparallel_core.launch.write import script, slug, title, yaml_scalar
from autoparallel_core.search.common_rules import parse_version
from autoparallel_core.search.facts import is_moe
from autoparallel_core.spec.problem import Problem
from autoparallel_core.spec.strategy import Strategy

PORT = 8000
HERE = 'HERE=${HERE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}'
CONFIG_SINCE = "1.2"
"""``--config``; before, ``--extra_llm_api_options``."""


def launch_files(problem: Problem, strategy: Strategy, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Files by name."""
    cell = Cell.of(problem, strategy)
    head = title(problem, strategy, options)
    flag = "--config" if parse_version(problem.engine_version) >= parse_version(CONFIG_SINCE) else "--extra_llm_api_options"
    image = f"nvcr.io/nvidia/tensorrt-llm/release:{problem.engine_version}"
    model = f"MODEL=${{MODEL:-{options.get('model') or problem.arch.name}}}\n{HERE}"
    command = f'trtllm-serve "$MODEL" {flag} "$HERE/config.yaml" --host 0.0.0.0'
    files = {"config.yaml": config_yaml(problem, strategy, head)}
    if cell.nodes == 1:
        files["serve.sh"] = script(head, "set -euo pipefail", place(cell, PORT), model, start(cell, command))
        files["slurm.sh"] = serving_slurm(problem, cell, head, "serve.sh")
        files["kubernetes.yaml"] = serving_kubernetes(
            problem, cell, head, file="serve.sh", image=image, port=PORT, files=("serve.sh", "config.yaml")
        )
        return files
    files["serve.sh"] = script(head, "set -euo pipefail", _ranks(cell), model, f'trtllm-llmapi-launch {command} --port "$PORT"')
    files["slurm.sh"] = _slurm(problem, cell, head)
    files["kubernetes.yaml"] = _mpi_job(problem, cell, head, image)
    return files


def _ranks(cell: Cell) -> str:
    return dedent(f"""\
        # Run this file under MPI, one process per GPU: mpirun -n {cell.gpus} -N {cell.gpus_per_node} bash serve.sh
        INSTANCES={cell.instances}  # independent copies of the model, each started on its own
        PORT=${{PORT:-{PORT}}}""")


def _slurm(problem: Problem, cell: Cell, head: str) -> str:
    several = f"#SBATCH --array=0-{cell.instances - 1}  # one job per independent copy\n" if cell.instances > 1 else ""
    return script(
        head
        + f"""
# Submit from the directory that holds serve.sh: sbatch slurm.sh
#SBATCH --job-name={slug(problem.arch.name)}
{several}#SBATCH --nodes={cell.nodes}
#SBATCH --ntasks-per-node={cell.gpus_per_node}
#SBATCH --gpus-per-node={cell.gpus_per_node}
#SBATCH --exclusive
#SBATCH --output=%x-%j.log""",
        "set -euo pipefail",
        'srun --mpi=pmix --kill-on-bad-exit=1 bash "${SLURM_SUBMIT_DIR:-.}/serve.sh"',
    )


def _mpi_job(problem: Problem, cell: Cell, head: str, image: str) -> str:
    """Pods joined by the MPI operator; one job per instance."""
    name = slug(problem.arch.name)
    again = f" (once per copy: {cell.instances} under different names)" if cell.instances > 1 else ""
    resource = f"{problem.cluster.gpu.vendor.lower()}.com/gpu"
    return f"""{head}
# First: kubectl create configmap {name}-launch --from-file=serve.sh --from-file=config.yaml
# Then:  kubectl apply -f kubernetes.yaml{again}
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {name}
spec:
  slotsPerWorker: {cell.gpus_per_node}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
            - name: launcher
              image: {image}
              command: ["mpirun", "-n", "{cell.gpus}", "-N", "{cell.gpus_per_node}", "bash", "/launch/serve.sh"]
              volumeMounts:
                - {{name: launch, mountPath: /launch}}
          volumes:
            - name: launch
              configMap: {{name: {name}-launch}}
    Worker:
      replicas: {cell.nodes}
      template:
        spec:
          containers:
            - name: worker
              image: {image}
              resources:
                limits:
                  {resource}: {cell.gpus_per_node}
              volumeMounts:
                - {{name: launch, mountPath: /launch}}
                - {{name: shm, mountPath: /dev/shm}}
          volumes:
            - name: launch
              configMap: {{name: {name}-launch}}
            - name: shm
              emptyDir: {{medium: Memory}}
"""


def config_yaml(problem: Problem, s: Strategy, head: str) -> str:
    """Options of the LLM API."""
    limits = Limits.of(problem)
    lines: list[str] = [head, "# Layout of one server: GPUs = tensor_parallel_size × pipeline_parallel_size."]
    top: list[tuple[str, Any]] = [("tensor_parallel_size", s.tp * s.attn_dp), ("pipeline_parallel_size", s.pp)]
    if is_moe(problem.arch):
        top += [("moe_expert_parallel_size", s.ep), ("moe_tensor_parallel_size", s.etp)]
    top += [("enable_attention_dp", s.attn_dp > 1), ("gpus_per_node", min(problem.cluster.gpus_per_node, problem.cluster.n_gpus))]
    lines += [f"{k}: {yaml_scalar(v)}" for k, v in top]
    lines += ["", f"# Memory: the plan's fit depends on these. {load_note(problem)}"]
    sizes = (
        ("max_batch_size", limits.max_num_seqs),
        ("max_num_tokens", limits.max_num_batched_tokens),
        ("max_seq_len", limits.max_model_len),
    )
    lines += [f"{k}: {v}" for k, v in sizes]
    lines += ["kv_cache_config:", f"  free_gpu_memory_fraction: {yaml_scalar(limits.memory_fraction)}"]
    if limits.kv_dtype == "fp8":
        lines.append("  dtype: fp8")
    return "\n".join(lines) + "\n"
