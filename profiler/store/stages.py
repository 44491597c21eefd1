"""What is known of the stages of one device: in this process, and in the profile database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import MeasurementStore
from iosched.profiler.store.tables import Turn


@dataclass(eq=False)
class StageMemory:
    """Measurements of stages by signature, each looked up in the profile database once and measured if it is not there.

    Attributes:
        device: the key of the device in the database.
        on_measured: called after every stage that was really measured.
        measurements: stages that were really measured so far.
        cache_hits: stages that were found in the database.
    """

    store: MeasurementStore
    device: str
    on_measured: Callable[[], None] = lambda: None
    measurements: int = 0
    cache_hits: int = 0
    _met: dict[Turn, dict[str, Measurement]] = field(default_factory=lambda: {"first": {}, "again": {}, "rough": {}})

    def met(self, turn: Turn) -> Mapping[str, Measurement]:
        """What was asked for so far, by signature."""
        return self._met[turn]

    def found(self, signature: str, turn: Turn) -> Measurement | None:
        """What was measured before; None where the stage has to be measured."""
        if signature not in self._met[turn]:
            stored = self.store.stage(signature, self.device, turn)
            if stored is None:
                return None
            self.cache_hits += 1
            self._met[turn][signature] = stored
        return self._met[turn][signature]

    def latest(self, signature: str) -> Measurement | None:
        """What the database has of the stage, the later where it was measured twice; this counts as no cache hit."""
        again = self.store.stage(signature, self.device, "again")
        return again or self.store.stage(signature, self.device, "first")

    def keep(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Keeps what was just measured, and returns it."""
        self.store.keep_stage(signature, self.device, found, turn)
        self._met[turn][signature] = found
        self.measurements += 1
        self.on_measured()
        return found

    def answer(self, signature: str, turn: Turn, measure: Callable[[], Measurement]) -> Measurement:
        """What was measured before, else what `measure` finds now, which is kept."""
        return self.found(signature, turn) or self.keep(signature, turn, measure())
