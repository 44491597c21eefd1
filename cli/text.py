"""Latencies, ratios, counts and shapes as text for people."""

from __future__ import annotations

import math
from collections.abc import Sequence


def latency_text(latency_us: float | None, *, unknown: str = "not known", digits: int = 3) -> str:
    """A latency in the unit that keeps it readable.

    Args:
        latency_us: microseconds; None and infinity stand for a latency that is not known.
        unknown: the words for such a latency.
        digits: decimals of milliseconds.
    """
    if latency_us is None or not math.isfinite(latency_us):
        return unknown
    if latency_us < 1000:
        return f"{latency_us:.1f} µs"
    return f"{latency_us / 1000:.{digits}f} ms"


def cost_remark(launch: str | None, measured_share: float | None = None) -> str:
    """The words behind a device's name that say that latencies there were not measured; empty where they were.

    Args:
        launch: how kernels are launched in latencies that are computed; None where all were measured.
        measured_share: the part of the latency that was measured on another machine.
    """
    return "" if launch is None else f" (analytic: {source_text(measured_share, launch=launch)})"


def source_text(measured_share: float | None, where: str = "", *, launch: str = "") -> str:
    """Where latencies on a GPU that is not attached come from.

    Args:
        where: words behind "measured".
        launch: how kernels are launched where all is computed; what is measured runs in one CUDA graph.
    """
    if measured_share is None:
        return f"latencies are computed from the GPU's specification{launch_words(launch)}, not measured"
    if measured_share == 0:
        return f"latencies are computed, and scaled by what was measured{where}"
    if measured_share == 1:
        return f"all of the latency was measured{where}, stage by stage"
    return f"{share_text(measured_share)} of the latency was measured{where}, the rest is computed"


def launch_words(launch: str) -> str:
    """Behind "computed": for which way to launch kernels; empty for a way that is not known."""
    return {"graph": " for one CUDA graph", "streams": " for kernels launched one by one"}.get(launch, "")


def share_text(share: float) -> str:
    """A part from 0 to 1 in percent; neither 0 nor 100 where that is not exact."""
    if 0 < share < 0.01:
        return "less than 1%"
    return "more than 99%" if 0.99 < share < 1 else f"{share:.0%}"


def percent_more(ratio: float) -> str:
    """How much a ratio is above or below one, in percent: 1.25 is "+25.0%"."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f}%"  # no "-0.0"


def count_text(count: int, word: str) -> str:
    """A count and what is counted, as `1 stage` or `2 stages`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as options take it: `1x3x224x224`; "scalar" for that of a single number."""
    return "x".join(map(str, shape)) or "scalar"
