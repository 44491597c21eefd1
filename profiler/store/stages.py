"""The memory of a cost model: what was measured of stages, in this process and in the profile database."""

from __future__ import annotations

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
"""How often a process measures the same thing, if the machine is disturbed each time."""

REPEATED_SHARE = 1 / 3
"""Repeated measurements are at most so many for each that is known: repeats take at most a quarter of a search. They
are counted, not timed, so that the same answers lead to the same search."""


@dataclass(eq=False)
class StageMemory:
    """Measurements of the stages of one device, by the signatures of the stages.

    A stage is looked up in the profile database when it is asked for the first time, and has to be measured only if the
    database does not know it. How it is measured is the cost model's affair. A measurement that was disturbed counts,
    with a wide interval (`disturbance.py`). After `try_again` it is repeated when it is asked for, up to `MOST_TRIES`
    times in all and as far as `REPEATED_SHARE` allows. Of tries that were all disturbed, the median one counts.

    Attributes:
        device: the key of the device in the database.
        resume: whether what the database knows is taken. If not, every stage is measured anew, and the first
            measurement of a stage supersedes all that the database has of it, in whatever turn that was taken.
        on_measured: called after every stage that was really measured.
        measurements: how often a stage was really measured so far, here or by others for whoever asks here.
        cache_hits: how many other measurements were found in the database.
        repeated: how many of the measurements repeated one that was disturbed.
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
        """Whether the stage was measured in that turn by this process."""
        return (turn, signature) in self._kept

    def met(self, turn: Turn) -> Mapping[str, Measurement]:
        """The measurements, by signature, that were asked for so far in that turn."""
        return self._met[turn]

    @property
    def signatures(self) -> int:
        """How many different stages are known of those asked for so far."""
        return len(self._asked_for)

    @property
    def disturbed(self) -> int:
        """How many of them have no measurement that was not disturbed."""
        trusted = {key for met in self._met.values() for key, found in met.items() if not found.disturbed_by}
        return len(self._asked_for - trusted)

    def found(self, signature: str, turn: Turn) -> Measurement | None:
        """The measurement of a stage that was taken before; None where the stage has to be measured."""
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
        """Takes a measurement; where all so far were disturbed, the median one. Returns what counts now."""
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
        """Says what others have just measured for whoever asks here: it counts as measured once it is asked for."""
        found = (row for row in rows if isinstance(row, StageRow) and row.device == self.device)
        self._by_others.update((row.turn, row.signature) for row in found)

    def is_doubted(self, signature: str, turn: Turn) -> bool:
        """Whether the stage was measured while the machine was disturbed, and may be measured again."""
        return self._is_due(signature, turn, MOST_TRIES)

    def try_again(self) -> None:
        """From now on what was disturbed is measured again when it is asked for, each once."""
        self._wanted_tries = min(self._wanted_tries + 1, MOST_TRIES)

    def _is_due(self, signature: str, turn: Turn, wanted_tries: int) -> bool:
        known = self._met[turn].get(signature)
        if known is None or not known.disturbed_by or len(self._disturbed[turn, signature]) >= wanted_tries:
            return False
        return self.repeated < self._most_repeats

    @property
    def repeatable(self) -> int:
        """How many measurements of the stages known here may still be repeated."""
        doubted = (tries for (turn, name), tries in self._disturbed.items() if self.is_doubted(name, turn))
        left = sum(MOST_TRIES - len(tries) for tries in doubted)
        return min(left, self._most_repeats - self.repeated)

    @property
    def _most_repeats(self) -> int:
        return max(MOST_TRIES - 1, int(REPEATED_SHARE * sum(map(len, self._met.values()))))

    def latest(self, signature: str) -> Measurement | None:
        """The thorough measurement of a stage, the later of two; None where none was taken.

        One that was disturbed only where there is no other.
        """
        known = [found for turn in _THOROUGH if (found := self._known(signature, turn)) is not None]
        return next((found for found in known if not found.disturbed_by), known[0] if known else None)

    def keep(self, signature: str, turn: Turn, found: Measurement) -> Measurement:
        """Keeps a measurement that was just taken, here and in the database; returns what counts now.

        A `FAILED` one counts for nothing, and is only remembered here.
        """
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
        """The measurement that was taken before; where there is none, `measure` takes one, which is kept."""
        return self.found(signature, turn) or self.keep(signature, turn, measure())


def _log_measured(signature: str, turn: Turn, found: Measurement, number: int) -> None:
    interval = found.median_us, found.low_us, found.high_us, len(found.samples_us)
    _log.debug("stage %.20s (%s): %.2f us (%.2f to %.2f), %d samples", signature, turn, *interval)
    if found.disturbed_by:
        why = ", ".join(found.disturbed_by)
        _log.warning("interference with stage %.20s, attempt %d of %d: %s", signature, number, MOST_TRIES, why)
