"""``apply``: check that the module is the planned one, place its parameters, install the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoparallel_core.errors import SpecError
from autoparallel_core.naming import did_you_mean
from autoparallel_core.spec.module_plan import ModulePlan
from autoparallel_pytorch import codec
from autoparallel_pytorch.apply import Runner, distribute, install
from autoparallel_pytorch.fingerprint import difference, fingerprint

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from autoparallel_pytorch.pipeline_stage import Pipeline

_OPTIONS = ("mesh", "inputs")


def replay(module: torch.nn.Module, plan: ModulePlan, options: Mapping[str, Any]) -> torch.nn.Module | Pipeline:
    """The module, in place; of a plan with a pipeline what this rank runs of it, with copies of the stage's modules.

    Options:
        mesh: a ``DeviceMesh`` of the plan's sizes; None makes one over all ranks.
        inputs: ``global`` (default): every rank gives whole inputs, and takes its piece; ``local``: each gives its own piece.

    Raises:
        SpecError: the module differs from the planned one (the first difference is named), or the mesh does.
    """
    for name in options:
        if name not in _OPTIONS:
            raise SpecError(f"unknown option '{name}' of apply; {did_you_mean(name, _OPTIONS)}")
    inputs = options.get("inputs", "global")
    if inputs not in ("global", "local"):
        raise SpecError(f"inputs must be 'global' or 'local', not {inputs!r}")
    document = plan.document
    found = difference(document["module"]["fingerprint"], fingerprint(module))
    if found is not None:
        raise SpecError(f"the plan is of another module: {found}")
    if "pipeline" in document:
        from autoparallel_pytorch.pipeline_stage import replay_pipeline

        return replay_pipeline(module, plan, _mesh(plan, module, options.get("mesh")), local_inputs=inputs == "local")
    program = codec.load(document["program"], len(document["mesh"]["sizes"]))
    mesh = _mesh(plan, module, options.get("mesh"))
    distribute(module, program, mesh)
    runner = Runner(program, mesh, document["structure"], local_inputs=inputs == "local", constants=document["constants"])
    return install(module, runner)


def _mesh(plan: ModulePlan, module: torch.nn.Module, given: Any) -> DeviceMesh:
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    names, sizes = tuple(plan.document["mesh"]["names"]), tuple(plan.document["mesh"]["sizes"])
    if given is None:
        kind = next((p.device.type for p in module.parameters() if p.device.type != "meta"), None)
        if kind is None:
            kind = "cuda" if torch.cuda.is_available() else "cpu"
        return init_device_mesh(kind, sizes, mesh_dim_names=names)
    shape = tuple(given.size(m) for m in range(given.ndim))
    if shape != sizes:
        raise SpecError(f"the plan is for a mesh of {' × '.join(map(str, sizes))}, not of {' × '.join(map(str, shape))}")
    return given  # type: ignore[no-any-return]
