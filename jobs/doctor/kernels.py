"""How the CPU calls the kernels of a model."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.device import CountsKernelCalls
from iosched.profiler.devices.resolve import resolve


def look(asked: Asked) -> Section:
    """Counts of the model's kernels by operator; empty without a model."""
    if asked.model is None:
        return Section()
    device = resolve("cpu")
    if not isinstance(device, CountsKernelCalls):
        return Section()
    calls = device.kernel_calls(asked.model)
    rows = (("called without a session", _text(calls["invoked"])), ("sessions", _text(calls["sessions"])))
    return Section(calls, rows)


def _text(counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{sum(counts.values())}: {each}" if counts else "none"
