"""The compiled CPU executor: a wrapper of `executor.cpp` through ctypes.

After a fork, the parent may use its runtime; the child, which has no worker threads, gets an error. Handles may be
released in any order, since the library shares ownership.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
from iosched.runtime.cpu.arrays import (
    InputArrays,
    OutputArrays,
    PlanEncoder,
    address,
    check_kernels,
    checked_inputs,
    input_views,
    output_views,
)
from iosched.runtime.cpu.handovers import Spans
from iosched.runtime.cpu.kernels import DTYPE_NAME, ELEMENT_TYPE, Copy, InvokedNode, Kernel, Program
from iosched.runtime.cpu.lane_cpus import lane_cpus
from iosched.runtime.cpu.library import (
    api_base,
    call,
    call_with_error_buffer,
    compiled,
    error_text,
    missing,
    onnxruntime_path,
)
from iosched.runtime.cpu.native_kernels import RuntimeHandle, executor, operator, prepare, session
from iosched.runtime.cpu.proofs import ProofCandidate, load_proofs, proofs_path, proven, save_proofs
from iosched.runtime.handle import Handle
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.inputs import numpy_dtype
from iosched.runtime.plan import ExecutionPlan, MemorySpace, View


def supports(plan: ExecutionPlan) -> bool:
    """Whether all inputs and outputs of the plan are numeric tensors."""
    return all(view.dtype in ELEMENT_TYPE for view in (*input_views(plan), *output_views(plan)))


class NativeRuntime:
    """Worker threads, arena and kernels that several executors share; their runs never overlap.

    Kernels are cached, so a plan of known programs is built in microseconds. Executors that run at the same time need
    separate runtimes.
    """

    def __init__(self, sharing: NativeRuntime | None = None, host: NativeRuntime | None = None) -> None:
        """Create without threads and kernels.

        Args:
            sharing: share the kernels of this runtime, which threads may run concurrently.
            host: use the threads and the arena of this runtime, which also closes them.

        Raises:
            DeviceError: the compiled executor or onnxruntime is missing.
        """
        library, path = compiled(), onnxruntime_path()
        if library is None or path is None:
            raise DeviceError(f"the compiled executor cannot run: {missing()}")
        self._library, self._is_hosted = library, host is not None
        self.handle: Handle = (
            Handle(call(library.iosched_runtime_create, api_base(path)), library.iosched_runtime_release)
            if host is None
            else host.handle
        )
        self._known: _SharedKernels = _SharedKernels.of(path) if sharing is None else sharing._known
        self._spanning: weakref.WeakValueDictionary[object, NativeKernel] = weakref.WeakValueDictionary()
        self._invokes = self._is_prepared()

    @property
    def library(self) -> ctypes.CDLL:
        """The compiled executor."""
        return self._library

    def kernels(self, programs: Iterable[Program], cpus: Sequence[int] = (-1,)) -> list[NativeKernel]:
        """The kernel of each program, built when first needed; programs of equal bytes and weights share one.

        A kernel is an operator without a session if that is proven equivalent (`proofs.py`), else a session.

        Args:
            cpus: processors of a session's threads, the caller's first; see `lane_cpus`.

        Raises:
            ExecutionError: onnxruntime refuses a model.
            ValueError: a weight is not a C-contiguous numeric array.
        """
        requested = list(programs)
        with self._known.lock:
            self._prove([each for each in requested if each not in self._known.by_program])
            return [self._kernel(each, cpus) for each in requested]

    def _kernel(self, program: Program, cpus: Sequence[int]) -> NativeKernel:
        if program.cores > 1:  # such a session owns threads, so it lives only as long as its executors
            own = tuple(dict.fromkeys(cpus))  # lanes may share processors
            return _made(self._spanning, (_content(program), own), lambda: self._session(program, own))
        if (known := self._known.by_program.get(program)) is not None:
            return known
        found = _made(self._known.by_content, _content(program), lambda: self._session(program, (-1,)))
        self._known.by_program[program] = found
        return found

    def _session(self, program: Program, cpus: Sequence[int]) -> NativeKernel:
        return NativeKernel(program, session(self.opened(), program, cpus))

    def _prove(self, programs: Sequence[Program]) -> None:
        """Prove which programs are equivalent without a session, save the results, and create their operators."""
        candidates = list(self._candidates(programs)) if self._invokes else []
        new = {each.invoked.signature: each for each in candidates if each.invoked.signature not in self._known.proven}
        if new:
            good = proven(self.opened(), list(new.values()))
            found = {signature: signature in good for signature in new}
            self._known.proven.update(found)
            save_proofs(self._known.path, found)
        for each in candidates:
            if self._known.proven[each.invoked.signature]:
                self._known.by_content[_content(each.program)] = NativeKernel(each.program, each.handle, each.invoked)

    def _candidates(self, programs: Sequence[Program]) -> Iterator[ProofCandidate]:
        for program in programs:
            invoked = program.invoked
            if invoked is None or not self._known.proven.get(invoked.signature, True):
                continue
            if _content(program) in self._known.by_content:
                continue
            try:
                yield ProofCandidate(program, invoked, operator(self.opened(), invoked))
            except ExecutionError:
                self._known.proven[invoked.signature] = False

    def _is_prepared(self) -> bool:
        try:
            prepare(self.opened())
        except ExecutionError:
            return False
        return True

    def opened(self) -> RuntimeHandle:
        """Its handle; a ValueError if it is closed."""
        if not self.handle.close.alive:
            raise ValueError("the runtime is closed")
        return RuntimeHandle(self._library, self.handle.pointer)

    def drop_sessions(self) -> None:
        """Drop the cached kernels; those in use stay alive."""
        with self._known.lock:
            self._known.by_program.clear()
            self._known.by_content.clear()

    def close(self) -> None:
        """Drop sessions; threads and arena live as long as executors. May be called again."""
        self.drop_sessions()
        if not self._is_hosted:
            self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class NativeKernel:
    """A prepared program, which keeps the arrays of its weights alive; `invoked` if it runs without a session."""

    program: Program
    handle: Handle
    invoked: InvokedNode | None = None


@dataclass(frozen=True, eq=False)
class EncodedPlan:
    """A plan as the compiled executor reads it.

    Attributes:
        words: see `PlanEncoder.words`.
        kernels: the kernels, by their number in `words`.
        inputs: the arrays that the plan reads.
        outputs: the arrays that it writes.
        slots: for each output of unknown size, its slot.
    """

    words: Sequence[int]
    kernels: tuple[NativeKernel, ...]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    slots: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class _SharedKernels:
    """Kernels that several runtimes share.

    Attributes:
        proven: by node signature, whether it runs without a session: read from `path`, and proven since.
    """

    path: Path | None
    proven: dict[bytes, bool]
    by_program: weakref.WeakKeyDictionary[Program, NativeKernel] = field(default_factory=weakref.WeakKeyDictionary)
    by_content: dict[object, NativeKernel] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, onnxruntime: Path) -> Self:
        path = proofs_path(onnxruntime)
        return cls(path, load_proofs(path))


def _made(known: MutableMapping[object, NativeKernel], key: object, make: Callable[[], NativeKernel]) -> NativeKernel:
    found = known.get(key)
    if found is None:
        found = known[key] = make()
    return found


def _content(program: Program) -> object:
    if program.invoked is not None:
        return program.invoked.signature, tuple(map(address, program.invoked.constants))
    weights = tuple((name, array.ctypes.data, array.dtype.str, array.shape) for name, array in program.weights)
    return program.model, program.inputs, program.outputs, weights


_FORKED = "this executor was created before the process forked: create a new one in the child"
_ALL_FRESH: Mapping[str, Spans] = MappingProxyType({})


class NativeExecutor:
    """Runs one plan. Several threads may call it; their runs follow one another."""

    def __init__(
        self,
        checked: CheckedPlan,
        kernels: Sequence[Kernel],
        *,
        runtime: NativeRuntime | None = None,
        cpus: Sequence[int] | None = None,
    ) -> None:
        """Prepare the plan, and bind everything except the caller's arrays.

        Args:
            kernels: indexed by `PlanTask.kernel`.
            runtime: shared threads, arena and sessions; default: its own, closed with the executor.
            cpus: processor of each lane, see `lane_cpus`.
        """
        plan = checked.plan
        check_kernels(plan, tuple(kernels))
        self._owned = None if runtime else NativeRuntime()
        self._runtime = runtime or self._owned or NativeRuntime()
        self._inputs, self._outputs = input_views(plan), output_views(plan)
        space = {buffer.name: buffer.space for buffer in plan.buffers}
        self._of_known_size = tuple(view for view in self._outputs if space[view.buffer] is MemorySpace.OUTPUT)
        self._has_dynamic = MemorySpace.DYNAMIC in space.values()
        # Arguments of a run, created once: creating them takes a large part of a small model's run.
        self._bound, self._targets = InputArrays(self._inputs), (ctypes.c_void_p * len(self._outputs))()
        self._known, self._time_us = OutputArrays(self._of_known_size), (ctypes.c_double * 1)()
        self._places = tuple(place for place, view in enumerate(self._outputs) if view in self._of_known_size)
        self._error = error_text()
        self._tasks = plan.tasks
        self._lock = threading.Lock()
        used = {task.kernel: kernels[task.kernel] for task in plan.tasks}
        chosen = lane_cpus(len(plan.lanes), cpus)
        programs = {index: kernel for index, kernel in used.items() if not isinstance(kernel, Copy)}
        self._kernels = dict(zip(programs, self._runtime.kernels(programs.values(), chosen), strict=True))
        self._encoder = PlanEncoder(plan, self._inputs, self._outputs)
        words = self._encoder.words(tuple(self._kernels))
        self._handle = executor(self._runtime.opened(), words, [kernel.handle for kernel in self.kernels], chosen)

    @property
    def kernels(self) -> tuple[NativeKernel, ...]:
        """The kernels of the tasks, without copies."""
        return tuple(self._kernels.values())

    def encoded(self) -> EncodedPlan:
        """The plan for a file."""
        fixed = {view.buffer for view in self._of_known_size}
        slots = {v.buffer: self._encoder.slot_of_dynamic(v.buffer) for v in self._outputs if v.buffer not in fixed}
        words = self._encoder.words(tuple(self._kernels))
        return EncodedPlan(words, self.kernels, self._inputs, self._outputs, slots)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the plan once on the caller's arrays, without copies; the results are new arrays.

        Raises:
            ExecutionError: a task fails; the executor stays usable.
            UsageError: an input is missing, or has another type or shape than the plan.
        """
        with self._handle.guarded_by(self._lock, _FORKED):
            _kept, results = self._arrays(inputs)
            self._call(1, 0, None, 0, self._time_us, None)
            return self._collect(results)

    def time(
        self,
        inputs: Mapping[str, np.ndarray],
        repeats: int,
        *,
        flush_nbytes: int = 0,
        fresh: Mapping[str, Spans] = _ALL_FRESH,
    ) -> tuple[float, ...]:
        """Run the plan `repeats` times in a row and return the microseconds of each run; raises as `run` does.

        Args:
            flush_nbytes: if above 0, before each run the cores read this many other bytes and rewrite the inputs
                unchanged, so caches are as in a larger plan: weights come from memory, inputs from another core.
            fresh: byte ranges to rewrite, by input; other inputs are rewritten completely.

        Raises:
            ValueError: inputs to rewrite are read-only.
        """
        with self._handle.guarded_by(self._lock, _FORKED):
            _kept, _results = self._arrays(inputs)
            words = []
            if flush_nbytes > 0:
                arrays = checked_inputs(self._inputs, inputs)
                if not all(array.flags.writeable for array in arrays):
                    raise ValueError("a cache flush needs writable inputs")
                words = self._fresh_words(arrays, fresh)
            times_us = (ctypes.c_double * repeats)()
            spans = (ctypes.c_int64 * len(words))(*words) if words else None
            self._call(repeats, flush_nbytes, spans, len(words) // 3, times_us, None)
            self._release_dynamic()
            return tuple(times_us)

    def trace(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[tuple[float, ...], np.ndarray]:
        """Run the plan `repeats` times and record when each task runs; see `PlanExecutor.trace`.

        Recording takes about 0.05 microseconds for each task.
        """
        with self._handle.guarded_by(self._lock, _FORKED):
            _kept, _results = self._arrays(inputs)
            times_us, spans_us = (ctypes.c_double * repeats)(), np.zeros((repeats, len(self._tasks), 2))
            self._call(repeats, 0, None, 0, times_us, address(spans_us))
            self._release_dynamic()
            return tuple(times_us), spans_us

    def close(self) -> None:
        """Free the plan, and threads and arena that it owns. May be called again."""
        if self._handle.is_inherited:
            return
        with self._lock:
            self._handle.close()
            if self._owned is not None:
                self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _arrays(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Binds the inputs, and new arrays for the outputs of known size; returns copies to keep, and the outputs."""
        if not self._handle.close.alive:
            raise ValueError("the executor is closed")
        kept = self._bound.bind(inputs)
        results, addresses = self._known.take()
        for place, target in zip(self._places, addresses, strict=True):
            self._targets[place] = target
        return kept, results

    def _call(self, *arguments: object) -> None:
        try:
            call_with_error_buffer(
                self._error,
                self._runtime.library.iosched_executor_run,
                *(self._handle.pointer, self._bound.pointers, self._targets, *arguments),
            )
        except ExecutionError as error:
            raise self._named(error) from None

    def _named(self, error: ExecutionError) -> ExecutionError:
        """The error with the name of the failed task; a session's own error names its node."""
        number = self._runtime.library.iosched_executor_failed_task(self._handle.pointer)
        if number >= len(self._tasks):
            return error
        kernel = self._kernels.get(self._tasks[number].kernel)
        if kernel is None or kernel.invoked is None:
            return error
        return ExecutionError(f"{self._tasks[number].name}: {error}")

    def _fresh_words(self, arrays: Sequence[np.ndarray], fresh: Mapping[str, Spans]) -> list[int]:
        words: list[int] = []
        for index, (view, array) in enumerate(zip(self._inputs, arrays, strict=True)):
            for begin, end in fresh.get(view.buffer, ((0, array.nbytes),)):
                words += (index, max(begin, 0), min(end, array.nbytes))
        return words

    def _collect(self, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self._has_dynamic:
            return results
        try:
            return {v.buffer: results[v.buffer] if v.buffer in results else self._dynamic(v) for v in self._outputs}
        finally:
            self._release_dynamic()

    def _release_dynamic(self) -> None:
        self._runtime.library.iosched_executor_release_dynamic(self._handle.pointer)

    def _dynamic(self, view: View) -> np.ndarray:
        description, data = (ctypes.c_int64 * 18)(), ctypes.c_void_p()
        slot = self._encoder.slot_of_dynamic(view.buffer)
        library = self._runtime.library
        call(library.iosched_executor_dynamic, self._handle.pointer, slot, description, ctypes.byref(data))
        if description[0] not in DTYPE_NAME:
            raise ExecutionError(f"output {view.buffer!r} is not a numeric tensor")
        dtype = numpy_dtype(DTYPE_NAME[description[0]])
        result = np.empty(tuple(description[2 : 2 + description[1]]), dtype)
        if result.nbytes:
            ctypes.memmove(result.ctypes.data, data, result.nbytes)
        return result
