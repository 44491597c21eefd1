"""Chooses, by latencies, which lanes the groups of a stage run on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from iosched.profiler.devices.cpu.divisions import GroupTime, likely_divisions
from iosched.profiler.measuring.statistics import UNRUNNABLE, Measurement
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Division, Stage, Strategy

Look = Callable[[Stage, float], Measurement | None]
"""The latency of a stage by its division, exact only up to a latency above which it does not matter; None where it is
not known, and not to be measured."""

_DOUBT = 0.9  # over another one, a division may take so much less than what its operators take alone lets expect


@dataclass(frozen=True, eq=False)
class DivisionChoice:
    """The choice of divisions for the stages of one model.

    Attributes:
        backend: what runs stages.
        unit_time: what a unit takes on any number of lanes; None as long as that is not known.
    """

    backend: CpuBackend
    unit_time: Callable[[str], GroupTime | None]
    _likely_of: dict[tuple[tuple[str, ...], ...], Sequence[tuple[Division, float]]] = field(
        default_factory=dict, init=False
    )

    def best(self, stage: Stage, look: Look, worse_than_us: float = math.inf) -> tuple[Stage, Measurement]:
        """The stage with the division that it takes least by, and its latency with that.

        Another division than the guessed one is chosen only if the intervals of both lie apart, so that the least of
        several noisy latencies is not taken for the latency of the stage. Beside a disturbed latency, no other is.

        Args:
            stage: one that has a division keeps it; without one, it stands for the guessed one.
            look: answers latencies.
            worse_than_us: a latency above which it does not matter what the stage takes.
        """
        chosen, found = stage, look(stage, worse_than_us)
        if found is None:
            return stage, UNRUNNABLE
        for division, ratio in self._likely(stage) if math.isfinite(found.median_us) and not found.disturbed_by else ():
            if found.low_us * ratio * _DOUBT > worse_than_us:
                continue
            other = replace(stage, division=division)
            rival = look(other, min(found.median_us, worse_than_us))
            if rival is not None and rival.high_us < found.low_us:
                chosen, found = other, rival
        return chosen, found

    def spelled_out(self, stage: Stage) -> Stage:
        """The stage with the guessed division where it has none and its groups have a choice."""
        if not self._is_dividable(stage):
            return stage
        return replace(stage, division=Division(self.backend.lanes, self.backend.guessed_lanes(stage)))

    def is_guessed(self, stage: Stage, lanes: int) -> bool:
        """Whether the stage runs on so many lanes as it would without its division."""
        own = stage.division
        return own is None or own.lanes != lanes or own.groups == self.backend.guessed_lanes(stage)

    def _likely(self, stage: Stage) -> Sequence[tuple[Division, float]]:
        """Other divisions than the guessed one that may be faster, see `likely_divisions`; none while times are not
        known."""
        if not self._is_dividable(stage) or self.backend.lanes == len(stage.groups) == 2:
            return ()
        if stage.groups not in self._likely_of:
            times = [self._group_time(group) for group in stage.groups]
            known = [time for time in times if time is not None]
            if len(known) < len(times):
                return ()
            guessed = self.backend.guessed_lanes(stage)
            self._likely_of[stage.groups] = likely_divisions(known, self.backend.lanes, guessed)
        return self._likely_of[stage.groups]

    def _group_time(self, group: Sequence[str]) -> GroupTime | None:
        total = GroupTime()
        for name in group:
            time = self.unit_time(name)
            if time is None:
                return None
            total += time
        return total

    def _is_dividable(self, stage: Stage) -> bool:
        several = self.backend.lanes > 1 and len(stage.groups) > 1
        return several and stage.strategy is Strategy.CONCURRENT and stage.division is None
