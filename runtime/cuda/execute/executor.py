"""Runs a plan for streams on a GPU: launches on one stream for each lane, events for waits, all of it in CUDA graphs.

The whole network is one captured graph, unless operators run in onnxruntime: these divide it into several.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlan, CudnnPlanChooser, CudnnPlanNames
from iosched.runtime.cuda.execute.buffers import DeviceBuffers
from iosched.runtime.cuda.execute.cold import ColdWeights, cold_weights, displacing_nbytes
from iosched.runtime.cuda.execute.launches import Launch, Prepared, cudnn_launch, session_launch, source_launch
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import Lanes, settled
from iosched.runtime.cuda.gpu.timing import between, elapsed_in_a_row_us, elapsed_us
from iosched.runtime.cuda.kernel import CudnnKernel, Kernel, SessionKernel, SourceKernel
from iosched.runtime.cuda.lower.plan import Lowering
from iosched.runtime.cuda.onnxruntime.sessions import Home, HostSessions, SessionRun, Sessions
from iosched.runtime.hazards import happens_before
from iosched.runtime.plan import Task, View

ADDRESSES_KEPT = 4
"""Sets of addresses of inputs for which a model stays captured."""


@dataclass(frozen=True)
class _Ready:
    """Launches with their addresses, and the graphs captured of them: one for each segment, None for onnxruntime's."""

    launches: Mapping[tuple[int, int], Launch]
    graphs: tuple[Any, ...]


class CudaExecutor:
    """One lowering in the memory of one GPU, captured and ready to run.

    Attributes:
        cudnn_plans: the cuDNN plans that it runs, each with the number of its stage.
    """

    cudnn_plans: tuple[tuple[int, CudnnPlan], ...]
    _prepared: dict[tuple[int, int], Prepared]

    def __init__(
        self,
        lowering: Lowering,
        driver: Driver,
        choose: CudnnPlanChooser,
        lanes: Lanes | None = None,
        sessions: Sessions | None = None,
        names: Sequence[CudnnPlanNames] = (),
        model_nbytes: int = 0,
    ) -> None:
        """Allocates, uploads weights, loads kernels, runs once eagerly, and captures.

        Args:
            lanes: streams to run on, which other executors may share; by default its own.
            sessions: runs operators that no kernel does; by default onnxruntime on the CPU.
            names: the cuDNN plans to take in each stage of the lowering; by default the fastest alone.
            model_nbytes: that a run of the model touches which the lowering is a stage of; see `cold`.

        Raises:
            DeviceError: the device has not enough memory, or onnxruntime is wanted and not installed.
            ExecutionError: a kernel does not compile or fails.
        """
        self._plan, self._kernels, self._driver = lowering.plan, lowering.kernels, driver
        self._many: dict[int, Callable[[int], tuple[float, ...]]] = {}
        self._displacing_nbytes = displacing_nbytes(model_nbytes, driver.l2_nbytes)
        self._cold: dict[int, ColdWeights | None] = {}
        self._lanes = lanes or Lanes(driver)
        self._streams = self._lanes.streams(len(self._plan.lanes))
        self._origin = self._lanes.origin
        self._buffers = DeviceBuffers(lowering, driver, self._origin)
        # One that is dropped while it runs, as with a caller's stream, keeps its memory until that is done. In a cycle
        # of garbage, `__del__` may come after that of CuPy's stream, which destroys it; this keeps the stream.
        self._settle = weakref.finalize(self, _settle, driver, self._origin)
        self._settle.atexit = False
        self._choose, self._sessions = choose, sessions or HostSessions(driver)
        self._segments = segments(lowering)
        self._elsewhere: dict[tuple[tuple[str, int], ...], _Ready] = {}
        self.take_cudnn_plans(names)

    @property
    def inputs(self) -> tuple[View, ...]:
        """What the caller gives, one view for each input buffer."""
        return self._plan.inputs

    @property
    def outputs(self) -> tuple[View, ...]:
        """What the caller gets, one view for each output."""
        return self._plan.outputs

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self._segments

    @property
    def kernel_count(self) -> int:
        """Kernel launches of one run."""
        return len(self._plan.tasks)

    @property
    def graphs(self) -> tuple[Any, ...]:
        """What was captured, one graph of the driver's for each stretch that onnxruntime does not run."""
        return tuple(graph for graph in self._own.graphs if graph is not None)

    @property
    def is_captured(self) -> bool:
        """Whether the whole plan is one CUDA graph, with nothing run by onnxruntime."""
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
        """Microseconds of each of `repeats` runs in a row on what lies on the device.

        The first finds the GPU idle, so that what the host takes for the launch counts; for the others it is ahead.
        """
        return tuple(elapsed_in_a_row_us(self._driver, self._origin, self.launch, repeats))

    def time_many(self, repeats: int, copies: int) -> tuple[float, ...]:
        """Microseconds of one run, from `repeats` launches of a graph that holds `copies` runs one after another.

        A stage takes about as long as the launch of a graph; a graph of many shows the stage alone. Its weights are
        where a run of the whole model finds them: see `cold`.

        Raises:
            DeviceError: the device has not enough memory.
            ValueError: the plan `is_empty` or is not `is_captured`.
        """
        if copies not in self._many:
            self._many[copies] = self.repeated(copies)
        return self._many[copies](repeats)

    def repeated(self, copies: int) -> Callable[[int], tuple[float, ...]]:
        """`time_many` of that many copies, with the cuDNN plans of now, whatever is taken later.

        Raises:
            DeviceError: the device has not enough memory.
            ValueError: the plan `is_empty` or is not `is_captured`.
        """
        if self.is_empty or not self.is_captured:
            raise ValueError("there is nothing, or what runs in onnxruntime, which cannot be captured")
        if copies not in self._cold:
            self._cold[copies] = self._cold_weights(copies)
        cold, own = self._cold[copies], self._own
        runs, before = [own.launches] * copies, None
        if cold is not None:
            in_turn = [self._launches_at({**self._buffers.addresses, **place}) for place in cold.places]
            runs = [*islice(cycle(in_turn), copies)]
            before = partial(_displaced, self._driver, self._origin, cold, own.graphs[0])
        graph = self._captured(self._segments[0].tasks, runs)
        # Kept here, so it must not refer to this.
        return partial(_timed, self._driver, self._origin, graph, copies, before)

    def _cold_weights(self, runs: int) -> ColdWeights | None:
        if not self._displacing_nbytes:
            return None
        addresses, nbytes = self._buffers.addresses, self._displacing_nbytes
        return cold_weights(self._plan, addresses, nbytes, runs, self._driver, self._origin)

    def upload(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copies inputs to the device."""
        self._buffers.upload(inputs, self._origin)

    def download(self) -> dict[str, np.ndarray]:
        """Copies outputs from the device; outputs lie row-major."""
        return self._buffers.download(self._origin)

    def launch(self) -> None:
        """One run on what lies on the device; may return before it is done."""
        self._launch(self._own)

    def launch_at(self, addresses: Mapping[str, int]) -> None:
        """One run on inputs that lie elsewhere on the device: multiples of 16 bytes, by the names of their buffers.

        The plan is captured again unless one of the last few runs was on the same addresses.
        """
        self._launch(self._ready_at(tuple(sorted(addresses.items()))) if addresses else self._own)

    @property
    def driver(self) -> Driver:
        """The driver of the GPU that the plan runs on."""
        return self._driver

    @property
    def origin(self) -> Any:
        """The stream that runs are enqueued on: what it is given later comes after them."""
        return self._origin

    def address_of(self, buffer: str) -> int:
        """The address of an input or output buffer."""
        return self._buffers.addresses[buffer]

    def memory_of(self, buffer: str) -> Memory:
        """The memory of an input or output buffer; the buffer lives as long as somebody refers to it."""
        return self._buffers.memory_of(buffer)

    @property
    def homes(self) -> Mapping[str, Home]:
        """Where onnxruntime runs the operators that no kernel does, by name."""
        pairs = [segment.tasks[0] for segment in self._segments if segment.is_session]
        runs = [(self._task(*pair).name, self._own.launches[pair]) for pair in pairs]
        return {name: run.home for name, run in runs if isinstance(run, SessionRun)}

    def time_sessions(self) -> tuple[float, float]:
        """Microseconds of one run on what lies on the device: in onnxruntime, and in all."""
        spent: list[tuple[Any, Any]] = []

        def launch() -> None:
            for segment, graph in zip(self._segments, self._own.graphs, strict=True):
                launching = partial(self._launch_segment, self._own, segment, graph)
                events = between(self._driver, self._origin, launching)
                if segment.is_session:
                    spent.append(events)

        total_us = elapsed_us(self._driver, self._origin, launch)
        return sum(self._driver.elapsed_us(*events) for events in spent), total_us

    def _launch(self, ready: _Ready) -> None:
        for segment, graph in zip(self._segments, ready.graphs, strict=True):
            self._launch_segment(ready, segment, graph)

    def _launch_segment(self, ready: _Ready, segment: Segment, graph: Any) -> None:
        if segment.is_session:
            ready.launches[segment.tasks[0]](self._origin)
        else:
            self._driver.launch_graph(graph, self._origin)

    def close(self) -> None:
        """Gives the memory and the graphs back, once nothing runs; arrays given out are invalid."""
        self._driver.synchronize(self._origin)
        self._settle.detach()
        self._own, self._segments, self._prepared, self.cudnn_plans = _Ready({}, ()), [], {}, ()
        self._many, self._cold = {}, {}
        self._elsewhere.clear()
        self._buffers.close()

    def poison(self) -> None:
        """Fills arena and outputs with bytes that are no number, so that what a run does not write is seen."""
        self._buffers.poison(self._origin)

    def _workspace(self, lane: int, nbytes: int) -> int:
        return self._buffers.keep(self._lanes.workspace(lane, nbytes))

    def take_cudnn_plans(self, names: Sequence[CudnnPlanNames]) -> None:
        """From now on runs with these cuDNN plans, given for each stage, and with the fastest alone for all other keys.

        Raises:
            DeviceError: the device has not enough memory.
            ExecutionError: a kernel does not compile or fails.
        """
        self._streams = self._lanes.streams(len(self._plan.lanes))
        self._origin = self._lanes.origin
        with settled(self._driver, {*self._streams, self._origin}):
            cudnn_plans = self._chosen(names)
            self._prepared = self._prepare(cudnn_plans)
            launches = self._launches_at(self._buffers.addresses)
            self._warm_up(launches)
            self._own = self._ready(launches)
        self._many.clear()
        self._elsewhere.clear()
        self.cudnn_plans = tuple((self._task(*pair).stage, plan) for pair, plan in cudnn_plans.items())

    def _chosen(self, names: Sequence[CudnnPlanNames]) -> dict[tuple[int, int], CudnnPlan]:
        found = {}
        for lane, tasks in enumerate(self._plan.lanes):
            for step, task in enumerate(tasks):
                kernel = self._kernels[task.kernel]
                if isinstance(kernel, CudnnKernel):
                    own = names[task.stage] if names else FASTEST_ALONE
                    found[lane, step] = self._choose(kernel, task.reads, task.writes, own)
        return found

    def _prepare(self, cudnn_plans: Mapping[tuple[int, int], CudnnPlan]) -> dict[tuple[int, int], Prepared]:
        """What each task gives its lane's stream. Plans of one lane run one after another and share a workspace."""
        workspaces = [0] * len(self._plan.lanes)
        for (lane, _), plan in cudnn_plans.items():
            workspaces[lane] = max(workspaces[lane], plan.workspace_nbytes)
        addresses = [self._workspace(lane, nbytes) if nbytes else 0 for lane, nbytes in enumerate(workspaces)]
        found: dict[tuple[int, int], Prepared] = {}
        for lane, tasks in enumerate(self._plan.lanes):
            for step, task in enumerate(tasks):
                kernel = self._kernels[task.kernel]
                if (lane, step) in cudnn_plans:
                    found[lane, step] = cudnn_launch(cudnn_plans[lane, step], task, addresses[lane])
                elif isinstance(kernel, SourceKernel):
                    found[lane, step] = source_launch(kernel, task, self._driver)
                elif isinstance(kernel, SessionKernel):
                    found[lane, step] = session_launch(kernel, task, self._sessions, self._origin)
        return found

    def _launches_at(self, base: Mapping[str, int]) -> dict[tuple[int, int], Launch]:
        return {pair: prepared(base) for pair, prepared in self._prepared.items()}

    def _ready(self, launches: Mapping[tuple[int, int], Launch]) -> _Ready:
        graphs = (None if each.is_session else self._captured(each.tasks, [launches]) for each in self._segments)
        return _Ready(launches, tuple(graphs))

    def _ready_at(self, addresses: tuple[tuple[str, int], ...]) -> _Ready:
        """For inputs at these addresses; kept for the last few. No `lru_cache` of a method: that would be a cycle."""
        ready = self._elsewhere.pop(addresses, None)
        if ready is None:
            self._driver.synchronize(self._origin)
            ready = self._ready(self._launches_at({**self._buffers.addresses, **dict(addresses)}))
        self._elsewhere[addresses] = ready
        if len(self._elsewhere) > ADDRESSES_KEPT:
            del self._elsewhere[next(iter(self._elsewhere))]
        return ready

    def _warm_up(self, launches: Mapping[tuple[int, int], Launch]) -> None:
        """Every launch once on its own stream, one after another: what comes lazily cannot come in a capture.

        That is code of kernels, and cuDNN's handle of the stream.
        """
        for segment in self._segments:
            for lane, step in segment.tasks:
                stream = self._origin if segment.is_session else self._streams[lane]
                launches[lane, step](stream)
                self._driver.synchronize(stream)

    def _captured(self, tasks: Sequence[tuple[int, int]], runs: Sequence[Mapping[tuple[int, int], Launch]]) -> Any:
        """A graph of several runs of `tasks`, one after another, each by launches of its own."""

        def launch() -> None:
            for launches in runs:
                self._fork_and_join(tasks, launches)

        return self._lanes.capture(self._origin, launch)

    def _fork_and_join(self, tasks: Sequence[tuple[int, int]], launches: Mapping[tuple[int, int], Launch]) -> None:
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
            launches[pair](stream)
            if pair in awaited:
                driver.record(events[pair], stream)
        for lane in sides:
            join = driver.new_event()
            driver.record(join, self._streams[lane])
            driver.wait(self._origin, join)

    def _task(self, lane: int, step: int) -> Task:
        return self._plan.lanes[lane][step]


def _timed(
    driver: Driver, stream: Any, graph: Any, copies: int, before: Callable[[], None] | None, repeats: int
) -> tuple[float, ...]:
    """Microseconds of one of the `copies` runs in `graph`, from each of `repeats` launches, with `before` untimed."""
    found = elapsed_in_a_row_us(driver, stream, lambda: driver.launch_graph(graph, stream), repeats, before)
    return tuple(latency / copies for latency in found)


def _settle(driver: Driver, stream: Any) -> None:
    with suppress(Exception):  # nobody is there to whom it could be told
        driver.synchronize(stream)


def _displaced(driver: Driver, stream: Any, cold: ColdWeights, graph: Any) -> None:
    """Copies of weights are in L2 no more, and what the runs in `graph` read and write beside weights is."""
    cold.displace(stream)
    driver.launch_graph(graph, stream)


@dataclass(frozen=True)
class Segment:
    """Tasks between two of onnxruntime's: `(lane, step)` in an order that all waits allow; or one of onnxruntime's."""

    tasks: tuple[tuple[int, int], ...]
    is_session: bool


def segments(lowering: Lowering) -> list[Segment]:
    """The tasks in an order that all waits allow, cut before and after those of onnxruntime."""
    order = happens_before(lowering.plan.lanes)
    place = [(lane, step) for lane, tasks in enumerate(lowering.plan.lanes) for step in range(len(tasks))]
    pairs = [place[number] for number in order.sequence]
    found: list[Segment] = []
    current: list[tuple[int, int]] = []
    for pair in pairs:
        if not _runs_in_session(lowering.kernels, lowering.plan.lanes[pair[0]][pair[1]]):
            current.append(pair)
            continue
        if current:
            found.append(Segment(tuple(current), is_session=False))
        found.append(Segment((pair,), is_session=True))
        current = []
    return [*found, *([Segment(tuple(current), is_session=False)] if current else [])]


def _runs_in_session(kernels: Sequence[Kernel], task: Task) -> bool:
    return isinstance(kernels[task.kernel], SessionKernel)
