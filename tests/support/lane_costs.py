"""Made-up costs of two lanes, some of them noisy, and graphs of cells that repeat."""

from __future__ import annotations

import random

import numpy as np
from by_definition import graph_of

from iosched.models.graph import ComputationGraph
from iosched.scheduler.latencies import makespans
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.signature import stage_signature


class Lanes:
    """Two lanes, kinds of operators, and a deviation for each stage: keeps the promises of `OperatorBounds`."""

    lanes = 2

    def __init__(self, graph: ComputationGraph, kinds: int = 4, noise: float = 0.0) -> None:
        self.graph, self.kinds, self.noise = graph, kinds, noise
        self.asked: list[str] = []
        self.again: list[str] = []

    def operator_work_us(self, name: str) -> float:
        return 20.0 + 17 * (int(name) % self.kinds)

    def operator_latency_us(self, name: str) -> float:
        return self.operator_work_us(name) * 0.7

    def lower_bound_us(self, stage: Stage) -> float:
        raise AssertionError("concurrent stages are bounded from their operators")

    def signature(self, stage: Stage) -> str:
        return stage_signature(self.graph, stage, lambda operator: str(int(operator.name) % self.kinds))

    def latency_us(self, stage: Stage) -> float:
        groups = [sum(map(self.operator_work_us, group)) for group in stage.groups]
        busiest = float(makespans_of(groups)) if len(groups) > 1 else groups[0] * 0.7
        return 4.0 + busiest * (1 + self.noise * random.Random(self.signature(stage)).random())

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(self.signature(stage))
        return self.latency_us(stage)

    def total_us(self, schedule: Schedule) -> float:
        return sum(map(self.latency_us, schedule.stages))


class KeyedLanes(Lanes):
    """The same, and says which operators are alike."""

    def operator_key(self, name: str) -> str:
        return str(int(name) % self.kinds)


def makespans_of(groups: list[float]) -> float:
    return float(makespans(np.array([groups]), 2)[0])


def cells(n_cells: int, kinds: int = 4) -> ComputationGraph:
    """Cells of eight operators: one, six that read it, and one that reads those; every cell like the first."""
    edges = []
    for first in range(0, 8 * n_cells, 8):
        edges += [(first, first + index) for index in range(1, 7)] + [
            (first + index, first + 7) for index in range(1, 7)
        ]
        edges += [(first + 7, first + 8)] if first + 8 < 8 * n_cells else []
    return graph_of(8 * n_cells, edges)


class NoisyLanes(KeyedLanes):
    """First answers are off by some percent; what is measured again is off by a third of that, and stays so."""

    def __init__(self, graph: ComputationGraph, seed: int, spread: float = 0.08) -> None:
        super().__init__(graph, kinds=8, noise=0.1)
        self.seed, self.spread = seed, spread

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(self.signature(stage))
        return self._noisy_us(stage, "first", self.spread)

    def operator_latency_us(self, name: str) -> float:
        return self._noisy_us(alone(name), "first", self.spread)

    def remeasure(self, stage: Stage) -> float:
        self.again.append(self.signature(stage))
        return self._noisy_us(stage, "again", self.spread / 3)

    def _noisy_us(self, stage: Stage, which: str, spread: float) -> float:
        return self.latency_us(stage) * random.Random(f"{self.seed} {which} {self.signature(stage)}").gauss(1, spread)


def alone(name: str) -> Stage:
    """A stage of one operator."""
    return Stage(Strategy.CONCURRENT, ((name,),))
