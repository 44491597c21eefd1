"""How a stage reads, and its FLOP/s and shares of a device, in text and in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.jobs.throughput import Throughput
    from iosched.scheduler.schedule import Stage

_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def stage_object(stage: Stage) -> dict[str, object]:
    """Keys of a stage in `show --json` and `explain --json`."""
    return {"strategy": stage.strategy.value, "groups": [list(group) for group in stage.groups]}


def throughput_object(found: Throughput | None) -> dict[str, object]:
    """Further keys of one or more stages in `show --json` and `explain --json`; null where nothing is known."""
    if found is None:
        return dict.fromkeys(("flops", "tflops", "share_of_peak", "sm_share"))
    return {
        "flops": found.flops,
        "tflops": found.tflops,
        "share_of_peak": found.share_of_peak,
        "sm_share": found.sm_share,
    }


def throughput_text(found: Throughput) -> str:
    """As `604 MFLOP, 5.20 TFLOP/s, 33 % of peak, 45 % of the SMs`."""
    return ", ".join(filter(None, [_amount(found.flops), *_speeds(found, "of peak", "of the SMs")]))


def throughput_columns(found: Throughput) -> str:
    """The same with every part at its place, for one stage below another."""
    speed, peak, sms = _speeds(found, "peak", "SMs")
    columns = [f"{_amount(found.flops):>12}", f"{speed:>14}"]
    if found.peak_tflops is not None:
        columns.append(f"{peak:>10}")
    if found.busy_us is not None:
        columns.append(f"{sms:>9}")
    return "".join(columns)


def _speeds(found: Throughput, peak: str, sms: str) -> tuple[str, str, str]:
    """Empty where not known, or where nothing is computed."""
    if not found.flops or found.tflops is None:
        return "", "", _percent(found.sm_share, sms)
    return f"{_amount(found.tflops * 1e12)}/s", _percent(found.share_of_peak, peak), _percent(found.sm_share, sms)


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.0%} {of}"


def _amount(flops: float) -> str:
    """Three digits and the unit that they need."""
    for size, unit in _UNITS:
        if flops >= size:
            digits = max(2 - len(str(int(flops / size))) + 1, 0)
            return f"{flops / size:.{digits}f} {unit}"
    return f"{flops:.0f} FLOP"
