"""A GPU made of host memory: its streams run late and in any order that events allow, its kernels on the host."""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any
from weakref import finalize

import host_cuda
import numpy as np

from iosched.models.errors import DeviceLostError, ExecutionError
from iosched.runtime.cuda.cudnn.chooser import (
    FASTEST_ALONE,
    CudnnPlanCandidate,
    CudnnPlanNames,
    names_from_text,
    names_to_text,
    stage_key,
)
from iosched.runtime.cuda.cudnn.fastest import CudnnPlanStore
from iosched.runtime.cuda.kernel import H100, CudaCall, CudnnKernel, Gpu, Pointer
from iosched.runtime.plan import View


@dataclass(eq=False)
class Operation:
    """Something a stream does once `after` is done, with memory at `touches`; a node if it is of a `kind`."""

    stream: Any
    run: Callable[[], object]
    after: list[Operation]
    done: bool = False
    touches: frozenset[int] = frozenset()
    kind: int | None = None


@dataclass(eq=False)
class Stream:
    """One as CuPy's, which is destroyed by `__del__`: in a cycle of garbage that may come before others'."""

    last: Operation | None = None
    capture: list[Operation] | None = None
    is_destroyed: bool = False

    def __del__(self) -> None:
        self.is_destroyed = True

    @property
    def ptr(self) -> int:
        return id(self)


@dataclass(eq=False)
class Event:
    timing: bool
    recorded: Operation | None = None


@dataclass(eq=False)
class Graph:
    driver: HostDriver
    operations: list[Operation] = field(default_factory=list)

    def __del__(self) -> None:
        if self.driver.captured is not None:
            self.driver.mistakes.append("a graph was destroyed inside of a capture")


@dataclass(frozen=True, eq=False)
class HostMemory:
    array: np.ndarray

    @property
    def ptr(self) -> int:
        return int(self.array.ctypes.data + -self.array.ctypes.data % 256)


class HostDriver:
    """The `Driver` of tests; every order of operations that streams and events leave open is drawn by chance.

    Attributes:
        gpu: the GPU that it passes for.
        l2_nbytes: size of its last-level cache.
        copied_nbytes: copied from one place on it to another.
        collects: whether garbage is collected in the middle of every capture, as Python may.
        captured: the operations of the current capture.
        pinned: arrays in pinned memory of the host, from which copies are made when the stream comes to them.
        joins: empty nodes that were asked for in captures.
        mistakes: errors on a GPU that Python cannot raise where they happen.
    """

    def __init__(self, seed: int = 0, *, collects: bool = False, gpu: Gpu = H100) -> None:
        self.gpu = gpu
        self.l2_nbytes = 50 << 20
        self.copied_nbytes = 0
        self.collects = collects
        self.captured: list[Operation] | None = None
        self.mistakes: list[str] = []
        self.kept: list[np.ndarray] = []
        self.pinned: list[np.ndarray] = []
        self.draw = random.Random(seed)
        self.lock = RLock()
        self.pending: list[Operation] = []
        self.launches: list[str] = []
        self.prepared: set[str] = set()
        self.graph_launches = 0
        self.joins = 0

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def allocate(self, nbytes: int) -> HostMemory:
        array = np.full(nbytes + 256, 0xFF, np.uint8)
        memory = HostMemory(array)
        finalize(memory, self._free, memory.ptr, nbytes, array).atexit = False
        return memory

    def _free(self, address: int, nbytes: int, array: np.ndarray) -> None:
        """Memory that is freed is others' at once, whatever streams were given before."""
        if any(address <= touched < address + nbytes for each in self.pending for touched in each.touches):
            self.mistakes.append("memory was freed that pending work touches")
            self.kept.append(array)

    def upload(self, address: int, content: np.ndarray, stream: Stream) -> None:
        now = None if any(np.shares_memory(content, each) for each in self.pinned) else content.tobytes()
        self._add(stream, lambda: _write(address, now or content.tobytes()), touches=(address,))

    def download(self, address: int, content: np.ndarray, stream: Stream) -> None:
        self._add(stream, lambda: ctypes.memmove(content.ctypes.data, address, content.nbytes), touches=(address,))
        self.synchronize(stream)

    def fill(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        self._add(stream, lambda: ctypes.memset(address, value, nbytes), touches=(address,))

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self.copied_nbytes += nbytes
        self._add(stream, lambda: ctypes.memmove(target, source, nbytes), touches=(target, source))

    def new_stream(self) -> Stream:
        return Stream()

    def new_event(self, *, timing: bool = False) -> Event:
        return Event(timing)

    def record(self, event: Event, stream: Stream) -> None:
        event.recorded = self._add(stream, lambda: None)

    def wait(self, stream: Stream, event: Event) -> None:
        assert event.recorded is not None, "waits for an event that was never recorded"
        before = event.recorded
        if before.stream.capture is not None and stream.capture is None:
            stream.capture, stream.last = before.stream.capture, None
        assert stream.capture is before.stream.capture, "a capture waits for what is not in it"
        self._add(stream, lambda: None, [before])

    def join(self, streams: Sequence[Stream]) -> None:
        """Makes later work of all streams depend on the work of the first."""
        first = streams[0]
        if first.capture is None or first.last is None:
            return
        behind = closure(first.last)
        for each in (each for each in streams[1:] if each.capture is first.capture):
            assert all(id(done) in behind for done in first.capture if done.touches and done.stream is each)
            self._add(each, lambda: None, [first.last])
        self.joins += 1

    def elapsed_us(self, start: Event, end: Event) -> float:
        assert start.timing
        assert end.timing
        self._run_pending(end.recorded)
        return 10.0

    def synchronize(self, stream: Stream) -> None:
        if stream.is_destroyed:
            self.mistakes.append("waits for a stream that was destroyed")
        assert stream.capture is None, "synchronizes in a capture"
        self._run_pending(stream.last)

    def load(self, call: CudaCall) -> CudaCall:
        host_cuda.compiled(call.source, call.entry)
        return call

    def prepare(self, calls: Iterable[CudaCall]) -> None:
        self.prepared.update(call.source for call in calls)

    def launch(self, function: CudaCall, call: CudaCall, arguments: Sequence[Any], stream: Stream) -> None:
        self.launches.append(call.entry)
        addresses = [each for each in arguments if isinstance(each, int)]
        numbered = iter(range(len(addresses)))
        forms = tuple(Pointer(next(numbered)) if isinstance(each, int) else each for each in arguments)
        self._add(stream, lambda: host_cuda.run(replace(call, arguments=forms), addresses), touches=addresses)

    def begin_capture(self, stream: Stream) -> None:
        assert not self.pending, "captures before what went before is done"
        stream.capture, stream.last = [], None
        self.captured = stream.capture
        if self.collects:
            assert not gc.isenabled(), "Python may collect garbage inside of a capture"
            gc.collect()
        assert not self.mistakes, self.mistakes

    def end_capture(self, stream: Stream) -> Graph:
        operations = stream.capture
        self.captured = None
        if operations is None:
            raise ExecutionError("the stream is in no capture")
        joined = closure(stream.last)
        for each in operations:
            each.stream.capture, each.stream.last = None, None
        stream.capture, stream.last = None, None
        if not all(id(each) in joined for each in operations):
            raise ExecutionError("a stream was not joined before the capture ended")
        return Graph(self, operations)

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        self.graph_launches += 1
        touches = [address for each in graph.operations for address in each.touches]
        self._add(stream, lambda: run_all(graph.operations, self.draw), touches=touches)

    def _add(
        self, stream: Stream, run: Callable[[], Any], after: Sequence[Operation] = (), touches: Iterable[int] = ()
    ) -> Operation:
        before = [*([stream.last] if stream.last else []), *after]
        operation = Operation(stream, run, before, touches=frozenset(touches))
        stream.last = operation
        with self.lock:
            (self.pending if stream.capture is None else stream.capture).append(operation)
        return operation

    def _run_pending(self, last: Operation | None) -> None:
        """Runs `last` and everything before it; all else stays pending."""
        assert not self.mistakes, self.mistakes
        with self.lock:
            wanted = closure(last)
            now = [each for each in self.pending if id(each) in wanted]
            self.pending = [each for each in self.pending if id(each) not in wanted]
            run_all(now, self.draw)
            for each in now:
                each.after = []


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def closure(last: Operation | None) -> set[int]:
    """Identities of the operation and of all that it comes after."""
    found: set[int] = set()
    work = [last] if last else []
    while work:
        operation = work.pop()
        if id(operation) not in found:
            found.add(id(operation))
            work += operation.after
    return found


def run_all(operations: Sequence[Operation], draw: random.Random) -> None:
    """All of them, each after what it must come after, otherwise in any order."""
    left = {id(each): {id(before) for before in each.after} for each in operations}
    followers: dict[int, list[Operation]] = {}
    for each in operations:
        left[id(each)] &= left.keys()
        for before in left[id(each)]:
            followers.setdefault(before, []).append(each)
    ready = [each for each in operations if not left[id(each)]]
    for _ in operations:
        assert ready, "operations wait for each other"
        chosen = ready.pop(draw.randrange(len(ready)))
        chosen.run()
        chosen.done = True
        for follower in followers.get(id(chosen), ()):
            left[id(follower)].discard(id(chosen))
            if not left[id(follower)]:
                ready.append(follower)


@dataclass(frozen=True, eq=False)
class HostPlan:
    """Replaces a cuDNN plan: computes the kernel's meaning in numpy, at the addresses."""

    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    driver: HostDriver
    workspace_nbytes: int = 64
    key: str = ""
    name: str = ""
    candidates: tuple[CudnnPlanCandidate, ...] = ()

    def execute(self, addresses: Sequence[int], workspace: int, stream: Stream) -> None:
        assert workspace
        self.driver.launches.append("cudnn")

        def run() -> None:
            _write(workspace, bytes([0xFF]) * self.workspace_nbytes)
            views = (*self.reads, *self.writes)
            arrays = [_at(address, view) for address, view in zip(addresses, views, strict=True)]
            self.kernel.interpret(arrays[: len(self.reads)], arrays[len(self.reads) :])

        self.driver._add(stream, run, touches=(*addresses, workspace))


@dataclass
class Kept:
    """A `CudnnPlanStore` in a dictionary; `times` is whether more may be found by timing."""

    known: dict[str, str] = field(default_factory=dict)
    times: bool = True
    crashed: set[tuple[str, str]] = field(default_factory=set)

    def choice(self, key: str) -> str | None:
        return self.known.get(key)

    def choose(self, key: str, value: str) -> str:
        return self.known.setdefault(key, value)

    def fatal(self, key: str) -> frozenset[str]:
        return frozenset(name for of, name in self.crashed if of == key)

    @contextmanager
    def trying(self, key: str, name: str) -> Iterator[None]:
        try:
            yield
        except DeviceLostError:
            self.crashed.add((key, name))
            raise


class HostChoice:
    """Replaces `FastestCudnnPlans`: for each kind of kernel a plan under a made-up name, and two more."""

    candidates = (
        CudnnPlanCandidate("eng7_k1=1", 10.0),
        CudnnPlanCandidate("eng8", 11.0),
        CudnnPlanCandidate("eng9", 12.0),
    )

    def __init__(self, driver: HostDriver, memory: CudnnPlanStore | None = None) -> None:
        self.driver, self.memory = driver, memory or Kept()
        self.notes: tuple[str, ...] = ()

    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> HostPlan:
        key = self.key(kernel, reads, writes)
        name = names.get(key, self.candidates[0].name)
        views = tuple(reads), tuple(writes)
        return HostPlan(kernel, *views, self.driver, key=key, name=name, candidates=self.candidates)

    def key(self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View]) -> str:
        del reads, writes
        return type(kernel).__name__

    def of_stage(self, signature: str) -> CudnnPlanNames | None:
        known = self.memory.choice(stage_key(signature))
        return None if known is None else names_from_text(known)

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        return names_from_text(self.memory.choose(stage_key(signature), names_to_text(names)))


def _at(address: int, view: View) -> np.ndarray:
    shape = view.shape or ()
    item = np.dtype(view.dtype).itemsize
    strides = view.strides or tuple(np.empty(shape, view.dtype).strides)
    extent = item + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    data = (ctypes.c_uint8 * extent).from_address(address)
    return np.ndarray(shape, view.dtype, data, 0, strides)
