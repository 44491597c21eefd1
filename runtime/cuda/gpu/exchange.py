"""DLPack arrays: https://data-apis.org/array-api/latest/design_topics/data_interchange.html."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iosched.models.errors import UsageError
from iosched.runtime.cuda.gpu.failures import first_line, kept_if_lost, translated
from iosched.runtime.plan import View

DEVICE = frozenset({2, 13})
"""DLPack device types of CUDA: device and managed memory."""

HOST = frozenset({1, 3})
"""DLPack device types of the host: ordinary and pinned memory."""


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array with DLPack support."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        """A capsule; later work of `stream` waits for the array."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number."""
        ...


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A row-major output in GPU memory for any DLPack library: `torch.from_dlpack(array)`.

    The next run of the model overwrites it.

    Attributes:
        dtype: numpy's name.
        device: DLPack's device type and number.
        export: creates a capsule.
    """

    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    export: Callable[..., Any]

    def __dlpack__(self, **how: Any) -> Any:
        return self.export(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@dataclass(frozen=True, eq=False)
class ImportedArray:
    """A caller's array in GPU memory.

    Attributes:
        dtype: numpy's name.
        is_contiguous: row-major without gaps.
        owner: keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    is_contiguous: bool
    owner: Any


class Exchange(Protocol):
    """Imports and exports arrays on one GPU. Streams are the driver's."""

    @property
    def index(self) -> int:
        """CUDA's number of the GPU."""
        ...

    def import_array(self, array: SupportsDLPack, stream: Any) -> ImportedArray:
        """Imports an array on this GPU; `stream` waits for it.

        Raises:
            BufferError: its library refuses, or the type is unknown.
        """
        ...

    def export_array(self, address: int, view: View, owner: Any, stream: Any) -> DeviceArray:
        """Exports the array that `stream` writes at `address`; consumers wait for the stream's current work."""
        ...

    def stream_of(self, handle: int) -> Any:
        """The stream with a handle of another library."""
        ...


@dataclass(frozen=True)
class _Handle:
    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@dataclass(frozen=True)
class _OnStream:
    """An array that is read on `stream`.

    CuPy passes its current stream. That would also be the stream of arrays that CuPy itself exports, and nothing
    would wait for the caller's stream.
    """

    array: SupportsDLPack
    stream: int

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**{**how, "stream": self.stream})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class CupyExchange:
    """DLPack through CuPy. Methods also raise:

    Raises:
        ExecutionError: the GPU failed.
        DeviceLostError: the GPU is lost.
    """

    def __init__(self, index: int) -> None:
        self.index = index

    @cached_property
    def _cupy(self) -> ModuleType:
        import cupy

        return cupy  # type: ignore[no-any-return]

    def import_array(self, array: SupportsDLPack, stream: Any) -> ImportedArray:
        """See `Exchange`."""
        try:
            with self._on_gpu():
                own = self._cupy.from_dlpack(_OnStream(array, int(stream.ptr)))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise BufferError(first_line(error)) from error
        address, dtype = int(own.data.ptr), str(own.dtype)
        return ImportedArray(address, tuple(own.shape), dtype, bool(own.flags.c_contiguous), own)

    def export_array(self, address: int, view: View, owner: Any, stream: Any) -> DeviceArray:
        """See `Exchange`."""
        cuda, shape = self._cupy.cuda, view.shape or ()
        with self._on_gpu():
            memory = cuda.UnownedMemory(address, view.nbytes, owner, self.index)
            array = self._cupy.ndarray(shape, np.dtype(view.dtype), cuda.MemoryPointer(memory, 0))

        def export(**how: Any) -> Any:
            with self._on_gpu(), stream:
                return array.__dlpack__(**how)

        return DeviceArray(shape, view.dtype, (2, self.index), export)

    def stream_of(self, handle: int) -> Any:
        """See `Exchange`."""
        stream = self._cupy.cuda.Stream
        with self._on_gpu():
            if hasattr(stream, "from_external"):
                return stream.from_external(_Handle(handle))
            return self._cupy.cuda.ExternalStream(handle)  # before CuPy 14.2

    @contextmanager
    def _on_gpu(self) -> Iterator[None]:
        """Makes the GPU the thread's current one, and translates CUDA's errors."""
        try:
            with self._cupy.cuda.Device(self.index):
                yield
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise kept_if_lost(translated(error)) from error


def host_array(name: str, array: Any) -> np.ndarray | None:
    """Input `name` as a numpy array if it is in host memory; None if it is on a GPU.

    Raises:
        UsageError: it is on another device, or its library refuses.
    """
    if isinstance(array, np.ndarray) or not isinstance(array, SupportsDLPack):
        return np.asarray(array)
    kind, index = array.__dlpack_device__()
    if kind in DEVICE:
        return None
    if kind in HOST:
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"cannot read input {name!r} in place: {first_line(error)}") from error
    raise UsageError(
        f"input {name!r} is on a device of DLPack type {kind} ({index}): pass an array in host or CUDA memory"
    )
