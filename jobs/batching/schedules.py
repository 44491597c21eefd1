"""Schedules of several models in one graph, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from iosched.jobs.schedules import Deadline, schedule_by
from iosched.models.composition.members import Member, owners
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel
from iosched.scheduler.regions import search_regions
from iosched.scheduler.search import SearchResult, search


def mixed_schedule(
    opened: OpenModel, model: Model, members: Sequence[Member], deadline: Deadline | None = None
) -> SearchResult:
    """The better of two schedules: of the graph as any other, and with models side by side between what they share.

    The first can run operators of several models beside those of one; in the second whole parts of models run beside
    each other, however many operators and models there are.

    Args:
        opened: the model, open on the device.
        model: a composed or batched model.
        members: the models in it.
        deadline: once true, the searches end with what they know; see `search`.
    """
    owned = owners(model, members)
    common = {opened.units.unit_of(name) for name, bits in owned.items() if bits & (bits - 1)}
    find = partial(search, deadline=deadline, effort=opened.effort)
    turns = search_regions(opened.graph, opened.cost, common, find, is_over=deadline or (lambda: False))
    whole = schedule_by(opened, "both", deadline=deadline)
    return min((turns, whole), key=_predicted_us)


def _predicted_us(result: SearchResult) -> float:
    predicted = result.schedule.predicted_us
    return float("inf") if predicted is None else predicted
