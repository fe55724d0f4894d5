"""Flags of the comparison with prefill and decode pools, and the question that they ask of the decode pool's cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoparallel_core.cli.flags import CLUSTER, INFERENCE, Flag
from autoparallel_core.cli.values import number, whole
from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.pools import Compared
    from autoparallel_core.search.result import SearchResult
    from autoparallel_core.spec.problem import Problem

POOLS = (
    Flag("--disaggregate", "also compare with a pool for prefill and a pool for decode on the same GPUs", modes=INFERENCE),
    Flag("--decode-gpu-type", "with GPUs of their own for the decode pool, of this preset", str, "NAME", modes=INFERENCE),
    Flag("--decode-n-gpus", "how many of those (default: one node)", whole(), modes=INFERENCE),
    Flag("--decode-gpu-hour-price", "price of one of those (default: --gpu-hour-price)", number(above=0), "X", modes=INFERENCE),
)


def add_pool_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prefill and decode pools: inference only")
    for flag in POOLS:
        flag.add_to(group)


def wanted(args: argparse.Namespace, mode: str) -> bool:
    """Whether pools are asked for.

    Raises:
        SpecError: in training, or a figure of the decode pool's GPUs without their kind.
    """
    given = [f for f in POOLS if getattr(args, f.dest) is not None]
    for flag in given:
        if mode not in flag.modes:
            raise SpecError(f"{flag.name} belongs to --mode inference and this is {mode}")
        if flag.name.startswith("--decode-") and args.decode_gpu_type is None:
            raise SpecError(f"{flag.name} describes GPUs of their own for the decode pool: give --decode-gpu-type, too")
    if args.decode_gpu_hour_price is not None and args.gpu_hour_price is None:
        raise SpecError("--decode-gpu-hour-price without --gpu-hour-price prices half of a deployment; give both")
    return bool(given)


def compare(args: argparse.Namespace, result: SearchResult, host: Host) -> Compared | None:
    """The comparison, where it is asked for."""
    if not wanted(args, result.problem.mode):
        return None
    from autoparallel_core.search.pools import compare_pools

    return compare_pools(result, host, decode=_decode_question(args, host))


def _decode_question(args: argparse.Namespace, host: Host) -> Problem | None:
    """The same question on the decode pool's GPUs, as their preset has them."""
    if args.decode_gpu_type is None:
        return None
    from autoparallel_core.cli.options import Question

    own = argparse.Namespace(**vars(args))
    for flag in CLUSTER:
        setattr(own, flag.dest, None)
    own.gpu_type, own.n_gpus, own.profile_data, own.find_min_nodes = args.decode_gpu_type, args.decode_n_gpus, None, False
    return Question(own, host).problem()
