"""How the ranks get started: torchrun on this machine, Slurm inside or outside an allocation, a Ray cluster.

Each launcher turns a request file into the exact command that ``--dry-run`` prints and a run executes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from autoparallel_core.errors import SpecError

NAMES = ("local", "slurm", "ray")
WORKER = "autoparallel_profiler.worker"
RAY_ENTRY = "autoparallel_profiler.ray_entry"
_PORT = 29517
_PATIENCE_S = 10.0


@frozen
class Launch:
    """One command, the file that it needs, and what to say about it."""

    backend: str
    command: tuple[str, ...]
    script: Path | None = None
    script_text: str = ""
    environment: Mapping[str, str] = field(factory=dict)

    def shown(self) -> str:
        """The command as one would type it, with the script it submits."""
        words = [f"{k}={shlex.quote(v)}" for k, v in self.environment.items()] + [shlex.join(self.command)]
        line = " ".join(words)
        return f"{line}\n\n# {self.script}\n{self.script_text}" if self.script is not None else line


def detect(nodes: int, environment: Mapping[str, str] = os.environ) -> str:
    """Slurm inside an allocation or where several nodes are asked for and sbatch is there; Ray where its address is set.

    Raises:
        SpecError: several nodes are asked for and nothing here can reach them.
    """
    if "SLURM_JOB_ID" in environment:
        return "slurm"
    if "RAY_ADDRESS" in environment or "RAY_JOB_CONFIG_JSON_ENV_VAR" in environment:
        return "ray"
    if nodes == 1:
        return "local"
    if shutil.which("sbatch"):
        return "slurm"
    if shutil.which("ray"):
        return "ray"
    raise SpecError(f"--nodes {nodes}: neither a Slurm allocation nor sbatch nor a Ray cluster is here to reach other nodes")


def launch_of(
    backend: str,
    request: Path,
    *,
    nodes: int,
    ranks_per_node: int,
    threads: int,
    accelerator: bool,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Launch:
    """The command for a backend of NAMES. ``extra`` goes to sbatch, srun or ``ray job submit``.

    Raises:
        SpecError: the backend's program is not installed, or cannot do what is asked.
    """
    if backend == "local":
        if nodes > 1:
            raise SpecError(f"--backend local starts ranks on this machine only, not on {nodes} nodes; use slurm or ray")
        return _local(request, ranks_per_node, threads, accelerator)
    if backend == "slurm":
        return _slurm(request, nodes, ranks_per_node, threads, accelerator, extra, environment)
    if backend == "ray":
        return _ray(request, nodes, ranks_per_node, accelerator, extra)
    raise SpecError(f"unknown backend '{backend}'; known: {', '.join(NAMES)}")


def _torchrun(request: Path, ranks: int, rendezvous: Sequence[str]) -> tuple[str, ...]:
    return (
        sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--nproc-per-node={ranks}", "-m", WORKER, str(request),
    )  # fmt: skip


def _threads(threads: int, *, accelerator: bool) -> dict[str, str]:
    return {} if accelerator else {"OMP_NUM_THREADS": str(threads)}


def _local(request: Path, ranks: int, threads: int, accelerator: bool) -> Launch:
    environment = _threads(threads, accelerator=accelerator)
    if ranks == 1:
        return Launch("local", (sys.executable, "-m", WORKER, str(request)), environment=environment)
    return Launch("local", _torchrun(request, ranks, ("--standalone",)), environment=environment)


def _slurm(
    request: Path,
    nodes: int,
    ranks: int,
    threads: int,
    accelerator: bool,
    extra: Sequence[str],
    environment: Mapping[str, str],
) -> Launch:
    """One task per node, which starts the node's ranks; the first host of the job is the meeting point."""
    inside = "SLURM_JOB_ID" in environment
    if not shutil.which("srun" if inside else "sbatch"):
        raise SpecError(f"--backend slurm: {'srun' if inside else 'sbatch'} is not on the PATH")
    have = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES")
    if inside and have is not None and int(have) < nodes:
        raise SpecError(f"--nodes {nodes}: this allocation has {have}")
    gpus = (f"--gpus-per-node={ranks}",) if accelerator else ()
    place = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    export = "".join(f"export {k}={v}\n" for k, v in _threads(threads, accelerator=accelerator).items())
    if nodes == 1:
        rank = shlex.join(_torchrun(request, ranks, ("--standalone",)))
        meet = ""
    else:
        rendezvous = (f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-id=$SLURM_JOB_ID", "--rdzv-endpoint=$head:%d" % _PORT)  # noqa: UP031
        rank = shlex.join(_torchrun(request, ranks, rendezvous)).replace("'", "")
        meet = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nexport head\n'
    if inside:
        step = ("srun", *place, *gpus, *extra, "bash", "-c")
        return Launch("slurm", (*step, f"{export}{meet}exec {rank}"))
    script = request.with_suffix(".sbatch")
    directives = "".join(f"#SBATCH {x}\n" for x in ("--job-name=autoparallel-profile", *place, *gpus, "--exclusive", *extra))
    text = f"#!/bin/bash\n{directives}{export}{meet}srun {shlex.join((*place, *gpus))} bash -c {shlex.quote(f'exec {rank}')}\n"
    return Launch("slurm", ("sbatch", "--wait", str(script)), script, text)


def _ray(request: Path, nodes: int, ranks: int, accelerator: bool, extra: Sequence[str]) -> Launch:
    if not shutil.which("ray"):
        raise SpecError("--backend ray: the program ray is not on the PATH (pip install 'ray[default]')")
    entry = ("python", "-m", RAY_ENTRY, str(request), f"--nodes={nodes}", f"--ranks-per-node={ranks}")
    resource = f"--{'gpus' if accelerator else 'cpus'}-per-rank=1"
    return Launch("ray", ("ray", "job", "submit", *extra, "--", *entry, resource))


def execute(launch: Launch, log: Path, watch: Callable[[], None]) -> int:
    """Run the command, calling ``watch`` a few times a second; its exit code. An interrupt reaches the ranks, then us."""
    if launch.script is not None:
        launch.script.write_text(launch.script_text, encoding="utf-8")
    with log.open("ab") as out, _ended_as_interrupted():
        process = subprocess.Popen(  # noqa: S603  the command is ours
            launch.command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **launch.environment}, start_new_session=True
        )
        try:
            while True:
                watch()
                try:
                    return process.wait(0.3)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            _stop(process)
            raise


@contextlib.contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """A closed terminal or a plain kill ends the ranks, too, as Ctrl-C does; only the main thread can see to it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(_PATIENCE_S)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
