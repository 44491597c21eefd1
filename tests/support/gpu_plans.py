"""Schedules for plans of the CUDA runtime, and what the interpreter makes of them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
from interpreter import Interpreter

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.cuda.lower.plan import Lowering
from iosched.runtime.plan import ExecutionPlan
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.strategies import merge_classes


def random_schedule(graph: ComputationGraph, seed: int) -> Schedule:
    """Stages of random endings of what is ready; convolutions that may be merged are, every other time."""
    draw = random.Random(seed)
    waiting = [operator.name for operator in graph.operators]
    done: set[str] = set()
    stages: list[Stage] = []
    while waiting:
        stage: dict[str, int] = {}
        groups: list[list[str]] = []
        for name in waiting:
            before = [p for p in graph.predecessors[name] if p not in done]
            homes = {stage[p] for p in before if p in stage}
            if any(p not in stage for p in before) or len(homes) > 1 or len(stage) > 8 or draw.random() < 0.3:
                continue
            home = homes.pop() if homes else len(groups)
            if home == len(groups):
                groups.append([])
            groups[home].append(name)
            stage[name] = home
        if not stage:
            continue
        classes = merge_classes(graph, [name for name in waiting if set(graph.predecessors[name]) <= done])
        if classes and draw.random() < 0.5:
            names = draw.choice(classes)
            stages.append(Stage(Strategy.MERGE, tuple((name,) for name in names)))
            stage = dict.fromkeys(names, 0)
        else:
            stages.append(Stage(Strategy.CONCURRENT, tuple(map(tuple, groups))))
        done.update(stage)
        waiting = [name for name in waiting if name not in done]
    return Schedule((Block(0, tuple(stages)),))


def merged_schedule(graph: ComputationGraph) -> Schedule:
    """All that may be merged is, as soon as it is ready; the rest one after another."""
    waiting = [operator.name for operator in graph.operators]
    done: set[str] = set()
    stages: list[Stage] = []
    while waiting:
        ready = [name for name in waiting if set(graph.predecessors[name]) <= done]
        names = next(iter(merge_classes(graph, ready)), None)
        strategy = Strategy.CONCURRENT if names is None else Strategy.MERGE
        stages.append(Stage(strategy, tuple((name,) for name in names or ready[:1])))
        done.update(stages[-1].operators)
        waiting = [name for name in waiting if name not in done]
    return Schedule((Block(0, tuple(stages)),))


def interpreted(
    lowering: Lowering, inputs: Mapping[str, np.ndarray], seed: int, plan: ExecutionPlan | None = None
) -> dict[str, np.ndarray]:
    """Outputs by the model's names; of another plan over the same kernels where one is given."""
    given = {view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in lowering.plan.inputs}
    found = Interpreter(lowering, plan).run(given, seed)
    return {name.removesuffix("@caller"): array for name, array in found.items()}


def relative_error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Largest difference over the largest number of each output; infinite where something is no number."""
    assert set(found) == set(expected)
    errors = [
        np.abs(found[name].astype(np.float64) - array).max() / max(np.abs(array).max(), 1e-30)
        for name, array in expected.items()
    ]
    return float(max(errors)) if all(map(np.isfinite, errors)) else float("inf")


def expected_outputs(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What plain onnxruntime computes."""
    from iosched.runtime.reference import Reference

    with Reference(model) as reference:
        return reference.run(inputs)
