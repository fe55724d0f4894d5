"""What one's own measured runs teach about a stack: few named factors on predicted times."""

from __future__ import annotations

from attrs import frozen


@frozen
class Calibration:
    """Factors on the predicted seconds of one problem, 1 where nothing was learnt.

    Above 1 is slower than predicted. ``kernels`` is the inverse of a change in compute efficiency, ``collectives`` of one in
    network efficiency.
    """

    kernels: float = 1.0
    """Matrix products, attention, scans, element-wise passes, recomputation, optimizer."""
    collectives: float = 1.0
    """Exposed communication of every kind."""
    host: float = 1.0
    """Launches, scheduling, gaps between kernels."""
    prefill: float = 1.0
    """Serving: other requests' prompts between two tokens of a request."""
    scale: float = 1.0
    """All of it: what the others do not explain."""
    first_token: float = 1.0
    """Serving: the time to the first token."""
    source: str = ""
    """File and stack that it comes from, for the answer."""
