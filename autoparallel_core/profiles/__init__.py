"""Measured data: its file format, what makes it plausible, and how it takes the place of a preset's figures.

``tables`` names what can be measured, ``files`` reads and writes it, ``plausible`` holds it against the hardware,
``fit`` and ``residuals`` turn points into the forms that the cost model evaluates, ``apply`` puts them into a Gpu,
``importers`` read what other tools measured. See docs/reference/profile-schema.md.
"""
