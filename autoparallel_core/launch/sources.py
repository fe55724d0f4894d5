"""Launch files taken apart: the commands they run, the data documents they hold, the Python they contain."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from attrs import field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.launch.batch import (
    Machines,
    batch_environment,
    batch_machines,
    containers,
    is_manifest,
    launcher_machines,
)
from autoparallel_core.launch.shell import Script, iterate, read_script


@frozen
class Run:
    """One command with the machines that its surroundings give it."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    machines: Machines
    file: str
    image: str = ""
    """Container image that runs it, where a description names one."""
    program: bool = True
    """Whether the words begin with a program; else they may be arguments of the image's entry point."""

    def split(self, at: int) -> tuple[tuple[str, ...], Machines]:
        """The arguments behind word ``at``, and the machines that the words up to it state."""
        return self.words[at + 1 :], launcher_machines(self.words[: at + 1]).over(self.machines)


@frozen
class Sources:
    """All files of one launch."""

    runs: tuple[Run, ...] = ()
    scripts: Mapping[str, Script] = field(factory=dict)
    data: Mapping[str, Any] = field(factory=dict)
    """Documents of JSON, YAML and TOML files (and of those that scripts write), by base name."""
    kinds: Mapping[str, str] = field(factory=dict)
    """``json``, ``yaml``, ``toml`` by base name."""
    python: Mapping[str, ast.Module] = field(factory=dict)
    undecided: tuple[str, ...] = ()

    def variables(self, name: str) -> str | None:
        """The value of a shell variable in the first script that sets it."""
        for script in self.scripts.values():
            value = script.variables.get(name)
            if value is not None:
                return value if isinstance(value, str) else " ".join(value)
        return None

    def arrays(self) -> Iterator[list[str]]:
        """Values of array variables: argument lists of scripts that another file starts."""
        for script in self.scripts.values():
            for value in script.variables.values():
                if isinstance(value, list):
                    yield value


def take_apart(files: Mapping[str, str]) -> Sources:
    """Read every file by its kind.

    Raises:
        SpecError: a file is not what its name or first characters promise.
    """
    return _take_apart(tuple(files.items()))


@lru_cache(maxsize=64)
def _take_apart(files: tuple[tuple[str, str], ...]) -> Sources:
    data: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    python: dict[str, ast.Module] = {}
    shells: dict[str, str] = {}
    runs: list[Run] = []
    for name, text in files:
        base = name.rsplit("/", 1)[-1]
        kind = kind_of(name, text)
        if kind == "python":
            python[base] = _python(name, text)
        elif kind == "shell":
            shells[base] = text
        else:
            kinds[base] = kind
            document = _document(name, text, kind)
            for extra, content in _config_maps(document):
                shells.setdefault(extra, content) if kind_of(extra, content) == "shell" else data.setdefault(extra, content)
            data[base] = document
    for base, document in list(data.items()):
        for manifest in document if isinstance(document, list) else [document]:
            if is_manifest(manifest):
                runs += _pod_runs(base, manifest, shells)
            elif kinds.get(base) == "yaml":
                runs += _described_runs(base, manifest, shells)
    scripts = _scripts(shells)
    called = {c for s in scripts.values() for c in s.called}
    undecided: list[str] = []
    for base, script in scripts.items():
        for written, content in script.documents.items():
            kinds[written] = kind_of(written, content)
            if kinds[written] in {"json", "yaml", "toml"}:
                data[written] = _document(f"{base} (writing {written})", content, kinds[written])
        if base not in called:
            undecided += script.undecided
            machines = batch_machines(shells[base])
            runs += [
                Run(c.words, c.environment, launcher_machines(c.around).over(machines) if c.around else machines, base)
                for c in iterate(script)
            ]
    return Sources(tuple(runs), scripts, data, kinds, python, tuple(dict.fromkeys(undecided)))


def _scripts(shells: Mapping[str, str]) -> dict[str, Script]:
    out: dict[str, Script] = {}
    for base, text in shells.items():
        others = {k: v for k, v in shells.items() if k != base}
        out[base] = read_script(text, environment=batch_environment(text), others=others)
    return out


def kind_of(name: str, text: str) -> str:
    """``json``, ``yaml``, ``toml``, ``python`` or ``shell``, by the name and, where that says nothing, the first characters."""
    suffix = re.sub(r".*\.", "", name.rsplit("/", 1)[-1].lower()) if "." in name else ""
    known = {"json": "json", "yaml": "yaml", "yml": "yaml", "toml": "toml", "py": "python", "sh": "shell", "bash": "shell",
             "slurm": "shell", "sbatch": "shell", "job": "shell"}  # fmt: skip
    if suffix in known:
        return known[suffix]
    start = text.lstrip()
    if start.startswith("#!"):
        return "python" if "python" in start.splitlines()[0] else "shell"
    if start.startswith("{"):
        return "json"
    if re.match(r"\[[\w.]+\]\s*\n", start):
        return "toml"
    if re.match(r"(?:#.*\n|\s*\n)*(?:---\s*\n)?[\w.-]+:(?:\s|$)", text):
        return "yaml"
    return "shell"


def _document(name: str, text: str, kind: str) -> Any:
    try:
        if kind == "json":
            return json.loads(text)
        if kind == "toml":
            return tomllib.loads(text)
        if kind == "yaml":
            import yaml

            documents = [d for d in yaml.load_all(text, Loader=_loader()) if d is not None]
            return documents[0] if len(documents) == 1 else documents
    except (ValueError, RecursionError) as e:
        raise SpecError(f"{name}: is not valid {kind.upper()}: {_first_line(e)}") from None
    except Exception as e:
        import yaml

        if isinstance(e, yaml.YAMLError):
            raise SpecError(f"{name}: is not valid YAML: {_first_line(e)}") from None
        raise
    return text


def _loader() -> Any:
    """PyYAML's safe loader; numbers such as ``1e-4`` stay text there, which no reader here minds."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _described_runs(base: str, document: Any, shells: Mapping[str, str]) -> Iterator[Run]:
    """Commands of other tools' files (compose, job descriptions): values of ``command``, ``run`` and the like."""
    if isinstance(document, list):
        for part in document:
            yield from _described_runs(base, part, shells)
    if not isinstance(document, Mapping):
        return
    words: list[str] = []
    for key in ("entrypoint", "command", "args"):
        value = document.get(key)
        if isinstance(value, str):
            words.append(value)
        elif isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
            words.append(shlex.join(map(str, value)))
    texts = [" ".join(words)] if words else []
    texts += [document[key] for key in ("run", "script", "cmd") if isinstance(document.get(key), str)]
    image = str(document.get("image") or "")
    for text in texts:
        for command in read_script(text, others=shells).commands:
            yield Run(
                command.words, command.environment, launcher_machines(command.around), base, image, "entrypoint" in document
            )
    for value in document.values():
        if isinstance(value, Mapping | list):
            yield from _described_runs(base, value, shells)


def keyword_words(sources: Sources, callables: tuple[str, ...], package: str) -> tuple[str, ...] | None:
    """The keyword arguments of the first call of one of ``callables`` in a Python file that imports ``package``, as flags."""
    for tree in sources.python.values():
        imports = {n.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
        imports |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if package not in imports:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in callables and node.keywords:
                return tuple(_flag_words(node))
    return None


def _flag_words(call: ast.Call) -> Iterator[str]:
    if call.args and isinstance(call.args[0], ast.Constant):
        yield from ("--model", str(call.args[0].value))
    for keyword in call.keywords:
        if keyword.arg is None or not isinstance(keyword.value, ast.Constant) or keyword.value.value in {None, False}:
            continue
        yield f"--{keyword.arg}"
        if keyword.value.value is not True:
            yield str(keyword.value.value)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _python(name: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as e:
        raise SpecError(f"{name}: is not valid Python: {_first_line(e)}") from None


def _config_maps(document: Any) -> Iterator[tuple[str, str]]:
    for manifest in document if isinstance(document, list) else [document]:
        if is_manifest(manifest) and manifest["kind"] == "ConfigMap" and isinstance(manifest.get("data"), Mapping):
            for name, content in manifest["data"].items():
                if isinstance(content, str) and "\n" in content:
                    yield str(name), content


def _pod_runs(base: str, manifest: Mapping[str, Any], shells: Mapping[str, str]) -> Iterator[Run]:
    for container in containers(manifest):
        script = read_script(shlex.join(container.words), environment=container.environment, others=shells)
        for command in script.commands:
            yield Run(command.words, command.environment, container.machines, base, container.image, container.program)
