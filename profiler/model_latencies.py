"""Latencies of a model as a whole, kept beside those of its stages: a second run then says what the first one said."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from iosched.models.model import Model
from iosched.profiler.database import MeasurementStore
from iosched.profiler.statistics import Measurement
from iosched.scheduler.schedule import Schedule


@dataclass(frozen=True, eq=False)
class ModelLatencies:
    """What whole runs of one model take on one device, by text that says how it is run."""

    model: Model
    store: MeasurementStore
    device: str

    def get(self, how: str) -> Measurement | None:
        """What was measured before; None where nothing was."""
        return self.store.get(self._key(how), self.device)

    def put(self, how: str, found: Measurement) -> None:
        """Keeps a measurement."""
        self.store.put(self._key(how), self.device, found)

    def known(self, ways: Mapping[str, str]) -> dict[str, Measurement] | None:
        """What was measured of all `ways` (names, and how the model is run), by name; None unless all are known."""
        found = {name: self.get(how) for name, how in ways.items()}
        there = {name: each for name, each in found.items() if each is not None}
        return there if len(there) == len(ways) else None

    def _key(self, how: str) -> str:
        shapes = sorted(self.model.bindings.items())
        return f"model:{hashlib.sha256(f'{self.model.digest}:{shapes}:{how}'.encode()).hexdigest()}"


def structure(schedule: Schedule) -> str:
    """What runs together, without what was measured: equal schedules have equal text."""
    return repr([(stage.strategy.value, stage.groups) for stage in schedule.stages])
