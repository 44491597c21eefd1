"""How long kernels, one or several in order, take on a GPU by its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from iosched.profiler.devices.analytic.calibration import CALIBRATION, Calibration
from iosched.profiler.devices.analytic.kernels import Kernel, Product
from iosched.profiler.devices.gpus import GpuSpec
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

_TILE = 32  # rows and columns of a product that one thread block makes: the smallest that libraries choose
_L2_SPEEDUP = 3.0  # bandwidth of the L2 over that of the memory, about the same on all these GPUs


@dataclass(frozen=True)
class Work:
    """How long kernels take that run in order, in microseconds.

    Attributes:
        path_us: how long they take with the whole GPU to themselves, launches included.
        busy_us: for how long they would fill the whole GPU: the least time that they add to other kernels, if those
            use everything that these leave idle.
        spill_us: how much longer they take if the values that they read are no longer in the L2 cache.
        footprint_nbytes: the largest number of bytes that one of the kernels reads and writes.
        n_kernels: how many kernels these are.
    """

    path_us: float = 0.0
    busy_us: float = 0.0
    spill_us: float = 0.0
    footprint_nbytes: int = 0
    n_kernels: int = 0

    def then(self, other: Work) -> Work:
        """The work of these kernels followed by the others."""
        return Work(
            self.path_us + other.path_us,
            self.busy_us + other.busy_us,
            self.spill_us + other.spill_us,
            max(self.footprint_nbytes, other.footprint_nbytes),
            self.n_kernels + other.n_kernels,
        )


@dataclass(frozen=True)
class ModelledGpu:
    """A GPU at one precision under one calibration; if `halved`, values are stored in half as many bytes."""

    gpu: GpuSpec
    precision: PrecisionName = DEFAULT_PRECISION
    calibration: Calibration = CALIBRATION
    halved: bool = False

    def work(self, kernels: Sequence[Kernel]) -> Work:
        """The work of `kernels`, run one after another."""
        total = Work()
        for kernel in kernels:
            total = total.then(self._kernel(kernel))
        return total

    def _kernel(self, kernel: Kernel) -> Work:
        activations = kernel.activation_nbytes * self._shrink
        weights = kernel.weight_nbytes * self._shrink
        footprint = round(activations + weights)
        dram = (activations + weights) / self._bytes_per_us
        fits = footprint <= self.gpu.l2_nbytes
        moved = (activations / _L2_SPEEDUP + weights) / self._bytes_per_us if fits else dram
        alone, busy = self._arithmetic_us(kernel)
        device_us, busy_us = max(alone, moved), max(busy, moved)
        spill_us = max(max(busy, dram) - busy_us, 0.0)
        return Work(self.calibration.kernel_us + device_us, busy_us, spill_us, footprint, 1)

    def _arithmetic_us(self, kernel: Kernel) -> tuple[float, float]:
        """Microseconds of arithmetic if the kernel runs alone, and for which it would fill the whole GPU."""
        if not isinstance(kernel, Product):
            time = kernel.window_flops / (self.gpu.fp32_tflops * 1e6 * self.calibration.window)
            return time, time
        # One thread block makes one tile; SMs take equally many blocks, or one more (wave quantisation).
        blocks = ceil(kernel.rows / _TILE) * ceil(kernel.columns / _TILE) * kernel.count
        sms = self.gpu.sms
        tile_us = 2 * kernel.inner * _TILE**2 / (self._product_flops_per_us / sms)
        # A load brings twice as many values if they have half the size.
        steps = kernel.inner * (0.5 if self.precision == "fp16" else 1.0)
        latency_us = steps * self.calibration.step_cycles / self.gpu.boost_mhz
        return max(ceil(blocks / sms) * tile_us, latency_us), blocks / sms * tile_us

    @cached_property
    def _shrink(self) -> float:
        return 0.5 if self.halved else 1.0

    @cached_property
    def _bytes_per_us(self) -> float:
        return self.gpu.dram_gb_per_s * 1e3 * self.calibration.utilisation

    @cached_property
    def _product_flops_per_us(self) -> float:
        return self.gpu.peak_tflops(self.precision) * 1e6 * self.calibration.utilisation
