"""What the stages of a schedule leave idle, and what could be added to them, as tables, sentences and JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from iosched.cli.intervals import AS_FAR
from iosched.cli.stages import stage_object
from iosched.cli.tables import print_columns, print_pairs
from iosched.cli.terminal import say
from iosched.cli.words import cost_remark, count_text, latency_text, shape_text

if TYPE_CHECKING:
    from iosched.jobs.headroom.result import Capacity, Change, StageCapacity

_ALONE = (
    "Each change is one of its stage alone, with no other change made; what reads more channels in later stages has"
    " more to do there, which is not counted."
)


def capacity_object(found: Capacity) -> dict[str, object]:
    """The object that `explain --capacity --json` prints; scripts rely on its keys."""
    return {
        "model": found.document.model,
        "device": found.device_name,
        "cost": found.cost,
        "launch": found.document.launch,
        "shipped": found.document.shipped,
        "lanes": found.lanes,
        "teams": None if found.teams is None else asdict(found.teams),
        "channel_block": found.channel_block,
        "measurements": found.measurements,
        "why": found.why,
        "stages": [
            {
                "block": each.block,
                "stage": each.index,
                **stage_object(each.stage),
                "latency_us": each.latency_us,
                "idle_share": each.idle,
                "apart_us": each.apart_us,
                "why": each.why,
                "changes": [_change_object(change) for change in each.changes],
            }
            for each in found.stages
        ],
    }


def _change_object(change: Change) -> dict[str, object]:
    return {
        "kind": change.kind,
        "operator": change.operator,
        "from": list(change.now),
        "to": list(change.to),
        "free": change.ratio.is_free,
        "ratio": change.ratio.value,
        "low": change.ratio.low,
        "high": change.ratio.high,
        "tried": change.tried,
        "readers": list(change.readers),
    }


def print_capacity(found: Capacity) -> None:
    """Prints what a designer wants to know: stages, what is idle in them, and what is free there."""
    title = f"Capacity of {found.document.model} on {found.device_name}{cost_remark(found.document.launch)}"
    if found.why is not None:
        print_pairs(title, [("nothing", found.why)], to_stderr=False)
        return
    print_pairs(title, _facts(found), to_stderr=False)
    rows = [
        [_place(each), latency_text(each.latency_us), _idle(found, each), each.stage.strategy.value, _result(each)]
        for each in found.stages
    ]
    print_columns(["stage", "takes", "idle", "strategy", "at no latency"], rows)
    for each in found.stages:
        if free := [change for change in each.changes if change.ratio.is_free]:
            say(f"{_place(each)}: {_idle_sentence(found, each)}")
            for change in free:
                say(f"  {_sentence(found, change)}")
    for why, count in Counter(each.why for each in found.stages if each.why).items():
        say(f"{count_text(count, 'stage')} {'has' if count == 1 else 'have'} no answer: {why}.")
    if any(each.changes for each in found.stages):
        say(_ALONE)


def _facts(found: Capacity) -> list[tuple[str, str]]:
    rows = []
    if found.lanes is not None:
        rows.append(("cores", str(found.lanes)))
        rows.append(("measured", count_text(found.measurements, "stage")))
    if found.teams is not None:
        rows.append(("teams", f"{found.teams.text}; all is said of one team"))
    return [*rows, ("channels", f"kernels take {found.channel_block} at once")]


def _place(each: StageCapacity) -> str:
    return f"block {each.block}, stage {each.index + 1}"


def _idle(found: Capacity, each: StageCapacity) -> str:
    if each.idle is None:
        return "not known"
    return f"{each.idle:.0%} of the SMs" if found.lanes is None else f"{each.idle * found.lanes:.1f} of {found.lanes}"


def _idle_sentence(found: Capacity, each: StageCapacity) -> str:
    if each.idle is None:
        return "what it leaves idle is not known"
    cores = "" if found.lanes is None else " cores"
    return f"{_idle(found, each)}{cores} idle for {latency_text(each.latency_us)}"


def _result(each: StageCapacity) -> str:
    if each.why is not None:
        return "not tried"
    free = sum(change.ratio.is_free for change in each.changes)
    return count_text(free, "change") if free else f"nothing of {sum(change.tried for change in each.changes)} tried"


def _sentence(found: Capacity, change: Change) -> str:
    ratio = change.ratio
    if found.cost == "measured":
        how = f"measured: {ratio.low:.2f}-{ratio.high:.2f} times as long"
    else:
        how = f"by the model {ratio.value:.3f} times as long; equal {AS_FAR}: {ratio.low:.2f}-{ratio.high:.2f}"
    later = "1 operator reads" if len(change.readers) == 1 else f"{len(change.readers)} operators read"
    return f"{_what(change)} at no latency ({how}){f'; {later} them later' if change.readers else ''}"


def _what(change: Change) -> str:
    if change.kind == "width":
        return f"{change.operator} may have {change.to[0]} instead of {change.now[0]} channels"
    if change.kind == "kernel":
        return f"{change.operator} may have a kernel of {shape_text(change.to)} instead of {shape_text(change.now)}"
    return f"a branch like that of {change.operator} may run beside it"
