"""Which measurements an answer uses, and what they change: the flag's file, else the user's cache, else the presets.

The one road from measured data into a question: the GPU with its measured figures, and the constants of the cost model
that a measurement replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.cluster import Gpu
from autoparallel_core.spec.problem import Constant

if TYPE_CHECKING:
    from autoparallel_core.calibrate.files import CalibrationFile
    from autoparallel_core.host import Host
    from autoparallel_core.profiles.files import Profile
    from autoparallel_core.spec.problem import Problem


CPU = "cpu"
"""Vendor of devices that run what they launch."""
_ITS_OWN_MOVER = "a processor moves its messages with the cores that compute"
_ON_CPU = {
    "tp_exposed_backward": (1.0, _ITS_OWN_MOVER),
    "p2p_exposed": (1.0, _ITS_OWN_MOVER),
    "overlap_loss": (1.0, _ITS_OWN_MOVER),
    "optimizer_fixed_s": (0.0, "a processor's optimizer step is measured whole"),
}
"""Constants of training that are learnt from accelerators and do not hold on a processor."""


@frozen(eq=False)
class Measured:
    """A GPU as measured, and what else the measurement says."""

    gpu: Gpu
    constants: Mapping[str, Constant] = field(factory=dict)
    used: tuple[str, ...] = ()
    """Sentences for the answer: which file, and what of it could not be used."""

    def applied_to(self, problem: Problem) -> Problem:
        """The problem with the measured constants in place; the engine's own ones give way, too.

        A processor that only its own profile describes launches nothing ahead of itself, and nobody else moves its
        messages: every operator's overhead counts, and all communication.
        """
        if self.gpu.vendor == CPU:
            from autoparallel_core.cost.constants import core_constants

            known = core_constants()
            own = {n: Constant(v, known[n].meaning, why, "assumed") for n, (v, why) in _ON_CPU.items()}
            software = evolve(problem.software, launch_blocking=True)
            problem = evolve(problem, software=software, constants={**problem.constants, **own})
        return evolve(problem, constants={**problem.constants, **self.constants}) if self.constants else problem


def measured_gpu(gpu: Gpu, host: Host, *, profile_data: str | None = None, presets_only: bool = False) -> Measured:
    """Lay measurements over a preset.

    Args:
        gpu: the preset, or the profile's own device.
        host: plugins, which may ship profiles.
        profile_data: a profile file, or a source that :func:`autoparallel_core.profiles.importers.load` understands.
        presets_only: use no measurement at all.

    Raises:
        SpecError: the file is missing, of another GPU, or implausible (the entry is named).
    """
    from autoparallel_core.profiles.files import cached_profile, read_profile
    from autoparallel_core.profiles.importers import load

    if presets_only:
        return Measured(gpu)
    if profile_data is not None:
        return _apply(gpu, load(profile_data, gpu), f"measured data of {profile_data}")
    if (cached := cached_profile(gpu)) is not None:
        return _apply(gpu, cached, f"measured data of {cached.path} (your cache; --no-profile leaves it out)")
    result = Measured(gpu)
    for plugin, paths in host.profiles(gpu.name):
        for path in paths:
            text = f"measured data of {path.name} (plugin {plugin.name}; --no-profile leaves it out)"
            more = _apply(result.gpu, read_profile(path), text)
            result = Measured(more.gpu, {**result.constants, **more.constants}, (*result.used, *more.used))
    return result


def gpu_of_profile(profile_data: str | None, host: Host, *, wanted: str | None = None) -> Gpu | None:
    """The GPU that measured data is about: a preset, or a device that only the data describes; None when it names none.

    ``wanted`` is the name the user gave; data of another GPU then says nothing, and the user's cache may know the name.
    """
    from autoparallel_core.errors import UnknownPlugin
    from autoparallel_core.profiles.files import cache_file, read_profile

    path = None
    if profile_data is not None and Path(profile_data).expanduser().suffix == ".json":
        path = Path(profile_data).expanduser()
    elif wanted is not None and cache_file(wanted).is_file():
        path = cache_file(wanted)
    if path is None:
        return None
    profile = read_profile(path)
    if wanted is not None and wanted.casefold() != profile.gpu.casefold():
        return None
    try:
        return host.gpu(profile.gpu)
    except UnknownPlugin:
        if profile.device is None:
            raise SpecError(f"profile {path}: its GPU '{profile.gpu}' is not known and the file describes no device") from None
        return profile.device


def _apply(gpu: Gpu, profile: Profile, text: str) -> Measured:
    from autoparallel_core.cost.constants import core_constants
    from autoparallel_core.profiles.apply import SATURATION, apply_profile

    known = core_constants()
    found = apply_profile(gpu, profile, {name: known[name].value for name in SATURATION if name in known})
    constants = {
        name: Constant(value, known[name].meaning, f"{how}; {found.source}", "measured")
        for name, (value, how) in found.constants.items()
        if name in known
    }
    state = "" if profile.complete else ", an unfinished measurement"
    count = f"{profile.rows:,} points" if profile.rows else "efficiencies"
    return Measured(found.gpu, constants, (f"{text}: {count}{state}", *profile.provenance.notes, *found.notes))


class Refiner:
    """Lays measured data and a calibration on every question of a command that asks many; ``used`` says what was used."""

    def __init__(
        self,
        host: Host,
        *,
        profile_data: str | None = None,
        presets_only: bool = False,
        calibration: CalibrationFile | None = None,
    ) -> None:
        self.host, self.profile_data, self.presets_only, self.calibration = host, profile_data, presets_only, calibration
        self.used: dict[str, None] = {}
        self._of_gpu: dict[str, Measured] = {}

    def __call__(self, problem: Problem) -> Problem:
        """The question as measured and calibrated. Raises SpecError when the measured data is implausible."""
        gpu = problem.cluster.gpu
        if gpu.name not in self._of_gpu:
            self._of_gpu[gpu.name] = self._measured(gpu)
        found = self._of_gpu[gpu.name]
        if found.gpu is not gpu and found.used:
            problem = found.applied_to(evolve(problem, cluster=evolve(problem.cluster, gpu=_with_limits(found.gpu, gpu))))
        if self.calibration is None:
            return problem
        problem = self.calibration.applied_to(problem)
        if problem.calibration is not None:
            self.used[problem.calibration.source] = None
        return problem

    def _measured(self, gpu: Gpu) -> Measured:
        if self.profile_data is not None and not _speaks_for(self.profile_data, gpu):
            return Measured(gpu)
        found = measured_gpu(gpu, self.host, profile_data=self.profile_data, presets_only=self.presets_only)
        self.used |= dict.fromkeys(found.used)
        return found


def _speaks_for(profile_data: str, gpu: Gpu) -> bool:
    """Data that names no GPU speaks for any; a missing file is refused where it is read."""
    from autoparallel_core.profiles.files import read_profile

    path = Path(profile_data).expanduser()
    if path.suffix != ".json" or not path.is_file():
        return True
    return read_profile(path).gpu.casefold() in {n.casefold() for n in (gpu.name, *gpu.aliases)}


def _with_limits(measured: Gpu, stated: Gpu) -> Gpu:
    """The measured GPU in a cluster that states its own links, memory and domain."""
    return evolve(
        measured,
        memory_bytes=stated.memory_bytes,
        scale_up_domain=stated.scale_up_domain,
        nic_bytes_per_s=stated.nic_bytes_per_s,
        scale_up_bytes_per_s=stated.scale_up_bytes_per_s,
    )
