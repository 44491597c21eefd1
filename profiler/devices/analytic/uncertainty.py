"""Intervals of the analytic model's latencies, and of the ratio of two schedules.

The logarithm of a part's measured over its computed time is the sum of two errors: one shared by all parts of a kind on
a GPU, and a separate one. In a long sum, separate errors average out, and shared ones do not. In the ratio of two sums
on the same GPU, common parts cancel.
"""

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
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.devices.profiled_device import LEVEL
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import groups_side_by_side, runs_as_one

PartKind = KernelKind | Literal["launches", "side_by_side", "gains"]
"""Parts of one kind share an error."""
_PRODUCTS = ("convolution", "product")
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Standard deviations to each side of an interval of probability `LEVEL`."""
P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of measured over predicted times: shared by a kind on a GPU, and separate
    for each part (`own`).
    """

    shared: float
    own: float


@dataclass(frozen=True)
class Sum(Generic[P]):
    """A latency, and its growth in microseconds per relative growth of each part."""

    whole_us: float
    by_part_us: Mapping[P, float]

    def share(self, part: P) -> float:
        """The relative growth of the latency per relative growth of a part."""
        return self.by_part_us.get(part, 0.0) / self.whole_us if self.whole_us else 0.0


@dataclass(frozen=True)
class ErrorShare:
    """The weight of a part in a latency or a ratio, negative if it lowers the ratio; `kind` shares an error."""

    kind: str
    spread: Spread
    weight: float


def deviation(shares: Sequence[ErrorShare]) -> float:
    """The standard deviation of the logarithm of a latency or a ratio, to first order; O(shares).

    Shared errors are equal within a kind, others independent. Equal parts have equal errors, and must be one share.
    """
    shared: dict[str, float] = defaultdict(float)
    for share in shares:
        shared[share.kind] += share.weight * share.spread.shared
    return hypot(*shared.values(), *(share.weight * share.spread.own for share in shares))


def around(value: float, deviation: float) -> Interval:
    """`value` with the interval of a normally distributed logarithm."""
    factor = exp(NORMAL * deviation)
    return Interval(value, value / factor, value * factor)


def weights(above: Sum[P], below: Sum[P] | None = None) -> dict[P, float]:
    """The relative growth of a sum, or of the ratio of two, per relative growth of each part."""
    if below is None:
        return {part: above.share(part) for part in above.by_part_us}
    parts = dict.fromkeys((*above.by_part_us, *below.by_part_us))
    return {part: above.share(part) - below.share(part) for part in parts}


SHORT_US = 100.0
"""Shorter kernels were used in no fit, since those of NeuSight are blurred by launches."""
NODE_SPREAD = log(MOST_NODE_US / LEAST_NODE_US) / (2 * NORMAL)
"""Of a node of a CUDA graph, if the published range holds 90 %."""


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of logarithms of measured over predicted times.

    Attributes:
        short: of kernels below `SHORT_US`, by kind.
        short_by_networks: the shared part of `short` on the GPU that the constants of stages were fitted to.
        seen: of longer kernels by kind, on GPUs whose kernels the model was fitted to.
        specified: the same on GPUs known by specification only.
        tensor_cores: factor on tensor cores, which were measured on one GPU.
        launches: of all launches and forks together, by launch.
        side_by_side: `own` of stages of several groups.
        gains: of the logarithm of the speedup of such stages over their groups one after another, all together.
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
        """The spread of kernels of this kind that take `size_us` without their launch.

        Unmeasured kinds count as convolutions: depthwise convolutions, short elementwise operators and poolings.
        """
        if size_us < SHORT_US:
            found = _of(kind, self.short)
            found = Spread(self.short_by_networks, found.own) if known == "networks" else found
        else:
            found = _of(kind, self.specified if known == "specification" else self.seen)
        factor = self.tensor_cores if tensor_cores else 1.0
        return Spread(found.shared * factor, found.own * factor)

    def of_launches(self, launch: LaunchName, known: Known) -> Spread:
        """The spread of launches; for the fitted networks it is part of `short_by_networks`."""
        is_fitted = known == "networks" and launch == "streams"
        return Spread(0.0 if is_fitted else self.launches[launch], 0.0)

    def of_gains(self, known: Known) -> Spread:
        """The shared spread of gains; for the fitted networks it is part of `side_by_side`."""
        return Spread(0.0 if known == "networks" else self.gains, 0.0)


def _of(kind: KernelKind, spreads: Mapping[str, Spread]) -> Spread:
    return spreads.get(kind, spreads["convolution"])


SPREADS = Spreads(
    short=MappingProxyType({"convolution": Spread(0.353, 0.187), "product": Spread(0.282, 0.293)}),
    short_by_networks=0.122,
    seen=MappingProxyType(
        {
            "convolution": Spread(0.082, 0.142),
            "elementwise": Spread(0.026, 0.016),
            "product": Spread(0.077, 0.156),
        }
    ),
    specified=MappingProxyType(
        {
            "convolution": Spread(0.119, 0.156),
            "elementwise": Spread(0.119, 0.016),
            "product": Spread(0.121, 0.198),
        }
    ),
    tensor_cores=1.486,
    launches=MappingProxyType({"graph": NODE_SPREAD, "streams": 0.208}),
    side_by_side=0.242,
    gains=0.883,
)
"""Fitted values; see `benchmarks/reports/analytic-evidence.md`."""


@dataclass(frozen=True)
class SideBySide:
    """The operator keys of a stage's groups; stages with equal keys share one error."""

    groups: tuple[tuple[str, ...], ...]


Part = Kernel | SideBySide | Literal["launches", "gains"]


class AnalyticUncertainty:
    """Intervals of latencies of the analytic model; see `Uncertainty`.

    Imported stages count as exact, and stages scaled by them as unscaled, though they are known better.
    """

    def __init__(
        self, cost: AnalyticCost | ScaledCost, launch: LaunchName = DEFAULT_LAUNCH, spreads: Spreads = SPREADS
    ) -> None:
        self.cost = cost
        self.analytic = cost.analytic if isinstance(cost, ScaledCost) else cost
        self.launch = launch
        self.spreads = spreads

    def latency_us(self, stages: Sequence[Stage]) -> Interval:
        """The latency of consecutive stages; O(stages and operators)."""
        found = self.sum_of(stages)
        return around(found.whole_us, deviation(self.shares(found)))

    def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
        """The latency of `stages` over that of `others`; O(stages and operators). Exactly 1 if both take no time."""
        above, below = self.sum_of(stages), self.sum_of(others)
        if not below.whole_us:
            return around(1.0 if not above.whole_us else inf, 0.0)
        return around(above.whole_us / below.whole_us, deviation(self.shares(above, below)))

    def speedup(self, other: AnalyticUncertainty, stages: Sequence[Stage]) -> Interval:
        """The latency of `stages` by `other`, in another precision, over that by this; products share no error."""
        above, below = other.sum_of(stages), self.sum_of(stages)
        own = [replace(share, weight=-share.weight) for share in self.shares(below)]
        theirs = [
            replace(share, kind=f"other {share.kind}") if share.kind in _PRODUCTS else share
            for share in other.shares(above)
        ]
        return around(above.whole_us / below.whole_us, deviation([*own, *theirs]))

    def sum_of(self, stages: Sequence[Stage]) -> Sum[Part]:
        """The latency of consecutive stages and its parts; equal parts are one."""
        found: dict[Part, float] = defaultdict(float)
        whole_us = 0.0
        for stage in stages:
            stage_us = self.cost.stage_latency_us(stage)
            for part, us in self._parts_us(stage, stage_us):
                found[part] += us
            whole_us += stage_us
        return Sum(whole_us, found)

    def shares(self, above: Sum[Part], below: Sum[Part] | None = None) -> list[ErrorShare]:
        """The shares of uncertain parts in the latency, or in the ratio of both."""
        return [ErrorShare(*self._kind_and_spread(part), weight) for part, weight in weights(above, below).items()]

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
            single_us = sum(self.analytic.stage_latency_us(replace(stage, groups=(group,))) for group in stage.groups)
            if single_us and computed_us:  # where no kernel runs, nothing can be gained
                yield "gains", stage_us * log(single_us / computed_us)

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
        gpu = self.analytic.gpu
        return gpu.peak_tflops(self.analytic.precision) != gpu.fp32_tflops
