"""docs/reference/json.md lists every key that the commands print, and none that they do not."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

DOC = (Path(__file__).resolve().parents[3] / "docs/reference/json.md").read_text(encoding="utf-8")
OBJECTS = {
    "a plan": "plan", "a model": "model", "a cluster": "cluster", "an engine": "engine", "a workload": "workload",
    "a load point": "point",
}  # fmt: skip
HOLDERS = {
    "strategies[]": "plan", "pareto[]": "plan", "nearest_miss": "plan", "plan": "plan", "best": "plan",
    "model": "model", "cluster": "cluster", "engine": "engine", "workload": "workload",
    "frontier.points[]": "point", "frontier.goodput": "point", "usable.best": "point",
    "disaggregated.aggregated_at_same_speed[]": "point",
}  # fmt: skip


def sections() -> dict[str, list[str]]:
    """Documented key patterns by heading."""
    out: dict[str, list[str]] = {}
    for part in re.split(r"^## ", DOC, flags=re.MULTILINE)[1:]:
        title = part.splitlines()[0].strip("` ").removesuffix("`").lower()
        keys = re.findall(r"^\| `([^`]+)` \|", part, flags=re.MULTILINE)
        out[title] = [full for key in keys for full in braces(key)]
    return out


def braces(key: str) -> list[str]:
    parts = re.split(r"\{([^}]*)\}", key)
    choices = [p.split(",") if i % 2 else [p] for i, p in enumerate(parts)]
    return ["".join(c) for c in product(*choices)]


def documented(title: str) -> set[tuple[str, ...]]:
    """Patterns of a command's document as paths, the shared objects expanded."""
    known = sections()
    out = set()
    for key in known[title]:
        path = split(key)
        out.add(path)
        if key in HOLDERS:
            name = next(t for t, o in OBJECTS.items() if o == HOLDERS[key])
            out |= {path + split(k) for k in known[name]}
    return out


def split(key: str) -> tuple[str, ...]:
    return tuple(key.replace("[]", ".[]").split("."))


def produced(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Paths of all leaves: scalars, nulls, empty objects and lists."""
    if isinstance(value, dict) and value:
        return set().union(*(produced(v, (*path, k)) for k, v in value.items()))
    if isinstance(value, list) and value:
        return set().union(*(produced(v, (*path, "[]")) for v in value))
    return {path}


def covers(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if pattern and pattern[-1].startswith("<") and path and path[-1] == "[]":  # a setting may be a list
        path = path[:-1]
    return len(pattern) == len(path) and all(p.startswith("<") or p == k for p, k in zip(pattern, path, strict=True))


def check(title: str, bodies: list[Any]) -> None:
    patterns = documented(title)
    paths = set().union(*(produced(b) for b in bodies))
    # an empty list or object, and null where an object may be, stand for the pattern that begins like them
    unknown = {p for p in paths if not any(covers(q, p) or covers(q[: len(p)], p) for q in patterns)}
    assert not unknown, f"printed but not documented: {sorted('.'.join(p) for p in unknown)}"
    holders = {q[:n] for q in patterns for n in range(len(q))}
    unused = {
        q for q in patterns - holders if not any(covers(q, p) or (len(p) < len(q) and covers(q[: len(p)], p)) for p in paths)
    }
    assert not unused, f"documented but not printed: {sorted('.'.join(q) for q in unused)}"


@pytest.fixture
def small(model):
    return ("--model-path", model(), "--gpu-type", "H100", "--n-gpus", "16", "--json")


def test_the_bare_form(cli, small, model):
    short = ("--model-path", model(), "--gpu-type", "A100", "--gpu-memory-gb", "4", "--host-memory-gb", "8", "--json")
    check(
        "autoparallel --json",
        [
            cli(*small, "--pareto", "--top", "2").json,
            cli(*small, "--mode", "inference", "--pareto", "--top", "2").json,
            cli(*small, "--mode", "inference", "--disaggregate", "--isl", "7000", "--gpu-hour-price", "2").json,
            cli(*short).json,
            cli(*short, "--find-min-nodes").json,
            cli(*small, "--mode", "inference", "--find-min-nodes").json,
        ],
    )


def test_explain(cli, small):
    check(
        "autoparallel explain --json",
        [
            cli("explain", *small, "--sources").json,
            cli("explain", *small, "--mode", "inference").json,
            cli("explain", *small, "--strategy", "tp16 pp1 dp1 vpp2").json,
        ],
    )


def test_check_and_export(cli, small, model, tmp_path):
    out = str(tmp_path / "launch")
    exported = cli("export", *small, "--engine", "deepspeed", "--out", out).json
    check("autoparallel export --json", [exported])
    script = tmp_path / "serve.sh"
    script.write_text(f"vllm serve {model()} --tensor-parallel-size $TP --enable-eplb --cpu-offload-gb 4 --strange 1\n")
    check(
        "autoparallel check --json",
        [
            cli("check", out, "--json").json,
            cli("check", str(script), *small).json,
            cli("check", *small, "--strategy", "tp16 pp1 dp1", "--gpu-memory-gb", "6").json,
        ],
    )


@pytest.mark.parametrize("command", ["models", "gpus", "engines", "plugins"])
def test_listings(cli, command):
    check(f"autoparallel {command} --json", [cli(command, "--json").json])


def test_one_engine(cli):
    check("autoparallel engines show --json", [cli("engines", "show", e, "--json").json for e in ("vllm", "megatron", "sglang")])


def test_one_model(cli, model):
    body = cli("models", "show", model(), "--json").json
    assert (body.pop("schema_version"), body.pop("command")) == (1, "models show")
    check("a model", [body])


def test_the_check_itself_finds_both_faults(monkeypatch):
    monkeypatch.setitem(globals(), "sections", lambda: {"x": ["a", "b.<any>", "c[].d"]})
    check("x", [{"a": 1, "b": {"k": 2}, "c": [{"d": 3}]}])
    with pytest.raises(AssertionError, match=r"not documented: \['e'\]"):
        check("x", [{"a": 1, "b": {"k": 2}, "c": [{"d": 3}], "e": 1}])
    with pytest.raises(AssertionError, match=r"not printed: \['c.\[\].d'\]"):
        check("x", [{"a": 1, "b": {"k": 2}}])
