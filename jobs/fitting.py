"""Translates a schedule to a model of the same structure."""

from __future__ import annotations

from dataclasses import replace

from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import transferred


def fitted(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    """`document` as a schedule of `model`, which may have other weights and names than the model that it was made for.

    Raises:
        InvalidScheduleError: `document` was made for another structure, shape or type; the text says which operator
            differs, and how.
    """
    found = transferred(document, model.graph, model.digest, model.bindings, lambda: model.structure)
    return found if found is document else replace(found, model=model.name)
