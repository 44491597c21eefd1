"""How the seconds of a budget are spent: on the search, and on comparing whole models at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from iosched.jobs.interrupt import Interrupt
from iosched.profiler.measuring.in_turn import WARMUP_ROUNDS, Budget, turn_seconds
from iosched.profiler.measuring.statistics import LEAST_SAMPLES
from iosched.profiler.peers.onnxruntime import QUICK, PlainOnnxruntime

_LEAST_CANDIDATES = 3  # the schedule found, one operator after another, and plain onnxruntime
_LEAST_TURNS = WARMUP_ROUNDS + LEAST_SAMPLES  # of each candidate, to tell which is the fastest


@dataclass(frozen=True, eq=False)
class Pace:
    """The time of one call of `optimize`.

    Attributes:
        budget_s: seconds in all; None for as many as it takes.
        started: when the work began, of `time.monotonic`.
        interrupt: who may stop the search early.
        plain: tells about how long whole models take; where it is None, comparing them takes no time worth planning.
    """

    budget_s: float | None
    started: float
    interrupt: Interrupt
    plain: PlainOnnxruntime | None = None

    @property
    def seconds(self) -> float:
        """Spent so far."""
        return time.monotonic() - self.started

    def deadline(self) -> Callable[[], bool] | None:
        """True once the search has to leave the rest of the budget to comparing whole models, or was interrupted."""
        if self.budget_s is None:
            return (lambda: self.interrupt.came) if self.interrupt.can_come else None
        end = self.started + self._search_s(self.budget_s)
        return lambda: self.interrupt.came or time.monotonic() >= end

    def _search_s(self, budget_s: float) -> float:
        return budget_s - self.least_comparison_s() if self.can_decide else budget_s / 2

    @property
    def left_s(self) -> float:
        """Seconds left of the budget for comparing whole models."""
        if self.plain is None:
            return math.inf
        if self.interrupt.accepted:
            return 0.0
        return math.inf if self.budget_s is None else max(self.budget_s - self.seconds, 0.0)

    @property
    def is_hurried(self) -> bool:
        """Whether the time left is bounded at all."""
        return math.isfinite(self.left_s)

    @property
    def can_decide(self) -> bool:
        """Whether the budget suffices to tell which is the fastest; where not, what there is without us ships."""
        return self.budget_s is None or self.budget_s >= self.least_comparison_s()

    def least_comparison_s(self, n_candidates: int = _LEAST_CANDIDATES) -> float:
        """About what it takes to tell which is the fastest, if what is compiled opens like plain onnxruntime."""
        if self.plain is None:
            return 0.0
        open_s, run_s = self.plain.opening_and_run_s
        return n_candidates * (open_s + _LEAST_TURNS * turn_seconds(run_s))

    @property
    def can_choose_setting(self) -> bool:
        """Whether there is time to find the setting in which plain onnxruntime is fastest."""
        left_s = self.left_s
        if math.isinf(left_s) or self.plain is None:
            return True
        open_s, run_s = self.plain.opening_and_run_s
        effort_s = open_s + (WARMUP_ROUNDS + QUICK.rounds) * turn_seconds(run_s)
        return left_s > len(self.plain.settings) * effort_s + self.least_comparison_s()

    def comparison(self, usual: Budget, n_candidates: int) -> Budget:
        """How long to measure so many whole models in turn; as is usual where there is time."""
        left_s = self.left_s
        if math.isinf(left_s) or self.plain is None:
            return usual
        rounds = int(left_s / (n_candidates * turn_seconds(self.plain.opening_and_run_s[1]))) - WARMUP_ROUNDS
        least = LEAST_SAMPLES if self.can_decide else 1
        most = min(max(rounds, least), usual.rounds)
        return Budget(most, min(usual.max_seconds, max(left_s * 0.8, 0.1)), least)

    def notes(self, n_rounds: int) -> tuple[str, ...]:
        """What to do where whole models were run too seldom to tell which is faster."""
        if n_rounds >= LEAST_SAMPLES:
            return ()
        times = "once" if n_rounds == 1 else f"{n_rounds} times"
        needed_s = math.ceil(self.least_comparison_s())
        return (
            f"For lack of time whole models were run {times} each, too seldom to tell which is the fastest: this takes"
            f" about {needed_s} s of --budget beside the search, and what was measured of stages is kept.",
        )
