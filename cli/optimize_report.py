"""What `iosched optimize` says of its result: the JSON object, and the rows of the table for people."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from iosched.cli.intervals import AS_FAR, COMPARED, ENDS, RATIO, latency_ends_text
from iosched.cli.json_objects import CHECK, json_object
from iosched.cli.text import latency_text, share_text, source_text
from iosched.profiler.measuring.interleave import speedup_text
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.teams import DEFAULT_OBJECTIVE

if TYPE_CHECKING:
    from iosched.jobs.optimizing.result import OptimizeResult
    from iosched.runtime.compare import Check

_OBJECT = """
device.kind=device_kind device.name=device_name cost launch=document.launch optimal proven
latency_us.predicted=predicted_us latency_us.measured=measured_us latency_us.sequential=sequential_us
latency_us.greedy=greedy_us latency_us.reference=reference_us latency_us.openvino=openvino_us
latency_us.ratio latency_us.after_rest latency_us.measured_share latency_us.sequential_measured_share
objective=document.objective teams=document.teams images_per_s intervals
shipped verdict candidate precision=document.precision layout=document.runtime.layout barriers=document.runtime.barriers
error=document.runtime.error reason
search.seconds search.states search.transitions search.stages search.signatures search.disturbed
search.measurements search.repeated search.cache_hits search.gap search.predicted_gap search.gap_of
kernels.before=kernels_before kernels.after=kernels_after check notes
"""
_KEYS = {"iosched": "predicted"}
_BASELINES = {"reference": "onnxruntime", "sequential": "sequential", "openvino": "OpenVINO"}
_ANALYTIC = {False: "the analytic model", True: "measured and computed latencies"}
_PRICED = {False: "computed", True: "looked up or computed"}
"""By what schedules are compared on a GPU that is not attached, and how: whether stages were measured elsewhere."""


def as_object(result: OptimizeResult) -> dict[str, object]:
    """The object that `optimize --json` prints, but for the model and the files."""
    return json_object(
        result,
        _OBJECT,
        check=result.check and json_object(result.check, CHECK, first_difference=result.first_difference),
        ratio=result.ratio and json_object(result.ratio, COMPARED),
        after_rest={"measured" if name == "iosched" else name: us for name, us in result.rested_us.items()} or None,
        images_per_s=_rates(result),
        intervals=_intervals_object(result),
    )


def _rates(result: OptimizeResult) -> dict[str, float] | None:
    """Images a second by name; None where latency was asked for."""
    if result.document.objective == DEFAULT_OBJECTIVE:
        return None
    known = {"iosched": result.measured_us, **_plain_us(result)}
    return {name: 1e6 * result.document.batch_size / each for name, each in known.items() if each}


def _rate_rows(result: OptimizeResult) -> list[tuple[str, str]]:
    """Images a second, where they were asked for, and by which teams."""
    rates = _rates(result)
    if rates is None:
        return []
    text = ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items())
    teams = result.document.teams
    return [("images a second", text), ("cores", "one team" if teams is None else teams.text)]


def _intervals_object(result: OptimizeResult) -> dict[str, object] | None:
    if result.intervals is None:
        return None
    latency_us = {_KEYS.get(name, name): each for name, each in result.intervals.latency_us.items()}
    return {
        "level": result.intervals.level,
        "latency_us": {name: json_object(each, ENDS) for name, each in latency_us.items()},
        "ratios": {f"{name}/iosched": json_object(each, RATIO) for name, each in result.intervals.speedup.items()},
    }


def table_rows(result: OptimizeResult) -> list[tuple[str, str]]:
    """The table for people: names and values, row by row."""
    plain = _before(result)
    before_us = _plain_us(result)[plain]
    before = f"{_BASELINES[plain]}{_sequential_remark(result.sequential_measured_share)}"
    if _is_reduced(result):
        before += f", in {DEFAULT_PRECISION}"
    rows = [
        *_cost_rows(result),
        *_rate_rows(result),
        ("before", f"{_latency(before_us)}{_ends_text(result, plain)}  {before}"),
        ("after", f"{_latency(result.shipped_us)}{_ends_text(result, result.shipped)}{_gain_text(result)}"),
        ("shipped", f"{result.shipped}: {result.reason}"),
    ]
    of_schedules = [
        ("schedule found", _found_text(result)),
        *_rest_row(result),
        ("baselines", _baselines_text(result)),
        ("kernels", _kernels_text(result)),
        ("search", _search_text(result)),
    ]
    return [
        *rows,
        *(_rest_row(result) if _is_reduced(result) else of_schedules),
        *_check_row(result.check),
        ("time spent", f"{result.seconds:.1f} s"),
    ]


def _check_row(check: Check | None) -> list[tuple[str, str]]:
    if check is None:
        return []
    verdict = "passed" if check.passed else "FAILED"
    off = f"off by {check.max_rel:.2g} of their scale from" if isfinite(check.max_rel) else "cannot be compared with"
    return [("check", f"{verdict}: outputs {off} onnxruntime's")]


def _kernels_text(result: OptimizeResult) -> str:
    if result.kernels_before is None:
        return "not counted"
    after = "not told by OpenVINO" if result.kernels_after is None else str(result.kernels_after)
    return f"{result.kernels_before} before, {after} after"


def _is_reduced(result: OptimizeResult) -> bool:
    """Whether a CPU runs in another precision than plain onnxruntime, so that no schedule does."""
    return result.reference_us is not None and result.document.precision != DEFAULT_PRECISION


def _before(result: OptimizeResult) -> str:
    """The name of the way without a schedule that what ships is compared with."""
    if result.reference_us is None:
        return "sequential"
    is_plain = result.shipped in ("reference", "openvino")
    return "reference" if result.ratio is None or is_plain else result.ratio.baseline


def _plain_us(result: OptimizeResult) -> dict[str, float | None]:
    """The latencies of the ways without a schedule that was found, by their names."""
    return {"reference": result.reference_us, "openvino": result.openvino_us, "sequential": result.sequential_us}


def _sequential_remark(measured_share: float | None) -> str:
    """How much of the sequential latency was measured elsewhere: what is found is compared with it."""
    return "" if measured_share is None else f", {share_text(measured_share)} of it measured"


def _cost_rows(result: OptimizeResult) -> list[tuple[str, str]]:
    """Where latencies come from that were not measured here, and what stands in brackets."""
    launch = result.document.launch
    if launch is None:
        return []
    source = source_text(result.measured_share, " on such a GPU elsewhere", launch=launch)
    rows = [("cost", f"analytic: {source}")]
    if result.intervals is not None:
        rows.append(("in brackets", f"where {result.intervals.level:.0%} of measurements are expected to lie"))
    return rows


def _ends_text(result: OptimizeResult, name: str) -> str:
    """The interval of a computed latency, in brackets; empty where there is none."""
    found = None if result.intervals is None else result.intervals.latency_us.get(name)
    return "" if found is None or not found.value else f" ({latency_ends_text(found)})"


def _baselines_text(result: OptimizeResult) -> str:
    shown = (_before(result), result.shipped, "sequential")
    others = {name: each for name, each in _plain_us(result).items() if each is not None and name not in shown}
    more = "".join(f", {_BASELINES[name]} {_latency(each)}" for name, each in others.items())
    text = f"sequential {_latency(result.sequential_us)}, greedy {_latency(result.greedy_us)}{more}"
    greedy = None if result.intervals is None else result.intervals.speedup.get("greedy")
    return text if greedy is None or not greedy.is_equal else f"{text}, which equals the schedule found {AS_FAR}"


def _rest_row(result: OptimizeResult) -> list[tuple[str, str]]:
    """Latencies after a rest, which are what a process that seldom runs the model gets."""
    plain = _before(result)
    plain_us, shipped_us = result.rested_us.get(plain), result.shipped_rested_us
    if plain_us is None or shipped_us is None:
        return []
    ours = "" if result.shipped == plain else f", shipped {_latency(shipped_us)}"
    return [("after a rest", f"{_BASELINES[plain]} {_latency(plain_us)}{ours}")]


def _gain_text(result: OptimizeResult) -> str:
    """How many times as fast as before what ships is: measured or by the analytic model, with its interval."""
    if result.shipped == "sequential" and result.cost == "analytic":
        return ""
    if result.intervals is not None:
        found, by = result.intervals.speedup["sequential"], _ANALYTIC[result.measured_share is not None]
        ends = f"({found.low:.2f} to {found.high:.2f})"
        return f"  equal {AS_FAR} {ends}" if found.is_equal else f"  {found.value:.2f}x {ends} by {by}"
    if _is_reduced(result):
        return f"  in {result.document.precision}"
    ratio = result.ratio
    if ratio is None or result.shipped in ("reference", "openvino"):
        return ""
    return f"  {speedup_text(ratio)}"


def _found_text(result: OptimizeResult) -> str:
    from iosched.profiler.devices.resolve import speed_text

    if result.cost == "analytic":
        return f"predicted {_latency(result.predicted_us)}{_ends_text(result, 'iosched')}"
    if result.measured_us is None and not result.predicted_us:
        return _latency(None)
    speed = speed_text(result.device_kind) if result.slowness is None else "at the machine's present speed"
    words = filter(None, ("predicted", _latency(result.predicted_us), speed))
    return f"{_latency(result.measured_us)} ({' '.join(words)})"


def _latency(latency_us: float | None) -> str:
    return latency_text(latency_us or None, unknown="not measured")


def _search_text(result: OptimizeResult) -> str:
    from iosched.scheduler.proof import gap_text

    if result.cost == "analytic":
        under = f"under {_ANALYTIC[result.measured_share is not None]}"
        counted = f"{result.signatures} of {result.stages} stages {_PRICED[result.measured_share is not None]}"
    else:
        under = "under the measured stages"
        disturbed = f" ({result.disturbed} disturbed)" if result.disturbed else ""
        repeated = f" ({result.repeated} repeated)" if result.repeated else ""
        measured = f"{result.measurements} measurements{repeated}"
        counted = f"{result.signatures} stages{disturbed}: {measured}, {result.cache_hits} from the profile database"
    found = gap_text(
        result.gap, result.gap_of, under, measured=result.cost == "measured", predicted=result.predicted_gap
    )
    return f"{found}; {counted}"
