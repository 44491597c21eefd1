"""Schedules of every kind for a model on the CPU, and the comparison of what they compute with plain onnxruntime."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import merge_classes

FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str]


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (values / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32)


def proto_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape | tuple[int, Shape]],
    outputs: Sequence[str] | Mapping[str, int],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; inputs are float unless (type, shape) says otherwise, outputs unless a mapping does."""
    given = {
        name: what if isinstance(what, tuple) and _is_typed(what) else (FLOAT, what) for name, what in inputs.items()
    }
    kinds = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, FLOAT)
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _is_typed(what: tuple[object, ...]) -> bool:
    return len(what) == 2 and isinstance(what[1], (list, tuple))


def fused_chain() -> onnx.ModelProto:
    """Gelu written out: one node for five operators."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Div", ["m", "root2"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["p"]),
        helper.make_node("Mul", ["m", "p"], ["q"]),
        helper.make_node("Mul", ["q", "half"], ["g"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("MatMul", ["g", "v"], ["y"]),
        helper.make_node("Add", ["y", "s"], ["z"]),
    ]
    scalars = {"root2": 2**0.5, "one": 1.0, "half": 0.5}
    weights = {name: weight(1) * 0 + value for name, value in scalars.items()}
    return proto_of(nodes, {"x": (1, 6, 16)}, ["z"], {**weights, "w": weight(16, 32), "v": weight(32, 16)})


def loaded(proto: onnx.ModelProto, batch_size: int | None = None) -> Model:
    return load_model(proto.SerializeToString(), name="test", batch_size=batch_size)


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


def divided_at_random(schedule: Schedule, lanes: int, seed: int) -> Schedule:
    """The schedule with random lanes for the groups of each of its stages; groups may share lanes, lanes may idle."""
    draw = random.Random(seed)

    def divided(stage: Stage) -> Stage:
        if stage.strategy is not Strategy.CONCURRENT:
            return stage
        chosen = (draw.sample(range(lanes), draw.randint(1, lanes)) for _ in stage.groups)
        return replace(stage, division=Division(lanes, tuple(tuple(sorted(own)) for own in chosen)))

    return Schedule(tuple(replace(block, stages=tuple(map(divided, block.stages))) for block in schedule.blocks))


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


class MadeUpCost:
    """Latencies that depend on names and `seed` alone, so that searches end in odd schedules, the same each time."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def stage_latency_us(self, stage: Stage) -> float:
        text = f"{self.seed}{stage.strategy}{sorted(map(sorted, stage.groups))}"
        return 1 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32 * 5 * len(stage.operators)

    def lower_bound_us(self, stage: Stage) -> float:
        del stage
        return 0.0


def baselines(graph: ComputationGraph) -> Iterator[tuple[str, Schedule]]:
    yield "sequential", sequential(graph)
    yield "greedy", greedy(graph)


def drawn(graph: ComputationGraph, seeds: Sequence[int]) -> Iterator[tuple[str, Schedule]]:
    for seed in seeds:
        yield f"random {seed}", random_schedule(graph, seed)


def searched(graph: ComputationGraph, seed: int = 0) -> Iterator[tuple[str, Schedule]]:
    for strategy in ("concurrent", "merge", "both"):
        yield strategy, search(graph, MadeUpCost(seed), strategy=strategy).schedule


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
            found += [(f"{name}, sessions", with_sessions(backend.graph, each, 1)) for name, each in found[:3]]
            check_schedules(model, backend, iter(found))
