"""What ships: a schedule of ours where it is faster than what there is without it, beyond the noise; else that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.profiler.measuring.interleave import Comparison, compare, speedup_text
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one of two is that were measured in turn.

    Attributes:
        of: "BASELINE/CANDIDATE", whose latencies are divided in this order: above 1 the candidate is faster.
        median: of the ratios within rounds.
        low: lower end of its confidence interval.
        high: upper end of it.
    """

    of: str
    median: float
    low: float
    high: float

    @property
    def baseline(self) -> str:
        """What the other one is compared with."""
        return self.of.partition("/")[0]


@dataclass(frozen=True)
class Decision:
    """What ships, and the comparison that says so.

    Attributes:
        plain: what there is without us.
        chosen: what ships: `plain`, or one of ours.
        weighed: which of ours the comparison is about: the one that ships, or else the first.
        comparison: of `plain` and `weighed`; None where it cannot be told which is faster.
        rounds: how often each was run.
    """

    plain: str
    chosen: str
    weighed: str
    comparison: Comparison | None
    rounds: int

    def ratio(self, labels: Mapping[str, str] = {}) -> Ratio | None:
        """The comparison, for results; `labels` are the names there of what has another one here."""
        found = self.comparison
        if found is None:
            return None
        of = "/".join(labels.get(name, name) for name in (self.plain, self.weighed))
        return Ratio(of, found.speedup, found.low, found.high)

    def reason(self, words: Mapping[str, str]) -> str:
        """Why, for people; `words` says what each candidate is."""
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
    """Chooses among what was measured in turn.

    The first of `ours` ships that is faster than `plain` beyond the interval of the median of ratios within rounds; a
    later one where it is faster than that one, too. Each is tried against `plain` once, so where none is really faster,
    the chance that one ships is at most 2.5 % for each of them.

    Args:
        measured: by name, from one `interleave`.
        plain: what there is without us.
        ours: the others, those first that are preferred where they make no difference; at least one.
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
