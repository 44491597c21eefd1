"""Interfaces of kernels: the numpy reference, and how a GPU runs it.

A kernel is a frozen value without weights or addresses. Its tensors have ONNX's logical shapes; strides give the
memory layout. Feature maps of rank four are NHWC or row-major, perhaps channel slices of a wider tensor; all other
tensors are row-major. See `layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iosched.runtime.plan import View
from iosched.scheduler.precision import PrecisionName


class Kernel(Protocol):
    """A kernel; one that runs on a GPU is also a `SourceKernel`, `CudnnKernel` or `SessionKernel`, or a `JoinNode`."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Computes the kernel in numpy on arrays of any strides; floats in at least float32."""
        ...


@dataclass(frozen=True)
class Pointer:
    """Argument: address of the first element of the `index`-th of (*reads, *writes)."""

    index: int


Argument = Pointer | np.generic
"""Addresses, and numbers of the exact C type (`np.int32(3)` for an int)."""


@dataclass(frozen=True)
class CudaCall:
    """One launch of a CUDA C++ kernel.

    Attributes:
        source: a translation unit that includes only <cuda_fp16.h>; the same for launches that differ in arguments
            only.
        entry: name of the `extern "C" __global__` function.
        grid, block: extents along x, y, z.
        arguments: in the function's order.
    """

    source: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]


@runtime_checkable
class SourceKernel(Kernel, Protocol):
    """A kernel in CUDA C++."""

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """The launch for views of these shapes, types, strides, and offsets modulo 16; O(1), needs no GPU."""
        ...


@dataclass(frozen=True)
class Precision:
    """Storage and arithmetic of floats.

    Attributes:
        name: "fp32" (strict), "tf32" (stored as float32, multiplied on tensor cores) or "fp16".
    """

    name: PrecisionName

    @property
    def dtype(self) -> str:
        """Numpy name of the stored float type."""
        return "float16" if self.name == "fp16" else "float32"


@runtime_checkable
class CudnnKernel(Kernel, Protocol):
    """A kernel that is a cuDNN graph."""

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """Adds tensors and operations to the `cudnn.pygraph`; view k of (*reads, *writes) gets uid k + 1."""
        ...

    @property
    def precision(self) -> Precision:
        """Decides which engines are allowed."""
        ...


@runtime_checkable
class SessionKernel(Kernel, Protocol):
    """A kernel that onnxruntime runs outside the captured graph; its tensors are row-major."""

    @property
    def model(self) -> bytes:
        """Serialized ONNX model whose inputs and outputs are the reads and writes, in order."""
        ...

    @property
    def operators(self) -> tuple[str, ...]:
        """Its ONNX types, for messages."""
        ...


@dataclass(frozen=True)
class JoinNode:
    """An empty node of the captured graph between the tasks before and after it; see `Kernel`."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class Gpu:
    """The GPU properties that the lowering depends on.

    Attributes:
        capability: compute capability times ten: 90 for 9.0.
        processors: number of streaming multiprocessors.
    """

    capability: int
    processors: int

    @property
    def multiplies_halves(self) -> bool:
        """Whether tensor cores have `mma.sync` m16n8; those of 7.0 have another shape."""
        return self.capability >= 75

    @property
    def has_tf32(self) -> bool:
        """Whether tensor cores multiply tf32."""
        return self.capability >= 80


H100 = Gpu(capability=90, processors=132)
"""Target of lowering if no GPU is given."""
