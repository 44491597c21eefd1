"""Builds, names and loads cuDNN execution plans: one engine with its knobs for one kernel and tensor layout.

The same code runs with an attached GPU (a handle) and a simulated one (a description).

Developer notes:
    * A plan is identified by cuDNN's name ("eng44_k2=12_k18=0": engine 44, knob 2 is 12), which is known before it is
      built. The frontend's `get_engine_and_knobs_at_index` returns NOT_SET for unknown knobs, which
      `create_execution_plan` rejects: one plan in eight could not be rebuilt that way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.cudnn.cudnn_graph import CudnnTarget, GpuDescription, load_cudnn, new_graph
from iosched.runtime.cuda.gpu.failures import first_line
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.plan import View

_FORBIDDEN_EVERYWHERE = ("REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD_TILE_13x13")
_FORBIDDEN = {"fp32": ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")}

_APPENDED = {"fp32": {f"eng44_k2={tile}_k18={mode}": (44, tile, mode) for tile, mode in ((12, 0), (12, 1), (4, 0))}}
"""Plans (engine, tile size, index mode) that are added where cuDNN's heuristics do not list them.

Engine 44 is the only tuned one for strict float32 on newer GPUs; cuDNN after 9.19 lists it less and less.
"""

TRANSFORMS = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6")
TENSOR_CORES = ("TENSOR_CORE",)


@dataclass(frozen=True, eq=False)
class BuiltCudnnPlan:
    """A plan that is ready to run.

    Attributes:
        name: cuDNN's name: engine and knobs.
        workspace_nbytes: scratch memory of a run.
        build_ms: 0 for a loaded plan.
    """

    name: str
    workspace_nbytes: int
    build_ms: float
    _graph: Any
    _index: int

    def execute(self, addresses: Sequence[int], workspace: int, handle: Any) -> None:
        """Enqueues the kernel on the handle's stream.

        Args:
            addresses: of (*reads, *writes).
            workspace: address of `workspace_nbytes` bytes.
        """
        tensors = dict(enumerate(addresses, start=1))
        self._graph.execute_plan_at_index(tensors, workspace, self._index, handle=handle)

    def serialize(self) -> bytes:
        """About 5 KB for `load_cudnn_plan` with the same cuDNN and GPU."""
        if self._graph.get_execution_plan_count() > 1:
            self._graph.build_plan_at_index(self._index)  # a graph serializes its last built plan
        return bytes(self._graph.serialize())


@dataclass(frozen=True, eq=False)
class CudnnOffer:
    """The plans of cuDNN for one kernel.

    Attributes:
        plans: built plans, cuDNN's best guess first.
        offered: number of engine configurations that the precision allows, built or not.
        refusal: why there are none, else "".
        large: names of built plans that were skipped because of their workspace.
    """

    plans: tuple[BuiltCudnnPlan, ...]
    offered: int
    refusal: str = ""
    large: tuple[str, ...] = ()


def build_cudnn_plans(
    kernel: CudnnKernel,
    reads: Sequence[View],
    writes: Sequence[View],
    target: CudnnTarget,
    *,
    at_most: int | None = None,
    enough: Callable[[Sequence[BuiltCudnnPlan]], bool] = lambda _: True,
    deadline_s: float | None = None,
    precompiled: bool = False,
    without: Container[str] = (),
    max_workspace_nbytes: float = math.inf,
    trying: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> CudnnOffer:
    """Builds the plans that cuDNN offers at the kernel's precision.

    Args:
        target: a `GpuDescription`, or the handle of an attached GPU.
        at_most: number of plans.
        enough: whether these plans suffice; else more are built, one by one.
        deadline_s: no build begins later, unless there is no plan yet; builds cannot be interrupted.
        precompiled: skips engines that are compiled at run time (a second or more each) if there are others.
        without: names of plans to skip.
        max_workspace_nbytes: skips plans with a larger workspace; if all are larger, the smallest is offered.
        trying: context for building the plan of that name, which may end the process.

    Raises:
        DeviceError: cuDNN is not installed.
        ValueError: a view is not aligned.
    """
    started = time.perf_counter()
    graph, refusal = _planned(kernel, reads, writes, target)
    if graph is None:
        return CudnnOffer((), 0, refusal)
    count = graph.get_execution_plan_count()
    wanted = [index for index in range(count) if graph.get_plan_name_at_index(index) not in without]
    order = sorted(wanted, key=lambda index: precompiled and _compiles(graph, index))
    plans: list[BuiltCudnnPlan] = []
    large: list[BuiltCudnnPlan] = []
    errors: list[Exception] = []

    def is_late(index: int) -> bool:
        late = deadline_s is not None and time.perf_counter() - started > deadline_s
        return late or (precompiled and _compiles(graph, index))

    for plan in _building(graph, order, trying, is_late, errors):
        (plans if plan.workspace_nbytes <= max_workspace_nbytes else large).append(plan)
        if at_most is not None and len(plans) >= at_most and enough(plans):
            break
    barred = sum(map(_is_barred, errors))
    if not plans and large:
        return CudnnOffer((min(large, key=attrgetter("workspace_nbytes")),), count - barred)
    reasons = [*map(first_line, errors)] or [refusal]
    return CudnnOffer(tuple(plans), count - barred, "" if plans else reasons[-1], tuple(plan.name for plan in large))


def _building(
    graph: Any,
    order: Sequence[int],
    trying: Callable[[str], AbstractContextManager[None]],
    is_late: Callable[[int], bool],
    errors: list[Exception],
) -> Iterator[BuiltCudnnPlan]:
    """Yields plans until it `is_late`, but at least one; failures are added to `errors`."""
    is_first = True
    for index in order:
        if not is_first and is_late(index):
            return
        try:
            with trying(graph.get_plan_name_at_index(index)):
                plan = _built(graph, index)
        except failures() as error:
            errors.append(error)
            continue
        is_first = False
        yield plan


def noted_cudnn_plans(
    kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget, notes: Sequence[str]
) -> Callable[[BuiltCudnnPlan], bool]:
    """A function that returns whether a plan has one of cuDNN's notes.

    The frontend bars plans by their notes but does not list these, so the kernel is planned again on first use.
    """

    @cache
    def barred() -> Any | None:
        return _planned(kernel, reads, writes, target, notes)[0]

    @cache
    def has_one(plan: BuiltCudnnPlan) -> bool:
        graph = barred()
        if graph is None:
            return True
        try:
            graph.build_plan_at_index(plan._index)
        except failures() as error:
            return _is_barred(error)
        return False

    return has_one


def rebuild_cudnn_plan(
    kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget, name: str
) -> BuiltCudnnPlan:
    """Builds the plan of that name.

    Raises:
        DeviceError: cuDNN does not offer it for the kernel on this GPU, or is not installed.
        ValueError: a view is not aligned.
    """
    graph, reason = _planned(kernel, reads, writes, target)
    names = [] if graph is None else [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]
    if name in names:
        try:
            return _built(graph, names.index(name))
        except failures() as error:
            reason = first_line(error)
    raise DeviceError(f"cuDNN cannot build plan {name!r} on this GPU ({reason or 'not offered'})")


def load_cudnn_plan(name: str, serialized: bytes, precision: Precision, target: CudnnTarget) -> BuiltCudnnPlan:
    """Loads a plan of `BuiltCudnnPlan.serialize`; store its name separately, a loaded graph crashes when asked for it.

    Raises:
        DeviceError: another cuDNN or GPU made the plan, or cuDNN is not installed.
    """
    graph = new_graph(precision, target)
    try:
        if isinstance(target, GpuDescription):
            graph.deserialize(list(serialized))
        else:
            graph.deserialize(target, list(serialized))
        return BuiltCudnnPlan(name, graph.get_workspace_size(), 0.0, graph, 0)
    except failures() as error:
        raise DeviceError(f"cannot load a stored cuDNN plan ({first_line(error)})") from error


def _described(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget) -> Any:
    graph = new_graph(kernel.precision, target)
    kernel.build(graph, reads, writes)
    return graph


def _planned(
    kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget, without: Sequence[str] = ()
) -> tuple[Any | None, str]:
    """The graph with its engine configurations, or None and the reason.

    Args:
        without: further notes of cuDNN's that bar plans.
    """
    cudnn = load_cudnn()
    graph = _described(kernel, reads, writes, target)
    names = (*_FORBIDDEN_EVERYWHERE, *_FORBIDDEN.get(kernel.precision.name, ()), *without)
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        _append(graph, kernel.precision)
        graph.deselect_numeric_notes([cudnn.numerical_note.__members__[name] for name in names])
        graph.check_support()
    except failures() as error:
        return None, first_line(error)
    return graph, ""


def _append(graph: Any, precision: Precision) -> None:
    """cuDNN raises an error if it does not have the engine; that plan is left out."""
    knobs = load_cudnn().knob_type
    named = {graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())}
    for name, (engine, tile, mode) in _APPENDED.get(precision.name, {}).items():
        if name not in named:
            with suppress(*failures()):
                graph.create_execution_plan(engine, {knobs.TILE_SIZE: tile, knobs.IDX_MODE: mode})


def _built(graph: Any, index: int) -> BuiltCudnnPlan:
    started = time.perf_counter()
    graph.build_plan_at_index(index)
    build_ms = (time.perf_counter() - started) * 1e3
    workspace_nbytes = int(graph.get_workspace_size_plan_at_index(index))
    return BuiltCudnnPlan(str(graph.get_plan_name_at_index(index)), workspace_nbytes, build_ms, graph, index)


def _compiles(graph: Any, index: int) -> bool:
    return load_cudnn().behavior_note.RUNTIME_COMPILATION in graph.get_behavior_notes_for_plan_at_index(index)


def _is_barred(error: Exception) -> bool:
    return "Deselecting" in str(error)


def failures() -> tuple[type[Exception], ...]:
    """Exception types of cuDNN for one failed engine, which must not end the search for others."""
    return (load_cudnn().cudnnGraphNotSupportedError, RuntimeError)
