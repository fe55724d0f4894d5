"""Out-of-fold errors: are the fitted constants physics, or the rows they were fitted on?

Usage: python benchmarks/crossvalidate.py training RUNS.jsonl [--folds N]
       python benchmarks/crossvalidate.py serving RUNS.jsonl [--fit] [--folds]

Each has its own --help. ``training`` deals groups of runs (model × GPU) to folds; ``serving`` leaves out one model family
at a time.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("training", "serving"))
    args = parser.parse_args(sys.argv[1:2])
    import_module(f"crossvalidate_{args.mode}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
