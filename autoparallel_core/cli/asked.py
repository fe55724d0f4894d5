"""The question behind launch files: what the command says, what the files say, what they were planned for."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from autoparallel_core.cli.flags import CLUSTER, KV_DTYPES, MANUAL, MODEL, PROBLEM_FLAGS, add_problem_flags
from autoparallel_core.cli.parser import Parser
from autoparallel_core.cli.software import written
from autoparallel_core.errors import SpecError
from autoparallel_core.launch.write import QUESTION
from autoparallel_core.reading.source import near_names

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.launch import Launch
    from autoparallel_core.spec.problem import Problem

_FROM_WORKLOAD = {
    "seq_len": "max_length", "global_batch_size": "batch_size", "precision": "precision", "max_model_len": "max_length",
    "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_tokens_per_mb", "memory_fraction": "memory_fraction",
    "kv_dtype": "kv_dtype", "task": "task",
}  # fmt: skip
_MODEL_DESTS = tuple(f.dest for f in (*MODEL, *MANUAL))
_CLUSTER_DESTS = tuple(f.dest for f in CLUSTER)
_NOT_RESTATED = ("planner",)
_CONFIGURATION = re.compile(r"[\w./-]*\w\.(?:ya?ml|json|toml)\b")


def read_files(paths: Iterable[str]) -> dict[str, str]:
    """Texts by path; a directory stands for the files in it.

    Raises:
        SpecError: a file is missing or is no text.
    """
    out: dict[str, str] = {}
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
            if not inside:
                raise SpecError(f"{path}: the directory holds no files")
        else:
            inside = [path]
        for p in inside:
            try:
                out[str(p)] = p.read_text(encoding="utf-8")
            except FileNotFoundError:
                raise SpecError(f"{p}: no such file") from None
            except UnicodeDecodeError:
                raise SpecError(f"{p}: is not a text file") from None
            except OSError as e:
                raise SpecError(f"{p}: cannot be read: {e.strerror}") from None
    return out


def read_launch(files: Mapping[str, str], host: Host, engine: str | None, problem: Problem | None = None) -> Launch:
    """The one launch that the files hold.

    Raises:
        SpecError: no engine's launch is in them, or several engines' are.
    """
    if engine is not None and engine not in (known := host.engines()):
        host.engine(engine, "training" if not known else next(iter(known.values())).modes[0])
    found = host.call("engines", "read", files=files, engine=engine, problem=problem)
    names = ", ".join(files)
    if not found:
        what = f"a launch of {engine}" if engine else "a launch of an installed engine"
        engines = ", ".join(host.engines())
        hint = "" if engine else f" (engines: {engines}; --engine NAME tells which one to look for)"
        raise SpecError(f"no {what.removeprefix('a ')} was found in {names}{hint}{_named_beside(files)}")
    if len(found) > 1:
        claims = " and ".join(launch.engine for _, launch in found)
        raise SpecError(f"{names}: read as launches of {claims}; say which with --engine")
    launch: Launch = found[0][1]
    return launch


def _named_beside(files: Mapping[str, str]) -> str:
    """A sentence on the configuration files that the texts name and nobody gave; empty where there are none."""
    given = {Path(name).name for name in files}
    named = (found for text in files.values() for found in _CONFIGURATION.findall(text))
    missing = [n for n in dict.fromkeys(named) if Path(n).name not in given]
    them = "it" if len(missing) == 1 else "them"
    return f"; named there and not given: {', '.join(missing)} (give {them}, too)" if missing else ""


def stated_question(files: Mapping[str, str]) -> argparse.Namespace:
    """The flags of the first comment that states a question, as ``export`` writes it; all None when there is none."""
    parser = Parser(prog="autoparallel")
    add_problem_flags(parser)
    for name, text in files.items():
        for line in text.splitlines():
            if QUESTION in line:
                words = shlex.split(line.split(QUESTION, 1)[1])
                try:
                    return _typed(parser.parse_args(words))
                except SpecError as e:
                    raise SpecError(f"{name}: the line '{QUESTION}' cannot be read: {e}") from None
    return _typed(parser.parse_args([]))


def _typed(namespace: Any) -> argparse.Namespace:
    assert isinstance(namespace, argparse.Namespace), "argparse returns its namespace"
    return namespace


def merged(args: argparse.Namespace, launch: Launch, question: argparse.Namespace, host: Host) -> argparse.Namespace:
    """The flags of the whole question: the command's own first, then the files', then those they were planned for."""
    out = argparse.Namespace(**vars(args))
    spec = host.engines()[launch.engine]
    out.engine, out.mode = launch.engine, args.mode or spec.modes[0]
    _merge_model(out, launch, question, host)
    _merge_cluster(out, launch, question, serving=out.mode == "inference")
    stated = {_FROM_WORKLOAD[k]: v for k, v in launch.workload.items() if k in _FROM_WORKLOAD}
    if stated.get("kv_dtype") not in (None, *KV_DTYPES):
        stated.pop("kv_dtype")
    if launch.workload.get("grad_reduce_in_fp32") is False:
        stated["no_grad_reduce_in_fp32"] = True
    if out.engine_version is None:
        out.engine_version = question.engine_version or launch.version
    for flag in PROBLEM_FLAGS:
        if flag.dest in _MODEL_DESTS or flag.dest in _CLUSTER_DESTS or out.mode not in flag.modes:
            continue
        if getattr(out, flag.dest, None) is None:
            setattr(out, flag.dest, stated.get(flag.dest, getattr(question, flag.dest)))
    if out.mode == "inference" and out.isl is None and out.osl is None and (out.max_length or 2048) < 2048:
        out.isl = max(out.max_length // 2, 1)
        out.osl = max(out.max_length - out.isl, 1)
    return out


def _merge_model(out: argparse.Namespace, launch: Launch, question: argparse.Namespace, host: Host) -> None:
    given = [d for d in _MODEL_DESTS if getattr(out, d, None) is not None]
    sizes = given and not set(given) & {"model", "model_path"}
    if sizes and launch.model_fields:  # what the files leave open, such as the tokenizer's vocabulary
        _add_fields(out, launch)
    if given:
        return
    if launch.model is not None and (flag := _loadable(launch.model, host)) is not None:
        setattr(out, flag, launch.model)
        return
    if any(getattr(question, d) is not None for d in _MODEL_DESTS) and (
        question.model_path is None or Path(question.model_path).exists()
    ):
        for d in _MODEL_DESTS:
            setattr(out, d, getattr(question, d))
        return
    if launch.model_fields:
        _add_fields(out, launch)
        if out.vocab_size is None:
            raise SpecError(
                "the files give the model's sizes without its vocabulary, which is the tokenizer's: give --vocab-size, "
                "or the whole model by --model or --model-path"
            )
        return
    if launch.model is not None:
        raise SpecError(
            f"the files name the model '{launch.model}', which is neither a directory with a config.json here nor one of the "
            f"catalogue{near_names(launch.model, host.catalogue())}; give --model-path or --model"
        )
    raise SpecError("the files do not say which model they run; give --model-path or --model")


def _add_fields(out: argparse.Namespace, launch: Launch) -> None:
    for name, value in launch.model_fields.items():
        if getattr(out, name, None) is None:
            setattr(out, name, value)


def _loadable(model: str, host: Host) -> str | None:
    from autoparallel_core.reading.source import from_catalogue

    path = Path(model).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return "model_path"
    try:
        from_catalogue(model, host.catalogue())
    except SpecError:
        return None
    return "model"


def _merge_cluster(out: argparse.Namespace, launch: Launch, question: argparse.Namespace, *, serving: bool) -> None:
    if out.cluster:
        return
    asked = any(getattr(out, d, None) is not None for d in _CLUSTER_DESTS)
    if question.cluster and not asked and Path(question.cluster).exists():
        out.cluster = question.cluster
        return
    if out.n_gpus is None:
        out.n_gpus = launch.n_gpus
        planned = question.n_gpus
        if planned is not None and (launch.n_gpus is None or (serving and planned > launch.n_gpus)):
            out.n_gpus = planned
    if out.gpus_per_node is None:
        stated = launch.gpus_per_node if question.n_gpus is None else question.gpus_per_node
        out.gpus_per_node = min(stated, out.n_gpus) if stated is not None and out.n_gpus is not None else stated
    for d in _CLUSTER_DESTS:
        if d not in {"n_gpus", "gpus_per_node", "cluster"} and getattr(out, d, None) is None:
            setattr(out, d, getattr(question, d))


def with_launch(problem: Problem, launch: Launch, stated: Collection[str] = ()) -> Problem:
    """The problem with what the files say about software and workload that no flag of the command states.

    ``stated``: fields of Software that the command's flags state.
    """
    from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload

    if said := {k: v for k, v in launch.software.items() if k not in stated}:
        assumed = tuple(a for a in problem.software.assumed if a not in said)
        problem = evolve(problem, software=evolve(problem.software, **said, assumed=assumed))
    kind = TrainingWorkload if problem.mode == "training" else InferenceWorkload
    more = {k: v for k, v in launch.workload.items() if k not in (*_FROM_WORKLOAD, "grad_reduce_in_fp32") and hasattr(kind, k)}
    return problem.with_workload(evolve(problem.workload, **more)) if more else problem


def restated(args: argparse.Namespace, problem: Problem) -> str:
    """The flags that state this question again, for the head of a launch file: those given, and what was assumed."""
    words: list[str] = []
    given = {f.dest: f for f in PROBLEM_FLAGS if getattr(args, f.dest, None) is not None and f.dest not in _NOT_RESTATED}
    given.pop("n_gpus", None)  # with --find-min-nodes the number found differs from the one given
    for dest, flag in given.items():
        value = getattr(args, dest)
        if flag.read is None:
            words.append(flag.name)
        else:
            words += [flag.name, _written(dest, value)]
    for dest, value in _assumed(problem).items():
        if dest not in given and not (args.cluster and dest in _CLUSTER_DESTS):
            words += [next(f.name for f in PROBLEM_FLAGS if f.dest == dest), str(value)]
    return shlex.join(words)


def _written(dest: str, value: Any) -> str:
    if dest in {"model_path", "cluster", "profile_data"}:
        return str(Path(value).expanduser().resolve())
    if dest == "software":
        return written(value)
    return repr(value) if isinstance(value, float) else str(value)


def _assumed(problem: Problem) -> dict[str, Any]:
    out: dict[str, Any] = {
        "mode": problem.mode,
        "engine": problem.engine.name,
        "engine_version": problem.engine_version,
        "gpu_type": problem.cluster.gpu.name,
        "n_gpus": problem.cluster.n_gpus,
    }
    if problem.mode == "training":
        return out | {
            "max_length": problem.training.seq_len,
            "batch_size": problem.training.global_batch_size,
            "precision": problem.training.precision,
        }
    return out | {"isl": problem.inference.isl, "osl": problem.inference.osl}
