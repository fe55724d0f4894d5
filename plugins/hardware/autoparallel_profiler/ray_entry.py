"""The driver of a Ray job: one actor per rank, the ranks of a node together, each with the usual environment."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

_PORT = 29518


class Rank:
    """One rank, as an actor."""

    def address(self) -> str:
        """Where the first rank can be met."""
        ray: Any = importlib.import_module("ray")
        return str(ray.util.get_node_ip_address())

    def run(self, request: str, environment: dict[str, str]) -> None:
        """Run the request with this rank's place in the environment."""
        from autoparallel_profiler.request import Request
        from autoparallel_profiler.worker import run

        os.environ.update(environment)
        run(Request.read(Path(request)))


def main(argv: list[str]) -> int:
    """Place the ranks and wait for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("request")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--ranks-per-node", type=int, required=True)
    parser.add_argument("--gpus-per-rank", type=int, default=0)
    parser.add_argument("--cpus-per-rank", type=int, default=0)
    args = parser.parse_args(argv)
    ray: Any = importlib.import_module("ray")
    ray.init()
    per_rank = {"GPU": args.gpus_per_rank} if args.gpus_per_rank else {"CPU": args.cpus_per_rank or 1}
    bundle = {k: v * args.ranks_per_node for k, v in per_rank.items()}
    group = ray.util.placement_group([bundle] * args.nodes, strategy="STRICT_SPREAD" if args.nodes > 1 else "PACK")
    ray.get(group.ready())
    options = {"num_gpus": per_rank.get("GPU", 0), "num_cpus": per_rank.get("CPU", 0)}
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    ranks = [
        ray.remote(Rank).options(scheduling_strategy=strategy(group, placement_group_bundle_index=node), **options).remote()
        for node in range(args.nodes)
        for _ in range(args.ranks_per_node)
    ]
    shared = {
        "MASTER_ADDR": ray.get(ranks[0].address.remote()),
        "MASTER_PORT": str(_PORT),
        "WORLD_SIZE": str(len(ranks)),
    }
    # An actor with one GPU sees it as the first.
    local = [0 if args.gpus_per_rank else i % args.ranks_per_node for i in range(len(ranks))]
    calls = [r.run.remote(args.request, {**shared, "RANK": str(i), "LOCAL_RANK": str(local[i])}) for i, r in enumerate(ranks)]
    ray.get(calls)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
