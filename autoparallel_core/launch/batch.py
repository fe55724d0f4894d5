"""What the frame around a launch says about machines: batch-system directives, launchers, pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen


@frozen
class Machines:
    """Nodes and GPUs; None where nothing says."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    n_gpus: int | None = None
    instances: int | None = None
    """Independent copies of the launch (replicas of a deployment)."""

    def over(self, other: Machines) -> Machines:
        """These figures, and the other's where these say nothing."""
        merged = {f: getattr(self, f) if getattr(self, f) is not None else getattr(other, f) for f in _FIELDS}
        return Machines(**merged)

    @property
    def total(self) -> int | None:
        """GPUs in all, as far as the figures give it: launchers and schedulers take one node where none is stated."""
        if self.n_gpus is not None:
            return self.n_gpus
        return None if self.gpus_per_node is None else self.gpus_per_node * (self.nodes or 1)


_FIELDS = ("nodes", "gpus_per_node", "n_gpus", "instances")


def whole(text: Any) -> int | None:
    """A positive whole number, or None (``2:4`` of an elastic launcher counts as its maximum)."""
    m = re.fullmatch(r"(?:\d+:)?(\d+)", str(text).strip())
    return int(m[1]) if m and int(m[1]) > 0 else None


# --- batch directives -----------------------------------------------------------------------------------------

_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}


def directives(text: str) -> dict[str, str]:
    """Options of ``#SBATCH`` lines by long name, the last one winning."""
    out: dict[str, str] = {}
    for m in _DIRECTIVE.finditer(text):
        words = m[1].split("#", 1)[0].split()
        out.update(_options(words, _SHORT))
    return out


def _options(words: Sequence[str], short: Mapping[str, str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for i, word in enumerate(words):
        after = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
        if m := re.fullmatch(r"--([\w-]+)(?:=(.*))?", word):
            out[m[1].replace("_", "-")] = m[2] if m[2] is not None else after
        elif word in short:
            out[short[word]] = after
        elif (m := re.fullmatch(r"(-[A-Za-z])=?(\d+)", word)) and m[1] in short:
            out[short[m[1]]] = m[2]
    return out


def batch_machines(text: str) -> Machines:
    """What a batch script asks its scheduler for."""
    return _scheduled(directives(text))


def _scheduled(d: Mapping[str, str]) -> Machines:
    per_node = _gpus(d.get("gpus-per-node")) or _gpus(d.get("gres"))
    nodes = whole(str(d["nodes"]).split("-")[-1]) if "nodes" in d else None
    tasks_per_node, tasks = whole(d.get("ntasks-per-node", "")), whole(d.get("ntasks", ""))
    per_task = _gpus(d.get("gpus-per-task"))
    if per_node is None and per_task is not None and tasks_per_node is not None:
        per_node = per_task * tasks_per_node
    total = _gpus(d.get("gpus"))
    if total is None and per_task is not None and tasks is not None:
        total = per_task * tasks
    if per_node is None and total is None and tasks_per_node is not None and tasks_per_node > 1:
        per_node = tasks_per_node  # one task per GPU
    if per_node is not None and nodes is None and tasks_per_node and tasks and tasks % tasks_per_node == 0:
        nodes = tasks // tasks_per_node
    return Machines(nodes, per_node, total)


def _gpus(text: str | None) -> int | None:
    """``8``, ``h:8``, ``gpu:8``, ``gpu:h:8(S:0-1)``."""
    m = re.fullmatch(r"(?:[\w.-]+:)*(\d+)(?:\(.*\))?", (text or "").split(",")[0])
    return int(m[1]) if m else None


def batch_environment(text: str) -> dict[str, str]:
    """Variables that the scheduler sets, as far as the directives tell."""
    d, m = directives(text), batch_machines(text)
    out: dict[str, str] = {}
    if m.nodes is not None:
        out |= {"SLURM_NNODES": str(m.nodes), "SLURM_JOB_NUM_NODES": str(m.nodes)}
    if m.gpus_per_node is not None:
        out |= {"SLURM_GPUS_ON_NODE": str(m.gpus_per_node), "SLURM_GPUS_PER_NODE": str(m.gpus_per_node)}
    per_node = whole(d.get("ntasks-per-node", ""))
    if per_node is not None:
        out["SLURM_NTASKS_PER_NODE"] = str(per_node)
        if m.nodes is not None:
            out["SLURM_NTASKS"] = str(per_node * m.nodes)
    return out


# --- launchers ------------------------------------------------------------------------------------------------

_LAUNCHER = {
    "nproc-per-node": "gpus_per_node", "nnodes": "nodes", "num-nodes": "nodes", "num-gpus": "gpus_per_node",
    "num-machines": "nodes", "num-processes": "n_gpus", "n-gpus-per-node": "gpus_per_node",
}  # fmt: skip
_SCHEDULER = ("srun", "salloc", "sbatch")
_MPI = ("mpirun", "mpiexec", "mpiexec.hydra")


def launcher_machines(words: Sequence[str]) -> Machines:
    """What the words in front of a program (``srun … torchrun …``) say."""
    out = Machines()
    begin = 0
    for i, word in enumerate(words):
        base = word.rsplit("/", 1)[-1]
        if base in _SCHEDULER:
            out = _scheduled(_options(words[i + 1 :], _SHORT)).over(out)
            begin = i + 1
        elif base in _MPI:
            options = _options(words[i + 1 :], {"-n": "n", "-np": "n", "-N": "ppr"})
            ranks, per_node = whole(options.get("n", options.get("np", ""))), whole(options.get("ppr", ""))
            out = Machines(n_gpus=ranks, gpus_per_node=per_node).over(out)
            begin = i + 1
    stated = {_LAUNCHER[k]: n for k, v in _options(words[begin:], {}).items() if k in _LAUNCHER and (n := whole(v)) is not None}
    return Machines(**stated).over(out)


# --- pods -----------------------------------------------------------------------------------------------------


def is_manifest(document: Any) -> bool:
    """Whether a YAML document is a Kubernetes object."""
    return isinstance(document, Mapping) and "apiVersion" in document and "kind" in document


@frozen
class Container:
    """One container of a manifest: its words, environment, and the machines that its pods make up."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    machines: Machines
    image: str = ""
    program: bool = True
    """Whether the words begin with a program; else they are arguments of the image's entry point."""


def containers(document: Mapping[str, Any]) -> Iterator[Container]:
    """Every container that runs something."""
    yield from _containers(document, Machines(nodes=1))


def _containers(node: Any, around: Machines) -> Iterator[Container]:
    if isinstance(node, Mapping):
        around = _counted(node, around)
        for container in node.get("containers", ()) if isinstance(node.get("containers"), list) else ():
            if isinstance(container, Mapping) and (container.get("command") or container.get("args")):
                yield _container(container, around)
        for key, value in node.items():
            if key != "containers":
                yield from _containers(value, around)
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value, around)


def _counted(node: Mapping[str, Any], around: Machines) -> Machines:
    """Pods of one copy, and copies, by the usual counting fields."""
    group, replicas = node.get("leaderWorkerTemplate"), node.get("replicas")
    if isinstance(group, Mapping) and isinstance(group.get("size"), int):
        return evolve(around, nodes=group["size"], instances=replicas if isinstance(replicas, int) else 1)
    for key in ("completions", "parallelism", "numNodes"):
        if isinstance(node.get(key), int):
            return evolve(around, nodes=node[key])
    groups = [v for k, v in node.items() if k.endswith("ReplicaSpecs") and isinstance(v, Mapping)]
    if groups:
        workers = [r for g in groups for name, r in g.items() if isinstance(r, Mapping) and str(name).lower() != "launcher"]
        return evolve(around, nodes=sum(int(r.get("replicas", 1)) for r in workers))
    if "selector" in node and isinstance(replicas, int):
        return evolve(around, instances=replicas)
    return around


def _container(container: Mapping[str, Any], around: Machines) -> Container:
    words = [str(w) for key in ("command", "args") for w in _listed(container.get(key))]
    environment = {
        str(e["name"]): str(e["value"])
        for e in _listed(container.get("env"))
        if isinstance(e, Mapping) and "name" in e and "value" in e
    }
    resources = container.get("resources") or {}
    limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    gpus = next((whole(v) for k, v in limits.items() if str(k).endswith("/gpu")), None)
    return Container(
        tuple(words),
        environment,
        evolve(around, gpus_per_node=gpus),
        str(container.get("image") or ""),
        bool(container.get("command")),
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
