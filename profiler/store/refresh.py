"""Measuring anew what the profile database already knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import MeasurementStore


@dataclass(frozen=True)
class Refreshed:
    """Measurements of which only those put through this object are known, so that the rest is replaced.

    Attributes:
        store: where they are kept.
        kept: signatures that are taken from there all the same.
    """

    store: MeasurementStore
    kept: frozenset[str]
    _fresh: set[tuple[str, str]] = field(default_factory=set)

    def get(self, signature: str, device: str) -> Measurement | None:
        """As from a store that knew nothing else when this object was made."""
        is_known = signature in self.kept or (signature, device) in self._fresh
        return self.store.get(signature, device) if is_known else None

    def put(self, signature: str, device: str, measurement: Measurement) -> None:
        """Keeps `measurement` in place of an earlier one."""
        self.store.put(signature, device, measurement)
        self._fresh.add((signature, device))
