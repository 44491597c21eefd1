"""The memory of an attached GPU, and its clock during measurements, by NVML, which only reads."""

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
"""The bits of NVML's `nvmlClocksEventReason` for throttling; idling is none of them."""


@dataclass(frozen=True)
class GpuClock:
    """The state of a GPU at one moment: clocks, temperature, power, and reasons for throttling."""

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    power_w: float
    throttled_by: tuple[str, ...]


ReadClock = Callable[[], GpuClock | None]
"""Reads the state of a GPU in some ten microseconds; None if it cannot be read."""


def with_clock(found: Measurement, read: ReadClock) -> Measurement:
    """`found` with the GPU's present clock, if something was timed and the clock can be read."""
    clock = read() if found.samples_us else None
    return found if clock is None else replace(found, clock_mhz=clock.sm_mhz, throttled_by=clock.throttled_by)


def nvml_clock(pci_bus_id: str) -> ReadClock:
    """A function that reads the state of the GPU at a PCI address, which unlike an index is the same in CUDA and NVML.

    It returns None without `nvidia-ml-py` or permission.
    """
    found = _found(pci_bus_id)
    return (lambda: None) if found is None else (lambda: _read(*found))


def nvml_memory_nbytes(pci_bus_id: str) -> int | None:
    """Total memory of the GPU at a PCI address; None if NVML is not available."""
    found = _found(pci_bus_id)
    if found is None:
        return None
    nvml, gpu = found
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)
    except nvml.NVMLError:
        return None


def _found(pci_bus_id: str) -> tuple[Any, Any] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except pynvml.NVMLError:
        return None


def _reasons(nvml: Any, gpu: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nvml.NVMLError:  # drivers before 535 have it under another name
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _read(nvml: Any, gpu: Any) -> GpuClock | None:
    try:
        reasons = _reasons(nvml, gpu)
        return GpuClock(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            temperature_c=nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            power_w=nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            throttled_by=tuple(name for bit, name in _THROTTLES.items() if reasons & bit),
        )
    except nvml.NVMLError:
        return None
