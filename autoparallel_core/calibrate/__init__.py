"""Calibration on one's own runs: few factors per stack, shrunk towards the presets. docs/how-to/calibrate.md."""
