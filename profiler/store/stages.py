"""The measurements of stages that a cost model uses, in memory and in the profile database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from iosched.models.log import logger
from iosched.profiler.measuring.statistics import FAILED, Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row, StageRow, Turn

_log = logger(__name__)

_THOROUGH: tuple[Turn, ...] = ("again", "first")

MOST_TRIES = 3
"""Number of times that a process measures the same stage under interference."""

REPEATED_SHARE = 1 / 3
"""Limit of repeated measurements over known ones, so that repeats take at most a quarter of a search. Counted, not
timed, so that the same answers lead to the same search.
"""


@dataclass(eq=False)
class StageMemory:
    """Measurements of the stages of one device, by signature.

    A stage is looked up in the profile database first; the cost model measures the others. A measurement with
    interference counts with a wide interval (`disturbance.py`). After `try_again` it is repeated when requested, up to
    `MOST_TRIES` times in total and within `REPEATED_SHARE`. If all tries had interference, their median counts.

    Attributes:
        device: the key of the device in the database.
        resume: whether stored measurements are used. If not, the first new measurement of a stage deletes all stored
            ones.
        measurements: number of measurements, by this object or by others for it.
        cache_hits: number of other measurements found in the database.
        repeated: number of measurements repeated because of interference.
    """

    database: ProfileDatabase
    device: str
    resume: bool = True
    on_measured: Callable[[], None] = lambda: None
    measurements: int = 0
    cache_hits: int = 0
    repeated: int = 0
    _met: dict[Turn, dict[str, Measurement]] = field(default_factory=lambda: {"first": {}, "again": {}, "rough": {}})
    _asked_for: set[str] = field(default_factory=set)  # in any turn, and known
    _disturbed: defaultdict[tuple[Turn, str], list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    _wanted_tries: int = 1
    _by_others: set[tuple[Turn, str]] = field(default_factory=set)
    _kept: set[tuple[Turn, str]] = field(default_factory=set)

    def was_kept(self, signature: str, turn: Turn) -> bool:
        """Whether this process measured the stage in that turn."""
        return (turn, signature) in self._kept

    def met(self, turn: Turn) -> Mapping[str, Measurement]:
        """The requested measurements of that turn, by signature."""
        return self._met[turn]

    @property
    def signatures(self) -> int:
        """Number of different requested stages that are known."""
        return len(self._asked_for)

    @property
    def disturbed(self) -> int:
        """Number of them that were only measured with interference."""
        trusted = {key for met in self._met.values() for key, found in met.items() if not found.disturbed_by}
        return len(self._asked_for - trusted)

    def found(self, signature: str, turn: Turn) -> Measurement | None:
        """The known measurement of a stage; None if it has to be measured."""
        known = self._known(signature, turn)
        return None if self._is_due(signature, turn, self._wanted_tries) else known

    def _known(self, signature: str, turn: Turn) -> Measurement | None:
        if signature not in self._met[turn] and self.resume:
            stored = self.database.stage(signature, self.device, turn)
            if stored is None:
                return None
            if (turn, signature) in self._by_others:
                self.measurements += 1
            else:
                self.cache_hits += 1
            self._learn(signature, turn, stored)
        return self._met[turn].get(signature)

    def _learn(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Adds a measurement, and returns the one that counts: the median one if all so far had interference."""
        if found.disturbed_by:
            tries = sorted([*self._disturbed[turn, signature], found], key=lambda each: each.median_us)
            self._disturbed[turn, signature] = tries
            found = tries[(len(tries) - 1) // 2]
        self._count(signature, turn, found)
        return found

    def _count(self, signature: str, turn: Turn, found: Measurement) -> None:
        self._met[turn][signature] = found
        self._asked_for.add(signature)

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Counts these rows as measured, not as cache hits, once they are requested."""
        found = (row for row in rows if isinstance(row, StageRow) and row.device == self.device)
        self._by_others.update((row.turn, row.signature) for row in found)

    def is_doubted(self, signature: str, turn: Turn) -> bool:
        """Whether the stage was measured with interference, and may be measured again."""
        return self._is_due(signature, turn, MOST_TRIES)

    def try_again(self) -> None:
        """From now on, stages measured with interference are measured again when requested, once each."""
        self._wanted_tries = min(self._wanted_tries + 1, MOST_TRIES)

    def _is_due(self, signature: str, turn: Turn, wanted_tries: int) -> bool:
        known = self._met[turn].get(signature)
        if known is None or not known.disturbed_by or len(self._disturbed[turn, signature]) >= wanted_tries:
            return False
        return self.repeated < self._most_repeats

    @property
    def repeatable(self) -> int:
        """Number of measurements of the known stages that may still be repeated."""
        doubted = (tries for (turn, name), tries in self._disturbed.items() if self.is_doubted(name, turn))
        left = sum(MOST_TRIES - len(tries) for tries in doubted)
        return min(left, self._most_repeats - self.repeated)

    @property
    def _most_repeats(self) -> int:
        return max(MOST_TRIES - 1, int(REPEATED_SHARE * sum(map(len, self._met.values()))))

    def latest(self, signature: str) -> Measurement | None:
        """The latest thorough measurement of a stage, preferably without interference; None if there is none."""
        known = [found for turn in _THOROUGH if (found := self._known(signature, turn)) is not None]
        return next((found for found in known if not found.disturbed_by), known[0] if known else None)

    def keep(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Stores a new measurement; returns the one that counts. A `FAILED` one is kept in memory only."""
        if found is FAILED:  # another version may run it
            self._count(signature, turn, found)
            return found
        if not self.resume and signature not in self._asked_for:
            self.database.forget_stage(signature, self.device)
        before = self._met[turn].get(signature)
        self.repeated += before is not None and bool(before.disturbed_by)
        self.measurements += 1
        self._kept.add((turn, signature))
        counts = self._learn(signature, turn, found)
        _log_measured(signature, turn, found, len(self._disturbed[turn, signature]))
        self.database.keep_stage(signature, self.device, counts, turn)
        self.on_measured()
        return counts

    def answer(self, signature: str, turn: Turn, measure: Callable[[], Measurement]) -> Measurement:
        """The known measurement; else `measure` takes one, which is stored."""
        return self.found(signature, turn) or self.keep(signature, turn, measure())


def _log_measured(signature: str, turn: Turn, found: Measurement, number: int) -> None:
    interval = found.median_us, found.low_us, found.high_us, len(found.samples_us)
    _log.debug("stage %.20s (%s): %.2f us (%.2f to %.2f), %d samples", signature, turn, *interval)
    if found.disturbed_by:
        why = ", ".join(found.disturbed_by)
        _log.warning("interference with stage %.20s, attempt %d of %d: %s", signature, number, MOST_TRIES, why)


class CountingStages(ABC):
    """Counts of a cost model that keeps its stages in a `StageMemory`; see `MeasuredCosts`."""

    @property
    @abstractmethod
    def _stages(self) -> StageMemory:
        """The memory."""

    @property
    def measurements(self) -> int:
        """See `StageMemory`."""
        return self._stages.measurements

    @property
    def repeated(self) -> int:
        """See `StageMemory`; zero on a GPU, where interference is not detected."""
        return self._stages.repeated

    @property
    def disturbed(self) -> int:
        """See `StageMemory`; zero on a GPU."""
        return self._stages.disturbed

    @property
    def cache_hits(self) -> int:
        """See `StageMemory`."""
        return self._stages.cache_hits

    @property
    def signatures(self) -> int:
        """See `StageMemory`."""
        return self._stages.signatures

    @property
    def repeatable(self) -> int:
        """See `StageMemory`; zero on a GPU."""
        return self._stages.repeatable

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """See `MeasuredCosts.measured_by_others`."""
        self._stages.measured_by_others(rows)
