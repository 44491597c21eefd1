"""The executor's launches, events and captures enforce the plan's order, in every execution order that they allow."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import numpy as np
import onnxruntime
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, HostMemory, HostPlan, Stream
from lowering import random_schedule
from scripted import fire
from small_models import crossed

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.model import Model
from iosched.runtime.cuda.cudnn.chooser import CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.kernel import CudaCall, CudnnKernel, Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower, lower_stage
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import View
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Stage

pytestmark = needs_compiler


def expected(model: Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    assert isinstance(model.original, bytes)
    session = onnxruntime.InferenceSession(model.original)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def callers(model: Model, inputs: dict[str, np.ndarray], executor: CudaExecutor) -> dict[str, np.ndarray]:
    del model
    return {view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs}


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_allowed_order_gives_the_same_outputs(seed: int, barriers: bool) -> None:
    model = fire(batch=2)
    inputs = random_inputs(model.graph.inputs)
    network = LoweredModel(model, Precision("fp32"), list(Layout)[seed % len(Layout)])
    for schedule in (sequential(model.graph), greedy(model.graph)):
        driver = HostDriver(seed)
        executor = CudaExecutor(lower(network, schedule, barriers=barriers), driver, HostChoice(driver))
        executor.poison()
        found = executor.run(callers(model, inputs, executor))
        for name, array in expected(model, inputs).items():
            np.testing.assert_allclose(found.get(name, found.get(f"{name}@caller")), array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_stages_and_copies_of_a_stage_are_joined_in_every_order(seed: int) -> None:
    """Including lanes that begin late."""
    model = crossed(5, 4)
    inputs = random_inputs(model.graph.inputs)
    network = LoweredModel(model, Precision("fp32"))
    for schedule in (greedy(model.graph), random_schedule(model.graph, seed)):
        driver = HostDriver(seed)
        executor = CudaExecutor(lower(network, schedule), driver, HostChoice(driver))
        joins = driver.joins
        assert joins or schedule != greedy(model.graph)
        for _ in range(2):
            executor.poison()
            np.testing.assert_allclose(executor.run(inputs)["y"], expected(model, inputs)["y"], rtol=1e-5)
            executor.time_many(1, 3)
        assert driver.joins == 4 * joins + 2 * (len(executor._streams) > 2)


class Counting(HostDriver):
    """Tracks the memory held on the device and the number of streams."""

    def __init__(self) -> None:
        super().__init__()
        self.held: WeakSet[HostMemory] = WeakSet()
        self.streams: list[Stream] = []

    def allocate(self, nbytes: int) -> HostMemory:
        memory = super().allocate(nbytes)
        self.held.add(memory)
        return memory

    def new_stream(self) -> Stream:
        self.streams.append(super().new_stream())
        return self.streams[-1]


def stages_of(model: Model) -> list[Stage]:
    return [stage for block in greedy(model.graph).blocks for stage in block.stages]


def test_many_stages_share_streams_and_free_their_memory() -> None:
    """A stream costs a cuDNN handle, and a search runs hundreds of stages."""
    model, driver = fire(batch=2), Counting()
    network, lanes = LoweredModel(model, Precision("fp32")), Lanes(driver)
    widest = 0
    for stage in stages_of(model):
        lowering = lower_stage(network, stage)
        assert lowering is not None
        executor = CudaExecutor(lowering, driver, HostChoice(driver), lanes)
        executor.upload({view.buffer: np.ones(view.shape or (), view.dtype) for view in executor.inputs})
        assert len(driver.held) > len(lowering.plan.lanes)
        executor.close()
        del executor
        widest = max(widest, len(lowering.plan.lanes))
        assert len(driver.held) <= widest  # the workspaces of the lanes
    assert len(driver.streams) == widest


class FailsInCapture(HostPlan):
    """An engine that runs, but not in a capture."""

    def execute(self, addresses: Sequence[int], workspace: int, stream: Stream) -> None:
        if stream.capture is not None:
            raise ExecutionError("not in a capture")
        super().execute(addresses, workspace, stream)


def test_a_failing_capture_leaves_no_stream_capturing() -> None:
    model, driver = fire(batch=2), Counting()
    lanes = Lanes(driver)
    lowering = lower(LoweredModel(model, Precision("fp32")), greedy(model.graph))

    def fails(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames) -> HostPlan:
        return FailsInCapture(kernel, tuple(reads), tuple(writes), driver)

    with pytest.raises(ExecutionError, match="not in a capture"):
        CudaExecutor(lowering, driver, fails, lanes)  # type: ignore[arg-type]
    broken = driver.streams[:]
    executor = CudaExecutor(lowering, driver, HostChoice(driver), lanes)
    executor.run(callers(model, random_inputs(model.graph.inputs), executor))
    assert all(stream.capture is None for stream in broken)
    assert len(driver.streams) == 2 * len(broken)


def test_an_executor_that_was_dropped_is_not_destroyed_inside_the_capture_of_another() -> None:
    """Not even where Python collects garbage there: nothing that it has made refers to it."""
    model, driver = fire(batch=2), HostDriver(collects=True)
    lanes = Lanes(driver)
    lowering = lower(LoweredModel(model, Precision("fp32")), greedy(model.graph))
    gc.collect()
    for _ in range(2):
        executor = CudaExecutor(lowering, driver, HostChoice(driver), lanes)
        executor.time_many(1, 2)
        executor.launch_at({view.buffer: executor.address_of(view.buffer) for view in executor.inputs})
        driver.synchronize(executor.origin)
    assert driver.mistakes == []


def test_garbage_collection_is_enabled_again_after_a_capture_even_a_failing_one() -> None:
    lanes = Lanes(HostDriver(collects=True))
    lanes.capture(lanes.origin, lambda: None)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        lanes.capture(lanes.origin, lambda: 1 // 0)
    assert gc.isenabled()


class Full(HostDriver):
    """Has memory for `allocations` allocations."""

    def __init__(self, allocations: int) -> None:
        super().__init__()
        self.left = allocations

    def allocate(self, nbytes: int) -> HostMemory:
        if not self.left:
            raise DeviceError("no memory left")
        self.left -= 1
        return super().allocate(nbytes)


def test_memory_is_freed_after_pending_stream_work_if_an_allocation_fails() -> None:
    lowering = lower(LoweredModel(fire(batch=2), Precision("fp32")), greedy(fire(batch=2).graph))
    for allocations in range(len(lowering.plan.buffers) + len(lowering.plan.lanes)):
        driver = Full(allocations)
        with suppress(DeviceError):
            CudaExecutor(lowering, driver, HostChoice(driver))
        assert driver.mistakes == []
    assert driver.left > 0, "the last one had enough"


class FailsAt(HostDriver):
    """Launch number `number` fails after it was enqueued."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def launch(self, function: CudaCall, call: CudaCall, arguments: Sequence[Any], stream: Stream) -> None:
        super().launch(function, call, arguments, stream)
        self.number -= 1
        if self.number == 0:
            raise ExecutionError("out of resources")


@pytest.mark.parametrize("number", range(1, 5))
def test_memory_is_freed_after_pending_stream_work_if_a_launch_fails(number: int) -> None:
    model, driver = fire(batch=2), FailsAt(number)
    lowering = lower(LoweredModel(model, Precision("fp32")), greedy(model.graph))
    with pytest.raises(ExecutionError, match="out of resources"):
        CudaExecutor(lowering, driver, HostChoice(driver))
    assert driver.mistakes == []


def test_an_executor_that_is_dropped_while_it_runs_keeps_its_memory_until_then() -> None:
    model, driver = fire(batch=2), HostDriver()
    executor = CudaExecutor(
        lower(LoweredModel(model, Precision("fp32")), greedy(model.graph)), driver, HostChoice(driver)
    )
    executor.launch()
    assert driver.pending
    del executor
    assert driver.mistakes == []


def test_an_executor_and_its_streams_may_be_dropped_in_one_cycle() -> None:
    """As an exception's traceback makes one: whose `__del__` Python calls first is not known."""
    model, driver = fire(batch=2), HostDriver()
    lowering = lower(LoweredModel(model, Precision("fp32")), greedy(model.graph))
    executor = CudaExecutor(lowering, driver, HostChoice(driver))
    cycle: list[object] = [executor.origin, executor]
    cycle.append(cycle)
    executor.launch()
    del executor, cycle
    gc.collect()
    assert driver.mistakes == []
