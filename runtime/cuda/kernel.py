"""What a kernel is: its meaning in numpy, and how a GPU runs it.

A kernel is a frozen value without weights and addresses; what it reads and writes are views of the plan. Tensors have
ONNX's logical shapes, always; how they lie in memory is known by their strides alone. Feature maps of rank four lie
channels-last or row-major, possibly as a slice of a wider tensor's channels; all else is row-major. See `layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iosched.runtime.plan import View
from iosched.scheduler.precision import PrecisionName


class Kernel(Protocol):
    """What every kernel has; one that runs on a GPU is a `SourceKernel`, a `CudnnKernel` or a `SessionKernel` too."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Does the kernel's work on arrays that may have any strides; floats are computed in float32 at least."""
        ...


@dataclass(frozen=True)
class Pointer:
    """An argument that is the address of the first element of the `index`-th of (*reads, *writes)."""

    index: int


Argument = Pointer | np.generic
"""What a CUDA kernel takes: addresses, and numbers of the exact C type (`np.int32(3)` for an int)."""


@dataclass(frozen=True)
class CudaCall:
    """One launch of a CUDA C++ kernel.

    Attributes:
        source: a whole translation unit, alike for all launches that differ in arguments alone; it includes nothing but
            <cuda_fp16.h>.
        entry: the name of its `extern "C" __global__` function.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        arguments: in the function's order.
    """

    source: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]


@runtime_checkable
class SourceKernel(Kernel, Protocol):
    """A kernel in CUDA C++ of our own."""

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """The launch for these views; O(1), needs no GPU. Only shapes, types and strides of the views
        matter, and where they begin modulo 16."""
        ...


@dataclass(frozen=True)
class Precision:
    """How floats are stored and multiplied.

    Attributes:
        name: "fp32" (strict), "tf32" (stored as float32, multiplied on tensor cores) or "fp16".
    """

    name: PrecisionName

    @property
    def dtype(self) -> str:
        """Numpy name of the type in which tensors of floats are stored."""
        return "float16" if self.name == "fp16" else "float32"


@runtime_checkable
class CudnnKernel(Kernel, Protocol):
    """A kernel that is a cuDNN graph."""

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """Adds tensors and operations to the `cudnn.pygraph`; view k of (*reads, *writes) gets the uid k + 1."""
        ...

    @property
    def precision(self) -> Precision:
        """Which engines may be chosen: tensor cores or not."""
        ...


@runtime_checkable
class SessionKernel(Kernel, Protocol):
    """A kernel that onnxruntime runs, outside of the captured graph; all of its tensors are row-major."""

    @property
    def model(self) -> bytes:
        """Serialized ONNX whose graph inputs and outputs are the reads and writes, in order."""
        ...

    @property
    def operators(self) -> tuple[str, ...]:
        """The ONNX types in it, for people."""
        ...
