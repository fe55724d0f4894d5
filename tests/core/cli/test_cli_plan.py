"""``autoparallel plan``: from a module, and from a config, to a plan; what is read from plans; what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import test_cli_json_docs  # noqa: E402

from autoparallel_core.cli.plan_flags import PLAN_FLAGS  # noqa: E402
from autoparallel_core.module_reading.diff import diff  # noqa: E402
from autoparallel_core.module_reading.explain import explain_every, explain_node  # noqa: E402
from autoparallel_core.module_reading.summary import summary  # noqa: E402
from autoparallel_core.spec.module_plan import ModulePlan, read_module_plan  # noqa: E402

pytestmark = pytest.mark.torch

DOCS = Path(__file__).resolve().parents[3] / "docs/reference"

CODE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))
    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()

def build():
    return Net(48)

def large():
    return Net(2048)

def inputs():
    return {"x": torch.empty(16, 48)}

def large_inputs():
    return [torch.empty(4096, 2048)]

def other():
    return Net(32)

def broken():
    raise ValueError("no luck")

number = 3
"""
MODULE = ("--module", "planned_net:build", "--inputs", "planned_net:inputs", "--gpu-type", "H100")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a module of the user's, and the path as it was afterwards."""
    room = tmp_path_factory.mktemp("plans")
    (room / "planned_net.py").write_text(CODE)
    before = list(sys.path)
    yield room
    sys.path[:] = before
    sys.modules.pop("planned_net", None)


@pytest.fixture
def here(room: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(room)
    return room


@pytest.fixture
def plans(here: Path, cli: Callable[..., Any]) -> tuple[str, str]:
    """Two plans of the module: data parallel, and with the matrices pinned to a tensor-parallel placement."""
    if not (here / "b.json").exists():
        free = ("--pin", "x=S(0) R")
        pins = ("--pin", "layers.*.up=R S(0)", "--pin", "layers.*.down=R S(1)", "--pin", "layers.*.down/mm=S(0) P")
        assert cli("plan", *MODULE, "--mesh", "dp=2,tp=2", *free, "--out", "a.json").code == 0
        assert cli("plan", *MODULE, "--mesh", "dp=2,tp=2", *free, *pins, "--out", "b.json").code == 0
    return "a.json", "b.json"


@pytest.fixture
def pipe(here: Path, cli: Callable[..., Any]) -> str:
    """A plan with a pipeline of two stages."""
    if not (here / "pipe.json").exists():
        assert cli("plan", *MODULE, "--mesh", "pp=2,dp=2", "--micro-batches", "4", "--out", "pipe.json").code == 0
    return "pipe.json"


def of(path: str) -> ModulePlan:
    return read_module_plan(path)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_the_summary_adds_up(plans: tuple[str, str]) -> None:
    for path in plans:
        d, s = of(path).document, summary(of(path))
        assert sum(p["count"] for p in s["parameters"]) == len(d["parameters"]) == 17
        assert sum(p["bytes"] for p in s["parameters"]) == 4 * (4 * (2 * 48 * 192 + 2 * 48) + 48 * 48)
        assert sum(c["count"] for c in s["collectives"]) == len(d["collectives"])
        assert sum(c["seconds"] for c in s["collectives"]) == pytest.approx(sum(c["seconds"] for c in d["collectives"]))
        assert sum(s["compute"].values()) == pytest.approx(s["cost"]["compute_s"])
        assert sum(s["memory"]["by_cause"].values()) == pytest.approx(s["memory"]["peak_bytes"])
        moved = s["cost"]["exchange_s"] + s["cost"]["weights_s"]
        assert sum(c["seconds"] for c in s["collectives"]) <= moved * (1 + 1e-9)
    (up,) = [p for p in summary(of("b.json"))["parameters"] if "up" in p["names"]]
    assert (up["names"], up["placement"], up["pinned"]) == ("layers.0…3.up.weight", "R S(0)", True)


def test_memory_over_time_is_that_of_its_causes(plans: tuple[str, str]) -> None:
    memory = of(plans[0]).document["memory"]
    for k, (_, total) in enumerate(memory["timeline"]):
        assert sum(v[k] for v in memory["timeline_by_cause"].values()) == pytest.approx(total)
    assert max(total for _, total in memory["timeline"]) == memory["peak_bytes"]


def test_edges_say_what_is_given_and_taken(plans: tuple[str, str]) -> None:
    for path in plans:
        d = of(path).document
        operators = {o["slot"]: o for o in d["operators"]}
        for e in d["edges"]:
            giver, reader = operators.get(e["from"]), operators.get(e["to"])
            if giver is not None:
                assert set(e["given"].split("; ")) <= set(giver["out"])
            if reader is not None and reader["in"]:
                assert set(e["taken"].split("; ")) <= set(reader["in"])
            if e["kind"] == "weights" and reader is not None and reader["op"] == "parameter":
                assert e["taken"] == reader["out"][0]


def test_alternatives_are_dearer_and_say_why(plans: tuple[str, str]) -> None:
    nodes = explain_every(of(plans[0]))
    seen = 0
    for n in nodes.values():
        for a in n["alternatives"]:
            # the plan is optimal: alone, nothing is better; what one alternative adds is no more than what gets dearer
            assert a["adds_s"] >= -1e-12
            seen += bool(a["because"])
            if a["adds_s"] > 1e-7:
                assert a["because"], (n["name"], a)
                assert [b["adds_s"] for b in a["because"]] == sorted((b["adds_s"] for b in a["because"]), reverse=True)
    assert seen > 10


def test_a_node_is_found_by_any_of_its_names(plans: tuple[str, str]) -> None:
    plan = of(plans[1])
    names = {explain_node(plan, n)["name"] for n in ("layers.0.up.weight", "layers.3.up", "layers.2.up.weight")}
    assert names == {"layers.0…3.up.weight"}
    assert explain_node(plan, "layers.1.up/mm")["op"] == "aten.mm.default"
    assert explain_node(plan, "layers.2.up")["pinned"]
    gradient = explain_node(plan, "layers.1.down")["reads"]
    assert [(r["from"].startswith("layers.0…3.down/bwd"), r["kind"]) for r in gradient] == [(True, "weights")]


def test_a_plan_does_not_differ_from_itself_and_pins_do(plans: tuple[str, str]) -> None:
    a, b = map(of, plans)
    same = diff(a, a)
    assert same["same"]
    assert not any(v for k, v in same.items() if k != "same")
    found, back = diff(a, b), diff(b, a)
    assert {p["names"] for p in found["parameters"]} >= {"layers.0…3.up.weight", "layers.0…3.down.weight"}
    for p in found["parameters"]:
        assert p["count"] == 4
        assert p["a"] == a.placements[f"layers.0.{p['names'].rpartition('…3.')[2]}"]
    assert [(p["a"], p["b"]) for p in found["parameters"]] == [(p["b"], p["a"]) for p in back["parameters"]]
    assert {s["name"] for s in found["setting"]} == {"pin layers.*.up", "pin layers.*.down", "pin layers.*.down/mm"}
    step = next(f for f in found["figures"] if f["name"] == "cost.step_s")
    assert (step["a"], step["b"]) == (a.step_s, b.step_s)
    kinds = {c["kind"]: c["b"]["count"] - c["a"]["count"] for c in found["collectives"] if c["mesh_dim"] == "tp"}
    assert kinds.get("all_reduce", 0) + kinds.get("reduce_scatter", 0) > 0  # tensor parallelism sums over tp


def test_a_pipeline_is_shown_stage_by_stage(pipe: str, plans: tuple[str, str], cli: Callable[..., Any], here: Path) -> None:
    s = summary(of(pipe))
    assert (s["pipeline"]["ranks"], s["pipeline"]["micro_batches"], len(s["pipeline"]["stages"])) == (2, 4, 2)
    assert s["placed_over"] == ["dp"]
    cost = s["cost"]
    parts = sum(cost[k] for k in ("compute_s", "exchange_s", "weights_s", "update_s", "bubble_s")) - cost["hidden_s"]
    assert parts == pytest.approx(cost["step_s"])
    assert sum(s["compute"].values()) == pytest.approx(cost["compute_s"])
    assert s["local_parameter_bytes"] < sum(p["local_bytes"] for p in s["parameters"])
    shown = cli("plan", "show", pipe).out
    assert "Stages (1f1b, 4 micro-batches per step)" in shown
    assert "layers.0…3.up.weight" in shown
    assert {"stage 0", "stage 1", "schedule"} <= {x["name"] for x in diff(of(plans[0]), of(pipe))["setting"]}
    assert cli("plan", "html", pipe, "--out", "pipe.html").code == 0
    assert "Pipeline stages" in (here / "pipe.html").read_text()
    assert "without a pipeline" in cli("plan", "verify", pipe).err
    for layer in range(4):  # whatever stage holds it
        assert explain_node(of(pipe), f"layers.{layer}.up")["op"] == "parameter"


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_text_answers(plans: tuple[str, str], cli: Callable[..., Any]) -> None:
    shown = cli("plan", "show", "b.json", "--operators", "--all")
    assert shown.code == 0
    for words in (
        "Plan of Net on dp=2,tp=2",
        "4 × H100-SXM-80GB",
        "layers.0…3.up.weight",
        "R S(0)",
        "all-reduce",
        "layers.0…3.up/mm",
    ):
        assert words in shown.out, words
    compared = cli("plan", "diff", *plans).out
    assert "layers.0…3.down.weight" in compared
    assert "pin layers.*.up" in compared
    assert "The plans are the same." in cli("plan", "diff", "a.json", "a.json").out
    explained = cli("plan", "explain", "b.json", "layers.1.up").words
    assert "because it is pinned" in explained
    assert "gradient from layers.0…3.up/bwd" in explained


@pytest.mark.parametrize("columns", ["60", "80", "140"])
def test_no_line_is_wider_than_the_terminal(plans, cli, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for argv in (["show", "b.json", "--operators"], ["diff", *plans], ["explain", "b.json", "layers.0.up/mm"]):
        lines = cli("plan", *argv).out.splitlines()
        assert max(map(len, lines)) <= int(columns), argv


def test_verify_builds_the_module_that_the_plan_records(plans: tuple[str, str], cli: Callable[..., Any]) -> None:
    ran = cli("plan", "verify", "b.json")
    assert ran.code == 0
    assert "The plan computes what the module computes." in ran.out
    assert "as planned" in ran.out


def test_a_plan_that_computes_something_else_fails(plans, here, cli, monkeypatch) -> None:
    monkeypatch.setattr("autoparallel_pytorch.verify.TOLERANCE", 1e-30)
    ran = cli("plan", "verify", "b.json", "--seed", "3")
    assert ran.code == 3
    assert "does NOT compute" in ran.out
    assert re.search(r"^autoparallel: b.json does not compute .* relative error [\d.e-]+$", ran.err.strip())


def test_another_module_is_not_verified(plans: tuple[str, str], here: Path, refused: Callable[..., str]) -> None:
    document = json.loads((here / "b.json").read_text())
    document["source"]["module"] = "planned_net:other"
    (here / "other.json").write_text(json.dumps(document))
    assert "the plan is of another module: first.weight: shape" in refused("plan", "verify", "other.json")
    document["source"] = None
    (here / "other.json").write_text(json.dumps(document))
    assert "give --module and --inputs" in refused("plan", "verify", "other.json")


def test_a_large_module_is_verified_on_the_small_copy_that_it_names(
    here: Path, cli: Callable[..., Any], refused: Callable[..., str]
) -> None:
    large = ("--module", "planned_net:large", "--inputs", "planned_net:large_inputs", "--mesh", "dp=4", "--gpu-type", "H100")
    assert cli("plan", *large, "--out", "large.json").code == 0
    assert "name a function that makes a small copy" in refused("plan", "verify", "large.json")
    small = ("--reduced", "planned_net:build", "--reduced-inputs", "planned_net:inputs")
    assert cli("plan", *large, *small, "--out", "large.json", "--force").code == 0
    assert cli("plan", "verify", "large.json").code == 0
    assert cli("plan", "verify", "large.json", "--module", "planned_net:build", "--inputs", "planned_net:inputs").code == 0


def test_files_are_kept_unless_forced(
    plans: tuple[str, str], here: Path, refused: Callable[..., str], cli: Callable[..., Any]
) -> None:
    before = (here / "a.json").read_text()
    again = ("plan", *MODULE, "--mesh", "dp=4", "--out", "a.json")
    assert refused(*again) == "a.json exists; --force overwrites"
    assert "no directory" in refused("plan", *MODULE, "--mesh", "dp=4", "--out", "nowhere/a.json")
    assert refused("plan", "html", "a.json", "--out", "a.json") == "a.json exists; --force overwrites"
    assert (here / "a.json").read_text() == before
    assert not list(here.glob(".a.json.*"))


BAD = [
    ((), "there is nothing to plan"),
    (("--module", "planned_net:build"), "--inputs is missing"),
    (("--module", "planned_net", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "write it as package.module:function"),
    (("--module", "planned_net:bild", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "did you mean build?"),
    (("--module", "nowhere.at_all:build", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "cannot import nowhere.at_all"),
    (("--module", "planned_net:broken", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "failed: ValueError: no luck"),
    (("--module", "planned_net:number", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "is a int, not a function"),
    (("--module", "planned_net:inputs", "--inputs", "planned_net:inputs", "--mesh", "dp=2"), "not a torch.nn.Module"),
    ((*MODULE, "--mesh", "dp"), "is not NAME=SIZE"),
    ((*MODULE, "--mesh", "dp=2,dp=2"), "two dimensions named dp"),
    (MODULE, "no mesh is given"),
    ((*MODULE, "--mesh", "dp=2", "--n-gpus", "4"), "takes 2 GPUs and --n-gpus is 4"),
    ((*MODULE, "--mesh", "dp=2", "--model", "x"), "give one kind of them"),
    ((*MODULE, "--mesh", "dp=2", "--schedule", "gpipe"), "belongs to a pipeline: a mesh whose first dimension is pp"),
    ((*MODULE, "--mesh", "pp=2,dp=2", "--schedule", "zb"), "is not one of 1f1b, gpipe, interleaved"),
    ((*MODULE, "--mesh", "dp=2", "--pin", "layers"), "is not PATTERN=PLACEMENT"),
    ((*MODULE, "--mesh", "dp=2", "--pin", "layers.*.wp=R"), "matches no parameter"),
    ((*MODULE, "--mesh", "dp=2", "--pin", "layers.*.up=R R"), "2 placements for 1 mesh dimensions"),
    ((*MODULE, "--mesh", "dp=2", "--pin", "a=R", "--pin", "a=S(0)"), "--pin a is given twice"),
    ((*MODULE, "--mesh", "dp=2", "--out", "x", "--html", "x"), "both name x"),
    (("--model-path", "nowhere.json", "--mesh", "dp=2"), "no such file"),
    (("show", "planned_net.py"), "not valid JSON"),
    (("explain", "a.json", "layers.0"), "is a module; explain one of its nodes: layers.0"),
    (("explain", "a.json", "layers.0.upp"), "did you mean layers.0.up"),
    (("diff", "a.json"), "required: B"),
    (("shwo", "a.json"), "did you mean show?"),
    (("show", "a.json", "--operatos"), "did you mean --operators?"),
    (("verify", "a.json", "--processes", "0"), "must be at least 1"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda x: " ".join(x)[-40:] if isinstance(x, tuple) else None)
def test_bad_input_is_one_sentence(
    argv: tuple[str, ...], words: str, plans: tuple[str, str], refused: Callable[..., str]
) -> None:
    assert words in refused("plan", *argv)


def test_what_does_not_fit_is_no_bad_input(here: Path, cli: Callable[..., Any]) -> None:
    ran = cli("plan", *MODULE, "--mesh", "dp=2", "--memory-limit", "0.00001")
    assert ran.code == 3
    assert "the leanest plan found needs" in ran.err


def test_a_damaged_plan_is_refused(plans: tuple[str, str], here: Path, refused: Callable[..., str]) -> None:
    document = json.loads((here / "a.json").read_text())
    for change, words in (
        ({"version": 99}, "version 99"),
        ({"schema": "x"}, "not a plan of a module"),
        ({"cost": ...}, "lacks cost"),
        ({"recompute": [1]}, "recompute[0] must be str, not int"),
        ({"hubs": []}, "which no operator or hub has"),
    ):
        broken = {k: v for k, v in {**document, **change}.items() if v is not ...}
        (here / "broken.json").write_text(json.dumps(broken))
        assert words in refused("plan", "show", "broken.json")


# --- a model from its config ------------------------------------------------------------------------------------------


@pytest.fixture
def model_config(tmp_path: Path) -> str:
    fields = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return str(tmp_path)


def test_a_model_from_its_config(model_config: str, here: Path, cli: Callable[..., Any], refused: Callable[..., str]) -> None:
    pytest.importorskip("transformers")
    ran = cli("plan", "--model-path", model_config, "--mesh", "dp=2,tp=2", "--gpu-type", "H100", "--out", "hf.json", "--json")
    assert ran.code == 0
    assert [a.split(" (")[0] for a in ran.json["assumptions"]] == ["--seq-len 64", "--global-batch-size 4", "--precision bf16"]
    source = of("hf.json").source
    assert source is not None
    assert (source.seq_len, source.global_batch_size, source.precision) == (64, 4, "bf16")
    assert ran.json["tokens_per_s_per_gpu"] == pytest.approx(64 * 4 / ran.json["step_s"] / 4)
    verified = cli("plan", "verify", "hf.json", "--json")
    assert verified.code == 0
    assert verified.json["collectives_counted"] == verified.json["collectives_predicted"]
    path = Path(model_config) / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"lama"'))
    assert "did you mean llama" in refused("plan", "--model-path", model_config, "--mesh", "dp=2")


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, attributes and texts of a page; refuses tags that do not nest."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def attributes(self, name: str) -> list[str]:
        return [a[name] or "" for _, a in self.tags if name in a]


def test_the_page_is_whole_and_loads_nothing(plans: tuple[str, str], here: Path, cli: Callable[..., Any]) -> None:
    assert cli("plan", "html", "b.json", "--out", "b.html", "--force").code == 0
    text = (here / "b.html").read_text()
    page = Page(text)
    assert not [u for a in ("src", "href") for u in page.attributes(a) if not u.startswith("#")]
    assert "@import" not in text
    assert "url(" not in text
    assert not re.search(r"https?://", text)
    assert set(page.attributes("href")) == {f"#{i}" for t, a in page.tags if t == "section" for i in [a["id"]]}
    nodes = json.loads(next(t for t in page.texts["script"] if t.startswith("{")))
    d = of("b.json").document
    assert set(nodes) == {str(o["slot"]) for o in d["operators"]}
    assert set(page.attributes("data-slot")) <= set(nodes)
    cells = page.texts["td"]
    assert "layers.0…3.up.weight" in cells
    assert {f"layers.0…3.{n}/mm" for n in ("up", "down")} <= set(cells)
    drawn = {a["data-slot"] for t, a in page.tags if t == "g" and a.get("class", "").startswith("node operator")}  # type: ignore[union-attr]
    computed = {str(o["slot"]) for o in d["operators"] if o["op"].startswith(("aten.", "autoparallel."))}
    assert drawn == computed
    ends = [(a["data-from"], a["data-to"]) for t, a in page.tags if t == "path" and "data-from" in a]
    assert {e for pair in ends for e in pair} <= set(page.attributes("data-key"))
    assert any("moves" in (a.get("class") or "") for t, a in page.tags if t == "path")


def test_names_cannot_break_out_of_the_page(plans: tuple[str, str]) -> None:
    from autoparallel_core.report.module_plan.html import page

    evil = "</script><script>alert(1)</script><img src=x onerror='a'>&\"$"
    text = json.dumps(of(plans[1]).document).replace("layers.0.up/", json.dumps(evil)[1:-1] + "/").replace('"Net', '"Net<b>')
    found = Page(page(ModulePlan(json.loads(text))))
    assert [t for t, _ in found.tags].count("script") == 2
    assert "img" not in [t for t, _ in found.tags]
    assert found.attributes("onerror") == []
    assert any("onerror" in t for t in found.texts["td"])


# --- documentation ----------------------------------------------------------------------------------------------------


def test_every_flag_is_documented_in_the_words_of_help() -> None:
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(--[\w-]+)[^`]*` \| (.*) \|$", text, flags=re.MULTILINE))
    assert rows == {f.name: f.help for f in PLAN_FLAGS}
    for word in ("show PLAN", "diff A B", "explain PLAN NODE", "verify PLAN", "html PLAN --out FILE"):
        assert f"| `{word}` |" in text


def documented(monkeypatch: pytest.MonkeyPatch, page: str, title: str, bodies: list[Any]) -> None:
    monkeypatch.setattr(test_cli_json_docs, "DOC", (DOCS / page).read_text(encoding="utf-8"))
    test_cli_json_docs.check(title, bodies)


def test_every_key_of_the_answers_is_documented(plans, pipe, here, cli, monkeypatch, model_config) -> None:
    pytest.importorskip("transformers")
    hf = ("--model-path", model_config, "--n-gpus", "2", "--gpu-type", "H100")
    made = [cli("plan", *MODULE, "--mesh", "dp=2", "--pin", "x=R", "--json").json, cli("plan", *hf, "--json").json]
    unruled = {"name": "a", "op": "b", "copies": 1, "seconds": 0.1}
    with_unruled = [{**made[0], "unruled": [unruled], "notes": ["x"]}, cli("plan", "show", pipe, "--json").json]
    documented(monkeypatch, "plan.md", "autoparallel plan --json", [*made, *with_unruled])
    show = cli("plan", "show", "b.json", "--json").json
    assert set(made[0]) - set(show) == {"assumptions", "files"}
    differences = [cli("plan", "diff", *pair, "--json").json for pair in (plans, plans[::-1])]
    if not any(d["recompute"] for d in differences):
        differences.append({"recompute": [{"only_in": "a", "names": "x"}]})
    documented(monkeypatch, "plan.md", "autoparallel plan diff --json", differences)
    backward = next(o["name"] for o in of("b.json").document["operators"] if o["phase"] == "backward" and o["in"])
    nodes = [cli("plan", "explain", "b.json", n, "--json").json for n in ("layers.0.up/mm", "layers.0.up", backward, "x")]
    documented(monkeypatch, "plan.md", "autoparallel plan explain --json", nodes)
    documented(monkeypatch, "plan.md", "autoparallel plan verify --json", [cli("plan", "verify", "b.json", "--json").json])


def test_every_key_of_a_plan_is_documented(plans, pipe, here, cli, monkeypatch, model_config) -> None:
    pytest.importorskip("transformers")
    hf = ("--model-path", model_config, "--n-gpus", "2", "--gpu-type", "H100")
    assert cli("plan", *hf, "--out", "keys.json", "--force").code == 0
    text = (DOCS / "plan-json.md").read_text(encoding="utf-8")
    monkeypatch.setattr(test_cli_json_docs, "DOC", "## all\n" + re.sub(r"^## .*$", "", text, flags=re.MULTILINE))
    documents = [of(p).document for p in ("b.json", "keys.json", pipe)]
    assert documents[1]["meshes"]
    filled = {"unruled": [{"name": "a", "op": "b", "copies": 1, "seconds": 0.1}], "notes": ["x"], "constants": {"c": [[1.0]]}}
    filled["cluster"] = {"overrides": ["x"]}
    filled["program"] = {"steps": [{"again": True}], "values": []}
    test_cli_json_docs.check("all", [flat(d) for d in [*documents, {**documents[0], **filled}]])


def flat(document: dict[str, Any]) -> dict[str, Any]:
    """Free-form parts as one leaf each."""
    out = json.loads(json.dumps(document))
    out["structure"] = "…"
    out["program"]["values"] = [["…"]]
    out["constants"] = dict.fromkeys(out["constants"], "…")
    out["module"]["fingerprint"]["modules"] = {k: ["…"] for k in out["module"]["fingerprint"]["modules"]}
    out["module"]["fingerprint"]["tensors"] = {k: ["…"] for k in out["module"]["fingerprint"]["tensors"]}
    if out.get("source", {}).get("config"):
        out["source"]["config"] = "…"
    for stage in out.get("pipeline", {}).get("stages", ()):
        stage["plan"] = "…"
    for step in out["program"]["steps"]:
        step["args"] = "…"
        if "kwargs" in step:
            step["kwargs"] = "…"
    return dict(out)
