"""From a run record to the question it answers: the Problem, the Strategy that ran, and what had to be assumed."""

from __future__ import annotations

from autoparallel_core.errors import SpecError
from autoparallel_core.runs.record import RunRecord
from autoparallel_core.runs.serving import translate_serving
from autoparallel_core.runs.shared import Shared, Translated
from autoparallel_core.runs.training import translate_training


class Translator(Shared):
    """Translates records, sharing models, clusters and problems between them."""

    def translate(self, record: RunRecord) -> Translated:
        """Raises SpecError when the record does not say enough, or names something unknown."""
        if not record.engine:
            raise SpecError("the record states no engine")
        return translate_serving(self, record) if record.mode == "inference" else translate_training(self, record)
