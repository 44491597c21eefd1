"""The memory of an attached GPU, and its clock while something was measured, by NVML; no clock is ever changed."""

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
"""The bits of NVML's `nvmlClocksEventReason` that mean a GPU slower than it could be; idling is none of them."""


@dataclass(frozen=True)
class GpuClock:
    """The state of a GPU at one moment.

    Attributes:
        sm_mhz: the clock of its streaming multiprocessors.
        memory_mhz: the clock of its memory.
        temperature_c: the temperature of the chip in degrees Celsius.
        power_w: the power that the board draws.
        throttled_by: the reasons why the clock is lower than it could be; empty if it is not.
    """

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    power_w: float
    throttled_by: tuple[str, ...]


ReadClock = Callable[[], GpuClock | None]
"""Reads the state of a GPU, in some ten microseconds; None if it cannot be read."""


def with_clock(found: Measurement, read: ReadClock) -> Measurement:
    """`found` with the GPU's present clock; unchanged if nothing was timed or the clock cannot be read."""
    clock = read() if found.samples_us else None
    return found if clock is None else replace(found, clock_mhz=clock.sm_mhz, throttled_by=clock.throttled_by)


def nvml_clock(pci_bus_id: str) -> ReadClock:
    """A function that reads the state of the GPU at a PCI address.

    The address comes from CUDA, since CUDA and NVML number GPUs differently. If `nvidia-ml-py` is not installed, or the
    driver does not permit it, the function always returns None.
    """
    found = _found(pci_bus_id)
    return (lambda: None) if found is None else (lambda: _read(*found))


def nvml_memory_nbytes(pci_bus_id: str) -> int | None:
    """All memory of the GPU at a PCI address, whoever uses it; None where NVML cannot be asked, see `nvml_clock`."""
    found = _found(pci_bus_id)
    if found is None:
        return None
    nvml, gpu = found
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)
    except nvml.NVMLError:
        return None


def _found(pci_bus_id: str) -> tuple[Any, Any] | None:
    """NVML, and its handle of the GPU at a PCI address."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except pynvml.NVMLError:
        return None


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
