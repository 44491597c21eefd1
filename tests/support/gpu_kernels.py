"""The GPU that tests run on: the machine's first one, or with IOSCHED_DESK=1 one made of host memory, for a rehearsal.

With IOSCHED_KERNELS_ON=gpu the tests of all CUDA C++ kernels run there, on copies of the memory that `host_cuda` made
for the host; also under compute-sanitizer.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from iosched.models.errors import DeviceError
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import CudaCall, Pointer

if TYPE_CHECKING:
    from host_cuda import Placed

IS_DESK = os.environ.get("IOSCHED_DESK") == "1"
ON_GPU = os.environ.get("IOSCHED_KERNELS_ON") == "gpu"
TOLERANCE = 3e-5
"""At least: a GPU has its own exponentials, and rounds a product and a sum once."""
_ALIGNMENT = 256


@cache
def attached() -> AttachedGpu | str:
    """The GPU, or why there is none."""
    if IS_DESK:
        import desk_cudnn
        import desk_cupy

        if reason := desk_cupy.missing():
            return reason
        desk = desk_cupy.install()  # with a driver that cuDNN asks for
        if reason := desk_cudnn.missing():
            return reason
        desk.count = 1
        desk_cudnn.install(pytest.MonkeyPatch(), desk)
    elif importlib.import_module("desk_cupy").is_installed():
        return "CuPy is on the desk in this process"
    try:
        return attach()
    except DeviceError as error:
        return str(error).splitlines()[0]


def gpu_or_skip() -> AttachedGpu:
    """The GPU; skips the test where there is none, with the reason."""
    found = attached()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _opened() -> tuple[Driver, Any]:
    driver = gpu_or_skip().driver
    import cupy

    cupy.cuda.set_allocator(None)  # each tensor by itself, so that compute-sanitizer sees where it ends
    return driver, driver.new_stream()


def run(call: CudaCall, tensors: Sequence[Placed]) -> None:
    """Launches `call` on tensors (*reads, *writes); copies back all of their memory, guards included."""
    driver, stream = _opened()
    if driver.gpu.capability < _least_capability(call.source):
        pytest.skip("this GPU has no such tensor cores")
    held, addresses = [], []
    for tensor in tensors:
        memory = tensor.memory
        held.append(driver.allocate(memory.nbytes + _ALIGNMENT))
        start = held[-1].ptr + memory.ctypes.data % _ALIGNMENT
        driver.upload(start, memory, stream)
        addresses.append(start + tensor.address - memory.ctypes.data)
    arguments = [addresses[each.index] if isinstance(each, Pointer) else each for each in call.arguments]
    driver.launch(driver.load(call), call, arguments, stream)
    for tensor, address in zip(tensors, addresses, strict=True):
        driver.download(address - tensor.address + tensor.memory.ctypes.data, tensor.memory, stream)


def _least_capability(source: str) -> int:
    """The compute capability that a kernel's tensor cores need."""
    if "tf32" in source:
        return 80
    return 75 if "mma.sync" in source else 0
