"""NVIDIA's driver on this machine, and which extra of this package runs on it.

The driver's own library answers, so no package is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

from iosched.runtime.missing_dependencies import way_to_install


@dataclass(frozen=True)
class Extra:
    """The packages of one CUDA version: `pip install '.[NAME]'` in a clone.

    Attributes:
        cuda: CUDA's major version.
        least_capability: oldest GPU of its compiler and cuDNN, times ten.
        least_driver: oldest NVIDIA driver for Linux with any minor version of that CUDA (CUDA's "Minor Version
            Compatibility" and cuDNN's support matrix).
        packages: needed to run models, or to run them fast.
    """

    name: str
    cuda: int
    least_capability: int
    least_driver: int
    packages: tuple[str, ...]

    @property
    def install(self) -> str:
        """Clause: how to install it."""
        return way_to_install(self.name)

    @property
    def way(self) -> str:
        """Clause: how to install it separately, since packages of two extras or of [cpu] overwrite each other."""
        return f"in a separate environment, {self.install}"

    def runs_on(self, driver: int, capability: int) -> bool:
        """Whether it runs on such a GPU with a driver for CUDA up to `driver` (12040 is 12.4)."""
        return driver // 1000 >= self.cuda and capability >= self.least_capability


EXTRAS = (
    Extra("cuda", 13, 75, 580, ("cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "onnxruntime-gpu")),
    Extra("cuda12", 12, 70, 525, ("cupy-cuda12x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "onnxruntime-gpu")),
)
"""Newest first."""

_LAST_DRIVER_FOR_OLD_GPUS = 580
"""Last driver for GPUs before compute capability 7.5 (NVIDIA's deprecation schedule for Unix drivers)."""


def extra_for(driver: int, capabilities: Sequence[int]) -> Extra | None:
    """The newest extra that runs on most of these GPUs; None if none runs on any."""
    counts = {extra: sum(extra.runs_on(driver, each) for each in capabilities) for extra in EXTRAS}
    best = max(EXTRAS, key=lambda extra: counts[extra])
    return best if counts[best] else None


def extra_with(cuda: int) -> Extra | None:
    """The extra with this CUDA version (12040 is 12.4); None if there is none."""
    return next((extra for extra in EXTRAS if extra.cuda == cuda // 1000), None)


def way_to_run(driver: int, capability: int) -> str:
    """Clause: the package or driver to install to run models on such a GPU."""
    extra = extra_for(driver, [capability])
    if extra is not None:
        return extra.way
    known = [extra for extra in EXTRAS if capability >= extra.least_capability]
    if not known:
        least = EXTRAS[-1].least_capability / 10
        return f"compute capability {capability / 10} is not supported: iosched needs {least} or newer"
    until = f", up to {_LAST_DRIVER_FOR_OLD_GPUS}" if len(known) < len(EXTRAS) else ""
    return f"update the NVIDIA driver to {known[0].least_driver} or newer{until}"


def version_text(number: int) -> str:
    """CUDA's version 12040 as "12.4"."""
    return f"{number // 1000}.{number % 1000 // 10}"


_FIRST_LAZY = 12020


def load_lazily(driver: int) -> None:
    """Makes drivers before CUDA 12.2 load kernels on first use, as later ones do. Has no effect after `cuInit`."""
    if driver < _FIRST_LAZY:
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")


LIBRARY = "libcuda.so.1"
NO_DRIVER = "no NVIDIA driver found"

_NO_DEVICE = 100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_NAME_NBYTES = 256


@dataclass(frozen=True)
class DriverGpu:
    """A GPU that the driver sees.

    Attributes:
        capability: compute capability times ten.
    """

    name: str
    capability: int


@dataclass(frozen=True)
class DriverInfo:
    """The report of the driver's library.

    Attributes:
        cuda: newest supported CUDA in CUDA's numbering (12040 is 12.4); 0 without a driver.
        gpus: in CUDA's order, without those that CUDA_VISIBLE_DEVICES hides.
        problem: why there is no driver or GPU, else "".
    """

    cuda: int = 0
    gpus: tuple[DriverGpu, ...] = ()
    problem: str = ""

    @property
    def capabilities(self) -> tuple[int, ...]:
        """Compute capabilities of the GPUs."""
        return tuple(gpu.capability for gpu in self.gpus)

    def way_to_run(self, index: int | None = None) -> str:
        """Clause: the package or driver to install for this GPU, by default for most GPUs."""
        if index is not None and index < len(self.gpus):
            return way_to_run(self.cuda, self.gpus[index].capability)
        if not self.gpus:
            return f"to use a GPU ({self.problem}), {EXTRAS[0].install}"
        extra = extra_for(self.cuda, self.capabilities)
        return way_to_run(self.cuda, max(self.capabilities)) if extra is None else extra.way


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def query_driver() -> DriverInfo:
    """Queries the driver in a few milliseconds, without creating a CUDA context."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        is_absent = f"{LIBRARY}: cannot open" in str(error)
        return DriverInfo(problem=NO_DRIVER if is_absent else f"cannot load the driver: {error}")
    try:
        return _seen(library)
    except AttributeError as error:
        return DriverInfo(problem=f"the driver library is not NVIDIA's: {error}")


def _seen(library: ctypes.CDLL) -> DriverInfo:
    cuda = 0
    try:
        cuda = _number(library, "cuDriverGetVersion")
        load_lazily(cuda)
        _call(library, "cuInit", ctypes.c_uint(0))
        gpus = tuple(_gpu(library, index) for index in range(_number(library, "cuDeviceGetCount")))
    except _RefusedError as error:
        if error.status != _NO_DEVICE:
            return DriverInfo(cuda, problem=f"cannot start the driver: {error}")
        gpus = ()
    return DriverInfo(
        cuda, gpus, "" if gpus else "the driver finds no GPU: none is attached, or CUDA_VISIBLE_DEVICES hides it"
    )


def _gpu(library: ctypes.CDLL, index: int) -> DriverGpu:
    device = ctypes.c_int(_number(library, "cuDeviceGet", ctypes.c_int(index)))
    name = ctypes.create_string_buffer(_NAME_NBYTES)
    _call(library, "cuDeviceGetName", name, ctypes.c_int(_NAME_NBYTES), device)
    major, minor = (
        _number(library, "cuDeviceGetAttribute", ctypes.c_int(attribute), device) for attribute in (_MAJOR, _MINOR)
    )
    return DriverGpu(name.value.decode(errors="replace"), 10 * major + minor)


def _number(library: ctypes.CDLL, function: str, *arguments: ctypes.c_int) -> int:
    """The result of a function that writes it to its first argument."""
    found = ctypes.c_int()
    _call(library, function, ctypes.byref(found), *arguments)
    return found.value


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = int(getattr(library, function)(*arguments))
    if status:
        raise _RefusedError(status, f"{_text(library, status)} (status {status} of {function})")


def _text(library: ctypes.CDLL, status: int) -> str:
    found = ctypes.c_char_p()
    unknown = library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(found)) or found.value is None
    return "no reason given" if unknown else (found.value or b"").decode(errors="replace")
