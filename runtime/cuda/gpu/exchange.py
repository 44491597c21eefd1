"""Arrays of other libraries on the same GPU, by DLPack: https://data-apis.org/array-api/latest/design_topics/data_interchange.html."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iosched.models.errors import UsageError
from iosched.runtime.cuda.gpu.failures import first_line, keep_if_lost, meaning
from iosched.runtime.plan import View

DEVICE = frozenset({2, 13})
"""DLPack's kinds of memory of a CUDA GPU: its own, and managed."""

HOST = frozenset({1, 3})
"""DLPack's kinds of memory of the host: ordinary, and pinned."""


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of any library that knows DLPack."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        """A capsule; what `stream` is given from now on comes after what makes the array."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind of memory and index of the device."""
        ...


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An output where it lies on the GPU; every library that knows DLPack takes it: `torch.from_dlpack(array)`.

    It is row-major. The next run of the model overwrites it.

    Attributes:
        shape: its extents.
        dtype: numpy's name of its type.
        device: as `__dlpack_device__` gives it.
        export: makes a capsule.
    """

    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int]
    export: Callable[..., Any]

    def __dlpack__(self, **how: Any) -> Any:
        """See `SupportsDLPack`."""
        return self.export(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        """See `SupportsDLPack`."""
        return self.device


@dataclass(frozen=True, eq=False)
class Taken:
    """An array of the caller where it lies on the GPU.

    Attributes:
        dtype: numpy's name of its type.
        is_contiguous: whether it is row-major without gaps.
        owner: keeps its memory.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    is_contiguous: bool
    owner: Any


class Exchange(Protocol):
    """Takes and gives arrays on one GPU. Streams are the driver's."""

    @property
    def index(self) -> int:
        """CUDA's number of the GPU."""
        ...

    def take(self, given: SupportsDLPack, stream: Any) -> Taken:
        """An array on this GPU; `stream` comes after what makes it.

        Raises:
            BufferError: its library does not give it, or its type is not known.
        """
        ...

    def give(self, address: int, view: View, owner: Any, stream: Any) -> DeviceArray:
        """The array that `stream` writes at `address`; who takes it waits for what the stream was given by then."""
        ...

    def stream_of(self, handle: int) -> Any:
        """The stream of that handle, which another library made."""
        ...


@dataclass(frozen=True)
class _Handle:
    """What CUDA's libraries in Python take for a stream."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@dataclass(frozen=True)
class _GivenTo:
    """An array whose library is told which stream reads it.

    CuPy asks for the stream that is current. Made so, it would be that of arrays which CuPy itself gives, too, and
    nothing would wait for the stream of the caller.
    """

    given: SupportsDLPack
    stream: int

    def __dlpack__(self, **how: Any) -> Any:
        return self.given.__dlpack__(**{**how, "stream": self.stream})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.given.__dlpack_device__()


class CupyExchange:
    """DLPack through CuPy, which reads and writes the capsules. Beside what `Exchange` says, everything may raise

    Raises:
        ExecutionError: something failed on the GPU.
        DeviceLostError: nothing runs on the GPU any more.
    """

    def __init__(self, index: int) -> None:
        """The exchange with GPU `index`."""
        self.index = index

    @cached_property
    def _cupy(self) -> ModuleType:
        import cupy

        return cupy  # type: ignore[no-any-return]

    def take(self, given: SupportsDLPack, stream: Any) -> Taken:
        """See `Exchange`."""
        try:
            with self._told():
                array = self._cupy.from_dlpack(_GivenTo(given, int(stream.ptr)))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise BufferError(first_line(error)) from error
        address, dtype = int(array.data.ptr), str(array.dtype)
        return Taken(address, tuple(array.shape), dtype, bool(array.flags.c_contiguous), array)

    def give(self, address: int, view: View, owner: Any, stream: Any) -> DeviceArray:
        """See `Exchange`."""
        cuda, shape = self._cupy.cuda, view.shape or ()
        memory = cuda.UnownedMemory(address, view.nbytes, owner, self.index)
        array = self._cupy.ndarray(shape, np.dtype(view.dtype), cuda.MemoryPointer(memory, 0))

        def export(**how: Any) -> Any:
            with self._told(), stream:
                return array.__dlpack__(**how)

        return DeviceArray(shape, view.dtype, (2, self.index), export)

    def stream_of(self, handle: int) -> Any:
        """See `Exchange`."""
        stream = self._cupy.cuda.Stream
        if hasattr(stream, "from_external"):
            return stream.from_external(_Handle(handle))
        return self._cupy.cuda.ExternalStream(handle)  # before CuPy 14.2

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise keep_if_lost(meaning(error)) from error


def host_array(given: Any) -> np.ndarray | None:
    """`given` as an array of numpy where it lies on the host; None where it lies on a GPU.

    Raises:
        UsageError: it is on a device that is neither, or its library does not give it.
    """
    if isinstance(given, np.ndarray) or not isinstance(given, SupportsDLPack):
        return np.asarray(given)
    kind, index = given.__dlpack_device__()
    if kind in DEVICE:
        return None
    if kind in HOST:
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"it cannot be taken where it lies: {first_line(error)}") from error
    raise UsageError(f"it lies on a device of DLPack's kind {kind} ({index}): neither the host nor a CUDA GPU")
