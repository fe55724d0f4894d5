"""How plugins are found, loaded and checked; :mod:`autoparallel_core.host` is the face of this room."""
