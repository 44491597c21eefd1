"""Intervals of the analytic model's latencies, and of the ratio of two schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log
from typing import Literal

from iosched.profiler.devices.analytic.constants import known_by
from iosched.profiler.devices.analytic.cost import AnalyticCost
from iosched.profiler.devices.analytic.interval import PartKind, Share, Spread, Sum, around, deviation, weights
from iosched.profiler.devices.analytic.kernels import Kernel, Product, kind_of
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.analytic.spreads import SPREADS, Spreads
from iosched.profiler.devices.launch import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import groups_side_by_side, runs_as_one


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
