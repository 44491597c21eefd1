"""`iosched explain`: why an operator is in its stage, and what alternatives cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.common.batch_choice import which_schedule_option
from iosched.cli.common.complete import complete_file, complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import json_option, profile_db_option, verbosity_options
from iosched.cli.common.output import emit_json, say
from iosched.cli.common.source import read_schedule_and_model, remark_not_shipped
from iosched.cli.common.tables import print_columns, print_pairs
from iosched.cli.common.text import (
    AS_FAR,
    EQUAL,
    cost_remark,
    equal_text,
    idle_text,
    latency_text,
    stage_object,
    throughput_object,
    throughput_text,
)
from iosched.cli.help import Command
from iosched.models.errors import UsageError
from iosched.profiler.measuring.interleave import speedup_text

if TYPE_CHECKING:
    from iosched.jobs.explain import Explanation
    from iosched.scheduler.alternatives import OtherPlacement, StagePlacement, Verdict
    from iosched.scheduler.schedule import Stage

_OBJECT = """
model=document.model operator=operator.name type=operator.type together device=device_name cost launch=document.launch
proven=document.proven block=explanation.block stage=explanation.stage group=explanation.group stages
peak_tflops=throughputs.peak_tflops present present_us=explanation.present_us tolerance measurements measured_share
teams side_by_side placements alternatives
"""
_MOST_NAMES = 3
_WHY: Mapping[Verdict, str] = {
    "too_wide": "not analyzed: its stage runs too many operators in parallel",
    "only_place": "it has no alternative: nothing in its block can run with it",
    "unknown": "unknown: its stages were not measured; allow more with --measurements",
    "best": "every alternative takes longer; the next best is {place}",
    "as_good": "no alternative is faster; {place}, it takes about as long",
    "worse": "its stages look faster {place}, but the two were not compared by interleaved runs",
    "within_tolerance": "{place}, it is equally good: the difference is below the gap of the search ({tolerance:.1%})",
    "undecided": "no alternative is known to be faster; too little was measured {place}",
}


@click.command(
    name="explain",
    cls=Command,
    short_help="Show why an operator is in its stage, and the cost of the alternatives.",
    basic="model measurements json",
)
@click.argument("schedule", metavar="SCHEDULE", shell_complete=complete_file)
@click.argument("operator", metavar="OPERATOR")
@click.option(
    "--model",
    shell_complete=complete_model,
    metavar="MODEL",
    help="Model of a schedule file. An optimized model does not need it.",
)
@click.option(
    "--measurements",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Measure at most N unknown stages; 0 measures none.",
)
@which_schedule_option
@profile_db_option
@json_option
@verbosity_options
def command(
    schedule: str,
    operator: str,
    model: str | None,
    measurements: int,
    batch_size: int | None,
    profile_db: Path | None,
    as_json: bool,
) -> None:
    """Show why OPERATOR is in its stage: the latency of the best schedules with it elsewhere.

    SCHEDULE is an optimized model, a schedule file (with --model), or '-' for stdin. Stages and groups are counted from
    1, as in 'iosched show', and from 0 in JSON.

    Latencies are of the operator's block. They come from the profile database, or from the analytic model for a
    simulated GPU. 'at least' marks a lower bound: too little was measured. On a CPU, places that look faster are
    compared with the block by interleaved runs, and only a measured difference is called faster.

    'idle' is the share of the lanes' time spent waiting in the operator's stage, or '-' if unknown.

    \b
    Examples:
      iosched explain squeezenet.iosched.onnx fire2/expand3x3
      iosched explain model.schedule.json conv1 --model model.onnx --measurements 0
    """
    from iosched.jobs.explain import explain_operator

    document, loaded = read_schedule_and_model(schedule, model, batch_size=batch_size)
    if loaded is None:
        raise UsageError(f"{schedule} contains no model: give it with --model")
    remark_not_shipped(document)
    found = explain_operator(loaded, document, operator, measurements=measurements, profile_db=profile_db)
    if as_json:
        emit_json(as_object(found))
        return
    _print(found)


def as_object(found: Explanation) -> dict[str, object]:
    """JSON object of `explain --json`."""
    block = found.explanation
    return json_object(
        found,
        _OBJECT,
        stages=[block.first_stage, block.last_stage],
        present=_stage_object(found, block.present),
        placements=[_placement_object(found, placement) for placement in block.others],
        alternatives=[
            {**json_object(each, "name latency_us"), **stage_object(each.stage, each.idle)} for each in found.considered
        ],
    )


def _placement_object(found: Explanation, placement: OtherPlacement) -> dict[str, object]:
    in_turn = found.in_turn.get(placement)
    return json_object(
        placement,
        "kind stage possible at_least_us at_most_us equal in_turn schedule",
        equal=None if found.equal is None else placement in found.equal,
        in_turn=in_turn and json_object(in_turn, "speedup=value low high"),
        schedule=[_stage_object(found, stage) for stage in placement.stages],
    )


def _stage_object(found: Explanation, stage: Stage) -> dict[str, object]:
    return {
        **stage_object(found.units.expanded_stage(stage), found.idle.get(stage)),
        "predicted_us": stage.predicted_us,
        **throughput_object(found.throughputs.of([stage])),
    }


def _print(found: Explanation) -> None:
    from iosched.scheduler.proof import proof_text

    document = found.document
    remark = cost_remark(document.launch, found.measured_share)
    title = f"{found.operator.name} in {document.model} on {found.device_name}{remark}"
    print_pairs(
        title,
        [*_facts(found), ("schedule", proof_text(document.proven, measured=found.cost == "measured"))],
        to_stderr=False,
    )
    _print_placements(found)
    if found.considered:
        rows = [
            [each.name, latency_text(each.latency_us), idle_text(each.idle), _company(found, each.stage)]
            for each in found.considered
        ]
        print_columns(["other schedule", "latency", "idle", "how the operator runs"], rows)


def _print_placements(found: Explanation) -> None:
    explanation = found.explanation
    if not explanation.others:
        return
    rows = [["current", latency_text(explanation.present_us), idle_text(found.idle.get(explanation.present)), ""]]
    for placement in explanation.possible:
        latency, difference = _price(placement, found)
        rows.append([_place(placement, explanation), latency, _idle(placement, found), difference])
    print_columns(["alternative", "block's best latency", "idle", "difference"], rows)
    if barred := [str((placement.stage or 0) + 1) for placement in explanation.others if not placement.possible]:
        say(f"Not possible under -r and -s: with operators of stage {_names(barred)}.")
    if found.equal:
        say(equal_text("the current place"))
    for line in _best_other(found):
        say(line)


def _company(found: Explanation, stage: Stage) -> str:
    others = [name for name in found.units.expanded_stage(stage).operators if name not in found.together]
    return f"{stage.strategy.value}, {f'with {_names(others)}' if others else 'alone'}"


def _facts(found: Explanation) -> list[tuple[str, str]]:
    explanation = found.explanation
    present = explanation.present
    rows = [
        ("type", found.operator.type),
        ("place", f"block {explanation.block}, stage {explanation.stage + 1}, group {explanation.group + 1}"),
        ("strategy", _company(found, present)),
        *([("in parallel", f"models in parallel: {_names(found.side_by_side)}")] if found.side_by_side else []),
        ("its stage", throughput_text(found.throughputs.of([present]))),
        ("why", _why(found)),
    ]
    if found.teams is not None:
        rows.append(("teams", f"{found.teams.text}; latencies are those of one alone"))
    if len(found.together) > 1:
        rows.insert(1, ("fused", f"the device runs {_names(found.together)} as one operator"))
    return rows


def _why(found: Explanation) -> str:
    explanation = found.explanation
    if found.side_by_side and explanation.best_other is None:
        return "whole models run in parallel; -r and -s do not apply to them"
    place = "" if explanation.best_other is None else _place(explanation.best_other, explanation)
    if explanation.best_other in (found.equal or ()):
        return f"{place}, it takes equally long {AS_FAR}"
    if (better := found.better) is not None:
        ratio = speedup_text(found.in_turn[better])
        return f"it is faster {_place(better, explanation)}: {ratio} in interleaved runs of the block"
    if found.in_turn and explanation.verdict(found.tolerance) == "worse":
        likely = max(found.in_turn, key=lambda other: found.in_turn[other].value)
        ratio = speedup_text(found.in_turn[likely])
        return f"it looks faster {_place(likely, explanation)}, but interleaved runs show no difference: {ratio}"
    return _WHY[explanation.verdict(found.tolerance)].format(place=place, tolerance=found.tolerance)


def _best_other(found: Explanation) -> list[str]:
    known = [placement for placement in found.explanation.others if placement.stages]
    if not known:
        return []
    best = min(known, key=lambda placement: placement.at_most_us)
    place = _place(best, found.explanation)
    if best.kind == "by_stages":
        own = next(stage for stage in best.stages if found.explanation.operator in stage.operators)
        return [f"Its stage in the best known schedule {place}:", _stage_line(found, own)]
    now = {(stage.strategy, stage.groups) for stage in found.explanation.stages}
    lines = [f"Best known schedule with the operator {place} (differing stages):"]
    for number, stage in enumerate(best.stages, found.explanation.first_stage + 1):
        if (stage.strategy, stage.groups) not in now:
            lines.append(_stage_line(found, stage, f"stage {number}  "))
    return lines


def _stage_line(found: Explanation, stage: Stage, number: str = "") -> str:
    groups = " | ".join(" ".join(group) for group in found.units.expanded_stage(stage).groups)
    return f"  {number}{stage.strategy.value:<10}  {latency_text(stage.predicted_us):>10}  {groups}"


def _place(placement: OtherPlacement, explanation: StagePlacement) -> str:
    if placement.kind == "alone":
        return "alone"
    if placement.kind == "fewer":
        return "with fewer operators in its stage"
    if placement.kind == "by_stages":
        return "without the session"
    assert placement.stage is not None
    when = "earlier" if placement.stage < explanation.stage else "later"
    return f"{when}, with stage {placement.stage + 1}"


def _price(placement: OtherPlacement, found: Explanation) -> tuple[str, str]:
    us, least = placement.at_most_us, ""
    if not placement.is_exact:
        us, least = placement.at_least_us, "at least "
    now = found.explanation.present_us
    if not now or not math.isfinite(us):
        return f"{least}{latency_text(us)}", ""
    sign = "-" if us < now else "+"
    part = f" ({us / now - 1:+.1%})" if found.cost == "analytic" else ""  # measured ratios need interleaved runs
    mark = f" {EQUAL}" if placement in (found.equal or ()) else ""
    turn = f", interleaved {speedup_text(found.in_turn[placement])}" if placement in found.in_turn else ""
    return f"{least}{latency_text(us)}", f"{least}{sign}{latency_text(abs(us - now))}{part}{mark}{turn}"


def _idle(placement: OtherPlacement, found: Explanation) -> str:
    own = (stage for stage in placement.stages if found.explanation.operator in stage.operators)
    return idle_text(next(map(found.idle.get, own), None))


def _names(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
