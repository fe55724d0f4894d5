"""The one place that talks to HiGHS: arrays in, values and bound out."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SPREAD = 1e3
"""Largest cost after scaling: well above the solver's absolute tolerances of 1e-7, well below loss of digits."""


@frozen(eq=False)
class Model:
    """Minimise cost·x over 0 ≤ x ≤ upper, row_lower ≤ A·x ≤ row_upper; the first ``n_integer`` variables are binary.

    A is row-wise: ``index[start[r]:start[r+1]]`` and ``value`` are row r.
    """

    cost: Array
    upper: Array
    n_integer: int
    start: IntArray
    index: IntArray
    value: Array
    row_lower: Array
    row_upper: Array


@frozen(eq=False)
class Outcome:
    """``values`` None: no solution is known. ``bound``: no solution costs less."""

    status: Literal["optimal", "infeasible", "time limit"]
    values: Array | None
    bound: float


def solve_model(
    model: Model, *, integer: bool = False, time_limit_s: float = np.inf, gap: float = 0.0, start: Array | None = None
) -> Outcome:
    """Solve the relaxation or the integer program on one thread. Raises RuntimeError when HiGHS rejects the model."""
    import highspy

    solver = highspy._core._Highs()  # noqa: SLF001  (the class above it prints a banner before an option can silence it)
    for option, value in (
        ("output_flag", False), ("threads", 1), ("time_limit", max(time_limit_s, 1e-3)), ("mip_rel_gap", gap),
        ("mip_abs_gap", 1e-9), ("mip_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9),
        ("dual_feasibility_tolerance", 1e-9),
    ):  # fmt: skip
        solver.setOptionValue(option, value)
    scale = _SPREAD / (np.abs(model.cost).max(initial=0.0) or 1.0)
    if solver.passModel(_lp(highspy, model, scale, integer=integer)) == highspy.HighsStatus.kError:
        raise RuntimeError("HiGHS rejected the model")
    if start is not None:
        given = highspy.HighsSolution()
        given.col_value = start.tolist()
        solver.setSolution(given)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    kinds = highspy.HighsModelStatus
    if status == kinds.kInfeasible:
        return Outcome("infeasible", None, np.inf)
    if status not in (kinds.kOptimal, kinds.kTimeLimit):
        raise RuntimeError(f"HiGHS stopped with status {solver.modelStatusToString(status)}")
    known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(solver.getSolution().col_value) if known else None
    if status == kinds.kOptimal and not integer:
        return Outcome("optimal", values, info.objective_function_value / scale)
    bound = info.mip_dual_bound / scale if integer else -np.inf
    return Outcome("optimal" if status == kinds.kOptimal else "time limit", values, bound)


def _lp(highspy: Any, model: Model, scale: float, *, integer: bool) -> Any:
    lp = highspy.HighsLp()
    n, m = len(model.cost), len(model.row_lower)
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_ = model.cost * scale
    lp.col_lower_, lp.col_upper_ = np.zeros(n), model.upper
    lp.row_lower_ = np.where(np.isfinite(model.row_lower), model.row_lower, -highspy.kHighsInf)
    lp.row_upper_ = model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = n, m
    lp.a_matrix_.start_ = model.start
    lp.a_matrix_.index_ = model.index
    lp.a_matrix_.value_ = model.value
    if integer:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger] * model.n_integer + [kinds.kContinuous] * (n - model.n_integer)
    return lp
