"""Measured runs: translating records, predicting them, comparing; :mod:`autoparallel_core.records` is the face of this room."""
