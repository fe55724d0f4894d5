"""Machines that batch directives, launchers and pods state."""

from __future__ import annotations

import pytest

from autoparallel_core.launch.batch import Machines, batch_environment, batch_machines, containers, launcher_machines


@pytest.mark.parametrize(
    ("lines", "nodes", "per_node", "total"),
    [
        (["--nodes=4", "--gpus-per-node=8"], 4, 8, 32),
        (["-N 4", "--gres=gpu:8"], 4, 8, 32),
        (["-N4 --gres gpu:h:8"], 4, 8, 32),
        (["--nodes=2-4", "--gpus-per-node h:4"], 4, 4, 16),
        (["--gpus=16"], None, None, 16),
        (["--nodes=2", "--ntasks-per-node=8", "--gpus-per-task=1"], 2, 8, 16),
        (["--nodes=2", "--ntasks-per-node=8"], 2, 8, 16),
        (["--nodes=2", "--ntasks-per-node=1"], 2, None, None),
        (["--nodes=3  # three of them", "--gres=gpu:2"], 3, 2, 6),
        (["--job-name=x"], None, None, None),
    ],
)
def test_directives(lines: list[str], nodes: int | None, per_node: int | None, total: int | None) -> None:
    text = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "srun x\n"
    m = batch_machines(text)
    assert (m.nodes, m.gpus_per_node, m.total) == (nodes, per_node, total)


def test_the_scheduler_sets_variables() -> None:
    text = "#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=2\n"
    env = batch_environment(text)
    assert env["SLURM_NNODES"] == env["SLURM_JOB_NUM_NODES"] == "4"
    assert env["SLURM_GPUS_ON_NODE"] == "8"
    assert env["SLURM_NTASKS"] == "8"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torchrun --nnodes 4 --nproc_per_node 8", Machines(4, 8)),
        ("torchrun --nnodes=2:4 --nproc-per-node=8 x.py", Machines(4, 8)),
        ("python -m torch.distributed.run --nproc_per_node=4 --nnodes=1", Machines(1, 4)),
        ("srun -N 2 --gpus-per-node=4 torchrun --nproc_per_node $GPUS", Machines(2, 4)),
        ("mpirun -np 16 -N 8 x", Machines(None, 8, 16)),
        ("deepspeed --num_gpus 8 --num_nodes 2", Machines(2, 8)),
        ("accelerate launch --num_processes 16 --num_machines 2", Machines(2, None, 16)),
        ("x --nodes 3", Machines()),
    ],
)
def test_launchers(words: str, expected: Machines) -> None:
    assert launcher_machines(words.split()) == expected


def pod(command: list[str], gpus: int) -> dict[str, object]:
    return {"spec": {"containers": [{"command": command, "resources": {"limits": {"amd.com/gpu": str(gpus)}},
                                     "env": [{"name": "A", "value": 1}]}]}}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "nodes", "instances"),
    [
        ({"completions": 4, "parallelism": 4, "template": pod(["x"], 8)}, 4, None),
        ({"replicas": 3, "selector": {}, "template": pod(["x"], 8)}, 1, 3),
        ({"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod(["x"], 8)}}, 4, 2),
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pod(["x"], 8)}, "Worker": {"replicas": 3}}}, 4, None),
        ({"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": pod(["x"], 8)}, "Worker": {"replicas": 2}}}, 2, None),
        ({"numNodes": 2, "template": pod(["x"], 8)}, 2, None),
    ],
)
def test_pods(spec: dict[str, object], nodes: int, instances: int | None) -> None:
    (found,) = containers({"apiVersion": "v1", "kind": "K", "spec": spec})
    assert found.words == ("x",)
    assert found.environment == {"A": "1"}
    assert (found.machines.nodes, found.machines.gpus_per_node, found.machines.instances) == (nodes, 8, instances)


def test_stated_figures_go_before_surrounding_ones() -> None:
    assert Machines(nodes=2).over(Machines(nodes=4, gpus_per_node=8)) == Machines(2, 8)
