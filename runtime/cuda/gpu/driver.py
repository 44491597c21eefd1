"""What the executor asks of a GPU.

Everything that the executor does goes through this protocol, so that its launches, events and captures are tested
without a GPU. `cupy.CupyDriver` is the driver of a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from iosched.runtime.cuda.kernel import CudaCall
from iosched.runtime.cuda.target import Gpu

Number = int | np.generic


class Memory(Protocol):
    """Bytes on the device, given back when nothing refers to them any more.

    They may be others' at once: what streams were given before has to be done with them by then.
    """

    @property
    def ptr(self) -> int:
        """The address of the first byte."""
        ...


class Driver(Protocol):
    """Memory, streams, events and captured graphs of one GPU. Streams and events are opaque; addresses are ints."""

    @property
    def gpu(self) -> Gpu:
        """The GPU, as far as kernels depend on it."""
        ...

    @property
    def l2_nbytes(self) -> int:
        """What its last cache holds, which all multiprocessors share; 0 where that is not known."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Memory of `nbytes` bytes that begins at a multiple of 256.

        Raises:
            DeviceError: the device has not that much memory left.
        """
        ...

    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Copies the bytes of a C-contiguous array to the device, in the order of the stream.

        Ordinary memory may be filled with something else when it returns, pinned memory when the stream has come to it.
        """
        ...

    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Fills a C-contiguous array with bytes of the device, and waits until that is done."""
        ...

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """Sets `nbytes` bytes from `address` on to `value`, in the order of the stream."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copies bytes from one place on the device to another, in the order of the stream."""
        ...

    def new_stream(self) -> Any:
        """A stream that does not wait for the default one."""
        ...

    def new_event(self, *, timing: bool = False) -> Any:
        """An event that streams can record and wait for; with `timing`, the time between two can be asked for."""
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
        """Compiles these calls side by side, so that `load` finds them; of errors, `load` alone speaks."""
        ...

    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """Enqueues a function that `load` gave on the stream, with the grid and block of `call`."""
        ...

    def begin_capture(self, stream: Any) -> None:
        """From now on, what the stream and those that wait for it are given is not run but captured."""
        ...

    def end_capture(self, stream: Any) -> Any:
        """Ends the capture; the result is the graph of all that was captured."""
        ...

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Enqueues a captured graph on the stream."""
        ...
