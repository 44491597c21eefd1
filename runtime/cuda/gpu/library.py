"""The driver's own library, asked for GPUs without any package: it comes with NVIDIA's driver and nothing else."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from iosched.runtime.cuda.gpu.extras import EXTRAS, extra_for, way_to_run

LIBRARY = "libcuda.so.1"
NO_DRIVER = "no NVIDIA driver was found"

_NO_DEVICE = 100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_NAME_NBYTES = 256


@dataclass(frozen=True)
class SeenGpu:
    """A GPU that the driver sees.

    Attributes:
        capability: compute capability times ten.
    """

    name: str
    capability: int


@dataclass(frozen=True)
class Seen:
    """What the driver's library tells.

    Attributes:
        cuda: newest CUDA that the driver supports, as CUDA numbers versions (12040 is 12.4); 0 without a driver.
        gpus: in the order of CUDA's numbers, those that CUDA_VISIBLE_DEVICES does not hide.
        problem: why there is no driver or no GPU, for people; empty if there is one.
    """

    cuda: int = 0
    gpus: tuple[SeenGpu, ...] = ()
    problem: str = ""

    @property
    def capabilities(self) -> tuple[int, ...]:
        """Those of the GPUs."""
        return tuple(gpu.capability for gpu in self.gpus)

    def way_to_run(self, index: int | None = None) -> str:
        """What to do to have models run on the GPU of this number, or by default on most GPUs: a clause for people."""
        if index is not None and index < len(self.gpus):
            return way_to_run(self.cuda, self.gpus[index].capability)
        if not self.gpus:
            return f"for a GPU, which is not seen here ({self.problem}), {EXTRAS[0].install}"
        extra = extra_for(self.cuda, self.capabilities)
        return way_to_run(self.cuda, max(self.capabilities)) if extra is None else extra.way


class _RefusedError(Exception):
    """A call that the driver answers with a status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def look() -> Seen:
    """Asks the driver of this machine, in some milliseconds without a GPU; makes no context on any GPU."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        is_absent = f"{LIBRARY}: cannot open" in str(error)
        return Seen(problem=NO_DRIVER if is_absent else f"the driver does not load: {error}")
    try:
        return _seen(library)
    except AttributeError as error:
        return Seen(problem=f"the driver's library is not NVIDIA's: {error}")


def _seen(library: ctypes.CDLL) -> Seen:
    cuda = 0
    try:
        cuda = _number(library, "cuDriverGetVersion")
        _call(library, "cuInit", ctypes.c_uint(0))
        gpus = tuple(_gpu(library, index) for index in range(_number(library, "cuDeviceGetCount")))
    except _RefusedError as error:
        if error.status != _NO_DEVICE:
            return Seen(cuda, problem=f"the driver does not start: {error}")
        gpus = ()
    return Seen(cuda, gpus, "" if gpus else "the driver finds no GPU: there is none, or CUDA_VISIBLE_DEVICES hides it")


def _gpu(library: ctypes.CDLL, index: int) -> SeenGpu:
    device = ctypes.c_int(_number(library, "cuDeviceGet", ctypes.c_int(index)))
    name = ctypes.create_string_buffer(_NAME_NBYTES)
    _call(library, "cuDeviceGetName", name, ctypes.c_int(_NAME_NBYTES), device)
    major, minor = (
        _number(library, "cuDeviceGetAttribute", ctypes.c_int(attribute), device) for attribute in (_MAJOR, _MINOR)
    )
    return SeenGpu(name.value.decode(errors="replace"), 10 * major + minor)


def _number(library: ctypes.CDLL, function: str, *arguments: ctypes.c_int) -> int:
    """What a function writes to the address that it takes first."""
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
