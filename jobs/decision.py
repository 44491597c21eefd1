"""Decides which candidate ships: one of ours if it is faster than the plain ones beyond noise, else a plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.profiler.measuring.interleave import compare, relative_speed_text
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval, Measurement


@dataclass(frozen=True)
class Decision:
    """Which candidate ships, and the comparisons that decided it.

    Attributes:
        plain: the best candidate that runs the model without a schedule, with which the others are compared.
        chosen: the name of the candidate that ships.
        weighed: the name of the candidate that `plain` is compared with: the one that ships, or else our first one.
        comparison: of `plain` and `weighed`; None if there are too few rounds to compare them.
        rounds: the number of rounds.
        usual: the name of the usual candidate that runs the model without a schedule.
        among_plain: the comparison of `usual` and `plain`, if they differ.
    """

    plain: str
    chosen: str
    weighed: str
    comparison: Interval | None
    rounds: int
    usual: str
    among_plain: Interval | None = None

    @property
    def _is_other(self) -> bool:
        """Whether a plain candidate other than the usual one ships."""
        return self.chosen == self.plain != self.usual

    @property
    def baseline(self) -> str:
        """The name of the candidate that `chosen` is weighed against; `chosen` itself if that is the usual one."""
        return self.usual if self._is_other else self.plain

    def ratio(self) -> Interval | None:
        """The speedup of what ships over `baseline`; if `baseline` itself ships, that of our first candidate."""
        found = self.among_plain if self._is_other else self.comparison
        return found and replace(found, of=f"{self.baseline}/{self.chosen if self._is_other else self.weighed}")

    def reason(self, words: Mapping[str, str]) -> str:
        """Why `chosen` ships; `words` describes each candidate."""
        ours, plain, found = words[self.weighed], words[self.plain], self.comparison
        if found is None and self.rounds < LEAST_SAMPLES:
            return f"too few runs to tell whether {ours} is faster than {plain}"
        if found is None:
            return f"{ours} takes no measurable time"
        speed = relative_speed_text(ours, found, plain)
        if self._is_other and self.among_plain is not None:
            return f"{relative_speed_text(plain, self.among_plain, words[self.usual])}, and {speed}"
        if self.chosen != self.plain:
            return speed
        if found.is_slower:
            return f"{plain} is faster: {speed}"
        if found.is_decided:
            return f"no difference found: {speed}"
        return f"undecided: {speed}, too noisy to tell"


def decide(
    measured: Mapping[str, Measurement], plain: str, ours: Sequence[str], others: Sequence[str] = ()
) -> Decision:
    """Chooses which of the candidates that were measured interleaved ships.

    One of `others` replaces `plain` if it is faster beyond noise. Of `ours`, the first whose speedup over that has an
    interval above 1 ships; a later one replaces it if it is also faster than that one. Each is compared with the best
    plain candidate once, so one that is not faster ships with a probability of at most 2.5 %. No candidate ships that
    another plain candidate beats.

    Args:
        measured: latencies by name, measured by one call of `interleave`.
        plain: the name of the candidate that ships if no other is faster.
        ours: the names of our candidates, at least one, in the order of preference.
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
    """The first of the names, or a later one that is faster beyond noise than the one it replaces."""
    found = names[0]
    for name in names[1:]:
        if _is_faster(measured, found, name):
            found = name
    return found


def _is_faster(measured: Mapping[str, Measurement], baseline: str, candidate: str) -> bool:
    found = compare(measured[baseline], measured[candidate])
    return found is not None and found.is_faster
