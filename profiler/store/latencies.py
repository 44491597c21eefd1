"""Latencies of a model as a whole, kept beside those of its stages: a second run decides what the first one decided."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from iosched.models.model import Model
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Compared
from iosched.scheduler.schedule import Schedule, Stage


@dataclass(frozen=True, eq=False)
class ModelLatencies:
    """Comparisons of several ways to run one model on one device, whose latencies were measured in turn.

    `ways` gives each way a name, and a text that says all of how the model is run; ways with the same text are one
    candidate. A comparison is kept and replaced as a whole: ratios are taken within its rounds, and samples of
    different comparisons make no rounds.

    Attributes:
        device: the key of the device in the database.
        resume: whether comparisons that the database has are taken; if not, none is known.
    """

    model: Model
    database: ProfileDatabase
    device: str
    resume: bool = True

    def known(self, ways: Mapping[str, str]) -> dict[str, Measurement] | None:
        """The latencies of just these `ways`, measured in turn, by name; None where they were never compared."""
        found = self._candidates(ways)
        return {name: found[text].found for name, text in ways.items()} if found else None

    def setting(self, ways: Mapping[str, str]) -> str | None:
        """The setting of onnxruntime in that comparison; None where it took no part, or nothing was compared."""
        return next((each.setting for each in self._candidates(ways).values() if each.setting), None)

    def keep(
        self, ways: Mapping[str, str], measured: Mapping[str, Measurement], settings: Mapping[str, str] | None = None
    ) -> None:
        """Keeps the latencies of `ways` that were measured in turn.

        Args:
            measured: the latencies by name.
            settings: by name, the setting that a way was measured in, if its text does not say it: "reference" stands
                for onnxruntime in whatever setting is its fastest.
        """
        set_as = {ways[name]: setting for name, setting in (settings or {}).items()}
        candidates = {text: Compared(measured[name], set_as.get(text)) for name, text in ways.items()}
        kept = {_digest(text): each for text, each in candidates.items()}
        self.database.keep_comparison(self._key(*sorted(candidates)), self.device, kept)

    def _candidates(self, ways: Mapping[str, str]) -> Mapping[str, Compared]:
        """The candidates of the comparison of these ways, by their texts; empty where there is no such comparison."""
        if not self.resume:
            return {}
        texts = sorted({*ways.values()})
        kept = self.database.comparison(self._key(*texts), self.device)
        return {text: kept[_digest(text)] for text in texts} if kept.keys() == set(map(_digest, texts)) else {}

    def _key(self, *texts: str) -> str:
        shapes = sorted(self.model.bindings.items())
        return _digest(f"{self.model.digest}:{shapes}:{texts}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def structure(schedule: Schedule) -> str:
    """A text of which operators run together and how, without any latency: equal schedules have equal texts."""
    return repr([_stage_text(stage) for stage in schedule.stages])


def _stage_text(stage: Stage) -> tuple[object, ...]:
    own = stage.division
    return (stage.strategy.value, stage.groups, *(() if own is None else (own.lanes, own.groups)))
