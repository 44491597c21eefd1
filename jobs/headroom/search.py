"""Finds by bisection how much of several kinds can be added, where each is tried by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from iosched.jobs.headroom.result import Ratio

Try = Callable[[Sequence[str]], Mapping[str, Ratio]]
"""What changes take, by their names; those that cannot be run, and those that may not be measured, are left out."""


@dataclass(frozen=True)
class Found:
    """What a search has found on one ladder.

    Attributes:
        rung: the number of the highest rung that is free; or, where none is, of the lowest that was found not to be.
        ratio: what it takes.
        tried: how many rungs were tried.
    """

    rung: int
    ratio: Ratio
    tried: int


@dataclass(eq=False)
class _Climb:
    """One ladder while it is searched: rungs below `free` are free, rung `dear` and those above are not."""

    rungs: Sequence[str]
    free: int = 0
    dear: int = 0
    ratios: dict[int, Ratio] = field(default_factory=dict)
    is_stuck: bool = False

    def __post_init__(self) -> None:
        self.dear = len(self.rungs)

    @property
    def next(self) -> int | None:
        """The rung to try: the first one, since most are not free, and then the middle of those left."""
        if self.free >= self.dear or self.is_stuck:
            return None
        return (self.free + self.dear) // 2 if self.ratios else 0

    def learn(self, rung: int, ratio: Ratio | None) -> None:
        """Takes note of what a rung takes; None ends the search."""
        if ratio is None:
            self.is_stuck = True
            return
        self.ratios[rung] = ratio
        if ratio.is_free:
            self.free = rung + 1
        else:
            self.dear = rung

    def found(self, again: Mapping[str, Ratio] | None) -> Found | None:
        """What is known in the end.

        Args:
            again: what the highest free rungs of all ladders take when they are tried once more; None if they are not.
        """
        highest, tried = self.free - 1, len(self.ratios)
        if highest < 0:
            return Found(self.dear, self.ratios[self.dear], tried) if self.dear in self.ratios else None
        if again is None:
            return Found(highest, self.ratios[highest], tried)
        name = self.rungs[highest]
        return Found(highest, again[name], tried) if name in again else None


def climb(ladders: Sequence[Sequence[str]], attempt: Try, confirm: Try | None) -> list[Found | None]:
    """The highest rung of each ladder that is free, if the rungs below a free one are free.

    Each ladder costs about as many attempts as the logarithm of its length, and one where its first rung is not free.
    One rung of each ladder is tried at once.

    Args:
        ladders: the names of changes, on each ladder from the least to the most.
        attempt: tries some changes.
        confirm: tries the best ones once more, which are then judged by that alone: of many noisy ratios, the one that
            was chosen looks better than it is. None where ratios are not noisy.

    Returns:
        For each ladder what was found; None where nothing could be tried.
    """
    climbs = [_Climb(rungs) for rungs in ladders]
    while open_ones := [(each, rung) for each in climbs if (rung := each.next) is not None]:
        taken = attempt([each.rungs[rung] for each, rung in open_ones])
        for each, rung in open_ones:
            each.learn(rung, taken.get(each.rungs[rung]))
    if confirm is None:
        return [each.found(None) for each in climbs]
    best = [each.rungs[each.free - 1] for each in climbs if each.free]
    again = confirm(best) if best else {}
    return [each.found(again) for each in climbs]
