"""Every failure a user can cause, as one family with one base.

The command turns any :class:`AutoparallelError` into one sentence on standard error
and the exit code of its class; a traceback is always a defect of the program.
"""

from __future__ import annotations


class AutoparallelError(Exception):
    """Base of every error that carries a message for the user."""

    exit_code = 2


class SpecError(AutoparallelError):
    """The user's input (model, cluster, workload, flag, file) is missing, malformed or contradictory."""


class RuleViolation(AutoparallelError):
    """A strategy breaks a rule of the engine that would run it."""

    exit_code = 3


class UnknownPlugin(SpecError):
    """A name asked for (engine, GPU, model, planner) is provided by no loaded plugin."""


class PluginConflict(AutoparallelError):
    """Two plugins claim the same name or the same part of a model."""


class PluginContract(AutoparallelError):
    """A plugin returned something its hook specification does not allow."""


class Infeasible(AutoparallelError):
    """The question is valid but nothing fits; the message says what is missing and by how much."""

    exit_code = 3


class VerificationFailed(AutoparallelError):
    """A replayed plan does not compute what the module computes; the message says by how much."""

    exit_code = 3
