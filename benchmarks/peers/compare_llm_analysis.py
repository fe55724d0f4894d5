"""The same questions to llm-analysis and to us: error against the measured value, and time per question.

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install llm-analysis
    python benchmarks/peers/compare_llm_analysis.py runs.jsonl --python /tmp/peer/bin/python

The peer has no model of efficiency: it takes one number. It is asked with 0.5 (its own suggestion) and with the value
that serves it best on these very runs.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("runs", type=Path)
parser.add_argument("--python", required=True, help="interpreter of the environment that has llm-analysis")
args = parser.parse_args()

text = args.runs.read_text(encoding="utf-8")
rows = {r["id"]: r for r in map(json.loads, text.splitlines())}
measured = {
    i: r["measured"]["tokens_per_s_per_gpu"]
    for i, r in rows.items()
    if r["confidence"] == "high" and r["measured"].get("tokens_per_s_per_gpu") and not r["measured"].get("oom")
}


def peer(efficiency: float) -> dict:
    script = Path(__file__).with_name("ask_llm_analysis.py")
    done = subprocess.run([args.python, script, str(efficiency)], input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def errors(predicted: dict) -> list[float]:
    return [abs(predicted[i]["tokens_per_s_per_gpu"] / measured[i] - 1) for i in asked]


start = time.perf_counter()
command = [Path(sys.executable).with_name("autoparallel"), "validate", args.runs, "--json"]
ours = {
    r["id"]: r["predicted"]
    for r in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["runs"]
}
our_s = (time.perf_counter() - start) / len(rows)
default = peer(0.5)
asked = [
    i for i in measured if (default.get(i) or {}).get("tokens_per_s_per_gpu") and ours.get(i, {}).get("tokens_per_s_per_gpu")
]
best = min((peer(e) for e in (0.4, 0.45, 0.55, 0.6, 0.65, 0.7)), key=lambda p: mean(errors(p)))
print(f"{len(asked)} of {len(measured)} measured runs are questions that the peer can express")
for name, predicted, seconds in (
    ("llm-analysis, efficiency 0.5", default, mean(default[i]["question_s"] for i in asked)),
    ("llm-analysis, best efficiency", best, mean(best[i]["question_s"] for i in asked)),
    ("autoparallel", ours, our_s),
):
    e = sorted(errors(predicted))
    spread = f"median {median(e):6.1%}  mean {mean(e):6.1%}  p90 {e[int(0.9 * len(e))]:6.1%}"
    print(f"{name:32} {spread}  {seconds * 1e3:6.2f} ms a question")
