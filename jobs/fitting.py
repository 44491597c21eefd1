"""A schedule made ready for the model at hand."""

from __future__ import annotations

from dataclasses import replace

from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import transferred


def fitted(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    """`document` in terms of `model`, which may have other weights and names than the one that it was made for.

    Raises:
        InvalidScheduleError: it was made for another structure, shape or type; says which operator differs, and how.
    """
    found = transferred(document, model.graph, model.digest, model.bindings, lambda: model.structure)
    return found if found is document else replace(found, model=model.name)
