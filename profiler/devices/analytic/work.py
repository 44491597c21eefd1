"""Times of kernels, one or several in order, on a GPU by its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from iosched.profiler.devices.analytic.constants import (
    KERNELS,
    STREAM_LAUNCHES,
    KernelConstants,
    LaunchConstants,
    MeasuredFractions,
)
from iosched.profiler.devices.analytic.kernels import Kernel, Product
from iosched.profiler.devices.analytic.timing import KernelTimer, Timing
from iosched.profiler.devices.gpus import GpuSpec
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

_L2_SPEEDUP = 3.0  # bandwidth of the L2 over that of the memory, about the same on all these GPUs


@dataclass(frozen=True)
class Work:
    """Times of kernels in order, in microseconds.

    Attributes:
        path_us: on the whole GPU, launches included.
        busy_us: on a fully used GPU, the least time that they add to other kernels.
        spill_us: extra time if the values that they read are no longer in the L2 cache.
        footprint_nbytes: the most bytes that one of the kernels reads and writes.
    """

    path_us: float = 0.0
    busy_us: float = 0.0
    spill_us: float = 0.0
    footprint_nbytes: int = 0
    n_kernels: int = 0

    def then(self, other: Work) -> Work:
        """These kernels followed by the others."""
        return Work(
            self.path_us + other.path_us,
            self.busy_us + other.busy_us,
            self.spill_us + other.spill_us,
            max(self.footprint_nbytes, other.footprint_nbytes),
            self.n_kernels + other.n_kernels,
        )


@dataclass(frozen=True)
class ModelledGpu:
    """A GPU at one precision with its launches; `halved` values take half the bytes. Others: see `KernelTimer`."""

    gpu: GpuSpec
    precision: PrecisionName = DEFAULT_PRECISION
    launches: LaunchConstants = STREAM_LAUNCHES
    halved: bool = False
    rested_us: float = 0.0
    constants: KernelConstants = KERNELS
    attained: MeasuredFractions | None = None

    def work(self, kernels: Sequence[Kernel]) -> Work:
        """The work of `kernels`, run one after another."""
        total = Work()
        for kernel in kernels:
            total = total.then(self._kernel(kernel))
        return total

    def alone_us(self, kernel: Kernel) -> float:
        """Microseconds of a kernel on the whole GPU, without its launch."""
        return self._kernel(kernel).path_us - self.launches.kernel_us

    def _kernel(self, kernel: Kernel) -> Work:
        activations = kernel.activation_nbytes * self._shrink
        weights = kernel.weight_nbytes * self._shrink
        footprint = round(activations + weights)
        dram_us = self._timer.traffic_us(activations + weights)
        fits = footprint <= self.gpu.l2_nbytes
        moved_us = self._timer.traffic_us(activations / _L2_SPEEDUP + weights) if fits else dram_us
        alone_us, busy_us = self._timing(kernel, moved_us)
        spill_us = max(dram_us - busy_us, 0.0)
        return Work(self.launches.kernel_us + alone_us, busy_us, spill_us, footprint, 1)

    def _timing(self, kernel: Kernel, moved_us: float) -> Timing:
        if isinstance(kernel, Product) and not kernel.is_empty:
            return _time(self._timer, kernel)
        flops = 0 if isinstance(kernel, Product) else kernel.window_flops
        window_us = flops / (self.gpu.fp32_tflops * 1e6 * self.launches.window)
        time_us = max(window_us, moved_us)
        return Timing(time_us, time_us)

    @cached_property
    def _shrink(self) -> float:
        return 0.5 if self.halved else 1.0

    @cached_property
    def _timer(self) -> KernelTimer:
        return KernelTimer(self.gpu, self.precision, self._shrink, self.rested_us, self.constants, self.attained)


@lru_cache(maxsize=2**14)
def _time(timer: KernelTimer, product: Product) -> Timing:
    """Cached, since searches and fits repeat products."""
    return timer.time(product)
