"""The memory of a cost model: what was measured of stages, in this process and in the profile database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Turn


@dataclass(eq=False)
class StageMemory:
    """Measurements of the stages of one device, by the signatures of the stages.

    A stage is looked up in the profile database when it is asked for the first time, and has to be measured only if the
    database does not know it. How it is measured is the cost model's affair.

    Attributes:
        device: the key of the device in the database.
        resume: whether what the database knows is taken. If not, every stage is measured anew, and the first
            measurement of a stage supersedes all that the database has of it, in whatever turn that was taken.
        on_measured: called after every stage that was really measured.
        measurements: stages that were really measured so far.
        cache_hits: stages that were found in the database.
    """

    database: ProfileDatabase
    device: str
    resume: bool = True
    on_measured: Callable[[], None] = lambda: None
    measurements: int = 0
    cache_hits: int = 0
    _met: dict[Turn, dict[str, Measurement]] = field(default_factory=lambda: {"first": {}, "again": {}, "rough": {}})

    def met(self, turn: Turn) -> Mapping[str, Measurement]:
        """The measurements, by signature, that were asked for so far in that turn."""
        return self._met[turn]

    def found(self, signature: str, turn: Turn) -> Measurement | None:
        """The measurement of a stage that was taken before; None where the stage has to be measured."""
        if signature not in self._met[turn] and self.resume:
            stored = self.database.stage(signature, self.device, turn)
            if stored is None:
                return None
            self.cache_hits += 1
            self._met[turn][signature] = stored
        return self._met[turn].get(signature)

    def latest(self, signature: str) -> Measurement | None:
        """The thorough measurement of a stage, the later of two; None where none was taken. Counts as no cache hit."""
        if not self.resume:
            return self._met["again"].get(signature) or self._met["first"].get(signature)
        again = self.database.stage(signature, self.device, "again")
        return again or self.database.stage(signature, self.device, "first")

    def keep(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Keeps a measurement that was just taken, here and in the database, and returns it."""
        if not self.resume and not any(signature in met for met in self._met.values()):
            self.database.forget_stage(signature, self.device)
        self.database.keep_stage(signature, self.device, found, turn)
        self._met[turn][signature] = found
        self.measurements += 1
        self.on_measured()
        return found

    def answer(self, signature: str, turn: Turn, measure: Callable[[], Measurement]) -> Measurement:
        """The measurement that was taken before; where there is none, `measure` takes one, which is kept."""
        return self.found(signature, turn) or self.keep(signature, turn, measure())
