"""Arrays "on" the GPU that is made of host memory, and who takes and gives them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from host_driver import HostDriver, Stream

from iosched.runtime.cuda.gpu.exchange import DeviceArray, ImportedArray, SupportsDLPack
from iosched.runtime.plan import View

HERE = (2, 0)


class OnDevice:
    """An array of another library; remembers which streams it was asked to be ready for."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = HERE) -> None:
        self.array, self.device = array, device
        self.asked: list[Any] = []

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class _Capsule:
    """What numpy takes as an array of the host."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class HostExchange:
    """The `Exchange` of tests."""

    def __init__(self, driver: HostDriver, streams: Mapping[int, Stream] | None = None) -> None:
        self.driver, self.streams, self.index = driver, dict(streams or {}), 0

    def import_array(self, given: SupportsDLPack, stream: Stream) -> ImportedArray:
        array = np.from_dlpack(_Capsule(given.__dlpack__(stream=stream)))  # type: ignore[arg-type]
        contiguous = bool(array.flags.c_contiguous)
        return ImportedArray(array.ctypes.data, array.shape, str(array.dtype), contiguous, array)

    def export_array(self, address: int, view: View, owner: Any, stream: Stream) -> DeviceArray:
        data = (ctypes.c_uint8 * view.nbytes).from_address(address)
        array = np.ndarray(view.shape or (), view.dtype, data)

        def export(**_: Any) -> Any:
            assert owner.ptr == address
            self.driver.synchronize(stream)
            return array.__dlpack__()

        return DeviceArray(view.shape or (), view.dtype, HERE, export)

    def stream_of(self, handle: int) -> Stream:
        return self.streams[handle]


def on_host(array: DeviceArray) -> np.ndarray:
    """What lies there now."""
    return np.array(np.from_dlpack(_Capsule(array.__dlpack__())))  # type: ignore[arg-type]
