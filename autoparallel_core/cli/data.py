"""Measured data and calibrations for the commands that predict many records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autoparallel_core.cli.flags import DATA
from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.measured import Refiner


def add_data_flags(parser: argparse.ArgumentParser, *, calibration: bool = True) -> None:
    """The flags of measured data, as every other command has them."""
    group = parser.add_argument_group("measured data")
    for flag in DATA:
        if calibration or flag.name != "--calibration":
            flag.add_to(group)


def refiner_of(args: argparse.Namespace, host: Host) -> Refiner:
    """What the flags lay on every question. Raises SpecError when they contradict each other or a file is missing."""
    from autoparallel_core.calibrate.files import read_calibration
    from autoparallel_core.measured import Refiner

    if args.profile_data and args.no_profile:
        raise SpecError("--profile-data and --no-profile contradict each other; give one of them")
    file = getattr(args, "calibration", None)
    return Refiner(
        host,
        profile_data=args.profile_data,
        presets_only=bool(args.no_profile),
        calibration=read_calibration(Path(file).expanduser()) if file else None,
    )


def print_used(refiner: Refiner) -> None:
    """On standard error, which a JSON answer leaves free: what was used."""
    for sentence in refiner.used:
        print(f"autoparallel: {sentence}", file=sys.stderr)
    if refiner.calibration is not None and not any("calibrated on" in s for s in refiner.used):
        print(f"autoparallel: no record is of a stack that {refiner.calibration.path} is about", file=sys.stderr)
