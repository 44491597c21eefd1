"""Builds and names cuDNN's execution plans: one engine with its knobs for one kernel on tensors as they lie.

The same code runs at a desk, with the description of a GPU, and on the GPU, with a handle.

Developer notes:
    * A plan is known by cuDNN's own name for it ("eng44_k2=12_k18=0": engine 44, knob 2 is 12). The frontend's
      `get_engine_and_knobs_at_index` calls every knob that it does not know NOT_SET, which `create_execution_plan` does
      not take: one plan in eight cannot be built again that way. A name says all of that, is known before the plan is
      built, and listing the names takes milliseconds.
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
from iosched.runtime.cuda.cudnn.graph import new_graph
from iosched.runtime.cuda.cudnn.target import CudnnTarget, GpuDescription, load_cudnn
from iosched.runtime.cuda.gpu.failures import first_line
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.plan import View

_FORBIDDEN_EVERYWHERE = ("REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD_TILE_13x13")
_FORBIDDEN = {"fp32": ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")}

_APPENDED = {"fp32": {f"eng44_k2={tile}_k18={mode}": (44, tile, mode) for tile, mode in ((12, 0), (12, 1), (4, 0))}}
"""Plans, with engine, size of tile and way of indexing, that are asked for where cuDNN's heuristics do not name them.

Engine 44 is the only tuned one of newer GPUs for strict float32, and versions after 9.19 name it ever more seldom.
"""

TRANSFORMS = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6")
TENSOR_CORES = ("TENSOR_CORE",)


@dataclass(frozen=True, eq=False)
class BuiltCudnnPlan:
    """A plan that is ready to run.

    Attributes:
        name: cuDNN's own name for it: the engine and its knobs.
        workspace_nbytes: memory that a run needs beside the tensors.
        build_ms: how long building took; 0 for one that was loaded.
    """

    name: str
    workspace_nbytes: int
    build_ms: float
    _graph: Any
    _index: int

    def execute(self, addresses: Sequence[int], workspace: int, handle: Any) -> None:
        """Enqueues the kernel on the handle's stream.

        Args:
            addresses: of (*reads, *writes), in order.
            workspace: address of `workspace_nbytes` bytes.
        """
        tensors = dict(enumerate(addresses, start=1))
        self._graph.execute_plan_at_index(tensors, workspace, self._index, handle=handle)

    def serialize(self) -> bytes:
        """The built plan, some 5 KB, for `load_cudnn_plan` with the same cuDNN and GPU."""
        if self._graph.get_execution_plan_count() > 1:
            self._graph.build_plan_at_index(self._index)  # a graph serializes the plan that was built last
        return bytes(self._graph.serialize())


@dataclass(frozen=True, eq=False)
class CudnnOffer:
    """What cuDNN has for one kernel.

    Attributes:
        plans: those that were built, cuDNN's best guess first.
        offered: how many engine configurations the precision allows, built or not.
        refusal: why there are none; "" where there are.
        large: names of plans that were built, and left out since others need less memory.
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
    most_workspace_nbytes: float = math.inf,
    trying: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> CudnnOffer:
    """Builds the plans that cuDNN offers under the kernel's precision.

    A build cannot be interrupted: after `deadline_s` no other one is begun, unless nothing is built yet.

    Args:
        target: a `GpuDescription`, or the handle of an attached GPU.
        at_most: number of plans.
        enough: whether these are enough; if not, more are built, one by one.
        precompiled: leaves out engines that cuDNN compiles now, a second or more each, where there are others.
        without: names of plans that are not to be built.
        most_workspace_nbytes: leaves out plans that need more memory beside the tensors; where all do, the one that
            needs least is offered.
        trying: held while the plan of that name is built, which may end the process.

    Raises:
        DeviceError: cuDNN is not installed.
        ValueError: cuDNN cannot be given the address of a view.
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
        (plans if plan.workspace_nbytes <= most_workspace_nbytes else large).append(plan)
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
    """Builds one after another, until it `is_late` for the next, but one at least; what fails adds to `errors`."""
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
    """What tells whether a plan of the kernel has one of these notes of cuDNN's; it plans the kernel again when asked.

    The frontend bars plans by their notes and does not tell them.
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
    """Builds the one plan of that name.

    Raises:
        DeviceError: this cuDNN has no such plan for the kernel on this GPU, or is not installed.
        ValueError: cuDNN cannot be given the address of a view.
    """
    graph, reason = _planned(kernel, reads, writes, target)
    names = [] if graph is None else [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]
    if name in names:
        try:
            return _built(graph, names.index(name))
        except failures() as error:
            reason = first_line(error)
    raise DeviceError(f"cuDNN cannot build its plan {name!r} here ({reason or 'it offers others'})")


def load_cudnn_plan(name: str, serialized: bytes, precision: Precision, target: CudnnTarget) -> BuiltCudnnPlan:
    """The plan of `BuiltCudnnPlan.serialize`; keep its name beside it, since a loaded graph crashes when asked for it.

    Raises:
        DeviceError: it was made by another cuDNN or for another GPU, or cuDNN is not installed.
    """
    graph = new_graph(precision, target)
    try:
        if isinstance(target, GpuDescription):
            graph.deserialize(list(serialized))
        else:
            graph.deserialize(target, list(serialized))
        return BuiltCudnnPlan(name, graph.get_workspace_size(), 0.0, graph, 0)
    except failures() as error:
        raise DeviceError(f"a stored cuDNN plan cannot be loaded here ({first_line(error)})") from error


def _described(kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget) -> Any:
    graph = new_graph(kernel.precision, target)
    kernel.build(graph, reads, writes)
    return graph


def _planned(
    kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget, without: Sequence[str] = ()
) -> tuple[Any | None, str]:
    """The graph with all of its engine configurations, or None and the reason why there are none.

    Args:
        without: notes of cuDNN's; plans that have one cannot be built, beside those that the precision forbids.
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
    """Puts plans behind those that cuDNN names; where it has no such engine, it says so, and they are left out."""
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
    """Whether building the plan compiles its kernel."""
    return load_cudnn().behavior_note.RUNTIME_COMPILATION in graph.get_behavior_notes_for_plan_at_index(index)


def _is_barred(error: Exception) -> bool:
    """Whether it is for its notes that cuDNN's frontend did not build a plan."""
    return "Deselecting" in str(error)


def failures() -> tuple[type[Exception], ...]:
    """What cuDNN raises where it cannot: one engine that fails must not end the search for another."""
    return (load_cudnn().cudnnGraphNotSupportedError, RuntimeError)
