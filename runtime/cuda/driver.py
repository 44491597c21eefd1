"""What the executor asks of a GPU, and CuPy as the one who does it.

Everything the executor does goes through here, so that its launches, events and captures are tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
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


class CupyDriver:
    """A GPU through CuPy."""

    def __init__(self, index: int = 0) -> None:
        """Makes GPU `index` the current one.

        Raises:
            DeviceError: CuPy is not installed, or there is no such GPU.
        """
        try:
            import cupy
        except ImportError as error:
            raise DeviceError("CuPy is not installed: run pip install 'iosched[cuda]'") from error
        self._cupy = cupy
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"no GPU can be used: {error}.\nSee `iosched devices`.") from error
        if index >= count:
            raise DeviceError(f"there is no GPU {index}; this machine has {count}. See `iosched devices`.")
        cupy.cuda.Device(index).use()
        self.index = index
        self._functions: dict[tuple[str, str], Any] = {}

    def allocate(self, nbytes: int) -> Memory:
        """See `Driver`."""
        try:
            found: Memory = self._cupy.cuda.alloc(max(nbytes, 1))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(f"the GPU has no {nbytes / 1e6:.0f} MB of memory left; try a smaller batch") from error
        return found

    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(address, content.ctypes.data, content.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """See `Driver`."""
        if content.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(content.ctypes.data, address, content.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        self.synchronize(stream)

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """See `Driver`."""
        self._cupy.cuda.runtime.memsetAsync(address, value, nbytes, stream.ptr)

    def new_stream(self) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self, *, timing: bool = False) -> Any:
        """See `Driver`."""
        return self._cupy.cuda.Event(disable_timing=not timing)

    def record(self, event: Any, stream: Any) -> None:
        """See `Driver`."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """See `Driver`."""
        stream.wait_event(event)

    def elapsed_us(self, start: Any, end: Any) -> float:
        """See `Driver`."""
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) * 1e3

    def synchronize(self, stream: Any) -> None:
        """See `Driver`."""
        try:
            stream.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise ExecutionError(f"the GPU failed: {error}") from error

    def load(self, call: CudaCall) -> Any:
        """See `Driver`."""
        key = (call.source, call.entry)
        if key not in self._functions:
            module = self._cupy.RawModule(code=call.source, backend="nvrtc", options=("--std=c++17",))
            try:
                self._functions[key] = module.get_function(call.entry)
            except self._cupy.cuda.compiler.CompileException as error:
                raise ExecutionError(f"the kernel {call.entry} does not compile: {error}") from error
        return self._functions[key]

    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """See `Driver`."""
        with stream:
            function(call.grid, call.block, tuple(arguments), shared_mem=call.shared_nbytes)

    def begin_capture(self, stream: Any) -> None:
        """See `Driver`."""
        stream.begin_capture()

    def end_capture(self, stream: Any) -> Any:
        """See `Driver`."""
        return stream.end_capture()

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """See `Driver`."""
        graph.launch(stream)
