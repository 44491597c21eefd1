"""The clock of a GPU as NVML reports it; NVML itself is a mock."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from iosched.profiler.devices.cuda.clock import GpuClock, nvml_clock


class NVMLError(Exception):
    """The error that NVML raises."""


def nvml(reasons: int) -> SimpleNamespace:
    """NVML on a machine with one GPU at 0000:01:00.0, whose clock is low for these reasons."""

    def handle(bus_id: str) -> str:
        if bus_id != "0000:01:00.0":
            raise NVMLError("Not Found")
        return "gpu"

    clocks = {("gpu", "sm"): 1410, ("gpu", "memory"): 2619}
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM="sm",
        NVML_CLOCK_MEM="memory",
        NVML_TEMPERATURE_GPU="chip",
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: reasons,
        nvmlDeviceGetClockInfo=lambda gpu, kind: clocks[gpu, kind],
        nvmlDeviceGetTemperature=lambda gpu, sensor: {("gpu", "chip"): 61}[gpu, sensor],
        nvmlDeviceGetPowerUsage=lambda gpu: 350_500,
    )


@pytest.mark.parametrize(
    ("reasons", "throttled_by"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x2, ()),  # a clock set by a user
        (0x4, ("power cap",)),
        (0x20 | 0x40, ("thermal slowdown", "hardware thermal slowdown")),
    ],
)
def test_clocks_and_throttling_reasons_are_read(
    monkeypatch: pytest.MonkeyPatch, reasons: int, throttled_by: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(reasons))  # type: ignore[arg-type]
    assert nvml_clock("0000:01:00.0")() == GpuClock(1410, 2619, 61, 350.5, throttled_by)


def test_old_drivers_have_the_reasons_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(gpu: str) -> int:
        raise NVMLError("Function Not Found")

    old = nvml(0)
    old.nvmlDeviceGetCurrentClocksEventReasons = missing
    old.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x4
    monkeypatch.setitem(sys.modules, "pynvml", old)  # type: ignore[arg-type]
    assert nvml_clock("0000:01:00.0")() == GpuClock(1410, 2619, 61, 350.5, ("power cap",))


def test_a_clock_that_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert nvml_clock("0000:01:00.0")() is None

    without_power = nvml(0)
    monkeypatch.setitem(sys.modules, "pynvml", without_power)  # type: ignore[arg-type]
    assert nvml_clock("0000:02:00.0")() is None

    def refused(gpu: str) -> int:
        raise NVMLError("No Permission")

    without_power.nvmlDeviceGetPowerUsage = refused
    assert nvml_clock("0000:01:00.0")() is None


def test_a_missing_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NVMLError("Shared library not found")

    library = nvml(0)
    library.nvmlInit = missing
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    assert nvml_clock("0000:01:00.0")() is None
