"""The cost model of a simulated GPU with imported stages."""

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
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.unit_graph import UnitGraph


@dataclass(frozen=True, eq=False)
class ScaledCost:
    """Imported latencies of stages, and scaled latencies of the analytic model for the others.

    An unmeasured stage is scaled like the sum of its operators. An operator measured alone has its own factor, any
    other that of `scaling`. The model's interference between operators is not scaled.
    """

    analytic: AnalyticCost
    measured: ImportedStages

    @property
    def graph(self) -> ComputationGraph:
        """The scheduled graph."""
        return self.analytic.graph

    @property
    def units(self) -> UnitGraph:
        """The operators of each node of that graph."""
        return self.analytic.units

    @property
    def throughputs(self) -> Throughputs:
        """Throughputs of stages."""
        return self.analytic.throughputs.measured

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage` in microseconds, infinite if it was seen not to run; O(operators) and its signature."""
        known = self.measured.known_us(stage)
        return self._scale(stage) * self.analytic.stage_latency_us(stage) if known is None else known

    def in_flight_us(self, schedule: Schedule, count: int) -> float:
        """The sum of the latencies of stages, over the gain of `count` runs at the same time by the analytic model."""
        computed_us, alone_us = (self.analytic.in_flight_us(schedule, each) for each in (count, 1))
        return sum(map(self.stage_latency_us, schedule.stages)) * (computed_us / alone_us if alone_us else 1.0)

    def lower_bound_us(self, stage: Stage) -> float:
        """The imported latency, else the scaled bound of the analytic model."""
        known = self.measured.known_us(stage)
        return self._scale(stage) * self.analytic.lower_bound_us(stage) if known is None else known

    def operator_key(self, name: str) -> str:
        """The keys of the analytic model and of the GPU: one alone would mix measurements."""
        return f"{self.analytic.operator_key(name)} {self.measured.operator_key(name)}"

    @cached_property
    def scaling(self) -> Scaling:
        """The factors for unmeasured operators; equal operators count once."""
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
        known, computed = self.measured.known_us(_alone(name)), self._alone_us[name]
        return known / computed if known is not None and computed and math.isfinite(known) else None

    @cached_property
    def _alone_us(self) -> dict[str, float]:
        return {name: self.analytic.stage_latency_us(_alone(name)) for name in self.graph.by_name}


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


PRIOR = 2.0
"""Number of measured kernels that weigh as much as the model, by `benchmarks/scaling.py`."""


@dataclass(frozen=True)
class MeasuredFactor:
    """Measured over computed latency of an operator, and the kind of its longest kernel."""

    kind: KernelKind | None
    factor: float


@dataclass(frozen=True)
class Scaling:
    """Factors for unmeasured operators: by kind, and for kinds without measurements."""

    factor: float
    by_kind: Mapping[KernelKind | None, float]

    def of(self, kind: KernelKind | None) -> float:
        """The factor for an operator of this kind."""
        return self.by_kind.get(kind, self.factor)


def scaling(ratios: Iterable[MeasuredFactor], prior: float = PRIOR) -> Scaling:
    """The factors by measurements, exactly 1 without any; O(n log n). With a `prior` of 0, medians count in full."""
    logs: dict[KernelKind | None, list[float]] = {}
    for ratio in ratios:
        logs.setdefault(ratio.kind, []).append(log(ratio.factor))
    whole = _estimate([value for values in logs.values() for value in values], 0.0, prior)
    return Scaling(exp(whole), {kind: exp(_estimate(values, whole, prior)) for kind, values in logs.items()})


def _estimate(logs: list[float], before: float, prior: float) -> float:
    return (len(logs) * median(logs) + prior * before) / (len(logs) + prior) if logs else before
