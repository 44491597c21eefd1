"""Launches of tasks, prepared once for any addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from iosched.runtime.cuda.cudnn.chooser import CudnnPlan
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import CudaCall, Pointer, SessionKernel, SourceKernel
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.cuda.onnxruntime.sessions import Sessions, Tensor
from iosched.runtime.plan import PlanTask, View

Launch = Callable[[Any], None]
"""Enqueues a task on a stream."""

Prepared = Callable[[Mapping[str, int]], Launch]
"""A task's launch, from the addresses of buffers."""


def source_calls(lowering: Lowering) -> Iterator[CudaCall]:
    """Calls of the CUDA C++ kernels in a plan."""
    for task in lowering.plan.tasks:
        kernel = lowering.kernels[task.kernel]
        if isinstance(kernel, SourceKernel):
            yield kernel.call(task.reads, task.writes)


def cudnn_launch(plan: CudnnPlan, task: PlanTask, workspace: int) -> Prepared:
    """Launch of a cuDNN plan with the lane's workspace."""

    def prepared(base: Mapping[str, int]) -> Launch:
        addresses = [_address(base, view) for view in (*task.reads, *task.writes)]
        return lambda stream: plan.execute(addresses, workspace, stream)

    return prepared


def source_launch(kernel: SourceKernel, task: PlanTask, driver: Driver) -> Prepared:
    """Launch of a CUDA C++ kernel, compiled and loaded."""
    call = kernel.call(task.reads, task.writes)
    function = driver.load(call)
    views = (*task.reads, *task.writes)

    def prepared(base: Mapping[str, int]) -> Launch:
        arguments = [
            _address(base, views[each.index]) if isinstance(each, Pointer) else each for each in call.arguments
        ]
        return lambda stream: driver.launch(function, call, arguments, stream)

    return prepared


def session_launch(kernel: SessionKernel, task: PlanTask, sessions: Sessions, stream: Any) -> Prepared:
    """Run of a task in onnxruntime, ordered on `stream`."""

    def prepared(base: Mapping[str, int]) -> Launch:
        reads, writes = ([Tensor(_address(base, view), view) for view in views] for views in (task.reads, task.writes))
        return sessions.open(kernel, reads, writes, stream)

    return prepared


def _address(base: Mapping[str, int], view: View) -> int:
    return base[view.buffer] + view.offset
