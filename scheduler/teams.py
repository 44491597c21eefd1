"""Divides the cores of a machine into teams, and a batch into pieces for a team."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

LaneCount = Annotated[int, Meta(ge=1, le=1024)]
Objective = Literal["latency", "throughput"]
"""The objective of a schedule: the latency of one run, or the throughput of all cores."""

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")
DEFAULT_OBJECTIVE: Objective = "latency"


@dataclass(frozen=True)
class Piece:
    """Images of a batch that a team computes at once: `count` of them from `first` on."""

    first: int
    count: int


@dataclass(frozen=True)
class Teams:
    """Division of the work among the cores: concurrent runs, teams of each, and images per run of a team."""

    requests: LaneCount
    count: LaneCount
    images: Annotated[int, Meta(ge=1)]

    @property
    def text(self) -> str:
        """A description."""
        found = [f"{self.requests} requests at a time"] if self.requests > 1 else []
        found += [f"{self.count} teams"] if self.count > 1 else []
        return ", ".join([*found, f"{self.images} image{'s' * (self.images > 1)} at once"])

    def lanes(self, lanes: int) -> int:
        """Cores of each team, of `lanes` in total; at least one."""
        return max(lanes // (self.requests * self.count), 1)

    def pieces(self, batch: int) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of a batch for each team; shares differ by one image at most, and may be empty."""
        bounds = [batch * team // self.count for team in range(self.count + 1)]
        return tuple(
            tuple(Piece(first, min(self.images, stop - first)) for first in range(start, stop, self.images))
            for start, stop in itertools.pairwise(bounds)
        )


def for_cores(teams: Teams, made_for: int, lanes: int) -> Teams:
    """`teams` for `made_for` cores, adapted to `lanes` cores: each team keeps its size if possible.

    With too few cores, fewer requests run concurrently; then fewer teams share one.
    """
    parts = max(lanes // teams.lanes(made_for), 1)
    if teams.requests == 1:
        return Teams(1, parts, teams.images)
    return Teams(max(parts // teams.count, 1), min(teams.count, parts), teams.images)


def possible(batch: int, lanes: int, *, divides: bool) -> tuple[Teams, ...]:
    """The teams to try for a batch, first all cores for the whole batch.

    Concurrent requests are tried only if a batch has fewer images than cores or cannot be divided. `divides` is whether
    the model computes the images of a batch independently.
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
    share = -(-batch // count)
    return (share, *(size for size in (_FEW if divides else ()) if size < share))


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


_FEW = (1, 2, 4)
"""Numbers of images at once that are tried besides a whole share."""
