"""A stage, its FLOP/s and the shares of a device that it uses, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.cli.json_objects import json_object

if TYPE_CHECKING:
    from iosched.profiler.devices.throughput import Throughput
    from iosched.scheduler.schedule import Stage

_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def stage_object(stage: Stage, idle: float | None) -> dict[str, object]:
    """The keys of a stage that `show --json` and `explain --json` have in common."""
    return json_object(stage, "strategy groups idle_share", idle_share=idle)


def idle_text(idle: float | None) -> str:
    """An idle share in a column: `25%`, or `-` where it is not known."""
    return "-" if idle is None else f"{idle:.0%}"


def throughput_object(found: Throughput | None) -> dict[str, object]:
    """The keys of a throughput, of one or more stages, in the same objects; each is null where it is not known."""
    return json_object(found, "flops tflops share_of_peak sm_share")


def throughput_text(found: Throughput) -> str:
    """A throughput as words: `604 MFLOP, 5.20 TFLOP/s, 33 % of peak, 45 % of the SMs`."""
    return ", ".join(filter(None, [_amount(found.flops), *_speeds(found, "of peak", "of the SMs")]))


def work_text(found: Throughput) -> str:
    """The same without shares of the device: `604 MFLOP, 5.20 TFLOP/s`."""
    return ", ".join(filter(None, [_amount(found.flops), _speeds(found, "", "")[0]]))


def throughput_columns(found: Throughput) -> str:
    """A throughput in columns of fixed widths, so that those of stages can stand one below the other."""
    speed, peak, sms = _speeds(found, "peak", "SMs")
    columns = [f"{_amount(found.flops):>12}", f"{speed:>14}"]
    if found.peak_tflops is not None:
        columns.append(f"{peak:>10}")
    if found.busy_us is not None:
        columns.append(f"{sms:>9}")
    return "".join(columns)


def _speeds(found: Throughput, peak: str, sms: str) -> tuple[str, str, str]:
    """Speed, share of the peak and share of the SMs; each is empty where it is not known or nothing is computed."""
    if not found.flops or found.tflops is None:
        return "", "", _percent(found.sm_share, sms)
    return f"{_amount(found.tflops * 1e12)}/s", _percent(found.share_of_peak, peak), _percent(found.sm_share, sms)


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.0%} {of}"


def _amount(flops: float) -> str:
    """A number of operations in the unit that three digits suffice for."""
    for size, unit in _UNITS:
        if flops >= size:
            digits = max(2 - len(str(int(flops / size))) + 1, 0)
            return f"{flops / size:.{digits}f} {unit}"
    return f"{flops:.0f} FLOP"
