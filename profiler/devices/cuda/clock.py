"""How fast an attached GPU was allowed to run while something was measured, as NVML tells; nothing is ever set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from iosched.profiler.measuring.statistics import Measurement

_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's `nvmlClocksEventReason` bits that mean a clock below what was asked for; an idle GPU and set clocks do not."""


@dataclass(frozen=True)
class GpuClock:
    """A look at a GPU.

    Attributes:
        sm_mhz: clock of its streaming multiprocessors.
        memory_mhz: clock of its memory.
        temperature_c: of the chip, degrees Celsius.
        power_w: drawn by the board.
        throttled_by: what holds the clock down; empty where nothing does.
    """

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    power_w: float
    throttled_by: tuple[str, ...]


ReadClock = Callable[[], GpuClock | None]
"""Looks at a GPU, some ten microseconds; None where nobody can tell."""


def with_clock(found: Measurement, read: ReadClock) -> Measurement:
    """`found` with the clock as it is now; as it is where nothing was timed or nobody can tell."""
    clock = read() if found.samples_us else None
    return found if clock is None else replace(found, clock_mhz=clock.sm_mhz, throttled_by=clock.throttled_by)


def nvml_clock(pci_bus_id: str) -> ReadClock:
    """What looks at the GPU of that PCI address, which CUDA tells; CUDA's numbers of GPUs are not NVML's.

    Without `nvidia-ml-py`, or where the driver does not let us look, it always answers None.
    """
    try:
        import pynvml
    except ImportError:
        return lambda: None
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except pynvml.NVMLError:
        return lambda: None
    return lambda: _read(pynvml, gpu)


def _read(nvml: Any, gpu: Any) -> GpuClock | None:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
        return GpuClock(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            temperature_c=nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            power_w=nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            throttled_by=tuple(name for bit, name in _THROTTLES.items() if reasons & bit),
        )
    except nvml.NVMLError:
        return None
