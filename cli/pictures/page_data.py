"""What the page of a schedule shows, as plain data for its script: numbers, words and names, nothing of their looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from iosched.cli.errors import printable
from iosched.cli.pictures.families import FAMILIES
from iosched.cli.pictures.theme import look_of
from iosched.cli.stages import throughput_text, work_text
from iosched.cli.text import count_text, shape_text
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.proof import proof_text
from iosched.scheduler.schedule import Block, Stage
from iosched.scheduler.strategies import STAGE_RULES

if TYPE_CHECKING:
    from iosched.cli.pictures.drawing import Drawn
    from iosched.jobs.known_stages import KnownStage, KnownStages
    from iosched.profiler.devices.throughput import Throughput
    from iosched.scheduler.document import ScheduleDocument

Numbers = Mapping[str, int]
"""Operators by name: their places in the list of all that are drawn."""

_WHOLES = {
    "measured": "the schedule found, run as a whole",
    "predicted": "the schedule found, by its stages",
    "sequential": "one operator after another",
    "greedy": "all that is ready at once (greedy)",
    "reference": "plain onnxruntime",
    "openvino": "OpenVINO",
    "serial": "one model after another",
    "packed": "the models side by side",
    "batched": "what is alike as one operator",
    "mixed": "one schedule for all models",
}
_NO_PEAK = "share of the peak: not known, since the peak of this device is not"
_NO_MODEL = "not known without the model: give the optimized model, or --model"


def page_data(drawn: Drawn, known: KnownStages) -> dict[str, object]:
    """The data as JSON takes it; names have no control characters. O(operators + edges).

    Operators are numbered in the order of the schedule, and are told of by these numbers.

    Args:
        drawn: the schedule.
        known: what was measured of its stages.
    """
    document, edges = drawn.document, drawn.edges
    names = [name for stage in document.schedule.stages for name in stage.operators]
    number = {name: place for place, name in enumerate(names)}
    looks = [look_of(name, drawn.looks) for name in names]
    families, models = list(FAMILIES), list(dict.fromkeys(look.models for look in looks if look.models))
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
                printable(look.label),
                printable(look.type),
                families.index(look.family),
                models.index(look.models) if look.models else -1,
                look.shape,
                look.flops,
            ]
            for name, look in zip(names, looks, strict=True)
        ],
        "reads": None if edges is None else [_numbers(edges.get(name, ()), number) for name in names],
        "blocks": [*_blocks(drawn, known, number)],
        "unknown": _unknown(drawn, known),
    }


def _numbers(names: Sequence[str], number: Numbers) -> list[int]:
    return [number[name] for name in names if name in number]


def _blocks(drawn: Drawn, known: KnownStages, number: Numbers) -> Iterator[dict[str, object]]:
    found = iter(known.stages)
    for block, before in zip(drawn.document.schedule.blocks, drawn.before(known).blocks, strict=True):
        yield {
            "index": block.index,
            "optimal": block.optimal,
            "stages": [_stage(drawn, stage, next(found, None), number) for stage in block.stages],
            "before": _before(before, number),
        }


def _before(block: Block, number: Numbers) -> list[list[object]]:
    return [[_numbers(stage.operators, number), _us(stage.latency_us)] for stage in block.stages]


def _stage(drawn: Drawn, stage: Stage, known: KnownStage | None, number: Numbers) -> dict[str, object]:
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
    """The part of the SMs' or the lanes' time that is filled with work; None where that is not known."""
    if found is not None and found.sm_share is not None:
        return found.sm_share
    return None if known is None or known.idle is None else 1 - known.idle


def _us(latency_us: float | None) -> float | None:
    """To nanoseconds: more digits make the file larger alone."""
    return None if latency_us is None else round(latency_us, 3)


def _share(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _notes(drawn: Drawn, known: KnownStages) -> Iterator[str]:
    """Sentences on top: what runs the model instead, and where latencies come from that were not measured."""
    if drawn.instead is not None:
        yield drawn.instead
    if drawn.remark:
        yield f"This schedule is {drawn.remark.strip(' ()')}."
    without = sum(stage.latency_us is None for stage in drawn.document.schedule.stages)
    if without and known.stages:
        yield (
            f"Of {count_text(without, 'stage')} the schedule file has no latency; what is drawn of them was measured, "
            "as far as it is known, when this machine searched."
        )
    teams = drawn.document.teams
    if teams is not None:
        yield f"Teams of cores run the schedule: {teams.text}. All latencies are those of one team."


def _facts(drawn: Drawn) -> Iterator[tuple[str, str]]:
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
    """Latencies of the whole model in the order of `_WHOLES`, with names that it does not have at the end."""
    order = {name: place for place, name in enumerate(_WHOLES)}
    return sorted(document.latency_us.items(), key=lambda item: order.get(item[0], len(order)))


def _unknown(drawn: Drawn, known: KnownStages) -> dict[str, str]:
    """Why something is not known of stages, by what it is; what is known of some of them has no entry."""
    found = {}
    if drawn.throughputs is None:
        found["peak"] = f"share of the peak: {_NO_MODEL}"
    elif drawn.throughputs.peak_tflops is None:
        found["peak"] = _NO_PEAK
    why = known.why or (None if drawn.throughputs is not None else _NO_MODEL)
    if why is not None:
        found["measured"] = f"measured: {why}"
    if (drawn.throughputs is None or drawn.throughputs.busy_us is None) and not known.stages:
        found["busy"] = f"utilization: {why or _NO_MODEL}"
    return found
