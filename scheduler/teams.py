"""How the cores of a machine are divided into teams, and a batch into what a team takes at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

LaneCount = Annotated[int, Meta(ge=1, le=1024)]
Objective = Literal["latency", "throughput"]
"""What a schedule is made for: that one run ends as soon as it can, or that there are as many images a second as can
be."""

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")
DEFAULT_OBJECTIVE: Objective = "latency"


@dataclass(frozen=True)
class Piece:
    """Images of a batch that a team takes at once: `count` of them from `first` on."""

    first: int
    count: int


@dataclass(frozen=True)
class Teams:
    """How the cores share the work.

    Attributes:
        requests: how many runs of the model go on at the same time, each on cores of its own.
        count: how many teams the cores of one run are divided into; each runs the schedule for its share of the images.
        images: how many images a team takes at once; the last of its share may be fewer.
    """

    requests: LaneCount
    count: LaneCount
    images: Annotated[int, Meta(ge=1)]

    @property
    def text(self) -> str:
        """The same in words."""
        found = [f"{self.requests} requests at a time"] if self.requests > 1 else []
        found += [f"{self.count} teams"] if self.count > 1 else []
        return ", ".join([*found, f"{self.images} image{'s' * (self.images > 1)} at once"])

    def lanes(self, lanes: int) -> int:
        """How many of `lanes` cores each team has; at least one."""
        return max(lanes // (self.requests * self.count), 1)

    def pieces(self, batch: int) -> tuple[tuple[Piece, ...], ...]:
        """For each team what it takes of a batch, one after another; shares differ by one image at most.

        Teams that are left without an image have no piece.
        """
        bounds = [batch * team // self.count for team in range(self.count + 1)]
        return tuple(
            tuple(Piece(first, min(self.images, stop - first)) for first in range(start, stop, self.images))
            for start, stop in itertools.pairwise(bounds)
        )


def fitting(teams: Teams, made_for: int, lanes: int) -> Teams:
    """`teams` that were found for `made_for` cores, for another number of them: each keeps its size where it can.

    Where there are not enough cores for every request, fewer go on at a time; then fewer teams share one.
    """
    parts = max(lanes // teams.lanes(made_for), 1)
    if teams.requests == 1:
        return Teams(1, parts, teams.images)
    return Teams(max(parts // teams.count, 1), min(teams.count, parts), teams.images)


def possible(batch: int, lanes: int, *, divides: bool) -> tuple[Teams, ...]:
    """The teams worth trying for a batch, those first of which all cores take the whole batch together.

    Several requests go on at the same time only where a batch has fewer images than there are cores, or cannot be
    divided: else one caller alone has the use of all cores.

    Args:
        divides: whether the model computes the images of a batch apart.
    """
    requests = (1,) if divides and batch >= lanes else _divisors(lanes)
    found = [
        Teams(at_once, count, images)
        for at_once in requests
        for count in _divisors(lanes // at_once)
        if count == 1 or (divides and count <= batch)
        for images in _sizes(batch, count, divides)
    ]
    return tuple(found)


def _sizes(batch: int, count: int, divides: bool) -> tuple[int, ...]:
    """All of a share at once, or a few of its images, which caches hold."""
    share = -(-batch // count)
    return (share, *(size for size in (_FEW if divides else ()) if size < share))


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


_FEW = (1, 2, 4)
"""How many images at once are tried beside a whole share."""
