"""Every installed plugin passes the suite that ships for plugin authors."""

from autoparallel_core.testing.conformance import *  # noqa: F403
