"""The memory of a cost model: what was measured of stages, in this process and in the profile database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from iosched.models.log import logger
from iosched.profiler.measuring.statistics import FAILED, Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row, StageRow, Turn

_log = logger(__name__)

MOST_TRIES = 3
"""How often a process measures the same thing, if the machine is disturbed each time."""


@dataclass(eq=False)
class StageMemory:
    """Measurements of the stages of one device, by the signatures of the stages.

    A stage is looked up in the profile database when it is asked for the first time, and has to be measured only if the
    database does not know it. How it is measured is the cost model's affair. What was measured while the machine was
    disturbed (`Measurement.disturbed_by`) is kept as such: it counts as known until `try_again` is called, and then is
    measured anew when it is asked for, at most `MOST_TRIES` times in all. To a later process it is not known at all.

    Attributes:
        device: the key of the device in the database.
        resume: whether what the database knows is taken. If not, every stage is measured anew, and the first
            measurement of a stage supersedes all that the database has of it, in whatever turn that was taken.
        on_measured: called after every stage that was really measured.
        measurements: stages that were really measured so far, here or by others for whoever asks here.
        cache_hits: the other stages that were found in the database.
        anew: how many of the measurements were taken because the one before was disturbed.
    """

    database: ProfileDatabase
    device: str
    resume: bool = True
    on_measured: Callable[[], None] = lambda: None
    measurements: int = 0
    cache_hits: int = 0
    anew: int = 0
    _met: dict[Turn, dict[str, Measurement]] = field(default_factory=lambda: {"first": {}, "again": {}, "rough": {}})
    _tries: Counter[tuple[Turn, str]] = field(default_factory=Counter)
    _wanted_tries: int = 1
    _by_others: set[tuple[Turn, str]] = field(default_factory=set)

    def met(self, turn: Turn) -> Mapping[str, Measurement]:
        """The measurements, by signature, that were asked for so far in that turn."""
        return self._met[turn]

    def found(self, signature: str, turn: Turn) -> Measurement | None:
        """The measurement of a stage that was taken before; None where the stage has to be measured."""
        if signature not in self._met[turn] and self.resume:
            stored = self.database.stage(signature, self.device, turn)
            if stored is None or stored.disturbed_by:
                return None
            if (turn, signature) in self._by_others:
                self.measurements += 1
            else:
                self.cache_hits += 1
            self._met[turn][signature] = stored
        return None if self._is_due(signature, turn, self._wanted_tries) else self._met[turn].get(signature)

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Says what others have just measured for whoever asks here: it counts as measured once it is asked for."""
        found = (row for row in rows if isinstance(row, StageRow) and row.device == self.device)
        self._by_others.update((row.turn, row.signature) for row in found)

    def is_doubted(self, signature: str, turn: Turn) -> bool:
        """Whether the stage was measured while the machine was disturbed, and may be measured anew."""
        return self._is_due(signature, turn, MOST_TRIES)

    def try_again(self) -> None:
        """From now on what was disturbed is measured anew when it is asked for, each once."""
        self._wanted_tries = min(self._wanted_tries + 1, MOST_TRIES)

    def _is_due(self, signature: str, turn: Turn, wanted_tries: int) -> bool:
        known = self._met[turn].get(signature)
        return known is not None and bool(known.disturbed_by) and self._tries[turn, signature] < wanted_tries

    @property
    def disturbed(self) -> int:
        """How many stages are known here from disturbed measurements alone."""
        return sum(bool(found.disturbed_by) for met in self._met.values() for found in met.values())

    def latest(self, signature: str) -> Measurement | None:
        """The thorough measurement of a stage, the later of two; None where none was taken. Counts as no cache hit.

        Those that were disturbed do not count.
        """
        for turn in ("again", "first"):
            known = self._met[turn].get(signature)
            if known is None and self.resume:
                known = self.database.stage(signature, self.device, turn)
            if known is not None and not known.disturbed_by:
                return known
        return None

    def keep(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Keeps a measurement that was just taken, here and in the database, and returns it. A `FAILED` one counts for
        nothing, and is only remembered here.

        Where all tries of a stage were disturbed, the fastest stays: others make a stage slower, hardly ever faster.
        """
        if found is FAILED:  # another version may run it
            self._met[turn][signature] = found
            return found
        if not self.resume and not any(signature in met for met in self._met.values()):
            self.database.forget_stage(signature, self.device)
        _log_measured(signature, turn, found, self._tries[turn, signature] + 1)
        before = self._met[turn].get(signature)
        if before is not None and found.disturbed_by and before.median_us < found.median_us:
            found = before
        self._tries[turn, signature] += 1
        self.anew += before is not None
        self.database.keep_stage(signature, self.device, found, turn)
        self._met[turn][signature] = found
        self.measurements += 1
        self.on_measured()
        return found

    def answer(self, signature: str, turn: Turn, measure: Callable[[], Measurement]) -> Measurement:
        """The measurement that was taken before; where there is none, `measure` takes one, which is kept."""
        return self.found(signature, turn) or self.keep(signature, turn, measure())


def _log_measured(signature: str, turn: Turn, found: Measurement, number: int) -> None:
    interval = found.median_us, found.low_us, found.high_us, len(found.samples_us)
    _log.debug("stage %.20s (%s): %.2f us (%.2f to %.2f), %d samples", signature, turn, *interval)
    if found.disturbed_by:
        why = ", ".join(found.disturbed_by)
        _log.warning("stage %.20s was disturbed, try %d of %d: %s", signature, number, MOST_TRIES, why)
