"""Writing launch files: commented shell arrays, the frames around them, and putting files on disk whole or not at all."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent, indent, wrap
from typing import TYPE_CHECKING, Any

from attrs import frozen

from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy

WIDTH = 116
QUESTION = "autoparallel question:"
"""Behind a comment sign: the flags that state model, cluster and workload again, for what the format itself cannot say."""


@frozen
class Group:
    """Arguments that belong together, under one comment."""

    comment: str
    words: tuple[str, ...]


def group(comment: str, *words: Any) -> Group:
    """A group; None and empty words are left out, a pair is a flag with its value."""
    flat: list[str] = []
    for word in words:
        if word is None or word == "":
            continue
        if isinstance(word, tuple):
            if word[1] is not None:
                flat += [str(word[0]), *(str(v) for v in (word[1] if isinstance(word[1], list) else [word[1]]))]
        else:
            flat.append(str(word))
    return Group(comment, tuple(flat))


def quoted(word: str) -> str:
    """A word for a shell: left alone when it is plain or an expansion of ours, else quoted."""
    if "$" in word:
        return f'"{word}"'
    return shlex.quote(word)


def array(name: str, groups: Sequence[Group]) -> str:
    """A bash array with one commented block per group."""
    lines = [f"{name}=("]
    for g in groups:
        if not g.words:
            continue
        lines += comment(g.comment, "    # ")
        row = "   "
        for i, word in enumerate(g.words):
            text = quoted(word)
            flag_next = i + 1 < len(g.words) and not g.words[i + 1].startswith("-")
            need = len(text) + (len(quoted(g.words[i + 1])) + 1 if flag_next and word.startswith("-") else 0)
            if len(row) + 1 + need > WIDTH and row.strip():
                lines.append(row)
                row = "   "
            row += f" {text}"
        lines.append(row)
    return "\n".join([*lines, ")"])


def comment(text: str, sign: str = "# ") -> list[str]:
    """Comment lines of a text, wrapped."""
    return [f"{sign}{line}".rstrip() for part in text.splitlines() for line in (wrap(part, WIDTH - len(sign)) or [""])]


def title(problem: Problem, strategy: Strategy, options: Mapping[str, Any], sign: str = "# ") -> str:
    """Head of every file: what it runs, on what, and the question that it answers."""
    cluster = problem.cluster
    what = (
        f"{problem.arch.name} with {problem.engine.name} {problem.engine_version}: {strategy}, on {cluster.n_gpus} × "
        f"{cluster.gpu.name} ({cluster.n_nodes} node{'s' if cluster.n_nodes > 1 else ''} of "
        f"{min(cluster.gpus_per_node, cluster.n_gpus)})."
    )
    lines = comment(what, sign)
    for sentence in options.get("figures", ()):
        lines += comment(sentence, sign)
    if question := options.get("question"):
        lines.append(f"{sign}{QUESTION} {question}")
    return "\n".join(lines)


def exports(variables: Iterable[tuple[str, str, str]]) -> str:
    """``export NAME=value`` lines, each under its reason."""
    lines: list[str] = []
    for name, value, why in variables:
        lines += [*comment(why), f"export {name}={quoted(value)}"]
    return "\n".join(lines)


def script(*parts: str) -> str:
    """A bash script of several blocks."""
    return "\n\n".join(["#!/usr/bin/env bash", *(p.strip("\n") for p in parts if p.strip())]) + "\n"


# --- frames ---------------------------------------------------------------------------------------------------


@frozen
class Job:
    """A launch script to be run once per node."""

    name: str
    script: str
    """Its file name."""
    nodes: int
    gpus_per_node: int
    image: str
    vendor: str = ""
    """Of the GPUs; the prefix of the resource that pods ask for."""
    master_port: int = 29500

    @classmethod
    def of(cls, problem: Problem, image: str) -> Job:
        """The job that runs ``launch.sh`` on the problem's cluster."""
        c = problem.cluster
        per_node = min(c.gpus_per_node, c.n_gpus)
        return cls(slug(problem.arch.name), "launch.sh", c.n_nodes, per_node, image, c.gpu.vendor.lower())


def node_variables(job: Job) -> str:
    """Which node this is, for scripts that a person, a batch system or a pod starts alike."""
    return dedent(f"""\
        # Machines. Run this file once on every node; a batch system or a pod index fills in the rank.
        NNODES={job.nodes}
        GPUS_PER_NODE={job.gpus_per_node}
        NODE_RANK=${{NODE_RANK:-${{SLURM_NODEID:-${{JOB_COMPLETION_INDEX:-0}}}}}}
        MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}}  # address of node 0
        MASTER_PORT=${{MASTER_PORT:-{job.master_port}}}""")


def slurm(job: Job, head: str) -> str:
    """A batch script that runs the launch script once per node."""
    return script(
        dedent(f"""\
            {{head}}
            # Submit from the directory that holds {job.script}: sbatch slurm.sh
            #SBATCH --job-name={job.name}
            #SBATCH --nodes={job.nodes}
            #SBATCH --ntasks-per-node=1
            #SBATCH --gpus-per-node={job.gpus_per_node}
            #SBATCH --exclusive
            #SBATCH --output=%x-%j.log""").replace("{head}", head),
        "set -euo pipefail",
        dedent(f"""\
            MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
            export MASTER_ADDR
            export MASTER_PORT={job.master_port}
            srun --kill-on-bad-exit=1 bash "${{SLURM_SUBMIT_DIR:-.}}/{job.script}\""""),
    )


def kubernetes_job(job: Job, head: str, files: Sequence[str]) -> str:
    """An indexed Job of one pod per node and the headless service through which the pods find pod 0."""
    maps = " ".join(f"--from-file={f}" for f in files)
    return f"""{head}
# First: kubectl create configmap {job.name}-launch {maps}
# Then:  kubectl apply -f kubernetes.yaml
apiVersion: v1
kind: Service
metadata:
  name: {job.name}
spec:
  clusterIP: None
  selector:
    job-name: {job.name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {job.name}
spec:
  completionMode: Indexed
  completions: {job.nodes}
  parallelism: {job.nodes}
  backoffLimit: 0
  template:
    spec:
      subdomain: {job.name}
      restartPolicy: Never
      containers:
        - name: worker
          image: {job.image}
          command: ["bash", "/launch/{job.script}"]
          env:
            - name: MASTER_ADDR
              value: {job.name}-0.{job.name}
          resources:
            limits:
              {job.vendor}.com/gpu: {job.gpus_per_node}
          volumeMounts:
            - {{name: launch, mountPath: /launch}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: launch
          configMap: {{name: {job.name}-launch}}
        - name: shm  # communication libraries need more shared memory than a container's default
          emptyDir: {{medium: Memory}}
"""


def slug(text: str) -> str:
    """A name that batch systems and DNS accept."""
    plain = "".join(c if c.isalnum() else "-" for c in text.lower())
    return "-".join(filter(None, plain.split("-")))[:40].strip("-") or "job"


def yaml_block(lines: Iterable[tuple[str, Any, str]], level: int = 0) -> str:
    """``key: value  # why`` lines; values are plain scalars or flow lists."""
    out = []
    for key, value, why in lines:
        text = f"{key}: {yaml_scalar(value)}" if value is not ... else f"{key}:"
        out.append(f"{text}  # {why}" if why else text)
    return indent("\n".join(out), "  " * level)


def yaml_scalar(value: Any) -> str:
    """A scalar as YAML reads it back."""
    import json

    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_scalar(v) for v in value) + "]"
    text = str(value)
    plain = text.replace("_", "").replace("-", "").replace("/", "").replace(".", "").isalnum()
    reserved = text.lower() in {"true", "false", "null", "yes", "no", "on", "off", "~"} or text[:1].isdigit()
    return text if plain and text.isascii() and not reserved else json.dumps(text, ensure_ascii=False)


# --- on disk --------------------------------------------------------------------------------------------------


def write_files(directory: Path, files: Mapping[str, str], *, force: bool = False) -> list[Path]:
    """Put files into a directory, each whole or not at all; scripts become executable.

    Raises:
        SpecError: one of them exists and ``force`` is not set (then none is written), or the directory cannot be made.
    """
    targets = {directory / name: text for name, text in files.items()}
    there = sorted(str(t) for t in targets if t.exists())
    if there and not force:
        raise SpecError(f"{', '.join(there)} exist{'s' if len(there) == 1 else ''}; --force overwrites")
    for target, text in targets.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, text)
        except OSError as e:
            raise SpecError(f"{target}: cannot be written: {e.strerror or e}") from None
    return list(targets)


def _replace(target: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).chmod(0o755 if text.startswith("#!") else 0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
