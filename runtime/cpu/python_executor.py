"""The CPU executor in Python: the fallback if no compiled one is available or it cannot pass the values.

Results are the same, but a hand-off between lanes takes tens of microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from iosched.runtime.cpu.arrays import (
    aligned_empty,
    check_kernels,
    checked_inputs,
    input_views,
    output_array,
    output_views,
)
from iosched.runtime.cpu.handovers import Spans
from iosched.runtime.cpu.kernels import ELEMENT_TYPE, Copy, Kernel, Program
from iosched.runtime.cpu.lane_cpus import lane_cpus
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.inputs import numpy_dtype
from iosched.runtime.missing_dependencies import failure
from iosched.runtime.plan import MemorySpace, PlanTask, View
from iosched.runtime.session import are_of_numpy, load_onnxruntime, onnxruntime_errors, run_on_any_types

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, SessionOptions


class PythonRuntime:
    """Sessions that several executors share; the counterpart of `NativeRuntime`."""

    def __init__(self) -> None:
        self.onnxruntime = load_onnxruntime()
        self._sessions: dict[tuple[Program, tuple[int, ...]], InferenceSession] = {}
        self._lock = threading.Lock()

    def session(self, program: Program, cpus: Sequence[int] = (-1,)) -> InferenceSession:
        """The session of `program` on these processors, the caller's first; opened when first needed."""
        key = (program, tuple(dict.fromkeys(cpus)) if program.cores > 1 else (-1,))  # lanes may share processors
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = open_program(program, self._options(key[1]))
            return self._sessions[key]

    def drop_sessions(self) -> None:
        """Drop all cached sessions; those in use stay alive."""
        with self._lock:
            self._sessions.clear()

    def close(self) -> None:
        """Drop sessions. May be called again."""
        self.drop_sessions()

    def _options(self, cpus: Sequence[int]) -> SessionOptions:
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = len(cpus), 1
        options.log_severity_level = 3
        if len(cpus) > 1:
            options.add_session_config_entry("session.force_spinning_stop", "1")
            if min(cpus) >= 0:
                places = ";".join(str(cpu + 1) for cpu in cpus[1:])
                options.add_session_config_entry("session.intra_op_thread_affinities", places)
        return options


def open_program(program: Program, options: SessionOptions) -> InferenceSession:
    """Open a session that runs `program` as it is; `options` set threads and profiling."""
    onnxruntime = load_onnxruntime()
    names = [name for name, _ in program.weights]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for _, array in program.weights]
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in zip(names, values, strict=True):
        options.add_initializer(name, value)
    try:
        try:
            return onnxruntime.InferenceSession(program.model, options, providers=["CPUExecutionProvider"])
        except onnxruntime_errors():
            # This onnxruntime checked the placeholder's file before the values: replace the placeholders too.
            options.add_external_initializers(names, values)
            return onnxruntime.InferenceSession(program.model, options, providers=["CPUExecutionProvider"])
    except onnxruntime_errors() as error:
        raise failure(str(error)) from error


@dataclass(eq=False)
class _Lanes:
    """Progress of one run, and the first error of any lane."""

    done: list[int]
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition()

    def wait(self, task: PlanTask) -> bool:
        with self.changed:
            self.changed.wait_for(
                lambda: self.error is not None or all(self.done[wait.lane] >= wait.steps for wait in task.waits)
            )
            return self.error is None

    def step(self, lane: int) -> None:
        with self.changed:
            self.done[lane] += 1
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


@dataclass(frozen=True, eq=False)
class _TraceWriter:
    """Begin and end of each task of a run, in microseconds since the run began at `started` (ns)."""

    started: int
    spans_us: np.ndarray

    def write(self, task: int, begun: int, ended: int) -> None:
        self.spans_us[task] = (begun - self.started) / 1000, (ended - self.started) / 1000


class PythonExecutor:
    """Runs one plan; the same interface as `NativeExecutor`. Threads may call it, one after another."""

    def __init__(
        self,
        checked: CheckedPlan,
        kernels: Sequence[Kernel],
        *,
        runtime: PythonRuntime | None = None,
        cpus: Sequence[int] | None = None,
    ) -> None:
        """Prepare the plan; the arguments are those of `NativeExecutor`."""
        plan = checked.plan
        check_kernels(plan, tuple(kernels))
        self._runtime = runtime or PythonRuntime()
        self._errors = onnxruntime_errors()
        self._plan, self._kernels = plan, tuple(kernels)
        self._inputs, self._outputs = input_views(plan), output_views(plan)
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._arena = aligned_empty(plan.arena_nbytes)
        used = {task.kernel: kernels[task.kernel] for task in plan.tasks}
        self._cpus = lane_cpus(len(plan.lanes), cpus)
        self._sessions = {i: self._runtime.session(k, self._cpus) for i, k in used.items() if isinstance(k, Program)}
        self._pool = ThreadPoolExecutor(max(len(plan.lanes) - 1, 1), thread_name_prefix="iosched-lane")
        self._lock = threading.Lock()
        self._closed = False

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the plan once; the results are new arrays, or lists for sequences. Raises as `NativeExecutor.run`."""
        with self._lock:
            values = self._run(self._bind(inputs))
            return {view.buffer: values.result(view) for view in self._outputs}

    def time(
        self,
        inputs: Mapping[str, Any],
        repeats: int,
        *,
        flush_nbytes: int = 0,
        fresh: Mapping[str, Spans] | None = None,
    ) -> tuple[float, ...]:
        """Run the plan `repeats` times in a row and return the microseconds of each run; raises as `run` does.

        Args:
            flush_nbytes: before each run, the cores read this many other bytes. Inputs stay in the caches, which
                matters little compared with the hand-offs.
            fresh: unused; part of the interface.
        """
        del fresh
        with self._lock:
            values, times_us = self._bind(inputs), []
            other_bytes = np.ones(flush_nbytes, np.uint8)
            for _ in range(repeats):
                self._flush_caches(other_bytes)
                started = time.perf_counter_ns()
                self._run(values)
                times_us.append((time.perf_counter_ns() - started) / 1000)
            return tuple(times_us)

    def trace(self, inputs: Mapping[str, Any], repeats: int) -> tuple[tuple[float, ...], np.ndarray]:
        """Run the plan `repeats` times and record when each task runs; see `PlanExecutor.trace`."""
        with self._lock:
            values, times_us = self._bind(inputs), []
            spans_us = np.zeros((repeats, len(self._plan.tasks), 2))
            for spans in spans_us:
                started = time.perf_counter_ns()
                self._run(values, _TraceWriter(started, spans))
                times_us.append((time.perf_counter_ns() - started) / 1000)
            return tuple(times_us), spans_us

    def close(self) -> None:
        """End the threads. May be called again."""
        with self._lock:
            self._closed = True
            self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _bind(self, inputs: Mapping[str, Any]) -> Values:
        if self._closed:
            raise ValueError("the executor is closed")
        arrays = {v.buffer: a for v, a in zip(self._inputs, checked_inputs(self._inputs, inputs), strict=True)}
        outputs = {v.buffer: output_array(v) for v in self._outputs if self._space(v) is MemorySpace.OUTPUT}
        memory = {name: array.reshape(-1).view(np.uint8) for name, array in outputs.items()}
        numbers = {name: array for name, array in arrays.items() if array.dtype.kind not in "OUS"}
        memory |= {name: as_bytes(array) for name, array in numbers.items()}
        for buffer in self._plan.buffers:
            if buffer.space is MemorySpace.ARENA:
                memory[buffer.name] = self._arena[buffer.offset : buffer.offset + buffer.nbytes]
        texts = {name: array.astype(np.object_) for name, array in arrays.items() if name not in numbers}
        return Values(self._runtime.onnxruntime.OrtValue, memory, texts, outputs, {}, {})

    def _space(self, view: View) -> MemorySpace:
        return self._buffers[view.buffer].space

    def _run(self, values: Values, notes: _TraceWriter | None = None) -> Values:
        lanes = _Lanes([0] * len(self._plan.lanes))
        others = [
            self._pool.submit(self._run_lane, lane, lanes, values, notes) for lane in range(1, len(self._plan.lanes))
        ]
        if self._plan.lanes:
            self._run_lane(0, lanes, values, notes)
        for other in others:
            other.result()
        if lanes.error is not None:
            raise failure(str(lanes.error)) from lanes.error
        return values

    def _flush_caches(self, other_bytes: np.ndarray) -> None:
        if other_bytes.size == 0:
            return
        shares = np.array_split(other_bytes, len(self._cpus))
        others = [self._pool.submit(_read, *each) for each in zip(shares[1:], self._cpus[1:], strict=True)]
        _read(shares[0], self._cpus[0])
        for other in others:
            other.result()

    def _run_lane(self, lane: int, lanes: _Lanes, values: Values, notes: _TraceWriter | None) -> None:
        first = sum(map(len, self._plan.lanes[:lane]))
        with _pinned(self._cpus[lane]):
            for number, task in enumerate(self._plan.lanes[lane], start=first):
                if not lanes.wait(task):
                    return
                try:
                    begun = time.perf_counter_ns()
                    self._execute(task, values)
                except self._errors as error:
                    lanes.fail(error)
                    return
                if notes is not None:
                    notes.write(number, begun, time.perf_counter_ns())
                lanes.step(lane)

    def _execute(self, task: PlanTask, values: Values) -> None:
        kernel = self._kernels[task.kernel]
        if isinstance(kernel, Copy):
            np.copyto(values.bytes_of(task.writes[0]), values.bytes_of(task.reads[0]))
            return
        session = self._sessions[task.kernel]
        if not all(values.is_memory(view) for view in (*task.reads, *task.writes)):
            _execute_on_objects(session, kernel, task, values)
            return
        bound = values.bindings.get(id(task))
        if bound is None:
            bound = values.bindings[id(task)] = _binding(session, kernel, task, values)
        session.run_with_iobinding(bound)


def _binding(session: InferenceSession, kernel: Program, task: PlanTask, values: Values) -> IOBinding:
    bound = session.io_binding()
    for name, view in zip(kernel.inputs, task.reads, strict=True):
        bound.bind_ortvalue_input(name, values.value(view))
    for name, view in zip(kernel.outputs, task.writes, strict=True):
        bound.bind_ortvalue_output(name, values.value(view))
    return bound


def _execute_on_objects(session: InferenceSession, kernel: Program, task: PlanTask, values: Values) -> None:
    """Run a task on strings, sequences, or tensors of unknown size: onnxruntime allocates."""
    feeds = {name: values.object_of(view) for name, view in zip(kernel.inputs, task.reads, strict=True)}
    if are_of_numpy(view.dtype for view in (*task.reads, *task.writes)):
        results = session.run(list(kernel.outputs), feeds)
    else:
        results = run_on_any_types(session, kernel.outputs, feeds)
    for view, result in zip(task.writes, results, strict=True):
        if values.is_memory(view):
            np.copyto(values.bytes_of(view), as_bytes(result))
        else:
            values.objects[view.buffer] = result


def _read(array: np.ndarray, cpu: int) -> None:
    with _pinned(cpu):
        array.sum()


@contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if cpu not in before:
        yield
        return
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, eq=False)
class Values:
    """The values of one call of an executor.

    Attributes:
        ort_value: onnxruntime's class of that name.
        memory: bytes of every buffer of known size.
        objects: Python values of the other buffers: arrays, or lists of arrays.
        outputs: the arrays of the OUTPUT buffers.
        views: onnxruntime's values of parts of `memory`.
        bindings: bindings of tasks, by identity, to those views.
    """

    ort_value: type[OrtValue]
    memory: dict[str, np.ndarray]
    objects: dict[str, Any]
    outputs: dict[str, np.ndarray]
    views: dict[View, OrtValue]
    bindings: dict[int, IOBinding]

    def is_memory(self, view: View) -> bool:
        """Whether the view is in `memory`; otherwise in `objects`."""
        return view.buffer in self.memory

    def bytes_of(self, view: View) -> np.ndarray:
        """The bytes of a view in `memory`: `(nbytes,) uint8`."""
        return self.memory[view.buffer][view.offset : view.offset + view.nbytes]

    def value(self, view: View) -> OrtValue:
        """onnxruntime's value of a view in `memory`, without a copy; created once."""
        if view not in self.views:
            self.views[view] = self._make(view)
        return self.views[view]

    def object_of(self, view: View) -> Any:
        """onnxruntime's input for a view."""
        return self.value(view) if self.is_memory(view) else self.objects[view.buffer]

    def result(self, view: View) -> Any:
        """The value of a graph output."""
        return self.outputs[view.buffer] if view.buffer in self.outputs else self.objects[view.buffer]

    def _make(self, view: View) -> OrtValue:
        array = self.bytes_of(view).view(numpy_dtype(view.dtype)).reshape(view.shape or ())
        if array.dtype.isbuiltin == 1:
            return self.ort_value.ortvalue_from_numpy(array)
        return self.ort_value.ortvalue_from_numpy_with_onnx_type(array, ELEMENT_TYPE[view.dtype])


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, copied if it is not C-contiguous: `(nbytes,) uint8`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
