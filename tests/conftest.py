"""Settings of all tests: the gate draws the same random examples every time, so that a red run can be run again."""

import os

from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("gate")
