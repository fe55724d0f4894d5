"""``autoparallel profile``: measure this machine, or import what others measured, into a profile file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.values import number, one_of, whole
from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.profiles.files import Profile
    from autoparallel_core.spec.cluster import Gpu


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "profile",
        description="Measure matrix products, attention, memory, launches and collectives on this machine or cluster. The result "
        "goes to your cache, which every later answer about this GPU uses, and to --output.",
    )
    what = p.add_argument_group("what is measured")
    what.add_argument("--model-path", metavar="PATH", help="take the shapes of this model (default: a general grid)")
    what.add_argument("--model", metavar="NAME", help="the same for a model known by name")
    what.add_argument("--device", type=one_of("cuda", "cpu"), metavar="D", help="cuda (also ROCm) or cpu (default: cuda if any)")
    what.add_argument("--gpu-type", metavar="NAME", help="the preset that this GPU is (default: by its name and memory)")
    what.add_argument("--what", metavar="TABLES", help="memory,gemm,attention,collectives,p2p,launch,expert_gemm (default: all)")
    what.add_argument("--dtypes", metavar="LIST", help="of matrix products (default: bf16,fp8; CPU: bf16)")
    how = p.add_argument_group("how")
    how.add_argument("--nodes", type=whole(), metavar="N", default=1, help="nodes (default 1)")
    how.add_argument("--ranks", type=whole(), metavar="N", help="ranks per node (default: all GPUs; CPU: two)")
    how.add_argument("--threads", type=whole(), metavar="N", help="CPU threads of a rank (default: cores / ranks)")
    how.add_argument(
        "--backend", type=one_of("auto", "local", "slurm", "ray"), metavar="B", default="auto", help="what starts them"
    )
    how.add_argument("--launcher-args", metavar="WORDS", default="", help="more words for sbatch, srun or ray job submit")
    how.add_argument("--budget-minutes", type=number(above=0), metavar="M", help="stop after so long; the next run goes on")
    how.add_argument("--fresh", action="store_true", help="forget what an earlier, interrupted run measured")
    how.add_argument("--dry-run", action="store_true", help="print the exact commands and measure nothing")
    out = p.add_argument_group("result")
    out.add_argument("--output", metavar="FILE", type=Path, help="also write the profile here")
    out.add_argument("--import", dest="import_from", metavar="SOURCE", help="read measurements of another tool instead")
    out.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure or import. Raises SpecError (exit code 2); an interrupt keeps what was measured."""
    host = host_of(args)
    if args.import_from is not None:
        return _import(args, host)
    options = _options(args, host)
    from autoparallel_core.cli.progress import Progress

    try:
        with Progress(what="measuring") as progress:
            answer = host.measure({"kind": "profile", **options, "progress": progress})
    except KeyboardInterrupt:
        print("autoparallel: what was measured so far is kept; the same command goes on from there", file=sys.stderr)
        raise
    print_warnings(host)
    if answer is None:
        raise SpecError(
            "no plugin can measure this machine; is the plugin 'profiler' disabled or broken ('autoparallel plugins')?"
        )
    if args.dry_run:
        return _print_plan(args, answer)
    _write(args, answer["profile"], host, left=int(answer["missing"]), whole=int(answer["probes"]))
    return 0


def _options(args: argparse.Namespace, host: Host) -> dict[str, Any]:
    from autoparallel_core.models import load_model

    if args.model_path and args.model:
        raise SpecError("--model-path and --model both name a model; give one of them")
    if args.model_path and not Path(args.model_path).expanduser().exists():
        raise SpecError(f"--model-path {args.model_path}: no such file or directory (for a model of the catalogue use --model)")
    source = str(Path(args.model_path).expanduser().resolve()) if args.model_path else args.model
    return {
        "device": args.device,
        "gpus": list(host.gpus().values()),
        "gpu": host.gpu(args.gpu_type) if args.gpu_type else None,
        "arch": load_model(source, host) if source else None,
        "nodes": args.nodes,
        "ranks": args.ranks,
        "threads": args.threads,
        "tables": _words(args.what),
        "dtypes": _words(args.dtypes),
        "budget_s": args.budget_minutes * 60 if args.budget_minutes else None,
        "backend": args.backend,
        "launcher_arguments": tuple(args.launcher_args.split()),
        "fresh": args.fresh,
        "dry_run": args.dry_run,
        "command": _command_line(),
    }


def _words(text: str | None) -> tuple[str, ...] | None:
    return tuple(w.strip() for w in text.split(",") if w.strip()) if text else None


def _command_line() -> str:
    import shlex

    return shlex.join(["autoparallel", *sys.argv[1:]])


def _print_plan(args: argparse.Namespace, answer: Any) -> int:
    if args.json:
        from autoparallel_core.report.document import envelope
        from autoparallel_core.report.inventory import print_json

        fields = {k: answer[k] for k in ("backend", "command", "probes", "missing")}
        print_json(envelope("profile", {"status": "dry run", **fields}))
    else:
        done = (
            f", {answer['probes'] - answer['missing']} of them measured already" if answer["missing"] < answer["probes"] else ""
        )
        print(f"# {answer['probes']} measurements{done}; backend {answer['backend']}")
        print(answer["command"])
    return 0


def _import(args: argparse.Namespace, host: Host) -> int:
    """Convert another tool's measurements into a profile file."""
    from autoparallel_core.profiles.importers import load

    if not args.gpu_type:
        raise SpecError("--import needs --gpu-type: the GPU that was measured, whose peaks the measurements are held against")
    gpu = host.gpu(args.gpu_type)
    profile = load(args.import_from, gpu)
    _check(gpu, profile)
    if args.output is None:
        raise SpecError("--import needs --output FILE for the profile (give the file to --profile-data afterwards)")
    _write(args, profile, host, left=0, whole=profile.rows, cache=False)
    return 0


def _check(gpu: Gpu, profile: Profile) -> None:
    from autoparallel_core.profiles.apply import apply_profile

    apply_profile(gpu, profile)


def _write(args: argparse.Namespace, profile: Profile, host: Host, *, left: int, whole: int, cache: bool = True) -> None:
    from autoparallel_core.errors import UnknownPlugin
    from autoparallel_core.profiles.files import cache_file, document, write_profile

    try:
        gpu = host.gpu(profile.gpu)
    except UnknownPlugin:
        assert profile.device is not None, "the profiler describes devices that no plugin knows"
        gpu = profile.device
    files = [f for f in (cache_file(profile.gpu) if cache else None, args.output) if f is not None]
    _check(gpu, profile)
    for file in files:
        write_profile(profile, file)
    if args.json:
        from autoparallel_core.report.document import envelope
        from autoparallel_core.report.inventory import print_json

        body = {"status": "ok" if left == 0 else "unfinished", "files": [str(f) for f in files], "missing": left}
        print_json(envelope("profile", {**body, "profile": document(profile)}))
        return
    from autoparallel_core.report.profile import print_profile

    print_profile(gpu, profile, files, cached=cache, left=left, whole=whole)
