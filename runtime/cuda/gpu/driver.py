"""What the executor asks of a GPU, and CuPy as the one who does it.

Everything the executor does goes through here, so that its launches, events and captures are tested without a GPU.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.gpu.failures import INSTALL, keep_if_lost, meaning, no_gpu
from iosched.runtime.cuda.kernel import CudaCall

Number = int | np.generic


class Memory(Protocol):
    """Bytes on the device, given back when nothing refers to them any more."""

    @property
    def ptr(self) -> int:
        """The address of the first one."""
        ...


class Driver(Protocol):
    """Memory, streams, events and captured graphs of one GPU. Streams and events are opaque; addresses are ints."""

    def allocate(self, nbytes: int) -> Memory:
        """So many bytes, aligned to 256.

        Raises:
            DeviceError: the device has not that much memory left.
        """
        ...

    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Copies the bytes of a C-contiguous array to the device, in the order of the stream."""
        ...

    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Fills a C-contiguous array with bytes of the device, and waits until that is done."""
        ...

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """Sets bytes, in the order of the stream."""
        ...

    def new_stream(self) -> Any:
        """A stream that does not wait for the default one."""
        ...

    def new_event(self, *, timing: bool = False) -> Any:
        """An event."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """The event is reached when all that the stream was given before is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on waits for the event."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two events with timing; waits for the later one."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Waits until the stream is done.

        Raises:
            ExecutionError: a launch failed, or the GPU was lost.
        """
        ...

    def load(self, call: CudaCall) -> Any:
        """The compiled function of a call; calls of one source and entry share it.

        Raises:
            ExecutionError: the source does not compile.
        """
        ...

    def prepare(self, calls: Iterable[CudaCall]) -> None:
        """Compiles what `load` will be asked for, side by side; what fails, fails there."""
        ...

    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """Launches a function that was loaded."""
        ...

    def begin_capture(self, stream: Any) -> None:
        """From now on, what the stream and those that wait for it are given is not run but captured."""
        ...

    def end_capture(self, stream: Any) -> Any:
        """The captured graph."""
        ...

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Runs a captured graph."""
        ...


P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate["CupyDriver", P], R]


def _told(method: Method[P, R]) -> Method[P, R]:
    """What CuPy raises, as errors of ours."""

    @wraps(method)
    def call(self: CupyDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except self.failures as error:
            raise keep_if_lost(meaning(error)) from error

    return call


@dataclass(frozen=True)
class GpuFacts:
    """What CUDA tells of a GPU.

    Attributes:
        capability: compute capability times ten.
        pci_bus_id: where it sits; CUDA's numbers of GPUs are not those of other tools.
        versions: of what changes latencies.
    """

    name: str
    capability: int
    pci_bus_id: str
    versions: Mapping[str, str]


class CupyDriver:
    """A GPU through CuPy. Beside what `Driver` says, everything here may raise

    Attributes:
        index: CUDA's number of the GPU.
        count: GPUs that CUDA sees.

    Raises:
        ExecutionError: something failed on the GPU.
        DeviceLostError: nothing runs on the GPU any more.
        DeviceError: the GPU has no memory left, or a library is missing.
    """

    def __init__(self, index: int = 0) -> None:
        """Makes GPU `index` the current one.

        Raises:
            DeviceError: CuPy is not installed, or there is no such GPU; says what to do.
        """
        try:
            import cupy
        except ImportError as error:
            raise DeviceError(f"CuPy is not installed; {INSTALL}") from error
        self._cupy = cupy
        self.failures: tuple[type[Exception], ...] = (
            RuntimeError,  # those of CUDA's runtime, driver and NVRTC, and libraries that are not found
            ImportError,
            cupy.cuda.memory.OutOfMemoryError,
            cupy.cuda.compiler.CompileException,
        )
        runtime = cupy.cuda.runtime
        try:
            self.count = int(runtime.getDeviceCount())
        except RuntimeError as error:
            raise no_gpu(error, runtime.driverGetVersion(), runtime.runtimeGetVersion()) from error
        if index >= self.count:
            raise DeviceError(f"there is no GPU {index}; this machine has {self.count}. See `iosched devices`.")
        self.index = index
        self._functions: dict[tuple[str, str], Any] = {}
        self._use()

    @_told
    def _use(self) -> None:
        self._cupy.cuda.Device(self.index).use()

    @_told
    def facts(self, index: int | None = None) -> GpuFacts:
        """What CUDA tells of a GPU; of this one by default."""
        index = self.index if index is None else index
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(index)
        versions = {
            "driver": str(runtime.driverGetVersion()),
            "cuda": str(runtime.runtimeGetVersion()),
            "nvrtc": ".".join(map(str, self._cupy.cuda.nvrtc.getVersion())),
            "cupy": str(self._cupy.__version__),
        }
        capability = 10 * int(properties["major"]) + int(properties["minor"])
        return GpuFacts(properties["name"].decode(), capability, runtime.deviceGetPCIBusId(index), versions)

    @_told
    def allocate(self, nbytes: int) -> Memory:
        """See `Driver`."""
        try:
            found: Memory = self._cupy.cuda.alloc(max(nbytes, 1))
        except self._cupy.cuda.memory.OutOfMemoryError:
            gc.collect()  # memory that nobody uses any more may be kept by objects that refer to each other
            found = self._cupy.cuda.alloc(max(nbytes, 1))
        return found

    @_told
    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(address, content.ctypes.data, content.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    @_told
    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(content.ctypes.data, address, content.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        self.synchronize(stream)

    @_told
    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """See `Driver`."""
        self._cupy.cuda.runtime.memsetAsync(address, value, nbytes, stream.ptr)

    @_told
    def new_stream(self) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Stream(non_blocking=True)

    @_told
    def new_event(self, *, timing: bool = False) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Event(disable_timing=not timing)

    @_told
    def record(self, event: Any, stream: Any) -> None:
        """See `Driver`."""
        event.record(stream)

    @_told
    def wait(self, stream: Any, event: Any) -> None:
        """See `Driver`."""
        stream.wait_event(event)

    @_told
    def elapsed_us(self, start: Any, end: Any) -> float:
        """See `Driver`."""
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) * 1e3

    @_told
    def synchronize(self, stream: Any) -> None:
        """See `Driver`."""
        stream.synchronize()

    @_told
    def load(self, call: CudaCall) -> Any:
        """See `Driver`."""
        key = (call.source, call.entry)
        if key not in self._functions:
            self._functions[key] = self._compiled(call)
        return self._functions[key]

    def prepare(self, calls: Iterable[CudaCall]) -> None:
        """See `Driver`. NVRTC works without Python's lock."""
        missing = {key: call for call in calls if (key := (call.source, call.entry)) not in self._functions}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            found = dict(zip(missing, threads.map(self._compiled_or_none, missing.values()), strict=True))
        self._functions |= {key: function for key, function in found.items() if function is not None}

    def _compiled_or_none(self, call: CudaCall) -> Any:
        with suppress(*self.failures), self._cupy.cuda.Device(self.index):  # each thread has a current GPU of its own
            return self._compiled(call)
        return None

    def _compiled(self, call: CudaCall) -> Any:
        module = self._cupy.RawModule(code=call.source, backend="nvrtc", options=("--std=c++17",))
        return module.get_function(call.entry)

    @_told
    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """See `Driver`."""
        with stream:
            function(call.grid, call.block, tuple(arguments))

    @_told
    def begin_capture(self, stream: Any) -> None:
        """See `Driver`."""
        stream.begin_capture()

    @_told
    def end_capture(self, stream: Any) -> Any:
        """See `Driver`."""
        return stream.end_capture()

    @_told
    def launch_graph(self, graph: Any, stream: Any) -> None:
        """See `Driver`."""
        graph.launch(stream)
