"""Runs our CUDA C++ kernels on a GPU, on copies of the memory that `host_cuda` made for the host.

With IOSCHED_KERNELS_ON=gpu the tests of all kernels run there; also under compute-sanitizer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from attached import gpu_or_skip

from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import CudaCall, Pointer

if TYPE_CHECKING:
    from host_cuda import Placed

ON_GPU = os.environ.get("IOSCHED_KERNELS_ON") == "gpu"
TOLERANCE = 3e-5
"""At least: a GPU has its own exponentials, and rounds a product and a sum once."""
_ALIGNMENT = 256


@cache
def _opened() -> tuple[Driver, Any]:
    driver = gpu_or_skip().driver
    import cupy

    cupy.cuda.set_allocator(None)  # each tensor by itself, so that compute-sanitizer sees where it ends
    return driver, driver.new_stream()


def run(call: CudaCall, tensors: Sequence[Placed]) -> None:
    """Launches `call` on tensors (*reads, *writes); all of their memory comes back, what lies around them too."""
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
    """What a kernel's tensor cores need of a GPU."""
    if "tf32" in source:
        return 80
    return 75 if "mma.sync" in source else 0
