"""Predict measured runs: what ``validate`` compares, without the printing.

Records that ask the same question of different strategies are priced in one batch. A record that cannot be priced
comes back ``refused`` (it says too little, or something unknown) or ``error`` (a defect of the program), never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, field, frozen

from autoparallel_core.errors import AutoparallelError
from autoparallel_core.runs.record import RunRecord, Unreadable
from autoparallel_core.runs.shared import Translated
from autoparallel_core.runs.translate import Translator

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.search.evaluation import Evaluation
    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import Strategy

GIB = float(1 << 30)
GB = 1e9
Progress = Callable[[int, int], None]


@frozen
class Prediction:
    """The answer to one record. ``predicted`` has the keys of the record's ``measured``."""

    id: str
    status: Literal["ok", "refused", "error"]
    reason: str | None = None
    predicted: Mapping[str, Any] = field(factory=dict)
    notes: tuple[str, ...] = ()
    """What the record did not state and was assumed, and the engine's rules that the strategy breaks."""


def predict_records(
    records: Iterable[RunRecord | Unreadable],
    host: Host,
    progress: Progress | None = None,
    *,
    refine: Callable[[Problem], Problem] | None = None,
) -> list[Prediction]:
    """One prediction per record, in the order given. ``refine`` changes each question, as measured data does."""
    rows = list(records)
    out: list[Prediction | None] = [None] * len(rows)
    translator = Translator(host, refine)
    groups: dict[int, list[tuple[int, Translated]]] = {}
    for i, record in enumerate(rows):
        if isinstance(record, Unreadable):
            out[i] = Prediction(record.id, "error", record.reason)
            continue
        try:
            t = translator.translate(record)
        except AutoparallelError as e:
            out[i] = Prediction(record.id, "refused", _one_line(e))
        except Exception as e:  # noqa: BLE001 - one bad record must not lose the others
            out[i] = Prediction(record.id, "error", f"{type(e).__name__}: {_one_line(e)}")
        else:
            groups.setdefault(id(t.problem), []).append((i, t))
    done = 0
    for members in groups.values():
        for (i, _), prediction in zip(members, _group(rows, members, host), strict=True):
            out[i] = prediction
        done += len(members)
        if progress:
            progress(done, len(rows))
    return [p for p in out if p is not None]


def _one_line(e: Exception) -> str:
    return " ".join(str(e).split())


def _group(
    rows: Sequence[RunRecord | Unreadable], members: Sequence[tuple[int, Translated]], host: Host
) -> list[Prediction]:  # fmt: skip
    """Predictions of the records of one problem."""
    from autoparallel_core.search.rules import rules_for, violations

    problem = members[0][1].problem
    ids = [rows[i].id for i, _ in members]
    try:
        answers = _evaluate(problem, [t for _, t in members], host)
        rules = rules_for(problem, host)
        broken = [tuple(v.sentence for v in violations(problem, a.strategy, rules)) for a in answers]
    except AutoparallelError as e:
        return [Prediction(name, "refused", _one_line(e)) for name in ids]
    except Exception as e:  # noqa: BLE001 - one bad group must not lose the others
        return [Prediction(name, "error", f"{type(e).__name__}: {_one_line(e)}") for name in ids]
    pick = training_figures if problem.mode == "training" else serving_figures
    out = []
    for (_, t), name, answer, rule_notes in zip(members, ids, answers, broken, strict=True):
        predicted = {k: v for k, v in pick(answer.figures, answer.row).items() if k not in t.unpredicted}
        if bad := [k for k, v in predicted.items() if isinstance(v, float) and not math.isfinite(v)]:
            out.append(Prediction(name, "error", f"the prediction of {', '.join(bad)} is not a number"))
            continue
        notes = (*t.notes, *answer.notes, *(f"breaks a rule of {problem.engine.name}: {s}" for s in rule_notes))
        out.append(Prediction(name, "ok", None, predicted, notes))
    return out


@frozen(eq=False)
class _Answer:
    """One record's row of an evaluation."""

    figures: Evaluation
    row: int
    strategy: Strategy
    notes: tuple[str, ...] = ()


UNCERTAIN = 1.1
"""Predicted memory above the device by less than this share is no proof that a run could not have fitted."""
RECOMPUTE_STEPS = 8
"""Steps of the number of layers under full recompute that are tried when a record does not state it."""


def _evaluate(problem: Problem, questions: Sequence[Translated], host: Host) -> list[_Answer]:
    """Price the strategies in one batch.

    A run whose record leaves recompute open is given the least that fits, when without it memory is exceeded by far:
    it ran, so its activations had room.
    """
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch

    strategies = [t.strategy for t in questions]
    figures = evaluate(problem, StrategyBatch.of(strategies), host)
    answers = [_Answer(figures, i, s) for i, s in enumerate(strategies)]
    for i, t in enumerate(questions):
        over = figures.reserved_bytes[i] > UNCERTAIN * figures.capacity_bytes
        if not (t.open_recompute and over) or t.unpredicted:
            continue
        tried = _more_recompute(problem, t.strategy, host)
        if not tried:
            continue
        more = evaluate(problem, StrategyBatch.of(tried), host)
        enough = [row for row in range(len(tried)) if more.reserved_bytes[row] <= UNCERTAIN * more.capacity_bytes]
        if enough:
            row = enough[0]
            words = str(tried[row]).rsplit("recompute=", 1)[1].split()[0]
            answers[i] = _Answer(more, row, tried[row], (f"recompute={words} taken, since the run would not fit with less",))
    return answers


def settled_strategy(question: Translated, host: Host) -> Strategy:
    """The strategy that a record is priced with: as stated, or with the recompute that an unstated one must have had."""
    return _evaluate(question.problem, [question], host)[0].strategy


def _more_recompute(problem: Problem, strategy: Strategy, host: Host) -> list[Strategy]:
    """Stronger recompute in rising order: selective, full for some layers of a stage, full for all; as the engine can."""
    from autoparallel_core.search.rules import rules_for, violations

    stage, vpp = -(-problem.arch.num_layers // strategy.pp), strategy.vpp
    some = sorted({-(-stage * k // (RECOMPUTE_STEPS * vpp)) * vpp for k in range(1, RECOMPUTE_STEPS)} - {stage})
    out = [] if strategy.recompute else [evolve(strategy, recompute=1)]
    out += [evolve(strategy, recompute=2, recompute_layers=n) for n in some if n < stage]
    out.append(evolve(strategy, recompute=2))
    rules = rules_for(problem, host)
    own = {v.rule for v in violations(problem, strategy, rules)}
    return [s for s in out if {v.rule for v in violations(problem, s, rules)} <= own]


def training_figures(e: Evaluation, row: int) -> dict[str, Any]:
    """Decimal GB, as training runs print them."""
    return {
        "tokens_per_s_per_gpu": float(e.tokens_per_s_per_gpu[row]),
        "step_time_s": float(e.total_s[row]),
        "memory_gb": float(e.allocated_bytes[row]) / GB,
        "memory_reserved_gb": float(e.reserved_bytes[row]) / GB,
        "fits": bool(e.fits[row]),
        "verdict": "does not fit" if not e.fits[row] else "tight" if e.tight[row] else "fits",
    }


def serving_figures(e: Evaluation, row: int) -> dict[str, Any]:
    """GiB of rank 0, as serving engines print them; ``kv_tokens`` is what one instance's cache holds."""
    s = {k: float(v[row]) for k, v in e.serving.items()}
    return {
        "weights_gib_per_gpu": s["first_rank_weights_bytes"] / GIB,
        "kv_cache_gib_per_gpu": s["first_rank_kv_cache_bytes"] / GIB,
        "kv_tokens": s["kv_tokens_per_instance"],
        "activation_peak_gib": s["first_rank_activation_bytes"] / GIB,
        "non_torch_gib": s["first_rank_non_torch_bytes"] / GIB,
        "cuda_graph_gib": s["first_rank_cuda_graph_bytes"] / GIB,
        "ttft_ms": s["ttft_s"] * 1e3,
        "tpot_ms": s["tpot_s"] * 1e3,
        "output_tok_s": s["output_tokens_per_s"],
        "tok_s_per_gpu": s["output_tokens_per_s_per_gpu"],
        "fits": bool(e.fits[row]),
    }


def document(predictions: Iterable[Prediction]) -> dict[str, Any]:
    """The object that ``validate --json`` prints."""
    return {
        "runs": [
            {"id": p.id, "status": p.status, "reason": p.reason, "predicted": dict(p.predicted), "notes": list(p.notes)}
            for p in predictions
        ]
    }
