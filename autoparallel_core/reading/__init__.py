"""From a config file to a ModelArch; :mod:`autoparallel_core.models` is the face of this room."""
