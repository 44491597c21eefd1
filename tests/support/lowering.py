"""Schedules of every kind for a model on the CPU, and the comparison of what they compute with plain onnxruntime."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from by_definition import TableCost

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import merge_classes


def random_schedule(graph: ComputationGraph, seed: int) -> Schedule:
    """A legal schedule drawn at random: stages of connected groups, and merges where they are allowed."""
    draw = random.Random(seed)
    left = [operator.name for operator in graph.operators]
    stages = []
    while left:
        merged = _random_merge(graph, left, draw)
        chosen = merged or _random_stage(graph, left, draw)
        groups = [(name,) for name in merged] if merged else components(graph, chosen)
        stages.append(Stage(Strategy.MERGE if merged else Strategy.CONCURRENT, tuple(groups)))
        left = [name for name in left if name not in chosen]
    return Schedule((Block(0, tuple(stages)),) if stages else ())


def _random_stage(graph: ComputationGraph, left: Sequence[str], draw: random.Random) -> list[str]:
    size = draw.choice([1, 2, 3, 5, 9])
    chosen: list[str] = []
    while len(chosen) < size:
        ready = _ready(graph, left, chosen)
        if not ready:
            break
        chosen.append(draw.choice(ready))
    return [name for name in left if name in chosen]


def with_sessions(graph: ComputationGraph, schedule: Schedule, seed: int) -> Schedule:
    """The schedule with runs of its stages, drawn at random, made sessions."""
    draw = random.Random(seed)
    stages, left = [], list(schedule.stages)
    while left:
        taken = draw.randint(1, 3)
        run, left = left[:taken], left[taken:]
        names = {name for stage in run for name in stage.operators}
        groups = components(graph, [operator.name for operator in graph.operators if operator.name in names])
        stages += run if draw.random() < 0.3 else [Stage(Strategy.SESSION, tuple(groups))]
    return Schedule((Block(0, tuple(stages)),) if stages else ())


def on_lanes(graph: ComputationGraph, schedule: Schedule, seed: int) -> Schedule:
    """The schedule with runs of its stages, drawn at random, made stages of up to four lanes in a random order."""
    draw = random.Random(seed)
    stages, left = [], list(schedule.stages)
    while left:
        taken = draw.choice([1, 2, 5, 99])
        run, left = left[:taken], left[taken:]
        stages.append(
            Stage(Strategy.LANES, random_lanes(graph, [name for each in run for name in each.operators], draw))
        )
    return Schedule((Block(0, tuple(stages)),) if stages else ())


def random_lanes(graph: ComputationGraph, names: Sequence[str], draw: random.Random) -> tuple[tuple[str, ...], ...]:
    lanes: dict[int, list[str]] = {}
    while names:
        name = draw.choice(_ready(graph, names, ()))
        lanes.setdefault(draw.randint(0, 3), []).append(name)
        names = [each for each in names if each != name]
    return tuple(map(tuple, lanes.values()))


def _random_merge(graph: ComputationGraph, left: Sequence[str], draw: random.Random) -> list[str]:
    classes = merge_classes(graph, _ready(graph, left, ()))
    if not classes or draw.random() < 0.3:
        return []
    names = draw.choice(classes)
    return list(draw.sample(names, draw.randint(2, len(names))))


def _ready(graph: ComputationGraph, left: Sequence[str], chosen: Sequence[str]) -> list[str]:
    waiting = set(left) - set(chosen)
    return [n for n in left if n in waiting and not waiting.intersection(graph.predecessors[n])]


def components(graph: ComputationGraph, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The weakly connected components of `names`, each in the order given."""
    groups: list[list[str]] = []
    for name in names:
        linked = [g for g in groups if set(g) & {*graph.predecessors[name], *graph.successors[name]}]
        groups = [g for g in groups if g not in linked] + [[*(n for g in linked for n in g), name]]
    order = {name: index for index, name in enumerate(names)}
    return [tuple(sorted(group, key=order.__getitem__)) for group in groups]


def baselines(graph: ComputationGraph) -> Iterator[tuple[str, Schedule]]:
    yield "sequential", sequential(graph)
    yield "greedy", greedy(graph)


def drawn(graph: ComputationGraph, seeds: Sequence[int]) -> Iterator[tuple[str, Schedule]]:
    for seed in seeds:
        yield f"random {seed}", random_schedule(graph, seed)


def searched(graph: ComputationGraph, seed: int = 0) -> Iterator[tuple[str, Schedule]]:
    for strategy in ("concurrent", "merge", "both"):
        yield strategy, search(graph, TableCost(seed), strategy=strategy).schedule


def check_schedules(
    model: Model, backend: CpuBackend, schedules: Iterator[tuple[str, Schedule]], seeds: Sequence[int] = (0, 1)
) -> None:
    """The outputs of every plan equal plain onnxruntime's, run after run on unlike inputs."""
    given = [random_inputs(model.graph.inputs, seed) for seed in seeds]
    with Reference(model) as reference:
        wanted = [reference.run(inputs) for inputs in given]
    for name, schedule in schedules:
        compiled = backend.compile(schedule)
        try:
            for inputs, expected in zip(given, wanted, strict=True):
                found = compare(compiled.run(inputs), expected)
                assert found.passed, (name, backend.lanes, found.reasons)
        finally:
            compiled.close()


def check_everything(model: Model, *, lanes: Sequence[int] = (2,), seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Baselines, random and searched schedules of `model` on each number of lanes."""
    for count in lanes:
        with CpuBackend(model, lanes=count) as backend:
            assert backend.is_supported()
            found = [*baselines(backend.graph), *drawn(backend.graph, seeds), *searched(backend.graph)]
            found += [
                (f"{name}, lanes", on_lanes(backend.graph, each, number)) for number, (name, each) in enumerate(found)
            ]
            found += [(f"{name}, sessions", with_sessions(backend.graph, each, 1)) for name, each in found[:3]]
            check_schedules(model, backend, iter(found))
