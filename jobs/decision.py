"""Decides which candidate ships: one of ours if it is faster than the plain one beyond the noise, else that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.profiler.measuring.interleave import Comparison, compare, speedup_text
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one of two candidates is as the other; both were measured in turn.

    Attributes:
        of: "BASELINE/CANDIDATE": the latency of the first is divided by that of the second, so that the candidate is
            faster if the ratio is above 1.
        median: the median of the ratios within rounds.
        low: lower end of the median's confidence interval.
        high: upper end of it.
    """

    of: str
    median: float
    low: float
    high: float

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return self.of.partition("/")[0]


@dataclass(frozen=True)
class Decision:
    """Which candidate ships, and the comparison that decided it.

    Attributes:
        plain: the name of the candidate that runs the model without a schedule that was found.
        chosen: the name of the candidate that ships.
        weighed: the name of the candidate that `plain` is compared with: the one that ships, or else our first one.
        comparison: of `plain` and `weighed`; None if there are too few rounds to compare them.
        rounds: how often each candidate was run.
    """

    plain: str
    chosen: str
    weighed: str
    comparison: Comparison | None
    rounds: int

    def ratio(self, labels: Mapping[str, str] = {}) -> Ratio | None:
        """The comparison as a ratio; None if there is none.

        Args:
            labels: other names that the ratio has for some of the candidates.
        """
        found = self.comparison
        if found is None:
            return None
        of = "/".join(labels.get(name, name) for name in (self.plain, self.weighed))
        return Ratio(of, found.speedup, found.low, found.high)

    def reason(self, words: Mapping[str, str]) -> str:
        """A text that says why `chosen` ships; `words` describes each candidate."""
        ours, plain, found = words[self.weighed], words[self.plain], self.comparison
        if found is None and self.rounds < LEAST_SAMPLES:
            return f"too few runs to tell whether {ours} is faster than {plain}"
        if found is None:
            return f"{ours} takes no time that could be told from that of {plain}"
        if self.chosen != self.plain:
            return f"{ours} is {speedup_text(found)} as fast as {plain}"
        if found.is_slower:
            return f"{plain} is faster: {ours} is {speedup_text(found)} as fast"
        return f"no difference found: {ours} is {speedup_text(found)} as fast as {plain}"


def decide(measured: Mapping[str, Measurement], plain: str, ours: Sequence[str]) -> Decision:
    """Chooses which of the candidates that were measured in turn ships.

    The first of `ours` ships whose ratio to `plain` lies above 1 with its whole confidence interval. A later one ships
    in its place if it is also faster than that one. Each of `ours` is compared with `plain` once, so that a candidate
    that is not really faster ships with a probability of at most 2.5 %.

    Args:
        measured: latencies by name, measured by one call of `interleave`.
        plain: the name of the candidate that ships if no other is faster.
        ours: the names of the others, at least one; those come first that are preferred if they are equally fast.
    """
    chosen = plain
    for name in ours:
        if _is_faster(measured, plain, name) and (chosen == plain or _is_faster(measured, chosen, name)):
            chosen = name
    weighed = ours[0] if chosen == plain else chosen
    comparison = compare(measured[plain], measured[weighed])
    return Decision(plain, chosen, weighed, comparison, len(measured[plain].samples_us))


def _is_faster(measured: Mapping[str, Measurement], baseline: str, candidate: str) -> bool:
    found = compare(measured[baseline], measured[candidate])
    return found is not None and found.is_faster
