"""Show or accept the golden predictions: python benchmarks/golden.py [--write]."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from golden.golden import PREDICTIONS, predict, write

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--write", action="store_true", help="accept today's predictions")
if parser.parse_args().write:
    write()
else:
    golden = json.loads(PREDICTIONS.read_text(encoding="utf-8")) if PREDICTIONS.exists() else {}
    for name, now in predict().items():
        if golden.get(name) != now:
            print(name, golden.get(name), now, sep="\n    ")
