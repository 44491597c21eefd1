"""The interface to a GPU's memory, streams, events and graphs.

`cupy.CupyDriver` implements it on hardware; tests run the executor on a host implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from iosched.runtime.cuda.kernel import CudaCall, Gpu

Number = int | np.generic


class Memory(Protocol):
    """Device memory, freed with its last reference.

    It may be reused at once, so streams must have finished with it by then.
    """

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        ...


class Driver(Protocol):
    """Memory, streams, events and captured graphs of one GPU. Streams and events are opaque; addresses are ints."""

    @property
    def gpu(self) -> Gpu:
        """Properties that kernels depend on."""
        ...

    @property
    def l2_nbytes(self) -> int:
        """Size of the L2 cache; 0 if unknown."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """Makes this GPU the thread's current one in a block; methods of the driver do so themselves."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Memory aligned to 256 bytes.

        Raises:
            DeviceError: the GPU is out of memory.
        """
        ...

    def upload(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Copies a C-contiguous array to the GPU in stream order.

        Ordinary memory may be reused on return, pinned memory only after the copy.
        """
        ...

    def download(self, address: int, content: np.ndarray, stream: Any) -> None:
        """Fills a C-contiguous array from the GPU and synchronizes."""
        ...

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        """Sets bytes to `value` in stream order."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copies bytes on the GPU in stream order."""
        ...

    def new_stream(self) -> Any:
        """A stream that does not synchronize with the default stream."""
        ...

    def new_event(self, *, timing: bool = False) -> Any:
        """An event; with `timing`, the time between two events can be measured."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """Records the event after the stream's current work."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Makes later work of the stream wait for the event."""
        ...

    def join(self, streams: Sequence[Any]) -> None:
        """Adds an empty node to a capture: the first stream has waited for all others, which will wait for it."""
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two timing events; waits for the later one."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Waits for the stream.

        Raises:
            ExecutionError: a launch failed.
        """
        ...

    def load(self, call: CudaCall) -> Any:
        """The compiled function; calls with the same source and entry share it.

        Raises:
            ExecutionError: the source does not compile.
        """
        ...

    def prepare(self, calls: Iterable[CudaCall]) -> None:
        """Compiles calls in parallel for `load`, which raises their errors."""
        ...

    def launch(self, function: Any, call: CudaCall, arguments: Sequence[Number], stream: Any) -> None:
        """Enqueues a loaded function with the grid and block of `call`."""
        ...

    def begin_capture(self, stream: Any) -> None:
        """Starts capturing work of the stream, and of streams that wait for it, instead of running it."""
        ...

    def end_capture(self, stream: Any) -> Any:
        """Ends the capture and returns the graph."""
        ...

    def launch_graph(self, graph: Any, stream: Any) -> None:
        """Enqueues a captured graph."""
        ...
