"""``autoparallel plan`` itself: build the module, plan it, print and write what was found."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoparallel_core.cli.hosting import host_of, print_warnings
from autoparallel_core.cli.plan_flags import FUNCTIONS, MODEL, PIPELINE
from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.cluster import Cluster
    from autoparallel_core.spec.module_source import ModuleSource

DEFAULT_SEQ_LEN = 4096


def run(args: argparse.Namespace) -> int:
    """Plan, print, write. Raises SpecError for bad input, Infeasible when nothing fits."""
    from autoparallel_core.module_planning import build_module, plan
    from autoparallel_core.module_reading.summary import summary
    from autoparallel_core.report.console import make_console
    from autoparallel_core.report.document import envelope
    from autoparallel_core.report.inventory import print_json
    from autoparallel_core.report.module_plan.show import print_notes, print_plan

    _refuse_contradictions(args)
    files = {flag: Path(name).expanduser() for flag, name in (("--out", args.out), ("--html", args.html)) if name}
    refuse_existing(list(files.values()), force=bool(args.force))
    host = host_of(args)
    assumed: list[str] = []
    cluster, mesh = _machine(args, host, assumed)
    source = _source(args, host, cluster.n_gpus, assumed)
    with waiting("building the module", quiet=bool(args.json)) as say:
        built = build_module(source, host=host)
        say(f"planning it on {mesh if mesh != 'auto' else f'meshes of {cluster.n_gpus} GPUs'}")
        found = plan(
            built.module,
            built.inputs,
            mesh,
            n_gpus=cluster.n_gpus,
            cluster=cluster,
            pins=_pins(args),
            memory_limit_bytes=args.memory_limit,
            optimizer_bytes=args.optimizer_bytes,
            time_limit_s=args.time_limit or 120.0,
            source=source,
            host=host,
            **_pipeline(args, mesh),
        )
    written = _write(found, files, force=bool(args.force))
    figures = summary(found)
    notes = [*assumed, *built.notes]
    if args.json:
        print_json(envelope("plan", {"assumptions": notes, "files": [str(p) for p in written], **figures}))
    else:
        console = make_console()
        print_plan(console, figures, every=bool(args.all))
        print_notes(console, notes)
        _say_where(console, written)
    print_warnings(host)
    return 0


def _say_where(console: Any, written: list[Path]) -> None:
    from autoparallel_core.report.console import put

    console.print()
    if not written:
        put(console, "Nothing was written: --out plan.json keeps the plan, --html plan.html draws it.", style="dim")
    for path in written:
        put(console, f"written: {path}")


def _write(found: Any, files: dict[str, Path], *, force: bool) -> list[Path]:
    from autoparallel_core.report.module_plan.html import page

    texts = {}
    if "--out" in files:
        texts[files["--out"]] = found.text()
    if "--html" in files:
        texts[files["--html"]] = page(found)
    return write_texts(texts, force=force)


def write_texts(texts: dict[Path, str], *, force: bool) -> list[Path]:
    """Each file whole or not at all. Raises SpecError when one exists and ``force`` is not set."""
    from autoparallel_core.launch.write import write_files

    refuse_existing(list(texts), force=force)
    return [p for path, text in texts.items() for p in write_files(path.parent, {path.name: text}, force=True)]


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Before the work is done, not after it."""
    if len(set(paths)) < len(paths):
        raise SpecError(f"--out and --html both name {paths[0]}")
    for path in paths:
        if path.is_dir():
            raise SpecError(f"{path} is a directory; give a file")
        if path.exists() and not force:
            raise SpecError(f"{path} exists; --force overwrites")
        if not path.parent.is_dir():
            raise SpecError(f"{path}: there is no directory {path.parent}")


def importable_here() -> None:
    """Let ``pkg.mod`` of the current directory be imported, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


@contextlib.contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[Any]:
    """A line on a terminal that says what is being waited for; the value takes what comes next."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as status:
        yield lambda text: status.update(f"{text} …")


# --- from flags to the question ---------------------------------------------------------------------------------------


def _refuse_contradictions(args: argparse.Namespace) -> None:
    functions = [f.name for f in FUNCTIONS if getattr(args, f.dest) is not None]
    model = [f.name for f in MODEL if getattr(args, f.dest) is not None]
    if functions and model:
        raise SpecError(
            f"{functions[0]} names functions and {model[0]} belongs to a model from its config; give one kind of them"
        )
    if not functions and not (args.model_path or args.model):
        raise SpecError(
            "there is nothing to plan: give --module PKG.MOD:FUNCTION with --inputs, or --model-path PATH (a config.json, its "
            "directory, or a name of 'autoparallel models')"
        )
    if functions:
        for name, dest in (("--module", "module"), ("--inputs", "inputs")):
            if getattr(args, dest) is None:
                raise SpecError(f"{name} is missing: --module makes the module, --inputs the arguments of one call")
        if args.reduced_inputs and not args.reduced:
            raise SpecError("--reduced-inputs belongs to --reduced, which is not given")
    if args.model_path and args.model:
        raise SpecError("--model-path and --model both name a model; give one of them")
    if args.cluster:
        for name, dest in (("--gpu-type", "gpu_type"), ("--gpus-per-node", "gpus_per_node")):
            if getattr(args, dest) is not None:
                raise SpecError(f"{name} and --cluster both describe the cluster; change it in {args.cluster} instead")


def _machine(args: argparse.Namespace, host: Host, assumed: list[str]) -> tuple[Cluster, str]:
    from math import prod

    from autoparallel_core.cluster import build_cluster, read_cluster_toml
    from autoparallel_core.module_planning import default_gpu, parse_mesh

    mesh = args.mesh or "auto"
    _, sizes = parse_mesh(mesh)
    count = prod(sizes) if sizes else args.n_gpus
    if sizes and args.n_gpus is not None and count != args.n_gpus:
        raise SpecError(f"--mesh {mesh} takes {count} GPUs and --n-gpus is {args.n_gpus}")
    if args.cluster:
        cluster = read_cluster_toml(Path(args.cluster).expanduser(), host)
        if count is not None and cluster.n_gpus != count:
            what = f"--mesh {mesh}" if sizes else f"--n-gpus {count}"
            raise SpecError(f"{what} takes {count} GPUs and the cluster of {args.cluster} has {cluster.n_gpus}")
    else:
        if count is None:
            raise SpecError("no mesh is given: --mesh dp=32,tp=8, or --n-gpus N to have the shape searched")
        if args.gpu_type is None:
            gpu = default_gpu(host)
            assumed.append(f"--gpu-type {gpu.name}")
        else:
            gpu = host.gpu(args.gpu_type)
        cluster = build_cluster(gpu, count, gpus_per_node=args.gpus_per_node)
    return cluster, mesh


def _source(args: argparse.Namespace, host: Host, n_gpus: int, assumed: list[str]) -> ModuleSource:
    from autoparallel_core.spec.module_source import ModuleSource

    if args.module:
        importable_here()
        return ModuleSource(
            module=args.module, inputs=args.inputs, reduced=args.reduced or "", reduced_inputs=args.reduced_inputs or ""
        )
    name, config = _config(args, host, assumed)
    positions = config.get("max_position_embeddings")
    seq_len = args.seq_len
    if seq_len is None:
        seq_len = min(DEFAULT_SEQ_LEN, positions) if isinstance(positions, int) and positions > 0 else DEFAULT_SEQ_LEN
        assumed.append(f"--seq-len {seq_len} (tokens per sequence)")
    batch = args.global_batch_size
    if batch is None:
        batch = n_gpus
        assumed.append(f"--global-batch-size {batch} (one sequence per GPU)")
    precision = args.precision
    if precision is None:
        precision = "bf16"
        assumed.append("--precision bf16 (parameters, gradients and activations)")
    return ModuleSource(name=name, config=config, precision=precision, seq_len=seq_len, global_batch_size=batch)


def _config(args: argparse.Namespace, host: Host, assumed: list[str]) -> tuple[str, dict[str, Any]]:
    from autoparallel_core.reading.source import from_catalogue, looks_like_path, read_config_files

    name = args.model_path or args.model
    if args.model_path and looks_like_path(name):
        path = Path(name).expanduser()
        if not path.exists():
            raise SpecError(f"--model-path {path}: no such file or directory")
        found, config, _ = read_config_files(path.resolve())
        return found, dict(config)
    found, catalogued = from_catalogue(name, host.catalogue())
    assumed.append(
        f"{found} from the catalogue, which holds sizes: its other settings are the library's defaults. To replay the plan, plan "
        "from the model's own config.json"
    )
    return found, dict(catalogued)


def _pipeline(args: argparse.Namespace, mesh: str) -> dict[str, Any]:
    """The planner's options for a pipeline. Raises SpecError when the mesh has none."""
    given = {f: getattr(args, f.dest) for f in PIPELINE if getattr(args, f.dest) is not None}
    if given and not mesh.startswith("pp="):
        raise SpecError(f"{next(iter(given)).name} belongs to a pipeline: a mesh whose first dimension is pp, like pp=4,dp=8")
    return {_OPTIONS[f.name]: value for f, value in given.items()}


_OPTIONS = {"--micro-batches": "microbatches", "--schedule": "schedule", "--stages-per-rank": "stages_per_rank"}


def _pins(args: argparse.Namespace) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, placement in args.pin:
        if out.setdefault(name, placement) != placement:
            raise SpecError(f"--pin {name} is given twice, as {out[name]} and as {placement}")
    return out
