"""Results of `iosched optimize`: JSON object and tables."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from iosched.cli.common.json_objects import CHECK, json_object
from iosched.cli.common.output import emit_json, note
from iosched.cli.common.tables import print_columns, print_pairs
from iosched.cli.common.text import (
    AS_FAR,
    COMPARED,
    ENDS,
    RATIO,
    count_text,
    latency_ends_text,
    latency_text,
    share_text,
    source_text,
)
from iosched.profiler.measuring.interleave import speedup_text
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.teams import DEFAULT_OBJECTIVE

if TYPE_CHECKING:
    from iosched.jobs.optimizing.estimate import Estimate
    from iosched.jobs.optimizing.result import OptimizeResult
    from iosched.jobs.settings import OptimizeSettings
    from iosched.models.model import Model
    from iosched.runtime.compare import Check

_OBJECT = """
device.kind=device_kind device.name=device_name cost launch=document.launch optimal proven
latency_us.predicted=predicted_us latency_us.measured=measured_us latency_us.sequential=sequential_us
latency_us.greedy=greedy_us latency_us.reference=reference_us latency_us.openvino=openvino_us
latency_us.tensorrt=document.latency_us.tensorrt
latency_us.ratio latency_us.after_rest latency_us.measured_share latency_us.sequential_measured_share
objective=document.objective teams=document.teams images_per_s intervals
shipped verdict candidate precision=document.precision layout=document.runtime.layout barriers=document.runtime.barriers
error=document.runtime.error reason
search.seconds search.states search.transitions search.stages search.signatures search.disturbed
search.measurements search.repeated search.cache_hits search.gap search.predicted_gap search.gap_of
kernels.before=kernels_before kernels.after=kernels_after check fp16 notes
"""
_FP16 = """
latency_us=latency_us.value low=latency_us.low high=latency_us.high
speedup.value=speedup.value speedup.low=speedup.low speedup.high=speedup.high speedup.equal=speedup.is_equal
"""
_KEYS = {"iosched": "predicted"}
_BASELINES = {"reference": "onnxruntime", "sequential": "sequential", "openvino": "OpenVINO", "tensorrt": "TensorRT"}
_LIBRARIES = ("reference", "openvino", "tensorrt")
_ANALYTIC = {False: "the analytic model", True: "measured and computed latencies"}
_PRICED = {False: "computed", True: "looked up or computed"}
"""Source of latencies on a simulated GPU, by whether stages were measured on another machine."""


def as_object(result: OptimizeResult) -> dict[str, object]:
    """JSON object of `optimize --json`, without the model and the files."""
    return json_object(
        result,
        _OBJECT,
        check=result.check and json_object(result.check, CHECK, first_difference=result.first_difference),
        ratio=result.ratio and json_object(result.ratio, COMPARED),
        after_rest={"measured" if name == "iosched" else name: us for name, us in result.rested_us.items()} or None,
        images_per_s=_rates(result),
        intervals=_intervals_object(result),
        fp16=result.fp16 and json_object(result.fp16, _FP16),
    )


def _rates(result: OptimizeResult) -> dict[str, float] | None:
    """Images per second by name; None if the objective is latency."""
    if result.document.objective == DEFAULT_OBJECTIVE:
        return None
    ours_us = result.measured_us if result.cost == "measured" else result.predicted_us
    known = {"iosched": ours_us, **_plain_us(result)}
    return {name: 1e6 * result.document.batch_size / each for name, each in known.items() if each}


def _rate_rows(result: OptimizeResult) -> list[tuple[str, str]]:
    rates = _rates(result)
    if rates is None:
        return []
    text = ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items())
    teams = result.document.teams
    parts, one = ("cores", "one team") if result.device_kind == "cpu" else ("in flight", "one request at a time")
    return [("images/s", text), (parts, one if teams is None else teams.text)]


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
    """Rows of names and values."""
    plain = _before(result)
    before_us = _plain_us(result)[plain]
    before, share = _BASELINES[plain], result.sequential_measured_share
    if share is not None:
        before += f", {share_text(share)} of it measured"
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


def fp16_notes(result: OptimizeResult) -> list[str]:
    """The speedup of fp16."""
    if result.fp16 is None:
        return []
    fp16_us, speedup = result.fp16.latency_us.value, result.fp16.speedup
    gain = f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})"
    return [
        f"--precision fp16: {latency_text(fp16_us)} by {_ANALYTIC[False]} instead of"
        f" {latency_text(fp16_us * speedup.value)}, {gain}"
    ]


def _check_row(check: Check | None) -> list[tuple[str, str]]:
    if check is None:
        return []
    verdict = "passed" if check.passed else "FAILED"
    off = f"differ by {check.max_rel:.2g} of their scale from" if isfinite(check.max_rel) else "cannot be compared with"
    return [("check", f"{verdict}: outputs {off} onnxruntime's")]


def _kernels_text(result: OptimizeResult) -> str:
    if result.kernels_before is None:
        return "not counted"
    after = f"unknown for {_BASELINES[result.shipped]}" if result.kernels_after is None else str(result.kernels_after)
    return f"{result.kernels_before} before, {after} after"


def _is_reduced(result: OptimizeResult) -> bool:
    """Whether the CPU runs in reduced precision, and so without a schedule."""
    return result.reference_us is not None and result.document.precision != DEFAULT_PRECISION


def _before(result: OptimizeResult) -> str:
    """Name of the baseline."""
    usual = "sequential" if result.reference_us is None else "reference"
    is_plain = result.shipped in (usual, *_LIBRARIES)
    return usual if result.ratio is None or is_plain else result.ratio.baseline


def _plain_us(result: OptimizeResult) -> dict[str, float | None]:
    """Latencies of the baselines."""
    libraries = {"openvino": result.openvino_us, "tensorrt": result.document.latency_us.get("tensorrt")}
    return {"reference": result.reference_us, **libraries, "sequential": result.sequential_us}


def _cost_rows(result: OptimizeResult) -> list[tuple[str, str]]:
    """Source of simulated latencies, and the meaning of brackets."""
    launch = result.document.launch
    if launch is None:
        return []
    source = source_text(result.measured_share, " on such a GPU in another machine", launch=launch)
    rows = [("cost", f"analytic: {source}")]
    if result.intervals is not None:
        rows.append(("in brackets", f"interval expected to hold {result.intervals.level:.0%} of measurements"))
    return rows


def _ends_text(result: OptimizeResult, name: str) -> str:
    """Interval of a computed latency in brackets, or empty."""
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
    """Latencies after idle, as in a process that rarely runs the model."""
    plain = _before(result)
    plain_us, shipped_us = result.rested_us.get(plain), result.shipped_rested_us
    if plain_us is None or shipped_us is None:
        return []
    ours = "" if result.shipped == plain else f", shipped {_latency(shipped_us)}"
    return [("after idle", f"{_BASELINES[plain]} {_latency(plain_us)}{ours}")]


def _gain_text(result: OptimizeResult) -> str:
    """Speedup of the shipped alternative, measured or analytic, with its interval."""
    if result.shipped == "sequential" and result.cost == "analytic":
        return ""
    if result.intervals is not None:
        found, by = result.intervals.speedup["sequential"], _ANALYTIC[result.measured_share is not None]
        ends = f"({found.low:.2f} to {found.high:.2f})"
        return f"  equal {AS_FAR} {ends}" if found.is_equal else f"  {found.value:.2f}x {ends} by {by}"
    if _is_reduced(result):
        return f"  in {result.document.precision}"
    ratio = result.ratio
    if ratio is None or result.shipped in _LIBRARIES:
        return ""
    return f"  {speedup_text(ratio)}"


def _found_text(result: OptimizeResult) -> str:
    from iosched.profiler.devices.resolve import speed_text

    if result.cost == "analytic":
        return f"predicted {_latency(result.predicted_us)}{_ends_text(result, 'iosched')}"
    if not result.predicted_us:
        return _latency(result.measured_us)
    speed = speed_text(result.device_kind) if result.slowness is None else "at the machine's current speed"
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
        stages, measured = count_text(result.signatures, "stage"), count_text(result.measurements, "measurement")
        counted = f"{stages}{disturbed}: {measured}{repeated}, {result.cache_hits} from the profile database"
    found = gap_text(
        result.gap, result.gap_of, under, measured=result.cost == "measured", predicted=result.predicted_gap
    )
    return f"{found}; {counted}"


_ESTIMATE = """
model device.kind=device_kind device.name=device_name cost pruning measurements seconds known disturbed blocks
"""
_COUNTS = ("operators", "width", "states", "stages", "signatures", "known", "measurements")


def print_estimate(model: Model, settings: OptimizeSettings, *, as_json: bool) -> None:
    """Print the size of the search by block."""
    from iosched.jobs.optimizing.estimate import estimate
    from iosched.profiler.devices.resolve import remarks

    for line in remarks(settings.device):
        note(line)
    found = estimate(model, settings)
    for line in found.notes:
        note(line)
    if as_json:
        emit_json(json_object(found, _ESTIMATE, model=model.name, pruning=settings.pruning))
        return
    rows = [[str(block.index), *(f"{getattr(block, key):,}" for key in _COUNTS)] for block in found.blocks]
    headers = ["block", "n", "d", "states", "stages", "signatures", "known", "to measure at most"]
    print_columns(headers, rows, title=f"{model.name} on {found.device_name}: size of the search by 'optimize'")
    print_pairs("total", _estimate_rows(found), to_stderr=False)


def _estimate_rows(found: Estimate) -> list[tuple[str, str]]:
    known = found.known
    rows = [
        ("operators", f"{sum(block.operators for block in found.blocks):,} in {len(found.blocks)} blocks"),
        ("signatures", f"{sum(block.signatures for block in found.blocks):,} stages of different cost"),
    ]
    if found.cost == "analytic":
        text = f"{known:,} of them were measured on such a GPU in another machine"
        measured = [("already known", text)] if known else []
        source = "the rest is computed" if known else "computed from the GPU's specification"
        return [*rows, *measured, ("to measure", f"nothing: the cost is analytic, {source}")]
    disturbed = f", {found.disturbed:,} of them disturbed" if found.disturbed else ""
    repeats = f", {found.repeats:,} of them repeats" if found.repeats else ""
    total = f"{found.seconds:.0f} s" if found.seconds < 120 else f"{found.seconds / 60:.0f} minutes"
    stage = f"{found.measurement_s:.2g} s for each stage{' (measured on this machine)' if found.stage_s else ''}"
    return [
        *rows,
        ("already known", f"{known:,} in the profile database, by all strategies{disturbed}"),
        ("to measure", f"at most {found.measurements:,}{repeats}; bounds usually save more"),
        ("time", f"at most {total}: {stage}, and the comparison of whole models"),
    ]
