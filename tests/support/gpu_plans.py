"""Plans of the CUDA runtime without a GPU: run in numpy, their lanes in a random order that the waits allow.

A plan whose result depends on timing gives wrong numbers under some seed, and bytes that nobody wrote are NaN.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.plan import ExecutionPlan, MemorySpace, View
from iosched.runtime.reference import Reference
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.strategies import merge_classes

_POISON = 0xFF  # as float16, float32 or float64 not a number


class Interpreter:
    """Runs one lowering again and again."""

    def __init__(self, lowering: Lowering, plan: ExecutionPlan | None = None) -> None:
        """Nothing is allocated before the first run.

        Args:
            plan: is run in place of the lowering's own; may be unsound.
        """
        self._lowering = lowering
        self._plan = plan = plan or lowering.plan
        self._offset = {buffer.name: buffer.offset for buffer in plan.buffers if buffer.space is MemorySpace.ARENA}
        self._nbytes = {buffer.name: buffer.nbytes for buffer in plan.buffers}

    def run(self, inputs: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
        """Outputs by the names of the plan's output buffers, of one interleaving chosen by `seed`.

        Args:
            inputs: arrays by input buffer; of buffers laid out for the caller, row-major arrays.

        Raises:
            RuntimeError: the lanes wait for each other for ever.
        """
        plan = self._plan
        memory = self._allocate(inputs)
        for lane, step in interleaving(plan, seed):
            task = plan.lanes[lane][step]
            reads = [self._array(memory, view) for view in task.reads]
            for array in reads:
                array.flags.writeable = False
            writes = [self._array(memory, view) for view in task.writes]
            self._lowering.kernels[task.kernel].interpret(reads, writes)
        return {view.buffer: self._array(memory, view).copy() for view in plan.outputs}

    def _allocate(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The bytes of every buffer outside the arena by name, and of the arena under ""."""
        plan = self._plan
        memory = {"": np.full(plan.arena_nbytes, _POISON, np.uint8)}
        for buffer in plan.buffers:
            if buffer.is_input:
                memory[buffer.name] = np.array(inputs[buffer.name], order="C").reshape(-1).view(np.uint8)
            elif buffer.space is MemorySpace.WEIGHT:
                memory[buffer.name] = self._lowering.weights[buffer.name].reshape(-1).view(np.uint8)
            elif buffer.space is MemorySpace.OUTPUT:
                memory[buffer.name] = np.full(buffer.nbytes, _POISON, np.uint8)
        return memory

    def _array(self, memory: Mapping[str, np.ndarray], view: View) -> np.ndarray:
        base = self._offset.get(view.buffer)
        if base is None:
            data, start = memory[view.buffer], 0
        else:
            data, start = memory[""], base
        inside = data[start : start + self._nbytes[view.buffer]]
        return np.ndarray(view.shape or (), view.dtype, inside.data, view.offset, view.strides)


def interleaving(plan: ExecutionPlan, seed: int) -> Iterator[tuple[int, int]]:
    """(lane, step) of every task in an order that lanes and waits allow.

    Even seeds choose a new lane for each task; odd ones let a lane run as far as it can before another does.

    Raises:
        RuntimeError: the lanes wait for each other for ever.
    """
    draw = random.Random(seed)
    done = [0] * len(plan.lanes)
    current = 0
    while any(count < len(lane) for count, lane in zip(done, plan.lanes, strict=True)):
        ready = _ready(plan, done)
        if not ready:
            raise RuntimeError("the lanes of the plan wait for each other for ever")
        if seed % 2 == 0 or current not in ready:
            current = draw.choice(ready)
        yield current, done[current]
        done[current] += 1


def _ready(plan: ExecutionPlan, done: Sequence[int]) -> list[int]:
    return [
        lane
        for lane, tasks in enumerate(plan.lanes)
        if done[lane] < len(tasks) and all(done[wait.lane] >= wait.steps for wait in tasks[done[lane]].waits)
    ]


def merged_schedule(graph: ComputationGraph) -> Schedule:
    """Merges operators wherever possible, as soon as they are ready; the rest run one after another."""
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
    """Largest difference over the largest number of each output; infinite if a difference is not finite."""
    assert set(found) == set(expected)
    errors = [
        np.abs(found[name].astype(np.float64) - array).max() / max(np.abs(array).max(), 1e-30)
        for name, array in expected.items()
    ]
    return float(max(errors)) if all(map(np.isfinite, errors)) else float("inf")


def expected_outputs(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of plain onnxruntime."""
    with Reference(model) as reference:
        return reference.run(inputs)
