"""Divides a budget of seconds between the searches and the comparison of whole models at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

from iosched.jobs.observer import Interrupt, Uninterrupted
from iosched.models.errors import DeviceError, MismatchError
from iosched.profiler.baselines.library import LibraryBaseline
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
from iosched.profiler.devices.profiled_device import OpenModel, attached
from iosched.profiler.measuring.interleaved_models import WARMUP_ROUNDS, Budget, runs_to_choose, turn_seconds
from iosched.profiler.measuring.statistics import LEAST_SAMPLES

PRICED, SEARCHED, OPENED, CHOSEN = 0.4, 0.7, 0.95, 1.0
"""The parts of the time of a `batch` cluster, without the final comparison, after which pricing ends, searches end,
OpenVINO is no longer opened, and the ways of each row have been compared.
"""

LEAST_DECIDING_S, MOST_DECIDING_S = 8.0, 120.0
"""Bounds on the seconds for rounds of whole models while nothing is decided."""

_LEAST_CANDIDATES = 3  # ours, one operator or model after another, and plain onnxruntime or models side by side
_ROOM_FOR_LIBRARY = 2  # times the seconds to compare the others


ENGINE_SHARE = 0.5
"""The part of the time that building TensorRT's engine may take."""


def share_s(budget_s: float | None, started: float, parts: float) -> float | None:
    """The seconds for the next part of a job, whose parts share the remaining budget evenly; None for no limit.

    Args:
        budget_s: the seconds for the whole job.
        started: when it began, by `time.monotonic`.
        parts: the number of remaining parts, including this one.
    """
    return None if budget_s is None else max(started + budget_s - time.monotonic(), 0.0) / parts


@dataclass(frozen=True, eq=False)
class TimeBudget:
    """The time of one call of `optimize`, or of one cluster of `batch`.

    Attributes:
        budget_s: the seconds for everything; None for no limit.
        started: the time when the work began, by `time.monotonic`.
        plain: plain onnxruntime, by which the time of a comparison is estimated; None if comparing whole models is so
            fast that its time need not be planned.
        library: OpenVINO or TensorRT, to be compared if time allows.
        turn_s: computes the approximate seconds of a turn of a whole model from those of a run.
        least: the number of rounds needed to find the fastest candidate.
        reserved_s: the seconds of a cluster that are reserved for the final comparison of whole models.
    """

    budget_s: float | None
    started: float
    interrupt: Interrupt = Uninterrupted()
    plain: OnnxruntimeBaseline | None = None
    library: LibraryBaseline | None = None
    turn_s: Callable[[float], float] = turn_seconds
    least: int = LEAST_SAMPLES
    reserved_s: float = 0.0

    def reserving(self, opened: OpenModel) -> TimeBudget:
        """The same with time reserved for the shortest comparison of an open model; with a budget, runs the model."""
        plain = opened.baselines.onnxruntime
        if self.budget_s is None or plain is None:
            return self
        turns = _LEAST_CANDIDATES * (WARMUP_ROUNDS + attached(opened).measuring.budget.least_rounds)
        reserved_s = turns * turn_seconds(plain.opening_and_run_s[1])
        return replace(self, reserved_s=min(reserved_s, self.budget_s / 2))

    def remaining_s(self, part: float | None = None) -> float:
        """Seconds until that part (None: all) is spent; infinite without a limit, 0 if the user wants an end."""
        if self.interrupt.accepted:
            return 0.0
        if self.budget_s is None:
            return math.inf
        spent_s = self.budget_s if part is None else (self.budget_s - self.reserved_s) * part
        return max(self.started + spent_s - time.monotonic(), 0.0)

    def is_over(self, part: float) -> Callable[[], bool]:
        """A function that returns whether that part of the time is spent or the user wants an end."""
        return lambda: self.interrupt.came or self.remaining_s(part) <= 0

    def ask(self) -> None:
        """After an interruption, asks the user whether to finish with the best known result."""
        if self.interrupt.came:
            self.interrupt.ask()

    @property
    def seconds(self) -> float:
        """The seconds spent so far."""
        return time.monotonic() - self.started

    def deadline(self, reserve_s: float = 0.0, share: float = 1.0) -> Callable[[], bool] | None:
        """A function that returns whether the search has to end; None for no limit.

        The search ends when the rest of the budget is needed for comparing whole models, or at an interruption.

        Args:
            reserve_s: seconds to keep for later steps.
            share: the part of the time until then that this search may take.
        """
        if self.budget_s is None:
            return (lambda: self._is_ended) if self.interrupt.can_come else None
        latest = self.started + self._search_s(self.budget_s) - reserve_s
        end = latest - (1 - share) * max(latest - time.monotonic(), 0.0)
        return lambda: self._is_ended or time.monotonic() >= end

    @property
    def _is_ended(self) -> bool:
        """Whether the user wants an end, perhaps since the comparison before the search."""
        return self.interrupt.came or self.interrupt.accepted

    @property
    def search_left_s(self) -> float:
        """Seconds until the rest of the budget is needed for comparing whole models; infinite if there is no limit."""
        if self.budget_s is None:
            return 0.0 if self.interrupt.accepted else math.inf
        return max(self._search_s(self.budget_s) - self.seconds, 0.0)

    @property
    def trial_s(self) -> float:
        """Approximate seconds to open a whole model and run two turns of it; 0 if there is no limit."""
        if self.plain is None or self.budget_s is None:
            return 0.0
        open_s, run_s = self.plain.opening_and_run_s
        return open_s + 2 * self.turn_s(run_s)

    def _search_s(self, budget_s: float) -> float:
        return budget_s - self.least_comparison_s() - self._library_s if self.can_decide else budget_s / 2

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left for comparing whole models; infinite if there is no limit."""
        return math.inf if self.plain is None else self.remaining_s()

    @property
    def is_hurried(self) -> bool:
        """Whether the time for comparing whole models is limited."""
        return math.isfinite(self.left_s)

    @property
    def can_decide(self) -> bool:
        """Whether the budget suffices to find the fastest candidate; if not, no schedule that was found ships."""
        return self.budget_s is None or self.budget_s >= self.least_comparison_s()

    def least_comparison_s(self, n_candidates: int = _LEAST_CANDIDATES) -> float:
        """Approximate seconds to find the fastest candidate, if each opens as fast as plain onnxruntime."""
        if self.plain is None:
            return 0.0
        open_s, run_s = self.plain.opening_and_run_s
        return n_candidates * (open_s + self._least_turns * self.turn_s(run_s))

    @property
    def has_time_for_library(self) -> bool:
        """Whether there is time left to compare the library, or to find out that it cannot be compared."""
        if not self.is_hurried:
            return not self.interrupt.accepted
        # The search leaves more than that, except for the stage that it measures when its time is over.
        return self._has_room_for_library and self.left_s >= self.least_comparison_s()

    @property
    def library_notes(self) -> tuple[str, ...]:
        """A note if only the library is not compared for lack of time."""
        if self.library is None or self.has_time_for_library or self.interrupt.accepted or not self.can_decide:
            return ()
        needed_s = math.ceil(_ROOM_FOR_LIBRARY * self.least_comparison_s())
        why = f"the time ran out: use a --budget of {needed_s} s or more"
        return (f"{self.library.label} was not compared because {why}.",)

    @property
    def _has_room_for_library(self) -> bool:
        """Whether the budget suffices to open the library, which takes several times as long as onnxruntime."""
        return self.budget_s is None or self.budget_s >= _ROOM_FOR_LIBRARY * self.least_comparison_s()

    @cached_property
    def _library_s(self) -> float:
        """Seconds to compare the library, which this opens, once it is open; 0 if it is not compared."""
        if self.library is None or not self._has_room_for_library:
            return 0.0
        try:
            return self._least_turns * self.turn_s(self.library.run_s)
        except (DeviceError, MismatchError):
            return 0.0

    @property
    def can_choose_setting(self) -> bool:
        """Whether there is time to find the fastest setting of plain onnxruntime."""
        left_s = self.left_s
        if math.isinf(left_s) or self.plain is None:
            return True
        open_s, run_s = self.plain.opening_and_run_s
        count = len(self.plain.settings)
        effort_s = count * open_s + runs_to_choose(count) * turn_seconds(run_s)
        return left_s > effort_s + self.least_comparison_s() + self._library_s

    def deciding_s(self, search_s: float, compared_s: float) -> float:
        """Seconds for rounds of whole models: half of those before, or those of all earlier rounds, within bounds."""
        return min(max(search_s / 2, compared_s, LEAST_DECIDING_S), MOST_DECIDING_S, self.left_s)

    @property
    def has_time_before_the_search(self) -> bool:
        """Whether there is time to compare baselines before the search, and everything after it."""
        return self.left_s > 3 * self.least_comparison_s()

    @property
    def is_spent(self) -> bool:
        """Whether there is too little time left to compare two whole models."""
        return self.is_hurried and self.left_s < self.least_comparison_s(2)

    @property
    def least_rounds(self) -> int:
        """Minimum number of rounds."""
        return self.least if self.can_decide else 1

    @property
    def _least_turns(self) -> int:
        return WARMUP_ROUNDS + self.least

    def comparison(self, usual: Budget, n_candidates: int) -> Budget:
        """Limits for measuring `n_candidates` whole models interleaved: `usual`, or less if there is less time."""
        left_s = self.left_s
        if math.isinf(left_s) or self.plain is None:
            return usual
        rounds = int(left_s / (n_candidates * self.turn_s(self.plain.opening_and_run_s[1]))) - WARMUP_ROUNDS
        least = LEAST_SAMPLES if self.can_decide else 1
        most = min(max(rounds, least), usual.rounds)
        repeats = min(max(rounds - most, 0), usual.repeats)
        return Budget(most, min(usual.max_seconds, max(left_s * 0.8, 0.1)), least, repeats)

    def choice(self, usual: Budget, latencies_us: Collection[float]) -> Budget | None:
        """`usual`, to choose among ways of about these latencies; None if there is no time for as many rounds."""
        left_s = self.remaining_s(CHOSEN)
        if left_s < (WARMUP_ROUNDS + usual.rounds) * _round_s(latencies_us):
            return None
        return replace(usual, max_seconds=min(usual.max_seconds, left_s))

    def comparison_of(self, usual: Budget, latencies_us: Collection[float]) -> Budget:
        """Limits for measuring candidates of about these latencies interleaved: `usual`, or less if there is less time.

        Never fewer rounds than needed to find the faster one.
        """
        left_s = self.remaining_s()
        if math.isinf(left_s):
            return usual
        most = min(max(int(left_s / _round_s(latencies_us)) - WARMUP_ROUNDS, usual.least_rounds), usual.rounds)
        return Budget(most, min(usual.max_seconds, max(left_s, 0.1)), usual.least_rounds)

    def notes(self, n_rounds: int) -> tuple[str, ...]:
        """A note if too few rounds of whole models count to find the fastest."""
        if n_rounds >= self.least or not self.is_hurried:
            return ()
        rounds = "round" if n_rounds == 1 else "rounds"
        needed_s = math.ceil(self.least_comparison_s())
        return (
            f"The time ran out after {n_rounds} usable {rounds} of whole models, too few to tell which is the fastest:"
            f" add about {needed_s} s to --budget; measurements of stages are kept.",
        )


def _round_s(latencies_us: Collection[float]) -> float:
    return sum(turn_seconds(latency_us / 1e6) for latency_us in latencies_us)
