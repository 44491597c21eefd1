"""How far a sum of latencies may lie from what the analytic model says, by the errors of its parts.

The logarithm of what a part takes over what the model says is thought of as the sum of two errors. One is shared by all
parts of a kind on a GPU, whose clock or library is not what the model believes; the other is the part's own. In a long
sum own errors even out, and shared ones do not: its interval does not become narrow with the number of its parts. In
the ratio of two sums on the same GPU, what both have in common cancels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot
from statistics import NormalDist
from typing import Generic, Literal, TypeVar

from iosched.profiler.devices.analytic.kernels import Kind
from iosched.profiler.devices.uncertainty import LEVEL
from iosched.profiler.measuring.statistics import Interval

PartKind = Kind | Literal["launches", "side_by_side", "gains"]
"""What parts of a latency share an error: those of one kind."""
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""How many standard deviations to both sides have the probability `LEVEL`."""
Part = TypeVar("Part", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted times, of parts of one kind and size.

    Attributes:
        shared: of what all parts of the kind have in common on a GPU.
        own: of what is left of each part.
    """

    shared: float
    own: float


@dataclass(frozen=True)
class Sum(Generic[Part]):
    """A latency, and what its parts have to do with it.

    Attributes:
        whole_us: the latency in microseconds.
        by_part_us: by how many microseconds it grows for each part by which one of its parts becomes longer.
    """

    whole_us: float
    by_part_us: Mapping[Part, float]

    def share(self, part: Part) -> float:
        """By what part the latency grows for each part by which this one becomes longer; 0 if it is none of its."""
        return self.by_part_us.get(part, 0.0) / self.whole_us if self.whole_us else 0.0


@dataclass(frozen=True)
class Share:
    """What a part has to do with a latency, or with the ratio of two.

    Attributes:
        kind: the kind of part, which shares an error.
        spread: how well parts of that kind and size are known.
        weight: by what part the latency or the ratio grows for each part by which this one becomes longer; where it
            makes a ratio smaller, it is negative.
    """

    kind: PartKind
    spread: Spread
    weight: float


def deviation(shares: Sequence[Share]) -> float:
    """The standard deviation of the logarithm of a latency or a ratio; O(shares).

    To first order the logarithm is off by the weighted sum of errors: shared ones are the same throughout a kind,
    others independent. Parts that are equal have equal errors, and must be one share.
    """
    shared: dict[PartKind, float] = defaultdict(float)
    for share in shares:
        shared[share.kind] += share.weight * share.spread.shared
    return hypot(*shared.values(), *(share.weight * share.spread.own for share in shares))


def around(value: float, deviation: float) -> Interval:
    """`value` with the interval that a normally distributed logarithm of this standard deviation gives it."""
    factor = exp(NORMAL * deviation)
    return Interval(value, value / factor, value * factor)


def weights(above: Sum[Part], below: Sum[Part] | None = None) -> dict[Part, float]:
    """By what part a sum, or the ratio of two, grows for each part by which one of its parts becomes longer."""
    if below is None:
        return {part: above.share(part) for part in above.by_part_us}
    parts = dict.fromkeys((*above.by_part_us, *below.by_part_us))
    return {part: above.share(part) - below.share(part) for part in parts}
