"""Out-of-fold error of the training model: are the constants physics, or the rows they were fitted on?

Usage: python benchmarks/crossvalidate.py training RUNS.jsonl [--folds 6]

Groups of runs (model × GPU) are dealt to folds; for each fold the fitted constants of benchmarks/training_fit.py are
refitted on the other folds, and the fold is predicted with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from training_fit import FITTED, Runs, errors, fit


def folds_of(keys: list[str], folds: int) -> np.ndarray:
    """The fold of every record: whole groups, largest first into the smallest fold."""
    counts = {k: keys.count(k) for k in sorted(set(keys))}
    size, fold = [0] * folds, {}
    for k in sorted(counts, key=lambda k: (-counts[k], k)):
        fold[k] = int(np.argmin(size))
        size[fold[k]] += counts[k]
    return np.array([fold[k] for k in keys])


def main(argv: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="crossvalidate.py training", description=__doc__, formatter_class=raw)
    parser.add_argument("runs", type=Path, help="run records, one JSON object a line")
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args(argv)
    runs = Runs.load(args.runs)
    keys = runs.group_keys()
    fold = folds_of(keys, args.folds)
    print(
        f"{len(runs.records)} runs in {len(set(keys))} groups (model × GPU), {len(FITTED)} fitted constants, {args.folds} folds"
    )
    everything = fit(runs, iterations=args.iterations)
    print(f"in sample    {errors(everything.predicted, runs.measured)}")
    out = np.full(len(keys), np.nan)
    spread = []
    for k in range(args.folds):
        found = fit(runs, fold != k, start=everything.values, iterations=args.iterations)
        out[fold == k] = found.predicted[fold == k]
        spread.append(found.values)
        held = sorted({key for key, f in zip(keys, fold, strict=True) if f == k})
        print(f"fold {k + 1}       {errors(out[fold == k], runs.measured[fold == k])}   {len(held)} groups", flush=True)
    print(f"out of fold  {errors(out, runs.measured)}")
    print("constants over the folds (least to most, as a share of the fit to everything):")
    ratio = np.array(spread) / everything.values
    for j, f in enumerate(FITTED):
        where = f" of {', '.join(f.gpus)}" if f.gpus else ""
        print(f"  {f.name + where:<48}{ratio[:, j].min():6.2f} to {ratio[:, j].max():.2f}")
