"""The cost model of a GPU that is not attached, where some of its stages were measured on another machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from statistics import median

from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.kernels import KernelKind
from iosched.profiler.devices.imported_stages import ImportedStages
from iosched.profiler.devices.throughput import Throughputs
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.unit_graph import UnitGraph


@dataclass(frozen=True, eq=False)
class ScaledCost:
    """Measured latencies of stages, and those of the analytic model, scaled by what was measured, for the others.

    This is a `CostModel` with `OperatorKeys`. A stage that was not measured takes as many times what the model says as
    its operators do, added up: an operator that was measured alone as often as it takes there, any other as `scaling`
    says. How operators hinder each other side by side is therefore the model's own, and unscaled.
    """

    analytic: AnalyticCost
    measured: ImportedStages

    @property
    def graph(self) -> ComputationGraph:
        """The graph that is scheduled."""
        return self.analytic.graph

    @property
    def units(self) -> UnitGraph:
        """The operators of each node of that graph."""
        return self.analytic.units

    @property
    def throughputs(self) -> Throughputs:
        """How much stages compute and how fast."""
        return self.analytic.throughputs.measured

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage` in microseconds, infinite where it was seen not to run; O(operators) and its signature."""
        known = self.measured.known_us(stage)
        return self._scale(stage) * self.analytic.stage_latency_us(stage) if known is None else known

    def lower_bound_us(self, stage: Stage) -> float:
        """The measured latency, or else the scaled bound of the analytic model."""
        known = self.measured.known_us(stage)
        return self._scale(stage) * self.analytic.lower_bound_us(stage) if known is None else known

    def operator_key(self, name: str) -> str:
        """What makes operators alike for the analytic model and on the GPU: one alone would mix up measurements."""
        return f"{self.analytic.operator_key(name)} {self.measured.operator_key(name)}"

    @cached_property
    def scaling(self) -> Scaling:
        """The factors for operators that were not measured; operators that are alike count once."""
        alike = {self.operator_key(name): name for name in self.graph.by_name}
        found = ((self.analytic.operator_kind(name), self._own_factor(name)) for name in alike.values())
        return scaling(MeasuredFactor(kind, factor) for kind, factor in found if factor)

    def _scale(self, stage: Stage) -> float:
        computed = {name: self._alone_us[name] for name in stage.operators}
        whole = sum(computed.values())
        return sum(us * self._factors[name] for name, us in computed.items()) / whole if whole else self.scaling.factor

    @cached_property
    def _factors(self) -> dict[str, float]:
        found = {name: self._own_factor(name) for name in self.graph.by_name}
        return {
            name: self.scaling.of(self.analytic.operator_kind(name)) if each is None else each
            for name, each in found.items()
        }

    def _own_factor(self, name: str) -> float | None:
        """Measured over computed latency of an operator alone; None where one of both is not known or nothing."""
        known, computed = self.measured.known_us(_alone(name)), self._alone_us[name]
        return known / computed if known is not None and computed and math.isfinite(known) else None

    @cached_property
    def _alone_us(self) -> dict[str, float]:
        return {name: self.analytic.stage_latency_us(_alone(name)) for name in self.graph.by_name}


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


PRIOR = 2.0
"""How many measured kernels weigh as much as the model: `benchmarks/scaling.py` says what others would do."""


@dataclass(frozen=True)
class MeasuredFactor:
    """How far a measured operator lies from the model.

    Attributes:
        kind: of its longest kernel; None where it has none.
        factor: measured over computed latency, above 0 and finite.
    """

    kind: KernelKind | None
    factor: float


@dataclass(frozen=True)
class Scaling:
    """Factors for operators that were not measured.

    Attributes:
        factor: for those of kinds that were not measured.
        by_kind: for those of kinds that were.
    """

    factor: float
    by_kind: Mapping[KernelKind | None, float]

    def of(self, kind: KernelKind | None) -> float:
        """The factor for an operator of this kind."""
        return self.by_kind.get(kind, self.factor)


def scaling(ratios: Iterable[MeasuredFactor], prior: float = PRIOR) -> Scaling:
    """The factors by what was measured; all are 1 where nothing was, and then exactly; O(n log n).

    Args:
        prior: see `PRIOR`; with 0, medians count in full.
    """
    logs: dict[KernelKind | None, list[float]] = {}
    for ratio in ratios:
        logs.setdefault(ratio.kind, []).append(log(ratio.factor))
    whole = _estimate([value for values in logs.values() for value in values], 0.0, prior)
    return Scaling(exp(whole), {kind: exp(_estimate(values, whole, prior)) for kind, values in logs.items()})


def _estimate(logs: list[float], before: float, prior: float) -> float:
    return (len(logs) * median(logs) + prior * before) / (len(logs) + prior) if logs else before
