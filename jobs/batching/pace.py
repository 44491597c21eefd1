"""Divides a budget of seconds among what `batch` does for each cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from iosched.jobs.interrupt import Interrupt, Uninterrupted
from iosched.profiler.devices.device import OpenModel, attached
from iosched.profiler.measuring.in_turn import WARMUP_ROUNDS, Budget, turn_seconds
from iosched.profiler.peers.onnxruntime import QUICK

PRICED, SEARCHED, OPENED, CHOSEN = 0.4, 0.7, 0.95, 1.0
"""The parts of its time, but for the comparison at the end, after which a cluster's prices are asked for no more, its
searches end, what opens slowly is left out, and the ways of each row have been compared."""

_LEAST_CANDIDATES = 3  # one after another, side by side, and mixed


@dataclass(frozen=True, eq=False)
class Pace:
    """The time of one cluster.

    Attributes:
        budget_s: the seconds for everything; None for no limit.
        started: when the work on the cluster began, by `time.monotonic`.
        interrupt: holds back interruptions, which end what is going on early.
        reserved_s: the seconds that are kept for comparing whole models at the end.
    """

    budget_s: float | None
    started: float
    interrupt: Interrupt = Uninterrupted()
    reserved_s: float = 0.0

    def reserving(self, opened: OpenModel) -> Pace:
        """The same with time kept for the least comparison of an open model; under a budget it is run."""
        plain = opened.baselines.onnxruntime
        if self.budget_s is None or plain is None:
            return self
        turns = _LEAST_CANDIDATES * (WARMUP_ROUNDS + attached(opened).measuring.budget.least_rounds)
        reserved_s = turns * turn_seconds(plain.opening_and_run_s[1])
        return replace(self, reserved_s=min(reserved_s, self.budget_s / 2))

    def is_over(self, part: float) -> Callable[[], bool]:
        """A function that says whether that part of the time is spent, or the user wants an end."""
        return lambda: self.interrupt.came or self._left_s(part) <= 0

    def _left_s(self, part: float | None = None) -> float:
        """Seconds until that part is spent, or with None all; infinite without a limit, 0 if the user wants an end."""
        if self.interrupt.accepted:
            return 0.0
        if self.budget_s is None:
            return math.inf
        spent_s = self.budget_s if part is None else (self.budget_s - self.reserved_s) * part
        return max(self.started + spent_s - time.monotonic(), 0.0)

    def ask(self) -> None:
        """Asks the user, if there was an interruption, whether to go on to the end with what is known.

        Raises:
            KeyboardInterrupt: the user does not want that.
        """
        if self.interrupt.came:
            self.interrupt.ask()

    @property
    def is_hurried(self) -> bool:
        """Whether there is a limit of the time."""
        return math.isfinite(self._left_s())

    def choice(self, latencies_us: Collection[float]) -> Budget | None:
        """How long to measure all ways, of about these latencies: a few rounds; None if there is no time for it."""
        left_s = self._left_s(CHOSEN)
        if left_s < (WARMUP_ROUNDS + QUICK.rounds) * _round_s(latencies_us):
            return None
        return replace(QUICK, max_seconds=min(QUICK.max_seconds, left_s))

    def comparison(self, usual: Budget, latencies_us: Collection[float]) -> Budget:
        """How long to measure candidates of about these latencies in turn: `usual`, or less if there is less time.

        No round is left out that it takes to say which one is faster.
        """
        left_s = self._left_s()
        if math.isinf(left_s):
            return usual
        most = min(max(int(left_s / _round_s(latencies_us)) - WARMUP_ROUNDS, usual.least_rounds), usual.rounds)
        return Budget(most, min(usual.max_seconds, max(left_s, 0.1)), usual.least_rounds)


def _round_s(latencies_us: Collection[float]) -> float:
    """Seconds of a round of candidates of these latencies."""
    return sum(turn_seconds(latency_us / 1e6) for latency_us in latencies_us)
