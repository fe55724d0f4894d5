"""What calibrating on 1, 3 or 5 runs of a stack does to the prediction of that stack's other runs, and to other stacks.

    python benchmarks/calibration.py [RECORDS.jsonl] [--draws 40]

Stacks are engine version × model × GPU × precision. Records are drawn at random, the rest is predicted; medians are over
all left-out records and draws. Other stacks are predicted with the calibration file of a stack as the product does it, and
once more with its factors forced on them, which shows why the product does not. Without the records the script says so and stops.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve

from autoparallel_core.calibrate.fit import Observation, error_of, fit
from autoparallel_core.calibrate.learn import learn_one
from autoparallel_core.calibrate.observe import observe
from autoparallel_core.calibrate.stacks import Stack
from autoparallel_core.host import host
from autoparallel_core.records import read_records

RECORDS = Path(__file__).resolve().parents[2] / "shared" / "validation" / "serving_speed.jsonl"
Stacks = dict[Stack, list[Observation]]


def same_stack(stacks: Stacks, n: int, draws: int) -> tuple[float, float, int]:
    """Median error before and after, and the stacks that have more than ``n`` records."""
    rng = np.random.default_rng(n)
    before: list[float] = []
    after: list[float] = []
    usable = [v for v in stacks.values() if len(v) > n]
    for _ in range(draws):
        for records in usable:
            order = rng.permutation(len(records))
            rest = [records[i] for i in order[n:]]
            factors = fit([records[i] for i in order[:n]])
            before += error_of(rest).tolist()
            after += error_of(rest, factors).tolist()
    return float(np.median(before)), float(np.median(after)), len(usable)


def other_stack(
    stacks: Stacks, n: int, draws: int, like: Callable[[Stack, Stack], bool], *, forced: bool
) -> tuple[float, float, int]:
    """Median error before and after a calibration on ``n`` records of another stack, and the number of pairs.

    ``forced`` lays the factors on although the product would not: what a lesson would be worth elsewhere.
    """
    rng = np.random.default_rng(100 + n)
    before: list[float] = []
    after: list[float] = []
    pairs = [(a, b) for a in stacks for b in stacks if a != b and like(a, b)]
    for _ in range(draws):
        for stack, other in pairs:
            chosen = rng.permutation(len(stacks[other]))[:n]
            lesson = learn_one(other, [stacks[other][i] for i in chosen])
            before += error_of(stacks[stack]).tolist()
            after += error_of(stacks[stack], lesson.factors if forced or stack.same(other) else None).tolist()
    return (float(np.median(before)), float(np.median(after)), len(pairs)) if pairs else (0.0, 0.0, 0)


RELATIVES: dict[str, Callable[[Stack, Stack], bool]] = {
    "another version": lambda a, b: evolve(a, version="", model="") == evolve(b, version="", model=""),
    "another precision": lambda a, b: evolve(a, precision="", model="") == evolve(b, precision="", model=""),
    "another model": lambda a, b: (a.engine, a.version, a.gpu) == (b.engine, b.version, b.gpu) and a.shape != b.shape,
    "another GPU": lambda a, b: evolve(a, gpu="", model="") == evolve(b, gpu="", model=""),
    "another engine": lambda a, b: (a.shape, a.gpu) == (b.shape, b.gpu) and a.engine != b.engine,
}
"""Pairs of stacks that differ in one thing."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("records", nargs="?", type=Path, default=RECORDS)
    parser.add_argument("--draws", type=int, default=40)
    args = parser.parse_args(argv)
    if not args.records.is_file():
        print(f"no run records in {args.records}; give a file", file=sys.stderr)
        return 2
    observed = observe(read_records(args.records), host())
    stacks = {s: [o for o in v if o.step is not None] for s, v in observed.by_stack.items()}
    stacks = {s: v for s, v in stacks.items() if v}
    print(f"{sum(map(len, stacks.values()))} records of {len(stacks)} stacks; {len(observed.unused)} could not be used")
    print(f"all records, as predicted: {np.median(np.concatenate([error_of(v) for v in stacks.values()])):.1%}\n")
    print("calibrated on   stacks   the stack's others: before   after   other stacks: before   after")
    for n in (1, 3, 5):
        before, after, count = same_stack(stacks, n, args.draws)
        elsewhere = other_stack(stacks, n, 1, lambda a, b: not a.same(b), forced=False)
        print(f"{n:>6} records {count:>9} {before:>28.2%} {after:>7.2%} {elsewhere[0]:>22.2%} {elsewhere[1]:>7.2%}")
    print("\nif 3 records of another stack were used all the same: before → after")
    for words, like in RELATIVES.items():
        before, after, pairs = other_stack(stacks, 3, max(args.draws // 8, 1), like, forced=True)
        print(f"  {words:<20} {before:>6.1%} → {after:>6.1%}  ({pairs} pairs)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
