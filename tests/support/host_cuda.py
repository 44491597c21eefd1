"""Runs our CUDA C++ kernels without a GPU: the same source, compiled for the host and compared with `interpret`.

Memory is filled with NaNs and kept between guards, so that elements left out and writes beyond a view are seen.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import gpu_kernels
import numpy as np
import pytest

from iosched.runtime.cuda.kernel import CudaCall, Pointer, SourceKernel
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.plan import View

INCLUDE = Path(__file__).parent / "host_cuda_include"
_GUARD = 256
_POISON = 0xFF  # NaN in every type of float
_FAILURES = {
    1: "threads do not meet at a barrier",
    2: "arguments are not of the function's types",
    3: "an address is no multiple of what is read or written there",
}

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and not gpu_kernels.ON_GPU, reason="no g++ to compile kernels for the host"
)


@dataclass(frozen=True, eq=False)
class Placed:
    """A tensor in separate memory: as a kernel sees it in a plan, and as numpy does."""

    view: View
    memory: np.ndarray  # bytes, guards included
    array: np.ndarray

    @property
    def address(self) -> int:
        return int(self.array.__array_interface__["data"][0])

    def poison(self) -> None:
        self.array.view(np.uint8 if self.array.dtype == bool else self.array.dtype)[...] = self._poison_item()

    def is_clean_outside(self) -> bool:
        """Whether nothing was written around the tensor; forgets what is in it."""
        self.poison()
        return bool((self.memory == _POISON).all())

    def _poison_item(self) -> np.generic:
        dtype = np.uint8 if self.array.dtype == bool else self.array.dtype
        return np.frombuffer(bytes([_POISON]) * self.array.dtype.itemsize, dtype)[0]


def blank(
    shape: Sequence[int], dtype: str = "float32", *, before: int = 0, after: int = 0, layout: Layout = Layout.NHWC
) -> Placed:
    """Poisoned memory of a tensor in the runtime's layout: a slice between `before` and `after` channels or columns."""
    rank = len(shape)
    axis = 1 if rank == 4 else rank - 1
    outer = list(shape)
    if rank:
        outer[axis] += before + after
    item = np.dtype(dtype).itemsize
    strides = layout.strides_of(outer, item)
    nbytes = int(np.prod(outer, dtype=int)) * item
    memory = np.full(nbytes + 3 * _GUARD, _POISON, np.uint8)
    first = -memory.ctypes.data % _GUARD + _GUARD
    offset = before * strides[axis] if rank else 0
    storage = memory[first : first + nbytes].view(dtype)[offset // item :] if rank else memory[first:].view(dtype)
    array = np.lib.stride_tricks.as_strided(storage, shape, strides)
    view = View("t", dtype, tuple(shape), offset, int(np.prod(shape, dtype=int)) * item, strides)
    return Placed(view, memory, array)


def put(array: np.ndarray, *, before: int = 0, after: int = 0, layout: Layout = Layout.NHWC) -> Placed:
    """`array` in memory; see `blank`."""
    placed = blank(array.shape, array.dtype.name, before=before, after=after, layout=layout)
    placed.array[...] = array
    return placed


def weight(array: np.ndarray) -> Placed:
    """`array` in memory as constants are kept: in row-major order."""
    flat = put(np.ascontiguousarray(array).reshape(-1))
    view = View("w", array.dtype.name, array.shape, 0, array.nbytes)
    return Placed(view, flat.memory, flat.array.reshape(array.shape))


def transposed(array: np.ndarray) -> Placed:
    """`array` in memory with the last two axes exchanged."""
    inner = weight(np.ascontiguousarray(array.swapaxes(-1, -2)))
    seen = inner.array.swapaxes(-1, -2)
    return Placed(replace(inner.view, shape=seen.shape, strides=seen.strides), inner.memory, seen)


def check(kernel: SourceKernel, reads: Sequence[Placed], writes: Sequence[Placed], tolerance: float = 1e-5) -> None:
    """The source writes what `interpret` writes, all of it, and nothing else."""
    call = kernel.call([read.view for read in reads], [write.view for write in writes])
    launch(call, (*reads, *writes))
    if gpu_kernels.ON_GPU:
        tolerance = max(tolerance, gpu_kernels.TOLERANCE)
    compare(kernel, reads, writes, tolerance)


def compare(
    kernel: SourceKernel, reads: Sequence[Placed], writes: Sequence[Placed], tolerance: float, note: str = ""
) -> None:
    """The results equal those of `interpret`, and nothing is written around them; poisons the results."""
    expected = [np.zeros(write.view.shape or (), write.view.dtype) for write in writes]
    kernel.interpret([read.array for read in reads], expected)
    for write, wanted in zip(writes, expected, strict=True):
        scale = tolerance if wanted.dtype != np.float16 else max(tolerance, 2e-3)
        np.testing.assert_allclose(write.array, wanted, rtol=scale, atol=scale, err_msg=note)
        assert write.is_clean_outside(), f"a write beyond the tensor {note}"


def launch(call: CudaCall, tensors: Sequence[Placed]) -> None:
    """Launches `call` on (*reads, *writes): on the host, or on a GPU where that is asked for."""
    if gpu_kernels.ON_GPU:
        gpu_kernels.run(call, tensors)
    else:
        run(call, [placed.address for placed in tensors])


def run(call: CudaCall, addresses: Sequence[int], *, seed: int = 0, traced: bool = False) -> None:
    """Launches `call` on the host.

    Args:
        addresses: those of (*reads, *writes).
        seed: of the order in which the threads of a block run where they wait for each other.
        traced: whether what they read and write is recorded.
    """
    values, sizes = [], []
    for argument in call.arguments:
        if isinstance(argument, Pointer):
            values.append(np.uint64(addresses[argument.index]))
            sizes.append(64 + ctypes.sizeof(ctypes.c_void_p))
        else:
            values.append(argument)
            sizes.append(argument.itemsize)
    arrays = [np.array([value]) for value in values]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    shape = (ctypes.c_uint * 6)(*call.grid, *call.block)
    library = compiled(call.source, call.entry, traced)
    if has_barriers(call.source):
        ctypes.c_uint.in_dll(library, "host_seed").value = seed
    status = library.host_launch(shape, pointers, bytes(sizes), len(arrays))
    assert status == 0, f"{_FAILURES[status]} (threads in the order of seed {seed})"


def has_barriers(source: str) -> bool:
    """Whether the threads of a block wait for each other."""
    return "__syncthreads" in source


def features(source: str) -> list[str]:
    """The header features that a source needs, as compiler flags."""
    found = ["-DHAS_BARRIERS"] if has_barriers(source) else []
    return [*found, "-DHALVES"] if "cuda_fp16.h" in source else found


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="iosched-kernels-")


@cache
def compiled(source: str, entry: str, traced: bool = False) -> ctypes.CDLL:
    """The source as a library for the host; `traced`, it records what it reads and writes, see `traced.h`."""
    name = Path(_folder().name) / hashlib.sha256(f"{entry}{traced}{source}".encode()).hexdigest()
    launcher = (
        'extern "C" int host_launch(const unsigned int* shape, void** arguments, const unsigned char* sizes, int count)'
        f" {{ return host::launch({entry}, shape, arguments, sizes, count); }}\n"
    )
    name.with_suffix(".cpp").write_text(f'#include "host_cuda.h"\n{source}\n{launcher}')
    flags = [
        "-std=c++17",
        "-O0",
        "-w",
        "-shared",
        "-fPIC",
        "-fno-gnu-unique",
        "-fno-threadsafe-statics",
        "-fno-exceptions",
        *(["-fsanitize=thread", "-DTRACED"] if traced else ["-fsanitize=alignment"]),
    ]
    # Kernels need no C++ library, which takes most of the time to link.
    files = ["-o", str(name.with_suffix(".so")), str(name.with_suffix(".cpp")), "-nostdlib", "-lm", "-lc"]
    command = ["g++", *flags, *features(source), f"-I{INCLUDE}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{source}"
    return ctypes.CDLL(str(name.with_suffix(".so")))
