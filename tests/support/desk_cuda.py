"""CUDA made of host memory, with its own names and errors, for CuPy to run on.

Work is done late, in any order that streams and events leave open; captures follow CUDA's rules; kernels are compiled
for the host from the very source that NVRTC was given, and get the bytes that CuPy packed for them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import random
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NoReturn

import host_cuda
import numpy as np
from host_driver import Operation, closure, run_all

from iosched.runtime.cuda.kernel import H100

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_FOUND = 500
NOT_READY = 600
ILLEGAL_ADDRESS = 700
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_MERGE = 902
CAPTURE_UNMATCHED = 903
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATION = 905
CAPTURED_EVENT = 907

KERNEL, COPY, FILL, EMPTY = 0, 1, 2, 5
"""Kinds of nodes, as CUDA numbers them."""

_DISABLE_TIMING = 2
_RELAXED = 2
_SHARED_NBYTES = 48 << 10
_SIZES = {
    "int": 4, "unsigned int": 4, "unsigned": 4, "float": 4, "long long": 8, "unsigned long long": 8, "double": 8,
    "bool": 1, "signed char": 1, "unsigned char": 1, "short": 2, "__half": 2, "half": 2,
}  # fmt: skip
_POINTER = 64 + 8
"""How `host_cuda` tells an address from a number of eight bytes."""


class CudaStatusError(Exception):
    """A call that CUDA answers with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(eq=False)
class Capture:
    """The operations between the begin and the end of a capture."""

    origin: int
    mode: int
    operations: list[Operation] = field(default_factory=list)
    is_valid: bool = True
    is_over: bool = False


@dataclass(eq=False)
class Stream:
    device: int = 0
    last: Operation | None = None
    capture: Capture | None = None


@dataclass(eq=False)
class Event:
    has_timing: bool
    device: int
    recorded: Operation | None = None
    capture: Capture | None = None


@dataclass(frozen=True, eq=False)
class Function:
    source: str
    entry: str
    parameters: tuple[int, ...]
    device: int


class DeskCuda:
    """The functions of CUDA that CuPy calls, under CUDA's names in snake case.

    Attributes:
        count: GPUs that are seen; none at first, as tests of other things expect.
        gpu: what each of them passes for.
        l2_nbytes: size of the cache of each.
        limit: bytes that can be allocated at once.
        driver_version: CUDA that the driver supports; 0 where there is none.
        calls: names of those made.
        launched: kernels by their entries, "cudnn" for a plan.
    """

    def __init__(self, seed: int = 0) -> None:
        self.sources: dict[bytes, str] = {}
        self._handles = count(0x10000, 16)
        self._owners: dict[int, int] = {}
        self.reset(seed)

    def reset(self, seed: int = 0) -> None:
        """Resets to a freshly started GPU, except for streams and memory that are still in use."""
        self.draw = random.Random(seed)
        self.limit = 4 << 30
        self.driver_version = 13000
        self.count = 0
        self.names: dict[int, bytes] = {}
        self.gpu = H100
        self.l2_nbytes = 50 << 20
        self.calls: list[str] = []
        self.launched: list[str] = []
        self.sticky: int | None = None
        self._thread = threading.local()
        self.lock = threading.RLock()
        self._failures: dict[str, list[int]] = {}
        self._stickies: set[int] = {ILLEGAL_ADDRESS, 719, 214}
        self._pending: list[Operation] = []
        self._streams = {**getattr(self, "_streams", {}), 0: Stream()}
        self._events = getattr(self, "_events", {})
        self._graphs: dict[int, list[Operation]] = getattr(self, "_graphs", {})
        self._executables: dict[int, list[Operation]] = getattr(self, "_executables", {})
        self._modules: dict[int, tuple[bytes, str, int]] = getattr(self, "_modules", {})
        self._functions: dict[int, Function] = getattr(self, "_functions", {})
        self._memory: dict[int, np.ndarray] = getattr(self, "_memory", {})
        for stream in self._streams.values():
            stream.last, stream.capture = None, None

    @property
    def allocated_nbytes(self) -> int:
        return sum(each.nbytes for each in self._memory.values())

    def fail(self, name: str, status: int, after: int = 0) -> None:
        """Makes the call of that name fail with the status after `after` successes; some failures are permanent."""
        self._failures[name] = [*[0] * after, status]

    def check(self, name: str) -> None:
        """Runs before each call."""
        if name not in ("getDevice", "setDevice"):
            self.calls.append(name)
        if name in ("getDevice", "driverGetVersion", "runtimeGetVersion"):
            return
        if self.sticky is not None:
            raise CudaStatusError(self.sticky)
        if status := self._failures[name].pop(0) if self._failures.get(name) else 0:
            self._error(status)

    def _error(self, status: int) -> NoReturn:
        if status in self._stickies:
            self.sticky = status
        raise CudaStatusError(status)

    # Devices

    def get_device_count(self) -> int:
        if not self.count:
            self._error(NO_DEVICE)
        return self.count

    def get_device(self) -> int:
        """The current one of the thread."""
        return getattr(self._thread, "device", 0)

    def set_device(self, index: int) -> None:
        self._check_device(index)
        self._thread.device = index

    def _check_device(self, index: int) -> None:
        if not 0 <= index < self.count:
            self._error(INVALID_DEVICE)

    def get_device_properties(self, index: int) -> dict[str, Any]:
        self._check_device(index)
        return {
            "name": self.names.get(index, b"NVIDIA Desk"),
            "major": self.gpu.capability // 10,
            "minor": self.gpu.capability % 10,
            "multiProcessorCount": self.gpu.processors,
            "l2CacheSize": self.l2_nbytes,
            "totalGlobalMem": 80 << 30,
        }

    def device_get_attribute(self, attribute: int, index: int) -> int:
        self._check_device(index)
        return {75: self.gpu.capability // 10, 76: self.gpu.capability % 10}.get(attribute, 0)

    def device_get_pci_bus_id(self, index: int) -> str:
        self._check_device(index)
        return "0000:0D:00.0"

    def driver_get_version(self) -> int:
        return self.driver_version

    def device_synchronize(self) -> None:
        self._unsafe()
        self._run_pending()

    def _ensure_context(self) -> None:
        pass

    def ctx_get_current(self) -> int:
        return 1

    def mem_get_info(self) -> tuple[int, int]:
        return self.limit - self.allocated_nbytes, self.limit

    # Memory

    def malloc(self, nbytes: int) -> int:
        self._unsafe(relaxed=True)
        if self.allocated_nbytes + nbytes > self.limit:
            self._error(OUT_OF_MEMORY)
        array = np.full(nbytes + 256, 0xFF, np.uint8)
        address = int(array.ctypes.data + -array.ctypes.data % 256)
        self._memory[address], self._owners[address] = array, self.get_device()
        return address

    def free(self, address: int) -> None:
        self._unsafe(relaxed=True)
        self._run_pending()
        del self._memory[address], self._owners[address]

    def memcpy_async(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if kind == 1:
            self._check_range(target, nbytes)
            data = ctypes.string_at(source, nbytes)  # from pageable memory: CUDA has staged it when it returns
            self._add(stream, lambda: ctypes.memmove(target, data, nbytes), kind=COPY)
        elif kind == 2:
            self._check_range(source, nbytes)
            self._add(stream, lambda: ctypes.memmove(target, source, nbytes))
            self._unsafe()
            self._run_pending()
        else:
            self._check_range(target, nbytes)
            self._check_range(source, nbytes)
            self._add(stream, lambda: ctypes.memmove(target, source, nbytes), kind=COPY)

    def memset_async(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self._check_range(address, nbytes)
        self._add(stream, lambda: ctypes.memset(address, value, nbytes), kind=FILL)

    def pointer_get_memory_type(self, address: int) -> int:
        self._check_range(address, 1)
        return 2  # the device's

    def pointer_get_attributes(self, address: int) -> Any:
        runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
        start = self._check_range(address, 1)
        return runtime.PointerAttributes(self._owners[start], address, 0, 2)

    def _check_range(self, address: int, nbytes: int) -> int:
        """Where the allocation starts that holds these bytes."""
        if not nbytes:
            return address
        starts = sorted(self._memory)
        place = bisect_right(starts, address) - 1
        inside = place >= 0 and address + nbytes <= starts[place] + self._memory[starts[place]].nbytes - 256 + 1
        if not inside:
            self._error(ILLEGAL_ADDRESS)
        return starts[place]

    # Streams and events

    def stream_create_with_priority(self, flags: int, priority: int) -> int:
        handle = next(self._handles)
        self._streams[handle] = Stream(self.get_device())
        return handle

    def stream_destroy(self, handle: int) -> None:
        self._streams.pop(handle, None)

    def stream_synchronize(self, handle: int) -> None:
        self._stream(handle)
        self._unsafe()
        self._run_pending()

    def stream_query(self, handle: int) -> int:
        self._unsafe()
        last = self._stream(handle).last
        return 0 if last is None or last.done else NOT_READY

    def stream_wait_event(self, handle: int, event_handle: int, flags: int = -1) -> None:
        stream, event = self._stream(handle), self._event(event_handle)
        if event.capture is not None and event.capture.is_over:
            self._error(CAPTURED_EVENT)
        if event.capture is None:
            if stream.capture is not None:
                self._invalidate(CAPTURE_ISOLATION)
            self._add(handle, lambda: None, [event.recorded] if event.recorded else [])
            return
        if stream.capture is None:
            stream.capture, stream.last = event.capture, None
        if stream.capture is not event.capture:
            self._invalidate(CAPTURE_MERGE)
        assert event.recorded is not None
        self._add(handle, lambda: None, [event.recorded])

    def stream_is_capturing(self, handle: int) -> bool:
        return self._stream(handle).capture is not None

    def event_create_with_flags(self, flags: int) -> int:
        handle = next(self._handles)
        self._events[handle] = Event(not flags & _DISABLE_TIMING, self.get_device())
        return handle

    def event_destroy(self, handle: int) -> None:
        self._events.pop(handle, None)

    def event_record(self, handle: int, stream: int) -> None:
        event = self._event(handle)
        if event.device != self.device_of(stream):
            self._error(INVALID_HANDLE)
        event.recorded, event.capture = self._add(stream, lambda: None), self._stream(stream).capture

    def event_synchronize(self, handle: int) -> None:
        if self._event(handle).capture is not None:
            self._invalidate(CAPTURED_EVENT)
        self._unsafe()
        self._run_pending()

    def event_query(self, handle: int) -> int:
        self._unsafe()
        recorded = self._event(handle).recorded
        return 0 if recorded is None or recorded.done else NOT_READY

    def event_elapsed_time(self, start_handle: int, end_handle: int) -> float:
        start, end = self._event(start_handle), self._event(end_handle)
        if not (start.has_timing and end.has_timing) or start.recorded is None or end.recorded is None:
            self._error(INVALID_HANDLE)
        if start.device != end.device or start.capture is not None or end.capture is not None:
            self._error(INVALID_HANDLE)
        assert start.recorded
        assert end.recorded
        if not (start.recorded.done and end.recorded.done):
            self._error(NOT_READY)
        return 0.01

    # Captures and graphs

    def stream_begin_capture(self, handle: int, mode: int = _RELAXED) -> None:
        stream = self._stream(handle)
        if handle == 0 or stream.capture is not None:
            self._invalidate(CAPTURE_UNSUPPORTED)
        stream.capture, stream.last = Capture(handle, mode), None
        if gc.isenabled():  # as Python may
            gc.collect()

    def stream_end_capture(self, handle: int) -> int:
        capture = self._stream(handle).capture
        if capture is None:
            self._error(INVALID_VALUE)
        assert capture
        if capture.origin != handle:
            self._invalidate(CAPTURE_UNMATCHED)
        joined = closure(self._stream(handle).last)
        capture.is_over = True
        for stream in self._streams.values():
            if stream.capture is capture:
                stream.capture, stream.last = None, None
        if not capture.is_valid:
            self._error(CAPTURE_INVALIDATED)
        if not all(id(each) in joined for each in capture.operations):
            self._error(CAPTURE_UNJOINED)
        graph = next(self._handles)
        self._graphs[graph] = capture.operations
        return graph

    def graph_instantiate(self, graph: int) -> int:
        handle = next(self._handles)
        self._executables[handle] = self._graphs[graph]
        return handle

    def nodes(self, graph: int) -> list[int]:
        """The kinds of a graph's nodes; events order others and are none."""
        return [each.kind for each in self._graphs[graph] if each.kind is not None]

    def edges(self, graph: int) -> int:
        """How many a graph has: events make edges between nodes, and no nodes."""
        return sum(len(_nodes_before(each.after)) for each in self._graphs[graph] if each.kind is not None)

    def capture_info(self, handle: int) -> tuple[int, list[int]] | None:
        """The graph of a capturing stream, and the nodes that its next one depends on; None outside of a capture."""
        stream = self._stream(handle)
        if stream.capture is None:
            return None
        return id(stream.capture), list(map(id, _nodes_before([stream.last] if stream.last else [])))

    def add_empty_node(self, graph: int, before: Sequence[int]) -> int:
        capture = next(each for each in self._captures() if id(each) == graph)
        after = [each for each in capture.operations if id(each) in before]
        assert len(after) == len(before)
        capture.operations.append(Operation(None, _nothing, after, kind=EMPTY))
        return id(capture.operations[-1])

    def set_captured_before(self, handle: int, node: int) -> int:
        """What the next node of a capturing stream depends on; a status."""
        stream = self._stream(handle)
        if stream.capture is None or stream.last is None:
            return ILLEGAL_STATE
        found = next(each for each in stream.capture.operations if id(each) == node)
        found.after.append(stream.last)  # events that are joined by it
        stream.last = found
        return 0

    def graph_destroy(self, graph: int) -> None:
        del self._graphs[graph]

    def graph_exec_destroy(self, handle: int) -> None:
        self._unsafe()  # nothing says that a capture allows it
        self._run_pending()
        del self._executables[handle]

    def graph_upload(self, handle: int, stream: int) -> None:
        self._add(stream, lambda: None)
        assert handle in self._executables

    def graph_launch(self, handle: int, stream: int) -> None:
        if self._stream(stream).capture is not None:
            self._invalidate(CAPTURE_UNSUPPORTED)
        operations = self._executables[handle]
        self._add(stream, lambda: run_all(operations, self.draw))

    # Modules and launches

    def module_load_data(self, image: bytes) -> int:
        handle = next(self._handles)
        self._modules[handle] = (image, self.sources[image], self.get_device())
        return handle

    def module_unload(self, handle: int) -> None:
        del self._modules[handle]

    def module_get_function(self, module: int, name: str) -> int:
        image, source, device = self._modules[module]
        if name.encode() not in image:
            self._error(NOT_FOUND)
        handle = next(self._handles)
        self._functions[handle] = Function(source, name, tuple(_parameters(source, name)), device)
        host_cuda.compiled(source, name)
        return handle

    def launch_kernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared_nbytes: int, stream: int, parameters: int, extra: int,
    ) -> None:  # fmt: skip
        if bx * by * bz > 1024 or min(gx, gy, gz, bx, by, bz) < 1 or bz > 64 or max(gy, gz) > 65535:
            self._error(INVALID_VALUE)
        if shared_nbytes > _SHARED_NBYTES or extra:
            self._error(INVALID_VALUE)
        found = self._functions[function]
        if not self.get_device() == found.device == self.device_of(stream):
            self._error(INVALID_HANDLE)
        addresses = (ctypes.c_void_p * len(found.parameters)).from_address(parameters)
        values = [
            ctypes.create_string_buffer(ctypes.string_at(at or 0, size % 64), size % 64)
            for at, size in zip(addresses, found.parameters, strict=True)
        ]
        for value, size in zip(values, found.parameters, strict=True):
            if size == _POINTER:
                start = self._check_range(int.from_bytes(value.raw, "little"), 1)
                if self._owners[start] != found.device:
                    self._error(ILLEGAL_ADDRESS)
        self.launched.append(found.entry)
        self._add(stream, lambda: _run(found, (gx, gy, gz, bx, by, bz), values), kind=KERNEL)

    def enqueue(self, stream: int, run: Callable[[], object]) -> None:
        """Enqueues the work of a library such as cuDNN."""
        self._add(stream, run, kind=KERNEL)

    # What holds for all

    def device_of(self, stream: int) -> int:
        """The GPU of a stream; the default stream is of the current one."""
        return self._stream(stream).device if stream else self.get_device()

    def _stream(self, handle: int) -> Stream:
        if handle not in self._streams:
            self._error(INVALID_HANDLE)
        return self._streams[handle]

    def _event(self, handle: int) -> Event:
        if handle not in self._events:
            self._error(INVALID_HANDLE)
        return self._events[handle]

    def _captures(self) -> Iterator[Capture]:
        for stream in self._streams.values():
            if stream.capture is not None:
                yield stream.capture

    def _unsafe(self, *, relaxed: bool = False) -> None:
        """A call that no capture allows; with `relaxed`, a relaxed one does."""
        if any(not (relaxed and each.mode == _RELAXED) for each in self._captures()):
            self._invalidate(CAPTURE_UNSUPPORTED)

    def _invalidate(self, status: int) -> NoReturn:
        for capture in self._captures():
            capture.is_valid = False
        self._error(status)

    def _add(
        self, handle: int, run: Callable[[], object], after: Sequence[Operation] = (), kind: int | None = None
    ) -> Operation:
        stream = self._stream(handle)
        if stream.capture is not None and not stream.capture.is_valid:
            self._error(CAPTURE_INVALIDATED)
        operation = Operation(stream, run, [*([stream.last] if stream.last else []), *after], kind=kind)
        stream.last = operation
        (self._pending if stream.capture is None else stream.capture.operations).append(operation)
        return operation

    def _run_pending(self) -> None:
        pending, self._pending = self._pending, []
        run_all(pending, self.draw)
        for operation in pending:
            operation.after.clear()
            operation.run = _nothing


def _nothing() -> None:
    pass


def _nodes_before(operations: Sequence[Operation]) -> list[Operation]:
    """The last nodes among these operations and their predecessors."""
    found: dict[int, Operation] = {}
    work = [*operations]
    while work:
        operation = work.pop()
        if operation.kind is None:
            work += operation.after
        else:
            found[id(operation)] = operation
    return list(found.values())


def _run(function: Function, shape: Sequence[int], values: Sequence[Any]) -> None:
    library = host_cuda.compiled(function.source, function.entry)
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    status = library.host_launch((ctypes.c_uint * 6)(*shape), pointers, bytes(function.parameters), len(values))
    assert status == 0, f"{function.entry}: {host_cuda._FAILURES[status]}"


def _parameters(source: str, name: str) -> Iterator[int]:
    """Sizes of a kernel's parameters, as its source declares them."""
    declared = re.search(rf"__global__[^;{{]*?\b{name}\s*\(([^)]*)\)", source)
    assert declared, source
    for parameter in declared[1].split(","):
        plain = re.sub(r"\b(const|__restrict__)\b", " ", parameter)
        yield _POINTER if "*" in plain else _SIZES[" ".join(plain.split()[:-1])]
