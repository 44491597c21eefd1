"""Intervals of the analytic model's latencies, and of the ratio of two schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, inf, log
from statistics import NormalDist
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import LEAST_NODE_US, MOST_NODE_US, Known, known_by
from iosched.profiler.devices.analytic.kernels import Kernel, KernelKind, Product, kind_of
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.device import LEVEL
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import groups_side_by_side, runs_as_one

PartKind = KernelKind | Literal["launches", "side_by_side", "gains"]
"""What parts of a latency share an error: those of one kind."""
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""How many standard deviations to both sides have the probability `LEVEL`."""
P = TypeVar("P", bound=Hashable)


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
class Sum(Generic[P]):
    """A latency, and what its parts have to do with it.

    Attributes:
        whole_us: the latency in microseconds.
        by_part_us: by how many microseconds it grows for each part by which one of its parts becomes longer.
    """

    whole_us: float
    by_part_us: Mapping[P, float]

    def share(self, part: P) -> float:
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


def weights(above: Sum[P], below: Sum[P] | None = None) -> dict[P, float]:
    """By what part a sum, or the ratio of two, grows for each part by which one of its parts becomes longer."""
    if below is None:
        return {part: above.share(part) for part in above.by_part_us}
    parts = dict.fromkeys((*above.by_part_us, *below.by_part_us))
    return {part: above.share(part) - below.share(part) for part in parts}


SHORT_US = 100.0
"""Kernels below were used in no fit of kernels, since those of NeuSight are blurred there by launches."""
NODE_SPREAD = log(MOST_NODE_US / LEAST_NODE_US) / (2 * NORMAL)
"""Of a node of a CUDA graph, if what is published of one is where 90 % would lie."""


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of logarithms of measured over predicted times.

    Attributes:
        short: of kernels below `SHORT_US`, by kind.
        short_by_networks: the shared part of `short` on the GPU that the constants of stages were fitted to.
        seen: of longer kernels by kind, on GPUs whose kernels were fitted to.
        specified: the same on GPUs of which only the specification is known.
        tensor_cores: how many times farther kernels lie off on tensor cores, which were measured on one GPU.
        launches: of what launches and forks take, all at once, one by one or by a CUDA graph.
        side_by_side: the own part of stages of several groups.
        gains: of the logarithm of how much faster such stages are than their groups one after another, all at once.
    """

    short: Mapping[str, Spread]
    short_by_networks: float
    seen: Mapping[str, Spread]
    specified: Mapping[str, Spread]
    tensor_cores: float
    launches: Mapping[LaunchName, float]
    side_by_side: float
    gains: float

    def of_kernel(self, kind: KernelKind, size_us: float, known: Known, *, tensor_cores: bool = False) -> Spread:
        """How well kernels of this kind are known that the model says take `size_us` without their launch.

        What nobody measured counts as well known as a convolution of the same size: depthwise convolutions, and short
        elementwise operators and poolings.
        """
        if size_us < SHORT_US:
            found = _of(kind, self.short)
            found = Spread(self.short_by_networks, found.own) if known == "networks" else found
        else:
            found = _of(kind, self.specified if known == "specification" else self.seen)
        factor = self.tensor_cores if tensor_cores else 1.0
        return Spread(found.shared * factor, found.own * factor)

    def of_launches(self, launch: LaunchName, known: Known) -> Spread:
        """How well launches are known; those of the networks that were fitted to count in `short_by_networks`."""
        is_fitted = known == "networks" and launch == "streams"
        return Spread(0.0 if is_fitted else self.launches[launch], 0.0)

    def of_gains(self, known: Known) -> Spread:
        """How well gains are known as a whole; those of the networks that were fitted to count in `side_by_side`."""
        return Spread(0.0 if known == "networks" else self.gains, 0.0)


def _of(kind: KernelKind, spreads: Mapping[str, Spread]) -> Spread:
    return spreads.get(kind, spreads["convolution"])


SPREADS = Spreads(
    short=MappingProxyType({"convolution": Spread(0.296, 0.178), "product": Spread(0.284, 0.295)}),
    short_by_networks=0.09,
    seen=MappingProxyType(
        {
            "convolution": Spread(0.025, 0.141),
            "elementwise": Spread(0.028, 0.017),
            "product": Spread(0.082, 0.16),
        }
    ),
    specified=MappingProxyType(
        {
            "convolution": Spread(0.099, 0.167),
            "elementwise": Spread(0.144, 0.016),
            "product": Spread(0.142, 0.204),
        }
    ),
    tensor_cores=1.368,
    launches=MappingProxyType({"graph": NODE_SPREAD, "streams": 0.301}),
    side_by_side=0.236,
    gains=0.81,
)
"""As they were found; see `benchmarks/reports/analytic-evidence.md`."""


@dataclass(frozen=True)
class SideBySide:
    """The groups of a stage, each the keys of its operators; stages that are alike in these have one error."""

    groups: tuple[tuple[str, ...], ...]


Part = Kernel | SideBySide | Literal["launches", "gains"]


class AnalyticUncertainty:
    """How well latencies of the analytic model are known; see `Uncertainty`.

    Stages that were measured elsewhere count as known exactly, and those that are scaled by them as if they were not:
    they are known better than this says.

    Args:
        cost: the latencies.
        launch: how kernels are launched.
        spreads: how far their parts lie from what was measured.
    """

    def __init__(
        self, cost: AnalyticCost | ScaledCost, launch: LaunchName = DEFAULT_LAUNCH, spreads: Spreads = SPREADS
    ) -> None:
        self.cost = cost
        self.analytic = cost.analytic if isinstance(cost, ScaledCost) else cost
        self.launch = launch
        self.spreads = spreads

    def latency_us(self, stages: Sequence[Stage]) -> Interval:
        """The latency of stages that run one after another; O(stages and operators)."""
        found = self.sum_of(stages)
        return around(found.whole_us, deviation(self.shares(found)))

    def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
        """The latency of `stages` over that of `others`; O(stages and operators).

        It is 1, and known as such, where both take no time.
        """
        above, below = self.sum_of(stages), self.sum_of(others)
        if not below.whole_us:
            return around(1.0 if not above.whole_us else inf, 0.0)
        return around(above.whole_us / below.whole_us, deviation(self.shares(above, below)))

    def sum_of(self, stages: Sequence[Stage]) -> Sum[Part]:
        """The latency of stages that run one after another, and its parts; parts that are equal are one."""
        found: dict[Part, float] = defaultdict(float)
        whole_us = 0.0
        for stage in stages:
            stage_us = self.cost.stage_latency_us(stage)
            for part, us in self._parts_us(stage, stage_us):
                found[part] += us
            whole_us += stage_us
        return Sum(whole_us, found)

    def shares(self, above: Sum[Part], below: Sum[Part] | None = None) -> list[Share]:
        """A share of the latency, or of the ratio of both, for each part that is not known exactly."""
        return [Share(*self._kind_and_spread(part), weight) for part, weight in weights(above, below).items()]

    def _parts_us(self, stage: Stage, stage_us: float) -> Iterator[tuple[Part, float]]:
        if isinstance(self.cost, ScaledCost) and self.cost.measured.known_us(stage) is not None:
            return
        computed_us = self.analytic.stage_latency_us(stage)
        times = stage_us / computed_us if computed_us else 0.0
        kernels_us = self.analytic.shares_us(stage)
        yield from ((kernel, times * us) for kernel, us in kernels_us.items())
        yield "launches", times * (computed_us - sum(kernels_us.values()))
        if len(groups_side_by_side(stage)) > 1 and not runs_as_one(stage):
            keys = (tuple(map(self.analytic.operator_key, group)) for group in stage.groups)
            yield SideBySide(tuple(sorted(keys))), stage_us
            apart_us = sum(self.analytic.stage_latency_us(replace(stage, groups=(group,))) for group in stage.groups)
            if apart_us and computed_us:  # where no kernel runs, nothing can be gained
                yield "gains", stage_us * log(apart_us / computed_us)

    def _kind_and_spread(self, part: Part) -> tuple[PartKind, Spread]:
        if isinstance(part, SideBySide):
            return "side_by_side", Spread(0.0, self.spreads.side_by_side)
        if part == "gains":
            return part, self.spreads.of_gains(known_by(self.analytic.gpu))
        if part == "launches":
            return part, self.spreads.of_launches(self.launch, known_by(self.analytic.gpu))
        return kind_of(part), self._spread(part)

    def _spread(self, kernel: Kernel) -> Spread:
        size_us = self.analytic.modelled.alone_us(kernel)
        fast = isinstance(kernel, Product) and self._has_tensor_cores
        return self.spreads.of_kernel(kind_of(kernel), size_us, known_by(self.analytic.gpu), tensor_cores=fast)

    @cached_property
    def _has_tensor_cores(self) -> bool:
        """Whether products run on tensor cores at this precision."""
        gpu = self.analytic.gpu
        return gpu.peak_tflops(self.analytic.precision) != gpu.fp32_tflops
