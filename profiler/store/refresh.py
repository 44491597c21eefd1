"""Measuring anew what the profile database already knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Compared, Turn, UndividedRow


@dataclass(frozen=True)
class Refreshed:
    """A profile database that seems to know only what was kept through this object, so that all else is measured anew.

    The yardstick alone is taken from it all the same: what is known of other models is relative to it. The first
    measurement of a stage that is kept here supersedes all that was known of the stage, whatever turn it was from.
    """

    database: ProfileDatabase
    _stages: set[tuple[str, str]] = field(default_factory=set)
    _comparisons: set[tuple[str, str]] = field(default_factory=set)

    def stage(self, signature: str, device: str, turn: Turn = "first") -> Measurement | None:
        """See `MeasurementStore`."""
        return self.database.stage(signature, device, turn) if (signature, device) in self._stages else None

    def keep_stage(self, signature: str, device: str, found: Measurement, turn: Turn = "first") -> None:
        """See `MeasurementStore`."""
        if (signature, device) not in self._stages:
            self.database.forget_stage(signature, device)
            self._stages.add((signature, device))
        self.database.keep_stage(signature, device, found, turn)

    def yardstick(self, device: str) -> Measurement | None:
        """See `MeasurementStore`."""
        return self.database.yardstick(device)

    def keep_yardstick(self, device: str, found: Measurement) -> None:
        """See `MeasurementStore`."""
        self.database.keep_yardstick(device, found)

    def comparison(self, key: str, device: str) -> Mapping[str, Compared]:
        """See `MeasurementStore`."""
        return self.database.comparison(key, device) if (key, device) in self._comparisons else {}

    def keep_comparison(self, key: str, device: str, candidates: Mapping[str, Compared]) -> None:
        """See `MeasurementStore`."""
        self.database.keep_comparison(key, device, candidates)
        self._comparisons.add((key, device))

    def undivided(self, key: str, device: str) -> UndividedRow | None:
        """None: what an earlier iosched kept was not measured through this object."""
        del key, device
        return None
