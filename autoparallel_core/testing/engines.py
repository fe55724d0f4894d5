"""Checks of an engine plugin: its spec, and that its hooks are pure functions of the batch.

Axis legend: S strategies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve
from packaging.version import InvalidVersion, Version

from autoparallel_core.hosting.contract import check_mask
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.rule import Rule
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import StrategyBatch
from autoparallel_core.testing.toys import Mode, toy_dense_arch, toy_moe_arch, toy_problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autoparallel_core.host import Host

SAMPLE = 2000
"""Strategies taken from the engine's space, evenly spaced."""
RELATIVE = 1e-12
"""Vector instructions may round the last digit by position; a dependence on other rows is far larger."""


def spec_complaints(spec: EngineSpec) -> list[str]:
    """Identity, version, and the words that the output quotes."""
    return [f"engine {spec.name}: {c}" for c in _spec(spec)]


def _spec(spec: EngineSpec) -> Iterator[str]:
    if not spec.name or spec.name != spec.name.strip().casefold() or " " in spec.name:
        yield "the name must be lower case, without spaces"
    if not spec.summary.strip():
        yield "the summary is empty"
    if (message := _not_a_version(spec.default_version)) is not None:
        yield f"default_version {message}"
    if len(set(spec.modes)) != len(spec.modes):
        yield f"modes repeat: {spec.modes}"
    for name, constant in spec.constants.items():
        if not constant.meaning.strip() or not constant.source.strip():
            yield f"constant {name} needs a meaning and a source"


def _not_a_version(text: str | None) -> str | None:
    try:
        Version(text or "0")
    except InvalidVersion:
        return f"'{text}' is not a version number such as 0.12.1"
    return None


def rule_complaints(rules: Sequence[Rule]) -> list[str]:
    """Ids, sources and versions of rules."""
    out = []
    for rule in rules:
        if not rule.id.strip() or not rule.source.strip():
            out.append(f"rule '{rule.id}' needs an id and a source")
        out += [f"rule '{rule.id}': {m}" for v in (rule.since, rule.until) if (m := _not_a_version(v)) is not None]
        if not rule.modes or set(rule.modes) - {"training", "inference"}:
            out.append(f"rule '{rule.id}': modes {rule.modes}")
    ids = [r.id for r in rules]
    return out + [f"rule '{i}' is stated twice" for i in sorted({i for i in ids if ids.count(i) > 1})]


def problems_of(host: Host, spec: EngineSpec) -> list[tuple[str, Problem]]:
    """A dense and a mixture-of-experts question per mode of the engine, each with a name."""
    modes: tuple[Mode, ...] = spec.modes
    return [
        (f"{mode}, {arch.name}", toy_problem(spec.name, mode, host=host, arch=arch))
        for mode in modes
        for arch in (toy_dense_arch(), toy_moe_arch())
    ]


def sample(host: Host, problem: Problem, *, legal: bool = True) -> StrategyBatch:
    """Strategies of the engine's own space, with or without those its rules refuse."""
    from autoparallel_core.search.rules import rules_for
    from autoparallel_core.search.space import enumerate_space

    rules = rules_for(problem, host) if legal else ()
    batch = StrategyBatch.concat(list(enumerate_space(problem, host.search_space(problem) or Space(), rules)))
    return batch.take(np.linspace(0, len(batch) - 1, min(SAMPLE, len(batch))).astype(np.int64))


def read_only(batch: StrategyBatch) -> StrategyBatch:
    """A copy whose arrays refuse to be written to."""
    columns = {c: v.copy() for c, v in batch.columns.items()}
    for v in columns.values():
        v.flags.writeable = False
    return StrategyBatch(columns)


def halves(n: int) -> tuple[slice, slice]:
    """An uneven split, so that a wrong length cannot pass."""
    cut = max(1, n // 3)
    return slice(0, cut), slice(cut, n)


class Recorder:
    """Stands before a host and keeps the arguments of every call, by hook."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.calls: dict[str, list[dict[str, Any]]] = {}

    def call(self, group: str, hook: str, **arguments: Any) -> Any:
        self.calls.setdefault(hook, []).append(arguments)
        return self._host.call(group, hook, **arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


def costs_seen(host: Host, problem: Problem, batch: StrategyBatch) -> Mapping[str, NDArray[np.float64]]:
    """The seconds by cause that the evaluation hands to ``adjust_cost`` (or would), float64[S] each."""
    from autoparallel_core.search.evaluate import evaluate

    recorder = Recorder(host)
    evaluation = evaluate(problem, batch, recorder)  # type: ignore[arg-type]  # the recorder answers as the host does
    asked = recorder.calls.get("adjust_cost")
    seen: Mapping[str, NDArray[np.float64]] = asked[0]["cost"] if asked else evaluation.seconds
    return seen


def purity_complaints(host: Host, problem: Problem, batch: StrategyBatch) -> list[str]:
    """Rules, memory and adjust_cost of a batch must be those of its halves, joined, and leave their inputs alone."""
    whole = read_only(batch)
    parts = [read_only(batch.take(part)) for part in halves(len(batch))]
    cost = costs_seen(host, problem, batch)
    out = []
    for hook, extra in (("memory", False), ("adjust_cost", True)):
        full, again = (_arrays(host, hook, problem, whole, cost if extra else None) for _ in range(2))
        split = [
            _arrays(host, hook, problem, part, {k: v[rows] for k, v in cost.items()} if extra else None)
            for part, rows in zip(parts, halves(len(batch)), strict=True)
        ]
        out += [f"{hook} gives other figures when asked again" for _ in [0] if not _same(full, again)]
        joined = {k: np.concatenate([_or_zero(p, k, len(b)) for p, b in zip(split, parts, strict=True)]) for k in _keys(*split)}
        out += [f"{hook} of a batch is not that of its halves" for _ in [0] if not _same(full, joined)]
    return out + _rule_purity(host, problem, whole, parts)


COMPUTE = ("gemm", "expert_gemm", "attention", "scan")
"""Causes that keep the GPU busy: nothing an engine hides can take them off."""


def bound_complaints(host: Host, problem: Problem, batch: StrategyBatch) -> list[str]:
    """What adjust_cost leaves of a step is at least the core's time of its matrix operations."""
    cost = costs_seen(host, problem, batch)
    deltas = _arrays(host, "adjust_cost", problem, read_only(batch), cost)
    total = np.sum([*cost.values(), *deltas.values()], axis=0)
    compute = np.sum([cost[c] for c in COMPUTE if c in cost], axis=0)
    short = np.flatnonzero(total < compute * (1 - 1e-9))
    return [f"adjust_cost leaves {total[i]:g} s of '{batch[int(i)]}', which computes for {compute[i]:g} s" for i in short[:1]]


def _rule_purity(host: Host, problem: Problem, whole: StrategyBatch, parts: Sequence[StrategyBatch]) -> list[str]:
    out = []
    for _, rules in host.rules(problem):
        for rule in rules:
            mask = rule.broken(problem, whole)
            if complaint := check_mask(mask, len(whole)):
                out.append(f"rule '{rule.id}' {complaint}")
            elif not np.array_equal(mask, np.concatenate([rule.broken(problem, p) for p in parts])):
                out.append(f"rule '{rule.id}' of a batch is not that of its halves")
    return out


def sentence_complaints(host: Host, problem: Problem) -> list[str]:
    """Every rule that refuses something of the engine's own space must say so in one line."""
    batch = sample(host, problem, legal=False)
    out = []
    for _, rules in host.rules(problem):
        for rule in rules:
            broken = np.flatnonzero(rule.broken(problem, batch))
            if not len(broken):
                continue
            sentence = rule.sentence(problem, batch[int(broken[0])])
            if not isinstance(sentence, str) or not sentence.strip() or "\n" in sentence:
                out.append(f"rule '{rule.id}' says {sentence!r} about '{batch[int(broken[0])]}'")
    return out


def foreign_complaints(host: Host, provider: str, problem: Problem) -> list[str]:
    """A plugin must answer nothing about an engine that is not its own."""
    stranger = evolve(problem, engine=evolve(problem.engine, name="an-engine-of-nobody"))
    batch = read_only(StrategyBatch.from_columns(2, tp=1))
    none = {"some cause": np.zeros(2)}
    answers = {
        "search_space": host.call("engines", "search_space", problem=stranger),
        "rules": host.call("engines", "rules", problem=stranger),
        "memory": host.call("engines", "memory", problem=stranger, batch=batch),
        "adjust_cost": host.call("engines", "adjust_cost", problem=stranger, batch=batch, cost=none),
        "export": host.call("engines", "export", problem=stranger, strategy=batch[0], options={}),
    }
    return [
        f"{hook} answers about another engine" for hook, given in answers.items() for info, _ in given if info.name == provider
    ]


def _arrays(
    host: Host, hook: str, problem: Problem, batch: StrategyBatch, cost: Mapping[str, NDArray[np.float64]] | None
) -> dict[str, NDArray[np.float64]]:
    """The sum over plugins, by cause."""
    extra = {} if cost is None else {"cost": {k: _locked(v) for k, v in cost.items()}}
    out: dict[str, NDArray[np.float64]] = {}
    for _, deltas in host.call("engines", hook, problem=problem, batch=batch, **extra):
        for cause, values in deltas.items():
            out[cause] = out.get(cause, 0.0) + values
    return out


def _locked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    copy = np.array(values)
    copy.flags.writeable = False
    return copy


def _keys(*tables: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(k for table in tables for k in table))


def _or_zero(table: Mapping[str, NDArray[np.float64]], key: str, n: int) -> NDArray[np.float64]:
    return table.get(key, np.zeros(n))


def _same(a: Mapping[str, NDArray[np.float64]], b: Mapping[str, NDArray[np.float64]]) -> bool:
    """Equal by cause; a cause that one leaves out is zero."""
    for key in _keys(a, b):
        x, y = (t.get(key, np.zeros(1)) for t in (a, b))
        if not np.allclose(x, y, rtol=RELATIVE, atol=0.0):
            return False
    return True
