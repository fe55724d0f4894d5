"""Measured points beside a fitted form: exact where something was measured, anchored to the roofline everywhere else.

The form (a roofline) gives every shape a time; the points give its error where they lie. The logarithm of that error is
interpolated over the logarithms of the shape, inverse to the squared distance over the nearest points, and multiplied
on. Outside of the measured range the nearest points' error is carried on, so the time still follows the roofline: it is
never held at the last point's, and the answer says ``extrapolated``.
Axis legend: Q shapes asked for, P points, D shape dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from autoparallel_core.profiles.tables import Array

Marks = NDArray[np.int8]
MEASURED, INTERPOLATED, EXTRAPOLATED = 0, 1, 2
MARKS = ("measured", "interpolated", "extrapolated")
NEIGHBOURS = 6
SAME = 1e-3
"""Shapes closer than this share in every dimension are the same."""
MOST_POINTS = 3000
"""Points kept of a longer table, spread evenly over its shapes in order."""
_CHUNK = 512


@frozen(eq=False)
class Residuals:
    """Points of one kernel class: shapes [P, D] above 0 and their seconds [P]."""

    shapes: Array
    seconds: Array
    source: str

    @classmethod
    def of(cls, shapes: Array, seconds: Array, source: str) -> Residuals:
        """At most MOST_POINTS of the points."""
        order = np.lexsort(shapes.T)[:: max(1, -(-len(seconds) // MOST_POINTS))]
        return cls(shapes[order], seconds[order], source)

    def deviation(self, form: Callable[..., Array], *shape: Array, absolute: bool = False) -> tuple[Array, Marks]:
        """Factors on the form's seconds of Q shapes (broadcasting arrays, one per dimension), and how each was come by.

        ``form`` gives the modelled seconds of shapes, one argument per dimension. Unless ``absolute``, the factors are
        relative to what the form misses at the largest shapes: a form that stands for kernels inside of a run keeps its
        own plateau, and the points only tell how other shapes differ from it.
        """
        dims = np.broadcast_arrays(*(np.asarray(s, dtype=np.float64) for s in shape))
        asked = np.stack([d.ravel() for d in dims], axis=1)
        unique, back = np.unique(asked, axis=0, return_inverse=True)
        error = np.log(self.seconds / form(*self.shapes.T))
        if not absolute:
            work = np.prod(self.shapes, axis=1)
            error = error - np.median(error[work >= np.quantile(work, 0.75)])
        factor, marks = _interpolate(np.log(self.shapes), error, np.log(np.maximum(unique, 1e-9)))
        return np.exp(factor)[back].reshape(dims[0].shape), marks[back].reshape(dims[0].shape)

    def corrected(self, form: Callable[..., Array], *shape: Array) -> tuple[Array, Marks]:
        """Seconds instead of factors."""
        factor, marks = self.deviation(form, *shape, absolute=True)
        return form(*shape) * factor, marks

    def marks(self, *shape: Array) -> Marks:
        """How each of Q shapes would be come by."""
        return self.deviation(lambda *dims: np.ones_like(dims[0]), *shape, absolute=True)[1]


def _interpolate(points: Array, values: Array, at: Array) -> tuple[Array, Marks]:
    """Values at [Q, D] from [P, D] by inverse squared distance over the nearest; marks by the box around the points."""
    low, high = points.min(axis=0), points.max(axis=0)
    out, marks = np.empty(len(at)), np.empty(len(at), dtype=np.int8)
    n = min(NEIGHBOURS, len(points))
    for start in range(0, len(at), _CHUNK):
        q = at[start : start + _CHUNK]
        nearest_in_range = np.clip(q, low, high)
        distance = np.sum((nearest_in_range[:, None, :] - points[None, :, :]) ** 2, axis=2)
        near = np.argpartition(distance, n - 1, axis=1)[:, :n]
        d = np.take_along_axis(distance, near, axis=1)
        hit = np.all(np.abs(q[:, None, :] - points[near]) < SAME, axis=2)
        weight = np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), 1.0 / (d + 1e-12))
        out[start : start + _CHUNK] = np.sum(weight * values[near], axis=1) / weight.sum(axis=1)
        outside = np.any((q < low - SAME) | (q > high + SAME), axis=1)
        marks[start : start + _CHUNK] = np.where(hit.any(axis=1), MEASURED, np.where(outside, EXTRAPOLATED, INTERPOLATED))
    return out, marks
