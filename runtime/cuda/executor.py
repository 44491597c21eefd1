"""Runs a plan for streams on a GPU: launches on one stream for each lane, events for waits, all of it in CUDA graphs.

The whole network is one captured graph, unless operators run in onnxruntime: these divide it into several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cuda.driver import Driver, Memory
from iosched.runtime.cuda.kernel import CudnnKernel, Kernel, Pointer, SessionKernel, SourceKernel
from iosched.runtime.cuda.lanes import Lanes
from iosched.runtime.cuda.lower import Lowering
from iosched.runtime.order import happens_before
from iosched.runtime.plan import Space, Task, View

Launch = Callable[[Any], None]
"""Gives a stream its work."""


class CudnnPlan(Protocol):
    """A cuDNN execution plan that was built for the views of one task."""

    @property
    def workspace_nbytes(self) -> int:
        """Memory that it needs while it runs."""
        ...

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Gives the stream the work; `addresses` of (*reads, *writes)."""
        ...


class PlanChooser(Protocol):
    """Which plan runs a kernel on tensors as they lie."""

    @property
    def chosen(self) -> Mapping[str, str]:
        """The plans chosen so far, by what they were chosen for; as text that names them."""
        ...

    def __call__(self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> CudnnPlan:
        """The plan.

        Raises:
            DeviceError: there is none.
        """
        ...


@dataclass(frozen=True)
class _Segment:
    """Tasks between two of onnxruntime's: `(lane, step)` in an order that all waits allow; or one of onnxruntime's."""

    tasks: tuple[tuple[int, int], ...]
    is_session: bool


class CudaExecutor:
    """One lowering in the memory of one GPU, captured and ready to run."""

    def __init__(self, lowering: Lowering, driver: Driver, choose: PlanChooser, lanes: Lanes | None = None) -> None:
        """Allocates, uploads weights, loads kernels, runs once eagerly, and captures.

        Args:
            lanes: streams to run on, which may be others' too; its own by default.

        Raises:
            DeviceError: the device has not enough memory.
            ExecutionError: a kernel does not compile or fails.
        """
        self._plan, self._kernels, self._driver = lowering.plan, lowering.kernels, driver
        self._memory: list[Memory] = []
        self._many: dict[int, Any] = {}
        self._lanes = lanes or Lanes(driver)
        self._streams = self._lanes.streams(len(self._plan.lanes))
        self._origin = self._lanes.origin
        self._base = self._allocate(lowering)
        workspaces = [0] * len(self._plan.lanes)
        self._launches = self._prepared(choose, workspaces)
        self._segments = _segments(lowering)
        self._warm_up()
        self._graphs: list[Any] = [
            None if each.is_session else self._captured(each.tasks, 1) for each in self._segments
        ]

    @property
    def inputs(self) -> tuple[View, ...]:
        """What the caller gives, one view for each input buffer."""
        return self._plan.inputs

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self._segments

    @property
    def is_captured(self) -> bool:
        """Whether all of it is one CUDA graph."""
        return len(self._segments) == 1 and not self._segments[0].is_session

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; outputs by the names of the plan's output buffers."""
        self.upload(inputs)
        self.launch()
        return self.download()

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on the GPU, inputs uploaded before."""
        self.upload(inputs)
        return self.time_launches(repeats)

    def time_launches(self, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on what lies on the device."""
        return tuple(self._timed(self.launch) for _ in range(repeats))

    def time_many(self, repeats: int, copies: int) -> tuple[float, ...]:
        """Microseconds of one run, from `repeats` launches of a graph that holds `copies` runs one after another.

        A stage takes about as long as the launch of a graph; a graph of many shows the stage alone.

        Raises:
            ValueError: the plan `is_empty` or is not `is_captured`.
        """
        if self.is_empty or not self.is_captured:
            raise ValueError("there is nothing, or what runs in onnxruntime, which cannot be captured")
        if copies not in self._many:
            self._many[copies] = self._captured(self._segments[0].tasks, copies)
        graph = self._many[copies]
        return tuple(
            self._timed(lambda: self._driver.launch_graph(graph, self._origin)) / copies for _ in range(repeats)
        )

    def upload(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copies inputs to the device."""
        for view in self._plan.inputs:
            array = np.asarray(inputs[view.buffer], order="C")
            self._driver.upload(self._base[view.buffer], array, self._origin)
        self._driver.synchronize(self._origin)

    def download(self) -> dict[str, np.ndarray]:
        """Copies outputs from the device; outputs lie row-major."""
        found = {}
        for view in self._plan.outputs:
            array = np.empty(view.shape or (), view.dtype)
            self._driver.download(self._base[view.buffer], array, self._origin)
            found[view.buffer] = array
        return found

    def launch(self) -> None:
        """One run on what lies on the device; returns before it is done, but where onnxruntime has a part in it."""
        for segment, graph in zip(self._segments, self._graphs, strict=True):
            if graph is None:
                self._run_session(*segment.tasks[0])
            else:
                self._driver.launch_graph(graph, self._origin)

    def close(self) -> None:
        """Gives the memory and the graphs back, once nothing runs any more; what was given is not to be used again."""
        self._driver.synchronize(self._origin)
        self._graphs, self._many, self._launches, self._base = [], {}, {}, {}
        self._memory.clear()

    def poison(self) -> None:
        """Fills arena and outputs with bytes that are no number, so that what a run does not write is seen."""
        if self._plan.arena_nbytes:
            self._driver.fill(self._base[""], 0xFF, self._plan.arena_nbytes, self._origin)
        for buffer in self._plan.buffers:
            if buffer.space is Space.OUTPUT:
                self._driver.fill(self._base[buffer.name], 0xFF, buffer.nbytes, self._origin)
        self._driver.synchronize(self._origin)

    def _timed(self, launch: Callable[[], None]) -> float:
        start, end = self._driver.new_event(timing=True), self._driver.new_event(timing=True)
        self._driver.record(start, self._origin)
        launch()
        self._driver.record(end, self._origin)
        return self._driver.elapsed_us(start, end)

    def _allocate(self, lowering: Lowering) -> dict[str, int]:
        """Addresses of all buffers by name, and of the arena under ""."""
        arena = self._reserve(self._plan.arena_nbytes)
        found = {"": arena}
        for buffer in self._plan.buffers:
            if buffer.space is Space.ARENA:
                found[buffer.name] = arena + buffer.offset
                continue
            found[buffer.name] = self._reserve(buffer.nbytes)
            if buffer.space is Space.WEIGHT:
                self._driver.upload(found[buffer.name], lowering.weights[buffer.name], self._origin)
            else:
                self._driver.fill(found[buffer.name], 0, buffer.nbytes, self._origin)
        self._driver.synchronize(self._origin)
        return found

    def _reserve(self, nbytes: int) -> int:
        self._memory.append(self._driver.allocate(nbytes))
        return self._memory[-1].ptr

    def _workspace(self, lane: int, nbytes: int) -> int:
        self._memory.append(self._lanes.workspace(lane, nbytes))
        return self._memory[-1].ptr

    def _address(self, view: View) -> int:
        return self._base[view.buffer] + view.offset

    def _prepared(self, choose: PlanChooser, workspaces: list[int]) -> dict[tuple[int, int], Launch]:
        """What each task gives its lane's stream. Plans of one lane run one after another and share a workspace."""
        plans: dict[tuple[int, int], CudnnPlan] = {}
        for lane, tasks in enumerate(self._plan.lanes):
            for step, task in enumerate(tasks):
                kernel = self._kernels[task.kernel]
                if isinstance(kernel, CudnnKernel):
                    plans[lane, step] = choose(kernel, task.reads, task.writes)
                    workspaces[lane] = max(workspaces[lane], plans[lane, step].workspace_nbytes)
        addresses = [self._workspace(lane, nbytes) if nbytes else 0 for lane, nbytes in enumerate(workspaces)]
        found: dict[tuple[int, int], Launch] = {}
        for lane, tasks in enumerate(self._plan.lanes):
            for step, task in enumerate(tasks):
                kernel = self._kernels[task.kernel]
                if (lane, step) in plans:
                    found[lane, step] = self._cudnn_launch(plans[lane, step], task, addresses[lane])
                elif isinstance(kernel, SourceKernel):
                    found[lane, step] = self._source_launch(kernel, task)
        return found

    def _cudnn_launch(self, plan: CudnnPlan, task: Task, workspace: int) -> Launch:
        addresses = [self._address(view) for view in (*task.reads, *task.writes)]
        return lambda stream: plan.execute(addresses, workspace, stream)

    def _source_launch(self, kernel: SourceKernel, task: Task) -> Launch:
        call, driver = kernel.call(task.reads, task.writes), self._driver
        function = driver.load(call)
        views = (*task.reads, *task.writes)
        arguments = [self._address(views[each.index]) if isinstance(each, Pointer) else each for each in call.arguments]
        return lambda stream: driver.launch(function, call, arguments, stream)

    def _warm_up(self) -> None:
        """Every launch once on its own stream, one after another: what comes lazily cannot come in a capture.

        That is code of kernels, and cuDNN's handle of the stream.
        """
        for segment in self._segments:
            for lane, step in segment.tasks:
                if segment.is_session:
                    self._run_session(lane, step)
                    continue
                self._launches[lane, step](self._streams[lane])
                self._driver.synchronize(self._streams[lane])

    def _captured(self, tasks: Sequence[tuple[int, int]], copies: int) -> Any:
        """A graph of `copies` runs of `tasks`, one after another."""
        self._driver.begin_capture(self._origin)
        try:
            for _ in range(copies):
                self._fork_and_join(tasks)
            return self._driver.end_capture(self._origin)
        except BaseException:  # the next one to use the streams must not find them in a capture
            with suppress(DeviceError, ExecutionError):
                self._driver.end_capture(self._origin)
            self._lanes.discard()
            raise

    def _fork_and_join(self, tasks: Sequence[tuple[int, int]]) -> None:
        driver = self._driver
        inside = set(tasks)
        waits = {pair: [(w.lane, w.steps - 1) for w in self._task(*pair).waits] for pair in tasks}
        awaited = {pair for found in waits.values() for pair in found if pair in inside}
        events = {pair: driver.new_event() for pair in awaited}
        sides = sorted({lane for lane, _ in tasks if self._streams[lane] is not self._origin})
        fork = driver.new_event()
        driver.record(fork, self._origin)
        for lane in sides:
            driver.wait(self._streams[lane], fork)
        for pair in tasks:
            stream = self._streams[pair[0]]
            for before in waits[pair]:
                if before in inside:
                    driver.wait(stream, events[before])
            self._launches[pair](stream)
            if pair in awaited:
                driver.record(events[pair], stream)
        for lane in sides:
            join = driver.new_event()
            driver.record(join, self._streams[lane])
            driver.wait(self._origin, join)

    def _task(self, lane: int, step: int) -> Task:
        return self._plan.lanes[lane][step]

    def _run_session(self, lane: int, step: int) -> None:
        """Runs a task of onnxruntime on the CPU, on copies of what it reads."""
        task = self._task(lane, step)
        reads = [self._copied(view) for view in task.reads]
        writes = [np.empty(view.shape or (), view.dtype) for view in task.writes]
        self._kernels[task.kernel].interpret(reads, writes)
        for view, array in zip(task.writes, writes, strict=True):
            whole = self._whole(view)
            self._driver.download(self._base[view.buffer], whole, self._origin)
            _seen(whole, view)[...] = array
            self._driver.upload(self._base[view.buffer], whole, self._origin)
        self._driver.synchronize(self._origin)

    def _copied(self, view: View) -> np.ndarray:
        whole = self._whole(view)
        self._driver.download(self._base[view.buffer], whole, self._origin)
        return _seen(whole, view)

    def _whole(self, view: View) -> np.ndarray:
        """Bytes for all of the view's buffer."""
        nbytes = next(buffer.nbytes for buffer in self._plan.buffers if buffer.name == view.buffer)
        return np.empty(nbytes, np.uint8)


def _seen(whole: np.ndarray, view: View) -> np.ndarray:
    return np.ndarray(view.shape or (), view.dtype, whole.data, view.offset, view.strides)


def _segments(lowering: Lowering) -> list[_Segment]:
    """The tasks in an order that all waits allow, cut before and after those of onnxruntime."""
    order = happens_before(lowering.plan.lanes)
    place = [(lane, step) for lane, tasks in enumerate(lowering.plan.lanes) for step in range(len(tasks))]
    pairs = [place[number] for number in order.sequence]
    found: list[_Segment] = []
    current: list[tuple[int, int]] = []
    for pair in pairs:
        if not _runs_in_session(lowering.kernels, lowering.plan.lanes[pair[0]][pair[1]]):
            current.append(pair)
            continue
        if current:
            found.append(_Segment(tuple(current), is_session=False))
        found.append(_Segment((pair,), is_session=True))
        current = []
    return [*found, *([_Segment(tuple(current), is_session=False)] if current else [])]


def _runs_in_session(kernels: Sequence[Kernel], task: Task) -> bool:
    return isinstance(kernels[task.kernel], SessionKernel)
