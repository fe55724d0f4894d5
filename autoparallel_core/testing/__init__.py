"""For plugin authors: toy problems (``toys``), pytest fixtures (``fixtures``) and the conformance suite (``conformance``).

Needs pytest and numpy; nothing else of the package imports it.
"""
