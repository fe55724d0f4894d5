"""The architecture's arrows, read from the imports: cli → planners, search → cost → ops → spec; plugins → core; never back."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoparallel_core.host import Host

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "autoparallel_core"
PLUGINS = ROOT / "plugins"

RANK = {"errors": 0, "spec": 1, "ops": 2, "cost": 3, "search": 4, "planners": 5, "cli": 6}
"""A room imports rooms of its own rank and below."""
ALLOWED = {
    "solve": {"solve", "errors"},
    "profiles": {"profiles", "errors", "spec", "naming", "strict", "json_file"},
    "hookspecs": {"spec"},
    "spec": {"spec", "errors", "json_file"},
    "json_file": {"errors"},
    "errors": set(),
}
"""Rooms that stand alone, with all they may import of the core."""
STANDARD_TYPES = {"autoparallel_core.search.result"}
"""Result types that lower rooms may name in annotations."""


def python_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def module_of(path: Path) -> str:
    base = ROOT if CORE in path.parents or path == CORE else next(p for p in path.parents if p.parent.parent == PLUGINS).parent
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every imported module with its line, and whether it is for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(n)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for n in ast.walk(node)
    }
    package = module_of(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno, id(node) in typing_only


def room(module: str) -> str:
    return [*module.split("."), ""][1]


def test_the_arrows_of_the_core_run_one_way() -> None:
    wrong = []
    for path in python_files(CORE):
        here = room(module_of(path))
        for module, line, typing_only in imports_of(path):
            if not module.startswith("autoparallel_core."):
                continue
            there = room(module)
            if typing_only and any(module.startswith(m) for m in STANDARD_TYPES):
                continue
            upward = RANK.get(there, 0) > RANK.get(here, max(RANK.values()))
            if upward or (here in ALLOWED and there not in ALLOWED[here]):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_only_the_command_and_reports_know_reports() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in python_files(CORE)
        for module, line, _ in imports_of(path)
        if room(module) in {"report", "cli"} and module.startswith("autoparallel_core.")
        if room(module_of(path)) not in {"cli", "report"} or (room(module_of(path)) == "report" and room(module) == "cli")
    ]
    assert not wrong, "\n".join(wrong)


def plugin_packages() -> list[Path]:
    return sorted(p for kind in PLUGINS.iterdir() if kind.is_dir() for p in kind.iterdir() if (p / "__init__.py").exists())


def test_core_imports_no_plugin() -> None:
    names = {p.name for p in plugin_packages()}
    assert len(names) > 5
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in python_files(CORE)
        for module, line, _ in imports_of(path)
        if module.split(".")[0] in names or (module.startswith("autoparallel_") and not module.startswith("autoparallel_core"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", plugin_packages(), ids=lambda p: p.name)
def test_a_plugin_imports_the_core_and_itself_only(package: Path) -> None:
    wrong = []
    for path in python_files(package):
        for module, line, _ in imports_of(path):
            top = module.split(".")[0]
            foreign = top.startswith("autoparallel_") and top not in {"autoparallel_core", package.name}
            above = module.startswith(("autoparallel_core.cli", "autoparallel_core.report", "autoparallel_core.planners"))
            if foreign or above:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


NAMES = re.compile(
    # engines
    r"megatron|torchtitan|deepspeed|vllm|sglang|trt-?llm|tensorrt|lmdeploy|colossal"
    # GPUs
    r"|\b[abhlv]\d{2,3}s?\b|\bh20\b|\bg[bh][23]00\b|\bmi[23]\d\dx?\b|\brtx\b|hopper|blackwell|ampere\b|\bnvidia\b|\bamd\b"
    # model families
    r"|llama|deepseek|qwen|mixtral|mistral|gemma|\bkimi|\bglm|minimax|nemotron|falcon|\bphi-?\d|gpt-?(2|3|4|j|neox|oss)|jamba|zamba"
    r"|\bolmo|pythia|granite|ernie|hunyuan|internlm|yi-|baichuan|\bopt-|bloom\b",
    re.IGNORECASE,
)


def test_the_pattern_of_names_finds_names_and_leaves_words_alone() -> None:
    for name in (
        "Megatron-style",
        "vllm",
        "H100",
        "GB200",
        "MI300X",
        "L40S",
        "deepseek_v3",
        "Qwen3",
        "gpt-oss",
        "gpt2",
        "NVIDIA",
    ):
        assert NAMES.search(name), name
    for word in ("gptq", "fp8", "bf16", "mamba2", "stage 1", "a 16", "head_dim128", "nvfp4", "block128", "int4_g128", "phi = 2"):
        assert not NAMES.search(word), word


def test_core_names_no_engine_gpu_or_model_family() -> None:
    """Code, comments and docstrings alike; a data file may say where a figure was measured."""
    wrong = []
    for path in [*python_files(CORE), *sorted(CORE.rglob("*.toml")), *sorted(CORE.rglob("*.json"))]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if path.suffix != ".py" and re.match(r"\s*\"?source\"?\s*[=:]", line):
                continue
            if m := NAMES.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number} names {m.group()}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def constants_in(tree: ast.AST) -> Iterator[ast.Constant]:
    """Constants, except the keys of ``mapping.get("key")``: a field of a file may be called like an engine."""
    keys = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args
    }
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in keys)


def test_core_branches_on_no_installed_name() -> None:
    """No string of the core equals the name of an installed engine, GPU or model, or a catalogue model's type."""
    host = Host()
    names = {n.casefold() for gpu in host.gpus().values() for n in (gpu.name, *gpu.aliases)} | set(host.engines())
    names |= {n.casefold() for n in host.catalogue()}
    names |= {str(c["model_type"]).casefold() for c in host.catalogue().values() if "model_type" in c}
    assert len(host.gpus()) > 10
    assert len(host.engines()) >= 4
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} holds {node.value!r}"
        for path in python_files(CORE)
        for node in constants_in(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node.value, str) and node.value.casefold() in names
    ]
    assert not wrong, "\n".join(wrong)


def loaded_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after running ``code``."""
    script = f"import sys\n{code}\nsys.stderr.write(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stderr.splitlines())


HEAVY = {"numpy", "torch", "scipy", "transformers", "highspy"}


def test_import_is_light() -> None:
    loaded = loaded_after("import autoparallel_core")
    assert "autoparallel_core" in loaded
    assert sorted(loaded & (HEAVY | {"attrs", "pluggy", "rich"})) == []


@pytest.mark.parametrize(
    "code",
    [
        "from autoparallel_core import Host, hookimpl\nHost().plugins()",
        "import autoparallel_core.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass",
        "import autoparallel_core.cli.main as m\ntry: m.main(['plugins', '--json'])\nexcept SystemExit: pass",
    ],
    ids=["host", "help", "plugins"],
)
def test_starting_up_loads_neither_numpy_nor_torch(code: str) -> None:
    loaded = loaded_after(code)
    assert "pluggy" in loaded
    assert sorted(loaded & HEAVY) == []


def test_the_public_api_is_whole_and_lazy() -> None:
    import autoparallel_core as ap

    for name in ap.__all__:
        assert callable(getattr(ap, name)) or name == "hookimpl", name
        assert name in dir(ap)
    assert ap.host() is ap.host.host()
    with pytest.raises(AttributeError, match="has no attribute 'serach'"):
        ap.serach  # noqa: B018


def test_functions_named_like_modules_work_in_every_order_of_import() -> None:
    for first in ("import autoparallel_core.host", "import autoparallel_core.search.result", "pass"):
        code = (
            f"{first}\nimport autoparallel_core as ap\nfrom autoparallel_core import host, search\n"
            "assert host() is ap.host() and callable(search) and callable(ap.search)\n"
            "from autoparallel_core.search.result import SearchResult\nimport autoparallel_core.search.result as r\n"
            "assert r.SearchResult is SearchResult"
        )
        assert "autoparallel_core.host" in loaded_after(code)
