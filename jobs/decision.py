"""Decides which candidate ships: one of ours if it is faster than the plain ones beyond the noise, else a plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.profiler.measuring.interleave import compare, speedup_text
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval, Measurement


@dataclass(frozen=True)
class Decision:
    """Which candidate ships, and the comparisons that decided it.

    Attributes:
        plain: the name of the candidate that the others are weighed against: the best of those that run the model
            without a schedule.
        chosen: the name of the candidate that ships.
        weighed: the name of the candidate that `plain` is compared with: the one that ships, or else our first one.
        comparison: of `plain` and `weighed`; None if there are too few rounds to compare them.
        rounds: how often each candidate was run.
        usual: the name of the usual one of the candidates that run the model without a schedule.
        among_plain: of `usual` and `plain`, if these are two.
    """

    plain: str
    chosen: str
    weighed: str
    comparison: Interval | None
    rounds: int
    usual: str
    among_plain: Interval | None = None

    @property
    def is_decided(self) -> bool:
        """Whether measuring again is unlikely to change which candidate ships."""
        return self.comparison is not None and self.comparison.is_decided

    @property
    def _is_other(self) -> bool:
        """Whether a way without a schedule ships that is not the usual one."""
        return self.chosen == self.plain != self.usual

    @property
    def baseline(self) -> str:
        """The name of the candidate that `chosen` is weighed against; `chosen` itself if that is the usual one."""
        return self.usual if self._is_other else self.plain

    def ratio(self, labels: Mapping[str, str] = {}) -> Interval | None:
        """The comparison of `baseline` with what ships as a ratio; None if there is none.

        If `baseline` ships itself, it is compared with our first candidate.

        Args:
            labels: other names that the ratio has for some of the candidates.
        """
        found = self.among_plain if self._is_other else self.comparison
        if found is None:
            return None
        names = (self.baseline, self.chosen if self._is_other else self.weighed)
        return replace(found, of="/".join(labels.get(name, name) for name in names))

    def reason(self, words: Mapping[str, str]) -> str:
        """A text that says why `chosen` ships; `words` describes each candidate."""
        ours, plain, found = words[self.weighed], words[self.plain], self.comparison
        if found is None and self.rounds < LEAST_SAMPLES:
            return f"too few runs to tell whether {ours} is faster than {plain}"
        if found is None:
            return f"the latency of {ours} is too short to measure"
        if self._is_other and self.among_plain is not None:
            than_usual = f"{plain} is {speedup_text(self.among_plain)} as fast as {words[self.usual]}"
            return f"{than_usual}, and {ours} {speedup_text(found)} as fast as {plain}"
        if self.chosen != self.plain:
            return f"{ours} is {speedup_text(found)} as fast as {plain}"
        if found.is_slower:
            return f"{plain} is faster: {ours} is {speedup_text(found)} as fast"
        if found.is_decided:
            return f"no difference found: {ours} is {speedup_text(found)} as fast as {plain}"
        return f"undecided: {ours} is {speedup_text(found)} as fast as {plain}, too noisy to tell"


def decide(
    measured: Mapping[str, Measurement], plain: str, ours: Sequence[str], others: Sequence[str] = ()
) -> Decision:
    """Chooses which of the candidates that were measured in turn ships.

    One of `others` takes the place of `plain` if it is faster beyond the noise. The first of `ours` ships whose ratio
    to that one lies above 1 with its whole confidence interval. A later one ships in its place if it is also faster
    than that one. Each of `ours` is compared with the best without a schedule once, so that a candidate that is not
    really faster ships with a probability of at most 2.5 %. None ships that another one without a schedule beats.

    Args:
        measured: latencies by name, measured by one call of `interleave`.
        plain: the name of the candidate that ships if no other is faster.
        ours: the names of the others, at least one; those come first that are preferred if they are equally fast.
        others: the names of more candidates that run the model without a schedule.
    """
    best = fastest(measured, (plain, *others))
    faster = [name for name in ours if _is_faster(measured, best, name)]
    chosen = fastest(measured, faster) if faster else best
    for other in others:
        if _is_faster(measured, chosen, other):
            best = chosen = other
    weighed = ours[0] if chosen == best else chosen
    comparison = compare(measured[best], measured[weighed])
    among_plain = None if best == plain else compare(measured[plain], measured[best])
    return Decision(best, chosen, weighed, comparison, len(measured[plain].samples_us), plain, among_plain)


def fastest(measured: Mapping[str, Measurement], names: Sequence[str]) -> str:
    """The first of the names, or a later one that is faster beyond the noise than the one it replaces."""
    found = names[0]
    for name in names[1:]:
        if _is_faster(measured, found, name):
            found = name
    return found


def _is_faster(measured: Mapping[str, Measurement], baseline: str, candidate: str) -> bool:
    found = compare(measured[baseline], measured[candidate])
    return found is not None and found.is_faster
