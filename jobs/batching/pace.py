"""Divides a budget of seconds among what `batch` does for each cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from iosched.profiler.measuring.in_turn import Budget
from iosched.profiler.peers.onnxruntime import QUICK

PRICED, SEARCHED, OPENED, CHOSEN = 0.4, 0.7, 0.8, 0.9
"""The parts of its time after which a cluster's prices are asked for no more, its searches end, what opens slowly is
left out, and the ways of each row have been compared."""

_TURN_SECONDS = 0.15  # of one candidate: a rest, and some runs


@dataclass(frozen=True)
class Pace:
    """The time of one cluster.

    Attributes:
        budget_s: the seconds for everything; None for no limit.
        started: when the work on the cluster began, by `time.monotonic`.
    """

    budget_s: float | None
    started: float

    def is_over(self, part: float) -> Callable[[], bool]:
        """A function that says whether that part of the budget is spent."""
        if self.budget_s is None:
            return lambda: False
        end = self.started + self.budget_s * part
        return lambda: time.monotonic() >= end

    def choice(self) -> Budget:
        """How long to measure the ways of each row: a few rounds, or less if there is less time."""
        if self.budget_s is None:
            return QUICK
        left_s = self.started + self.budget_s * CHOSEN - time.monotonic()
        return replace(QUICK, max_seconds=min(QUICK.max_seconds, max(left_s, 0.1)))

    def comparison(self, usual: Budget, n_candidates: int) -> Budget:
        """How long to measure so many candidates in turn: `usual`, or less if there is less time; some rounds at least.

        No round is left out that it takes to say which one is faster.
        """
        if self.budget_s is None:
            return usual
        left_s = max(self.started + self.budget_s - time.monotonic(), 0.0)
        rounds = math.floor(left_s / (n_candidates * _TURN_SECONDS))
        most = min(max(rounds, usual.least_rounds), usual.rounds)
        return Budget(most, min(usual.max_seconds, max(left_s, 0.1)), usual.least_rounds)
