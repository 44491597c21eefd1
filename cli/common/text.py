"""Numbers as text: latencies, ratios, throughputs, counts and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosched.cli.common.json_objects import json_object

if TYPE_CHECKING:
    from iosched.profiler.devices.throughput import Throughput
    from iosched.profiler.measuring.statistics import Interval
    from iosched.scheduler.schedule import Stage


def latency_text(latency_us: float | None, *, unknown: str = "unknown", digits: int = 3) -> str:
    """A latency in a readable unit.

    Args:
        latency_us: microseconds; None and infinity are unknown.
        unknown: the text of an unknown latency.
        digits: decimals of milliseconds.
    """
    if latency_us is None or not math.isfinite(latency_us):
        return unknown
    if latency_us < 1000:
        return f"{latency_us:.1f} µs"
    return f"{latency_us / 1000:.{digits}f} ms"


def cost_remark(launch: str | None, measured_share: float | None = None) -> str:
    """Remark after a device's name if its latencies were not measured, else empty.

    Args:
        launch: how kernels are launched in computed latencies; None if all were measured.
        measured_share: the share of the latency that was measured on another machine.
    """
    return "" if launch is None else f" (analytic: {source_text(measured_share, launch=launch)})"


def source_text(measured_share: float | None, where: str = "", *, launch: str = "") -> str:
    """Source of the latencies on a simulated GPU.

    Args:
        where: follows "measured".
        launch: see `cost_remark`.
    """
    if measured_share is None:
        how = {"graph": " for one CUDA graph", "streams": " for kernels launched one by one"}.get(launch, "")
        return f"latencies are computed from the GPU's specification{how}, not measured"
    if measured_share == 0:
        return f"latencies are computed, and scaled by measurements{where}"
    if measured_share == 1:
        return f"all of the latency was measured{where}, stage by stage"
    return f"{share_text(measured_share)} of the latency was measured{where}, the rest is computed"


def share_text(share: float) -> str:
    """A share from 0 to 1 in percent; 0 and 100 only if exact."""
    if 0 < share < 0.01:
        return "less than 1%"
    return "more than 99%" if 0.99 < share < 1 else f"{share:.0%}"


def percent_more(ratio: float) -> str:
    """Difference of a ratio from 1 in percent: 1.25 is "+25.0%"."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f}%"  # no "-0.0"


def count_text(count: int, word: str) -> str:
    """A count with its unit: `1 stage`, `2 stages`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as options accept it: `1x3x224x224`, or "scalar"."""
    return "x".join(map(str, shape)) or "scalar"


ENDS = "low high"
RATIO = "value low high equal=is_equal"
COMPARED = "of median=value low high"
"""Keys of an interval, of a computed ratio and of a measured ratio; see `json_object`."""
AS_FAR = "within the model's uncertainty"
EQUAL = "="
"""Marks a latency that equals another one within the uncertainty."""


def latency_ends_text(found: Interval) -> str:
    """Both ends of an interval, in one unit if possible: `5.900 to 7.200 ms`."""
    low, high = latency_text(found.low), latency_text(found.high)
    number, _, unit = low.rpartition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def equal_text(to: str) -> str:
    """Legend of the mark `EQUAL`."""
    return f"{EQUAL} is equal to {to} {AS_FAR}"


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def stage_object(stage: Stage, idle: float | None) -> dict[str, object]:
    """Keys of a stage in `show --json` and `explain --json`."""
    return json_object(stage, "strategy groups idle_share", idle_share=idle)


def idle_text(idle: float | None) -> str:
    """An idle share: `25%`, or `-` if unknown."""
    return "-" if idle is None else f"{idle:.0%}"


def throughput_object(found: Throughput | None) -> dict[str, object]:
    """Keys of a throughput in the same objects; null if unknown."""
    return json_object(found, "flops tflops share_of_peak sm_share")


def throughput_text(found: Throughput) -> str:
    """A throughput: `604 MFLOP, 5.20 TFLOP/s, 33 % of peak, 45 % of the SMs`."""
    return ", ".join(filter(None, [flops_text(found.flops), *_speeds(found, "of peak", "of the SMs")]))


def work_text(found: Throughput) -> str:
    """A throughput without shares: `604 MFLOP, 5.20 TFLOP/s`."""
    return ", ".join(filter(None, [flops_text(found.flops), _speeds(found, "", "")[0]]))


def throughput_columns(found: Throughput) -> str:
    """A throughput in columns of fixed width."""
    speed, peak, sms = _speeds(found, "peak", "SMs")
    columns = [f"{flops_text(found.flops):>12}", f"{speed:>14}"]
    if found.peak_tflops is not None:
        columns.append(f"{peak:>10}")
    if found.busy_us is not None:
        columns.append(f"{sms:>9}")
    return "".join(columns)


def _speeds(found: Throughput, peak: str, sms: str) -> tuple[str, str, str]:
    """Speed, share of peak and share of the SMs; empty if unknown."""
    if not found.flops or found.tflops is None:
        return "", "", _percent(found.sm_share, sms)
    return f"{flops_text(found.tflops * 1e12)}/s", _percent(found.share_of_peak, peak), _percent(found.sm_share, sms)


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.0%} {of}"


def flops_text(flops: float) -> str:
    """A number of operations with three digits and a unit."""
    for size, unit in _UNITS:
        if flops >= size:
            digits = max(2 - len(str(int(flops / size))) + 1, 0)
            return f"{flops / size:.{digits}f} {unit}"
    return f"{flops:.0f} FLOP"
