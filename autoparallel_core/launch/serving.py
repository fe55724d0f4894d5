"""How instances of a serving engine lie on nodes, and the scripts and manifests around their commands."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from attrs import frozen

from autoparallel_core.cost.serving_policy import policy_for, scheduler_limits
from autoparallel_core.launch.write import Job, script, slug, slurm

if TYPE_CHECKING:
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy


@frozen
class Cell:
    """One instance on the machines: ``nodes`` whole nodes each, or ``per_node`` instances on every node."""

    gpus: int
    instances: int
    nodes: int
    per_node: int
    gpus_per_node: int
    """GPUs of a node that one instance uses."""

    @classmethod
    def of(cls, problem: Problem, strategy: Strategy) -> Cell:
        gpus = strategy.tp * strategy.attn_dp * strategy.pp
        node = min(problem.cluster.gpus_per_node, problem.cluster.n_gpus)
        nodes = -(-gpus // node)
        per_node = max(node // gpus, 1)
        return cls(gpus, strategy.dp, nodes, min(per_node, strategy.dp), min(gpus, node))

    @property
    def all_nodes(self) -> int:
        """Nodes of the whole deployment."""
        return self.instances * self.nodes if self.nodes > 1 else -(-self.instances // self.per_node)


@frozen
class Limits:
    """The settings that the fit of a plan depends on, as the prediction used them."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_fraction: float | None
    kv_dtype: str | None

    @classmethod
    def of(cls, problem: Problem) -> Limits:
        work, s = problem.inference, scheduler_limits(problem)
        fraction = work.memory_fraction if work.memory_fraction is not None else policy_for(problem).memory_fraction
        length = work.max_model_len or work.context_tokens
        return cls(length, s.max_num_seqs, s.max_num_batched_tokens, fraction, work.kv_dtype)


def place(cell: Cell, port: int) -> str:
    """Shell variables that say which node and instance this is."""
    if cell.nodes > 1:
        return dedent(f"""\
            # Machines. Run this file once on every node, with NODE_RANK = 0 … {cell.all_nodes - 1}.
            INSTANCES={cell.instances}  # independent copies of the model
            NODES_PER_INSTANCE={cell.nodes}
            NODE_RANK=${{NODE_RANK:-${{SLURM_PROCID:-${{LWS_WORKER_INDEX:-0}}}}}}
            RANK=$((NODE_RANK % NODES_PER_INSTANCE))  # of this node inside its instance
            HEAD_ADDR=${{HEAD_ADDR:-${{LWS_LEADER_ADDRESS:-127.0.0.1}}}}  # address of the instance's first node
            PORT=${{PORT:-{port}}}""")
    return dedent(f"""\
        # Machines. Run this file once on every node that serves.
        INSTANCES={cell.instances}  # independent copies of the model over all nodes
        INSTANCES_PER_NODE=${{INSTANCES_PER_NODE:-{cell.per_node}}}
        GPUS={cell.gpus}  # of one instance
        PORT=${{PORT:-{port}}}  # of the first instance on a node; the others follow""")


def start(cell: Cell, command: str, *, first_node: str = "", other_nodes: str = "") -> str:
    """The lines that start this node's part: one process of a large instance, or all small instances of a node.

    Args:
        cell: how instances lie.
        command: the words in front of ``--port``, with the array of arguments.
        first_node: further words on the first node of an instance of several.
        other_nodes: further words on its other nodes.
    """
    if cell.nodes > 1:
        if first_node == other_nodes:
            return f'{command} --port "$PORT" {first_node}'.rstrip()
        return dedent(f"""\
            if [ "$RANK" = 0 ]; then
                {command} --port "$PORT" {first_node}
            else
                {command} {other_nodes}
            fi""")
    if cell.per_node == 1:
        return f'{command} --port "$PORT"'
    return dedent(f"""\
        for i in $(seq 0 $((INSTANCES_PER_NODE - 1))); do
            CUDA_VISIBLE_DEVICES=$(seq -s , $((i * GPUS)) $((i * GPUS + GPUS - 1))) \\
                {command} --port $((PORT + i)) &
        done
        wait  # put a load balancer in front of the ports""")


def serving_slurm(problem: Problem, cell: Cell, head: str, file: str) -> str:
    """A batch script that starts ``file`` on every node of every instance."""
    name = slug(problem.arch.name)
    if cell.nodes == 1:
        return slurm(Job(name, file, cell.all_nodes, cell.gpus_per_node * cell.per_node, ""), head)
    return script(
        dedent(f"""\
            {{head}}
            # Submit from the directory that holds {file}: sbatch slurm.sh
            #SBATCH --job-name={name}
            #SBATCH --nodes={cell.all_nodes}
            #SBATCH --ntasks-per-node=1
            #SBATCH --gpus-per-node={cell.gpus_per_node}
            #SBATCH --exclusive
            #SBATCH --output=%x-%j.log""").replace("{head}", head),
        "set -euo pipefail",
        dedent(f"""\
            # Every node needs the address of the first node of its instance.
            HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\\n' ' ')
            export HOSTS
            srun --kill-on-bad-exit=1 bash -c '
                set -- $HOSTS; shift $((SLURM_PROCID / {cell.nodes} * {cell.nodes}))
                HEAD_ADDR=$1 exec bash "${{SLURM_SUBMIT_DIR:-.}}/{file}"'"""),
    )


def serving_kubernetes(
    problem: Problem, cell: Cell, head: str, *, file: str, image: str, port: int, files: tuple[str, ...]
) -> str:
    """One pod per instance (a Deployment), or a group of pods per instance (a LeaderWorkerSet)."""
    name = slug(problem.arch.name)
    container = f"""\
- name: server
  image: {image}
  command: ["bash", "/launch/{file}"]
  env:
    - {{name: INSTANCES_PER_NODE, value: "1"}}
  ports:
    - containerPort: {port}
  resources:
    limits:
      {problem.cluster.gpu.vendor.lower()}.com/gpu: {cell.gpus_per_node}
  volumeMounts:
    - {{name: launch, mountPath: /launch}}
    - {{name: shm, mountPath: /dev/shm}}"""
    volumes = f"""\
- name: launch
  configMap: {{name: {name}-launch}}
- name: shm  # tensor-parallel ranks exchange through shared memory
  emptyDir: {{medium: Memory}}"""
    maps = " ".join(f"--from-file={f}" for f in files)
    top = f"""{head}
# First: kubectl create configmap {name}-launch {maps}
# Then:  kubectl apply -f kubernetes.yaml
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}{', leaderworkerset.sigs.k8s.io/worker-index: "0"' if cell.nodes > 1 else ""}}}
  ports:
    - port: {port}
---
"""
    if cell.nodes > 1:
        here = container.replace('{name: INSTANCES_PER_NODE, value: "1"}', f'{{name: PORT, value: "{port}"}}')
        pods = _pod(here, volumes, name, 6)
        return (
            f"""{top}apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {name}
spec:
  replicas: {cell.instances}  # independent copies of the model
  leaderWorkerTemplate:
    size: {cell.nodes}  # pods (nodes) of one copy
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
"""
            + pods
        )
    return f"""{top}apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {cell.instances}  # independent copies of the model
  selector:
    matchLabels: {{app: {name}}}
  template:
""" + _pod(container, volumes, name, 4)


def _pod(container: str, volumes: str, name: str, level: int) -> str:
    pad = " " * level

    def shifted(text: str, by: int) -> str:
        return "\n".join(" " * (level + by) + line for line in text.splitlines())

    return (
        f"{pad}metadata:\n{pad}  labels: {{app: {name}}}\n{pad}spec:\n{pad}  containers:\n{shifted(container, 4)}\n"
        f"{pad}  volumes:\n{shifted(volumes, 4)}\n"
    )


def load_note(problem: Problem) -> str:
    """What the limits were chosen for."""
    work = problem.inference
    load = f"{work.concurrency:,} requests in flight" if work.concurrency else "as many requests in flight as fit"
    return f"Planned for {work.isl:,} input + {work.osl:,} output tokens per request, {load}."
