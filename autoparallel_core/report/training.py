"""Training answers as records: what a strategy runs like and what it keeps in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autoparallel_core.planners.reasons import speed
from autoparallel_core.report import format as fmt
from autoparallel_core.report.causes import words
from autoparallel_core.report.layout import Column
from autoparallel_core.report.shares import memory_cells
from autoparallel_core.search.result import TIE, Plan, TrainingFigures
from autoparallel_core.spec.problem import Problem


def titled(cause: str, unit: str = "GB") -> str:
    """The cause with its unit in two lines as even as its words allow: ``weights / GB``, ``vocabulary / padding GB``."""
    parts = [*words(cause).split(" "), *([unit] if unit else [])]
    halves = [(" ".join(parts[:i]), " ".join(parts[i:])) for i in range(1, len(parts))] or [(parts[0], "")]
    return "\n".join(min(halves, key=lambda h: max(map(len, h)))).rstrip()


def memory_columns(plans: Sequence[Plan]) -> list[Column]:
    """One column per cause (gigabytes on the deciding stage, with overhead: a row sums to its peak), host memory when used."""
    causes, cells = memory_cells([p.memory.deciding.parts for p in plans], [p.memory.reserved_bytes for p in plans])
    columns = [
        Column(titled(cause), [row[i] for row in cells], starts=i == 0, words=f"{words(cause)} {{}} GB")
        for i, cause in enumerate(causes)
    ]
    if any(p.memory.host_bytes_per_node for p in plans):
        columns.append(
            Column(
                "host GB\n/node",
                [fmt.tenths(p.memory.host_bytes_per_node) for p in plans],
                words="host memory {} GB per node",
            )
        )
    return columns


def ties(problem: Problem, plans: Sequence[Plan]) -> list[str]:
    """``≈`` where a plan is as fast as the one above, within what a prediction can tell apart."""
    speeds = [speed(problem, p) for p in plans]
    return ["", *("≈ " if abs(here - above) <= TIE * max(here, above) else "" for above, here in pairwise(speeds))][: len(plans)]


def marked(marks: Sequence[str], cells: Sequence[str]) -> list[str]:
    return [mark + cell for mark, cell in zip(marks, cells, strict=True)]


def verdict_column(plans: Sequence[Plan]) -> Column:
    return Column("verdict", [p.verdict for p in plans], right=False, words="{}")


def total_columns(plans: Sequence[Plan]) -> list[Column]:
    """Peak in use on the deciding stage, and what stays free."""
    return [
        Column("peak\nGB", [fmt.tenths(p.memory.reserved_bytes) for p in plans], words="peak {} GB"),
        Column("free\nGB", [fmt.tenths(p.memory.margin_bytes) for p in plans], words="{} GB free"),
    ]


def layers_by_stage(plan: Plan) -> str:
    """``5 2×3 2``; with how many of them recompute, where stages were chosen one by one and not all do."""
    assert plan.training is not None, "a training answer holds training figures"
    text = fmt.runs(plan.training.layers_per_stage)
    again = sum(sum(s.recomputed.values()) for s in plan.stages)
    return f"{text} ({again} recompute)" if 0 < again < sum(plan.training.layers_per_stage) and plan.stages else text


def expert_columns(problem: Problem, plans: Sequence[Plan]) -> list[Column]:
    """The second grid over the same GPUs: etp × ep × pp hold all experts once, and how often that is."""
    if not problem.arch.num_experts:
        return []
    cells = []
    for s in (p.strategy for p in plans):
        grid = s.etp * s.ep * s.pp
        cells.append(f"{s.etp}·{s.ep}·{s.pp}={grid:,} ×{s.world // grid:,}")
    return [Column("experts etp·ep·pp\n×copies", cells, right=False, words="experts on etp·ep·pp {}")]


def training_columns(problem: Problem, plans: Sequence[Plan], *, ranked: bool = True) -> list[Column]:
    """The columns of a training answer, most important first."""
    figures: list[TrainingFigures] = [p.training for p in plans if p.training is not None]
    assert len(figures) == len(plans), "a training answer holds training figures"
    seq_len = problem.training.seq_len
    rank = [Column("#", [str(i + 1) for i in range(len(plans))], words="#{}")] if ranked else []
    marks = ties(problem, plans) if ranked else [""] * len(plans)
    tokens = [f"{p.strategy.mbs * seq_len // p.strategy.cp:,}" for p in plans]
    return [
        *rank,
        Column("strategy", [p.notation for p in plans], right=False, words="{}"),
        Column(
            "tokens/s\n/GPU",
            marked(marks, [fmt.significant(f.tokens_per_s_per_gpu, 4) for f in figures]),
            words="{} tokens/s per GPU",
        ),
        Column("step", [fmt.seconds(f.step_s) for f in figures], words="step {}"),
        verdict_column(plans),
        _mfu_column(problem, figures),
        *total_columns(plans),
        Column("tokens/GPU\n/µbatch", tokens, starts=True, words="{} tokens per GPU and micro-batch"),
        Column(
            "µbatches",
            [f"{f.micro_batches:,}" for f in figures],
            words="{} micro-batch" if all(f.micro_batches == 1 for f in figures) else "{} micro-batches",
        ),
        Column("layers/stage", [layers_by_stage(p) for p in plans], right=False, words="layers per stage {}"),
        *expert_columns(problem, plans),
        *memory_columns(plans),
    ]


def _mfu_column(problem: Problem, figures: Sequence[TrainingFigures]) -> Column:
    """MFU; where products run below 16 bit, under the name of the peak that it is a share of: that of 16 bit."""
    cells = [fmt.percent(f.mfu) for f in figures]
    if problem.training.precision in ("bf16", "fp16", "fp32"):
        return Column("MFU", cells)
    wide = problem.cluster.gpu.wide_dtype
    return Column(f"MFU of\n{wide} peak", cells, words=f"MFU {{}} of the {wide} peak")
