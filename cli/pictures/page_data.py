"""Data of the HTML page for its script: numbers and names without styling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from iosched.cli.common.errors import printable
from iosched.cli.common.text import count_text, shape_text, throughput_text, work_text
from iosched.cli.pictures.theme import FAMILIES, style_of
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.proof import proof_text
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import STAGE_RULES

if TYPE_CHECKING:
    from iosched.cli.pictures.formats import Drawing
    from iosched.jobs.known_stages import KnownStage, KnownStages
    from iosched.profiler.devices.throughput import Throughput
    from iosched.scheduler.document import ScheduleDocument

Numbers = Mapping[str, int]
"""Operator numbers by name."""

_WHOLES = {
    "measured": "schedule, measured as a whole",
    "predicted": "schedule, predicted",
    "sequential": "one operator after another",
    "greedy": "all ready operators at once (greedy)",
    "reference": "plain onnxruntime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "serial": "one model after another",
    "packed": "the models in parallel",
    "batched": "equal operators batched",
    "mixed": "one schedule for all models",
}
_NO_PEAK = "share of peak: the peak of this device is unknown"
_NO_MODEL = "unknown without the model: give the optimized model, or --model"


def page_data(drawn: Drawing, known: KnownStages) -> dict[str, object]:
    """Data of the page for JSON. Operators are numbered in schedule order. O(operators + edges).

    Args:
        known: measurements of the stages.
    """
    document, edges = drawn.document, drawn.edges
    names = [name for stage in document.schedule.stages for name in stage.operators]
    number = {name: place for place, name in enumerate(names)}
    styles = [style_of(name, drawn.styles) for name in names]
    families, models = list(FAMILIES), list(dict.fromkeys(style.models for style in styles if style.models))
    return {
        "title": printable(document.model),
        "notes": [*_notes(drawn, known)],
        "facts": [[name, printable(value)] for name, value in _facts(drawn)],
        "wholes": [[_WHOLES.get(name, printable(name)), us] for name, us in _wholes(document) if us],
        "families": [[key, family.name] for key, family in FAMILIES.items()],
        "models": list(map(printable, models)),
        "operators": [
            [
                printable(name),
                printable(style.label),
                printable(style.type),
                families.index(style.family),
                models.index(style.models) if style.models else -1,
                style.shape,
                style.flops,
            ]
            for name, style in zip(names, styles, strict=True)
        ],
        "reads": None if edges is None else [_numbers(edges.get(name, ()), number) for name in names],
        "blocks": [*_blocks(drawn, known, number)],
        "unknown": _unknown(drawn, known),
    }


def _numbers(names: Sequence[str], number: Numbers) -> list[int]:
    return [number[name] for name in names if name in number]


def _blocks(drawn: Drawing, known: KnownStages, number: Numbers) -> Iterator[dict[str, object]]:
    found = iter(known.stages)
    for block, before in zip(drawn.document.schedule.blocks, drawn.before(known).blocks, strict=True):
        yield {
            "index": block.index,
            "optimal": block.optimal,
            "stages": [_stage(drawn, stage, next(found, None), number) for stage in block.stages],
            "before": [[_numbers(stage.operators, number), _us(stage.latency_us)] for stage in before.stages],
        }


def _stage(drawn: Drawing, stage: Stage, known: KnownStage | None, number: Numbers) -> dict[str, object]:
    rule, found = STAGE_RULES[stage.strategy], drawn.throughput([stage])
    measured = None if known is None else known.measured
    latency_us = measured.median_us if stage.latency_us is None and measured is not None else stage.latency_us
    entry: dict[str, object] = {
        "strategy": stage.strategy.value,
        "is_one": rule.is_one_operator,
        "is_in_order": rule.is_in_order,
        "groups": [_numbers(group, number) for group in stage.groups],
        "us": _us(latency_us),
        "predicted_us": _us(stage.predicted_us),
        "measured_us": _us(stage.measured_us),
    }
    if measured is not None:
        entry["measured_us"] = _us(measured.median_us)
        entry["spread"] = [_us(measured.p10_us), _us(measured.p90_us), len(measured.samples_us)]
    if found is not None:
        entry["computes"] = work_text(found)
        entry["share_of_peak"] = _share(found.share_of_peak)
    entry["busy"] = _share(_busy(known, found))
    if stage.division is not None:
        entry["lanes"] = [list(lanes) for lanes in stage.division.groups]
    return entry


def _busy(known: KnownStage | None, found: Throughput | None) -> float | None:
    """Utilization of the SMs or lanes, or None."""
    if found is not None and found.sm_share is not None:
        return found.sm_share
    return None if known is None or known.idle is None else 1 - known.idle


def _us(latency_us: float | None) -> float | None:
    """Round to nanoseconds, to keep the file small."""
    return None if latency_us is None else round(latency_us, 3)


def _share(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _notes(drawn: Drawing, known: KnownStages) -> Iterator[str]:
    """Notes at the top: the library that runs the model instead, the source of latencies, and teams."""
    if drawn.instead is not None:
        yield drawn.instead
    if drawn.remark:
        yield f"This schedule is {drawn.remark.strip(' ()')}."
    without = sum(stage.latency_us is None for stage in drawn.document.schedule.stages)
    if without and known.stages:
        yield (
            f"The schedule file has no latency for {count_text(without, 'stage')}; known ones come from this machine's "
            "profile database."
        )
    teams = drawn.document.teams
    if teams is not None:
        yield f"The model runs as {teams.text}. Latencies of stages are those of one alone."


def _facts(drawn: Drawing) -> Iterator[tuple[str, str]]:
    document, search = drawn.document, drawn.document.search
    stages = tuple(document.schedule.stages)
    operators = sum(len(stage.operators) for stage in stages)
    counts = ((operators, "operator"), (len(stages), "stage"), (len(document.schedule.blocks), "block"))
    yield "device", document.device_name
    yield "size", ", ".join(count_text(count, word) for count, word in counts)
    yield "inputs", ", ".join(f"{name} {shape_text(shape)}" for name, shape in document.inputs.items())
    if document.precision != DEFAULT_PRECISION:
        yield "precision", document.precision
    limits = (("operators in a group", search.pruning.r), ("groups in a stage", search.pruning.s))
    most = ", ".join(f"at most {limit} {what}" for what, limit in limits if limit is not None)
    yield "search", f"{search.strategy}{most and f', {most}'}"
    if document.proven is not None:
        yield "proven", proof_text(document.proven, measured=document.cost == "measured")
    total = drawn.throughput(stages)
    if total is not None:
        yield "computes", throughput_text(total)
    yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(document.versions.items()))


def _wholes(document: ScheduleDocument) -> list[tuple[str, float | None]]:
    """Latencies of the whole model in the order of `_WHOLES`, other names last."""
    order = {name: place for place, name in enumerate(_WHOLES)}
    return sorted(document.latency_us.items(), key=lambda item: order.get(item[0], len(order)))


def _unknown(drawn: Drawing, known: KnownStages) -> dict[str, str]:
    """Reasons for values that are unknown for all stages."""
    found = {}
    if drawn.throughputs is None:
        found["peak"] = f"share of peak: {_NO_MODEL}"
    elif drawn.throughputs.peak_tflops is None:
        found["peak"] = _NO_PEAK
    why = known.why or (None if drawn.throughputs is not None else _NO_MODEL)
    if why is not None:
        found["measured"] = f"measured: {why}"
    if (drawn.throughputs is None or drawn.throughputs.busy_us is None) and not known.stages:
        found["busy"] = f"utilization: {why or _NO_MODEL}"
    return found
