"""Checks one kernel of a plan on a GPU against its numpy reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from iosched.models.errors import ExecutionError
from iosched.models.graph import TensorSpec
from iosched.runtime.compare import Check, compare
from iosched.runtime.cuda.cudnn.chooser import CudnnPlanChooser
from iosched.runtime.cuda.execute.launches import Prepared, cudnn_launch, source_launch
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import Lanes, synchronized_on_error
from iosched.runtime.cuda.kernel import CudnnKernel, SourceKernel
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import MemorySpace, PlanTask, View

_POISON = 0xFF  # NaN as a float of any size

Bytes = Mapping[str, np.ndarray]
"""Bytes of buffers by name."""


def check_kernel(
    lowering: Lowering, task: PlanTask, driver: Driver, choose: CudnnPlanChooser, lanes: Lanes, *, rtol: float
) -> Check:
    """Runs a task on random inputs with its own weights, and compares its outputs with `interpret`.

    Bytes that the task does not write must not change.

    Args:
        rtol: tolerance of floats relative to the largest; see `compare`.

    Raises:
        DeviceError: the GPU is out of memory, or cuDNN has no engine.
        ExecutionError: the kernel does not compile or fails, or the task runs in onnxruntime.
    """
    kernel = lowering.kernels[task.kernel]
    before = _filled(lowering, task)
    expected = {view.buffer: before[view.buffer].copy() for view in task.writes}
    with np.errstate(all="ignore"):
        kernel.interpret([_seen(before, view) for view in task.reads], [_seen(expected, view) for view in task.writes])
    found = _run(lowering, task, driver, choose, lanes, before)
    check = compare(
        {view.buffer: _seen(found, view).copy() for view in task.writes},
        {view.buffer: _seen(expected, view) for view in task.writes},
        rtol=rtol,
    )
    for view in task.writes:
        _seen(found, view)[...] = _seen(before, view)
    strays = tuple(name for name, content in found.items() if not np.array_equal(content, before[name]))
    reasons = tuple(f"output {name!r}: the kernel wrote bytes outside it" for name in strays)
    return replace(check, passed=check.passed and not strays, reasons=(*check.reasons, *reasons))


def _filled(lowering: Lowering, task: PlanTask) -> dict[str, np.ndarray]:
    touched = {view.buffer for view in (*task.reads, *task.writes)}
    buffers = {buffer.name: buffer for buffer in lowering.plan.buffers if buffer.name in touched}
    constant = {name for name, buffer in buffers.items() if buffer.space is MemorySpace.WEIGHT}
    found = {
        name: lowering.weights[name].reshape(-1).view(np.uint8)
        if name in constant
        else np.full(buffer.nbytes, _POISON, np.uint8)
        for name, buffer in buffers.items()
    }
    computed = {str(place): view for place, view in enumerate(task.reads) if view.buffer not in constant}
    drawn = random_inputs([TensorSpec(name, view.dtype, view.shape) for name, view in computed.items()])
    for name, view in computed.items():
        _seen(found, view)[...] = drawn[name]
    return found


def _run(
    lowering: Lowering, task: PlanTask, driver: Driver, choose: CudnnPlanChooser, lanes: Lanes, before: Bytes
) -> dict[str, np.ndarray]:
    stream = lanes.origin
    found = {view.buffer: np.empty_like(before[view.buffer]) for view in task.writes}
    memory: list[Memory] = []  # must outlive failures below
    with synchronized_on_error(driver, (stream,)):
        base: dict[str, int] = {}
        for name, content in before.items():
            memory.append(driver.allocate(content.nbytes))
            base[name] = memory[-1].ptr
            driver.upload(base[name], content, stream)
        _prepared(lowering, task, driver, choose, memory)(base)(stream)
        for name, content in found.items():
            driver.download(base[name], content, stream)
    return found


def _prepared(
    lowering: Lowering, task: PlanTask, driver: Driver, choose: CudnnPlanChooser, memory: list[Memory]
) -> Prepared:
    kernel = lowering.kernels[task.kernel]
    if isinstance(kernel, SourceKernel):
        return source_launch(kernel, task, driver)
    if not isinstance(kernel, CudnnKernel):
        raise ExecutionError(f"{task.name!r} runs in onnxruntime and has no kernel to check")
    plan = choose(kernel, task.reads, task.writes)
    if plan.workspace_nbytes:
        memory.append(driver.allocate(plan.workspace_nbytes))
    return cudnn_launch(plan, task, memory[-1].ptr if plan.workspace_nbytes else 0)


def _seen(memory: Bytes, view: View) -> np.ndarray:
    return np.ndarray(view.shape or (), view.dtype, memory[view.buffer].data, view.offset, view.strides)
