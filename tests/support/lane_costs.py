"""Made-up costs of two lanes, some of them noisy or asked ahead, and graphs of cells that repeat."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from by_definition import graph_of

from iosched.models.graph import ComputationGraph
from iosched.scheduler.cost import CostQuestion, operator_question
from iosched.scheduler.latencies import makespans
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.signature import default_label, stage_signature


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
    """The same, with keys that identify equal operators."""

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


Key = tuple[str, str]


class FixedLanes:
    """Two lanes on which a stage takes the same whenever it is asked about, and somewhat longer when asked again.

    Latencies depend on the signature alone. Merged stages mostly are faster than their operators side by side.
    """

    lanes = 2

    def __init__(self, graph: ComputationGraph, seed: int = 0, noise: float = 0.2) -> None:
        self.graph, self.seed, self.noise = graph, seed, noise
        label = default_label(graph)
        self.labels = {operator.name: label(operator) for operator in graph.operators}
        self.asked: list[CostQuestion] = []

    def operator_key(self, name: str) -> str:
        return self.labels[name]

    def lower_bound_us(self, stage: Stage) -> float:
        return 0.0

    def operator_work_us(self, name: str) -> float:
        return self.answer_us(operator_question(name, "work"))

    def operator_latency_us(self, name: str) -> float:
        return self.answer_us(operator_question(name, "operator"))

    def stage_latency_us(self, stage: Stage) -> float:
        return self.answer_us(CostQuestion(stage))

    def remeasure(self, stage: Stage) -> float:
        return self.answer_us(CostQuestion(stage, "again"))

    def answer_us(self, question: CostQuestion) -> float:
        self.asked.append(question)
        return self.fixed_us(question)

    def fixed_us(self, question: CostQuestion) -> float:
        stage = question.stage
        if question.kind in ("operator", "work"):
            return self.work_us(stage.operators[0]) * (1.0 if question.kind == "work" else 0.7)
        groups = [sum(map(self.work_us, group)) for group in stage.groups]
        busiest = sum(groups) * 0.6 if stage.strategy is Strategy.MERGE else makespans_of(groups)
        exact = 4.0 + (busiest if len(groups) > 1 else 0.7 * groups[0]) * self.noisy("first", stage)
        if exact > question.worse_than_us:
            return question.worse_than_us + (exact - question.worse_than_us) / 1000
        return exact * (self.noisy("again", stage) if question.kind == "again" else 1.0)

    def work_us(self, name: str) -> float:
        return 20.0 + 80 * random.Random(f"{self.seed} {self.labels[name]}").random()

    def noisy(self, which: str, stage: Stage) -> float:
        return 1 + self.noise * random.Random(f"{self.seed} {which} {self.signature(stage)}").random()

    def signature(self, stage: Stage) -> str:
        return stage_signature(self.graph, stage, lambda operator: self.labels[operator.name])

    def key(self, question: CostQuestion) -> Key:
        """Equal for questions that have one answer."""
        return question.kind, self.signature(question.stage)


class CurtailedLanes(FixedLanes):
    """The same, but need not be exact for stages that are too slow to matter."""

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        return self.answer_us(CostQuestion(stage, worse_than_us=worse_than_us))


class KeptLanes(FixedLanes):
    """The same answers, all of them prefetched: refuses questions that were not handed over."""

    def __init__(self, graph: ComputationGraph, seed: int = 0, noise: float = 0.2) -> None:
        super().__init__(graph, seed, noise)
        self.kept: dict[Key, float] = {}

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        self.kept.update((self.key(question), self.fixed_us(question)) for question in questions)

    def answer_us(self, question: CostQuestion) -> float:
        self.asked.append(question)
        return self.kept[self.key(question)]


class Noted:
    """Prefetches nothing, and records the questions handed over and how many were asked by then."""

    def __init__(self, asked: Sequence[CostQuestion]) -> None:
        self.asked = asked
        self.rounds: list[tuple[CostQuestion, ...]] = []
        self.starts: list[int] = []

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        self.rounds.append(tuple(questions))
        self.starts.append(len(self.asked))

    def asked_after(self) -> list[list[CostQuestion]]:
        """For each list that was handed over, what was asked from then until the next one."""
        ends = [*self.starts[1:], len(self.asked)]
        return [list(self.asked[start:end]) for start, end in zip(self.starts, ends, strict=True)]
