"""The colours of operators in a picture of one schedule, and its legend."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from iosched.cli.pictures.families import FAMILIES, Paint
from iosched.cli.pictures.looks import Look, look_of
from iosched.scheduler.schedule import Schedule


def paints_of(schedule: Schedule, looks: Mapping[str, Look]) -> dict[str, Paint]:
    """A light colour for each kind of look in the schedule: for every family, or for every model where it has several.

    In the order of a legend. Of more than seven models, some have the same colour.
    """
    shown = [look_of(name, looks) for stage in schedule.stages for name in stage.operators]
    by_family = {family.name: family.light for family in FAMILIES.values()}
    models = dict.fromkeys(look.models for look in shown if look.models)
    colours = dict(zip(models, cycle(paint for paint in by_family.values() if not paint.edge)))
    kinds = {look.kind for look in shown}
    return {kind: paint for kind, paint in {**colours, **by_family}.items() if kind in kinds}
