"""Runs a plan on a GPU: a stream for each lane, events for waits, all captured in CUDA graphs.

The network is one graph; operators in onnxruntime divide it into several.
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
from iosched.runtime.cuda.execute.buffers import DeviceBuffers, FlushedWeights, flush_nbytes, flushed_weights
from iosched.runtime.cuda.execute.launch_order import order_by_demand
from iosched.runtime.cuda.execute.launches import Launch, Prepared, cudnn_launch, session_launch, source_launch
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import Lanes, elapsed_each_us, elapsed_us, recorded_events, synchronized_on_error
from iosched.runtime.cuda.kernel import CudnnKernel, JoinNode, SessionKernel, SourceKernel
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.cuda.onnxruntime.sessions import HostSessions, SessionDevice, SessionRun, Sessions
from iosched.runtime.hazards import happens_before
from iosched.runtime.plan import PlanTask, View

MAX_RECAPTURES = 4
"""Sets of input addresses for which a model stays captured."""


@dataclass(frozen=True)
class _Ready:
    """Launches with addresses, and a captured graph for each segment (None for onnxruntime's)."""

    launches: Mapping[tuple[int, int], Launch]
    graphs: tuple[Any, ...]


class CudaExecutor:
    """A lowering in the memory of one GPU, captured and ready to run.

    Attributes:
        cudnn_plans: the cuDNN plans with their stage numbers.
        kernel_count: kernel launches of one run.
    """

    cudnn_plans: tuple[tuple[int, CudnnPlan], ...]
    _prepared: dict[tuple[int, int], Prepared]
    _buffers: DeviceBuffers

    def __init__(
        self,
        lowering: Lowering,
        driver: Driver,
        choose: CudnnPlanChooser,
        lanes: Lanes | None = None,
        sessions: Sessions | None = None,
        names: Sequence[CudnnPlanNames] = (),
        model_nbytes: int = 0,
        weights_of: CudaExecutor | None = None,
    ) -> None:
        """Allocates, uploads weights, loads kernels, runs once eagerly, and captures.

        Args:
            lanes: streams that other executors may share.
            sessions: runs operators without a kernel; by default onnxruntime on the CPU.
            names: cuDNN plans for each stage; by default the fastest alone.
            model_nbytes: touched by a run of the model that contains this stage; see `buffers`.
            weights_of: an open executor of the same lowering, whose weights this one shares.

        Raises:
            DeviceError: the GPU is out of memory, or onnxruntime is needed and not installed.
            ExecutionError: a kernel does not compile or fails.
        """
        self._plan, self._kernels, self._driver = lowering.plan, lowering.kernels, driver
        self.kernel_count = lowering.kernel_count
        self._many: dict[int, Callable[[int], tuple[float, ...]]] = {}
        self._flush_nbytes = flush_nbytes(model_nbytes, driver.l2_nbytes)
        self._flushed: dict[int, FlushedWeights | None] = {}
        self._lanes = lanes or Lanes(driver)
        self._streams = self._lanes.streams(len(self._plan.lanes))
        self._origin = self._lanes.origin
        shared = None if weights_of is None else weights_of._buffers
        self._buffers = DeviceBuffers(lowering, driver, self._origin, shared)
        # An executor dropped during a run (on a caller's stream) must synchronize before its memory is freed. Not by
        # `__del__`: in a garbage cycle CuPy's stream may be destroyed first.
        self._finalizer = weakref.finalize(self, _synchronize_quietly, driver, self._origin)
        self._finalizer.atexit = False
        self._choose, self._sessions = choose, sessions or HostSessions(driver)
        self._segments = segments(lowering)
        self._recaptured: dict[tuple[tuple[str, int], ...], _Ready] = {}
        self.take_cudnn_plans(names)

    @property
    def inputs(self) -> tuple[View, ...]:
        """One view for each input buffer."""
        return self._plan.inputs

    @property
    def outputs(self) -> tuple[View, ...]:
        """One view for each output."""
        return self._plan.outputs

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no tasks."""
        return not self._segments

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The captured graphs of the segments."""
        return tuple(graph for graph in self._own.graphs if graph is not None)

    @property
    def is_captured(self) -> bool:
        """Whether the whole plan is one CUDA graph."""
        return len(self._segments) == 1 and not self._segments[0].is_session

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; outputs by buffer name."""
        self.upload(inputs)
        self.launch()
        return self.download()

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs on the GPU, without copying inputs."""
        self.upload(inputs)
        return self.time_launches(repeats)

    def time_launches(self, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` consecutive runs; only the first waits for the host."""
        return tuple(elapsed_each_us(self._driver, self._origin, self.launch, repeats))

    def time_many(self, repeats: int, copies: int) -> tuple[float, ...]:
        """Microseconds of one run, from `repeats` launches of a graph of `copies` runs.

        A launch takes about as long as a stage; a graph of many runs hides it. Weights are in L2 only if they are there
        in the whole model too; see `buffers`.

        Raises:
            DeviceError: the GPU is out of memory.
            ValueError: the plan `is_empty` or is not `is_captured`.
        """
        if copies not in self._many:
            self._many[copies] = self.repeated(copies)
        return self._many[copies](repeats)

    def repeated(self, copies: int) -> Callable[[int], tuple[float, ...]]:
        """`time_many` with `copies` and the current cuDNN plans, even if other plans are taken later.

        Raises:
            DeviceError: the GPU is out of memory.
            ValueError: the plan `is_empty` or is not `is_captured`.
        """
        if self.is_empty or not self.is_captured:
            raise ValueError("the plan is empty, or runs operators in onnxruntime, which CUDA graphs cannot capture")
        if copies not in self._flushed:
            self._flushed[copies] = self._flushed_weights(copies)
        flushed, own = self._flushed[copies], self._own
        runs, before = [own.launches] * copies, None
        if flushed is not None:
            rotation = [self._launches_at({**self._buffers.addresses, **place}) for place in flushed.addresses]
            runs = [*islice(cycle(rotation), copies)]
            before = partial(_flush_cache, self._driver, self._origin, flushed, own.graphs[0])
        graph = self._captured(self._segments[0].tasks, runs)
        # No reference to self: it is cached in self.
        return partial(_timed, self._driver, self._origin, graph, copies, before)

    def _flushed_weights(self, runs: int) -> FlushedWeights | None:
        if not self._flush_nbytes:
            return None
        addresses, nbytes = self._buffers.addresses, self._flush_nbytes
        return flushed_weights(self._plan, addresses, nbytes, runs, self._driver, self._origin)

    def upload(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copies inputs to the GPU."""
        self._buffers.upload(inputs, self._origin)

    def download(self) -> dict[str, np.ndarray]:
        """Copies row-major outputs from the GPU."""
        return self._buffers.download(self._origin)

    def launch(self) -> None:
        """Enqueues one run on the current inputs."""
        self._launch(self._own)

    def launch_at(self, addresses: Mapping[str, int]) -> None:
        """Enqueues one run on inputs at other addresses (multiples of 16 bytes), by buffer name.

        The plan is captured again unless one of the last few runs had the same addresses.
        """
        self._launch(self._ready_at(tuple(sorted(addresses.items()))) if addresses else self._own)

    @property
    def driver(self) -> Driver:
        """The GPU's driver."""
        return self._driver

    @property
    def origin(self) -> Any:
        """The stream that runs are enqueued on."""
        return self._origin

    def address_of(self, buffer: str) -> int:
        """Address of an input or output buffer."""
        return self._buffers.addresses[buffer]

    def memory_of(self, buffer: str) -> Memory:
        """Memory of an input or output buffer; a reference keeps the buffer alive."""
        return self._buffers.memory_of(buffer)

    @property
    def session_devices(self) -> Mapping[str, SessionDevice]:
        """Where onnxruntime runs the operators without a kernel, by name."""
        pairs = [segment.tasks[0] for segment in self._segments if segment.is_session]
        runs = [(self._task(*pair).name, self._own.launches[pair]) for pair in pairs]
        return {name: run.runs_on for name, run in runs if isinstance(run, SessionRun)}

    def time_sessions(self) -> tuple[float, float]:
        """Microseconds of one run: in onnxruntime, and in total."""
        spent: list[tuple[Any, Any]] = []

        def launch() -> None:
            for segment, graph in zip(self._segments, self._own.graphs, strict=True):
                launching = partial(self._launch_segment, self._own, segment, graph)
                events = recorded_events(self._driver, self._origin, launching)
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
        """Frees memory and graphs after the last run; exported arrays become invalid."""
        self._driver.synchronize(self._origin)
        self._finalizer.detach()
        self._own, self._segments, self._prepared, self.cudnn_plans = _Ready({}, ()), [], {}, ()
        self._many, self._flushed = {}, {}
        self._recaptured.clear()
        self._buffers.close()

    def poison(self) -> None:
        """Fills arena and outputs with NaN, so that missing writes are visible."""
        self._buffers.poison(self._origin)

    def _workspace(self, lane: int, nbytes: int) -> int:
        return self._buffers.keep(self._lanes.workspace(lane, nbytes))

    def take_cudnn_plans(self, names: Sequence[CudnnPlanNames]) -> None:
        """Switches to these cuDNN plans for each stage, and to the fastest alone for other keys.

        Raises:
            DeviceError: the GPU is out of memory.
            ExecutionError: a kernel does not compile or fails.
        """
        self._streams = self._lanes.streams(len(self._plan.lanes))
        self._origin = self._lanes.origin
        with synchronized_on_error(self._driver, {*self._streams, self._origin}):
            cudnn_plans = self._chosen(names)
            self._prepared = self._prepare(cudnn_plans)
            launches = self._launches_at(self._buffers.addresses)
            self._warm_up(launches)
            self._own = self._ready(launches)
        self._many.clear()
        self._recaptured.clear()
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
        """Plans of one lane run one after another and share a workspace."""
        join, streams = self._driver.join, self._streams  # no reference to self
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
                elif isinstance(kernel, JoinNode):
                    found[lane, step] = lambda base: lambda stream: join(streams)
        return found

    def _launches_at(self, base: Mapping[str, int]) -> dict[tuple[int, int], Launch]:
        return {pair: prepared(base) for pair, prepared in self._prepared.items()}

    def _ready(self, launches: Mapping[tuple[int, int], Launch]) -> _Ready:
        graphs = (None if each.is_session else self._captured(each.tasks, [launches]) for each in self._segments)
        return _Ready(launches, tuple(graphs))

    def _ready_at(self, addresses: tuple[tuple[str, int], ...]) -> _Ready:
        """Not an `lru_cache`, which would be a reference cycle on a method."""
        ready = self._recaptured.pop(addresses, None)
        if ready is None:
            self._driver.synchronize(self._origin)
            ready = self._ready(self._launches_at({**self._buffers.addresses, **dict(addresses)}))
        self._recaptured[addresses] = ready
        if len(self._recaptured) > MAX_RECAPTURES:
            del self._recaptured[next(iter(self._recaptured))]
        return ready

    def _warm_up(self, launches: Mapping[tuple[int, int], Launch]) -> None:
        """Runs every task once on its stream: kernel code and cuDNN handles cannot be loaded during a capture."""
        for segment in self._segments:
            for lane, step in segment.tasks:
                stream = self._origin if segment.is_session else self._streams[lane]
                launches[lane, step](stream)
                self._driver.synchronize(stream)

    def _captured(self, tasks: Sequence[tuple[int, int]], runs: Sequence[Mapping[tuple[int, int], Launch]]) -> Any:
        def launch() -> None:
            for launches in runs:
                if len(self._streams) > 2:
                    self._driver.join(self._streams)  # as between stages
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

    def _task(self, lane: int, step: int) -> PlanTask:
        return self._plan.lanes[lane][step]


def _timed(
    driver: Driver, stream: Any, graph: Any, copies: int, before: Callable[[], None] | None, repeats: int
) -> tuple[float, ...]:
    found = elapsed_each_us(driver, stream, lambda: driver.launch_graph(graph, stream), repeats, before)
    return tuple(latency / copies for latency in found)


def _synchronize_quietly(driver: Driver, stream: Any) -> None:
    with suppress(Exception):  # finalizers cannot report errors
        driver.synchronize(stream)


def _flush_cache(driver: Driver, stream: Any, flushed: FlushedWeights, graph: Any) -> None:
    """Flushes the weight copies from L2, then runs `graph` once to bring inputs back."""
    flushed.flush(stream)
    driver.launch_graph(graph, stream)


@dataclass(frozen=True)
class Segment:
    """A sequence of tasks `(lane, step)` that is captured together, or one task of onnxruntime."""

    tasks: tuple[tuple[int, int], ...]
    is_session: bool


def segments(lowering: Lowering) -> list[Segment]:
    """The tasks in an order that satisfies all waits, cut before and after each task of onnxruntime."""
    order = happens_before(lowering.plan.lanes)
    place = [(lane, step) for lane, tasks in enumerate(lowering.plan.lanes) for step in range(len(tasks))]
    pairs = order_by_demand(lowering) if lowering.by_demand else [place[number] for number in order.sequence]
    found: list[Segment] = []
    current: list[tuple[int, int]] = []
    for pair in pairs:
        if not isinstance(lowering.kernels[lowering.plan.lanes[pair[0]][pair[1]].kernel], SessionKernel):
            current.append(pair)
            continue
        if current:
            found.append(Segment(tuple(current), is_session=False))
        found.append(Segment((pair,), is_session=True))
        current = []
    return [*found, *([Segment(tuple(current), is_session=False)] if current else [])]
