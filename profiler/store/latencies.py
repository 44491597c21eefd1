"""Latencies of a model as a whole, kept beside those of its stages: a second run then says what the first one said."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.models.model import Model
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import MeasurementStore
from iosched.scheduler.schedule import Schedule

_RESTED = "after a rest"


@dataclass(frozen=True, eq=False)
class ModelLatencies:
    """What whole runs of one model took on one device, a comparison at a time.

    Samples of different comparisons make no rounds. So a comparison is kept as one measurement, which is replaced as a
    whole, under the texts that say how each candidate is run; its samples stand round by round, in the order of texts.
    """

    model: Model
    store: MeasurementStore
    device: str

    def known(self, ways: Mapping[str, str]) -> dict[str, Measurement] | None:
        """What was measured in turn of just these `ways` (names, and how the model is run), by name; None if never."""
        texts = sorted({*ways.values()})
        kept = self.store.get(self._key(*texts), self.device)
        if kept is None or not kept.samples_us or len(kept.samples_us) % len(texts):
            return None
        rested = self.store.get(self._key(_RESTED, *texts), self.device)
        rested_us = () if rested is None or len(rested.samples_us) != len(kept.samples_us) else rested.samples_us
        found = {
            text: replace(
                _with_clock_of(kept, summarize(kept.samples_us[place :: len(texts)])),
                rested_us=rested_us[place :: len(texts)],
            )
            for place, text in enumerate(texts)
        }
        return {name: found[text] for name, text in ways.items()}

    def keep(self, ways: Mapping[str, str], measured: Mapping[str, Measurement]) -> None:
        """Keeps what was measured in turn of `ways`; those that are alike have one measurement."""
        by_text = {text: measured[name] for name, text in ways.items()}
        texts = sorted(by_text)
        whole = summarize(_by_rounds([by_text[text].samples_us for text in texts]))
        first = next(iter(by_text.values()))
        self.store.put(self._key(*texts), self.device, _with_clock_of(first, whole))
        if first.rested_us:
            rested = summarize(_by_rounds([by_text[text].rested_us for text in texts]))
            self.store.put(self._key(_RESTED, *texts), self.device, rested)

    def setting(self, ways: Mapping[str, str]) -> int | None:
        """The number kept for `ways` by `keep_setting`."""
        found = self.store.get(self._key("setting", *sorted({*ways.values()})), self.device)
        return None if found is None else int(found.median_us)

    def keep_setting(self, ways: Mapping[str, str], number: int) -> None:
        """Keeps which of several settings the comparison of `ways` was made with, as if it were a latency."""
        self.store.put(self._key("setting", *sorted({*ways.values()})), self.device, summarize([number]))

    def _key(self, *texts: str) -> str:
        shapes = sorted(self.model.bindings.items())
        return f"model:{hashlib.sha256(f'{self.model.digest}:{shapes}:{texts}'.encode()).hexdigest()}"


def _by_rounds(samples_us: Sequence[Sequence[float]]) -> list[float]:
    return [sample for row in zip(*samples_us, strict=True) for sample in row]


def _with_clock_of(source: Measurement, found: Measurement) -> Measurement:
    return replace(found, clock_mhz=source.clock_mhz, throttled_by=source.throttled_by)


def structure(schedule: Schedule) -> str:
    """What runs together, without what was measured: equal schedules have equal text."""
    return repr([(stage.strategy.value, stage.groups) for stage in schedule.stages])
