"""The last block of several branches of Inception V3 (thesis, figure 4.7): the published schedules beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analytic import CALIBRATION, cost_of
from kernel_traffic import is_merged

from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search

NETWORK, BLOCK = "inception_v3", "mixed_7c"
LETTERS = {
    "a": "branch3x3dbl/conv1_1x1", "c": "branch3x3dbl/conv2_3x3", "f": "branch3x3dbl_b/conv1_3x1",
    "g": "branch3x3dbl_a/conv1_1x3", "b": "branch3x3/conv1_1x1", "h": "branch3x3_b/conv1_3x1",
    "i": "branch3x3_a/conv1_1x3", "P": "branch_pool/pool", "d": "branch_pool/conv_1x1", "e": "branch1x1/conv1_1x1",
}  # fmt: skip
# The schedules as published: stages from the first to the last, a group a word, + between what is merged. The
# concatenation is a stage of its own at the end.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "batch 1": ("ac b Pd e", "f g h i"),
    "batch 32": ("P", "a bi d e", "c h", "f+g"),
    "batch 128": ("P", "ac b d e", "h+i", "f+g"),
    "K80": ("ac bh Pd e", "f g i"),
}
PLACES = {"batch 1": ("v100", 1), "batch 32": ("v100", 32), "batch 128": ("v100", 128), "K80": ("k80", 1)}

Record = dict[str, object]


def last_block() -> Record:
    """Everything under the analytic model: every schedule's latency in every place, and stages of every block."""
    costs = {place: cost_of(NETWORK, CALIBRATION, device, batch) for place, (device, batch) in PLACES.items()}
    found = {place: search(cost.graph, cost).schedule for place, cost in costs.items()}
    theirs = {f"published, {place}": stages for place, stages in published().items()}
    known = theirs | {f"ours, {place}": _block(schedule) for place, schedule in found.items()}
    return {
        "schedules": {name: [_words(stage) for stage in stages] for name, stages in known.items()},
        "us": {place: {name: _us(cost, stages) for name, stages in known.items()} for place, cost in costs.items()},
        "stages_of_blocks": {
            place: [len(block.stages) for block in schedule.blocks] for place, schedule in found.items()
        },
        "merged": {place: sum(map(is_merged, schedule.stages)) for place, schedule in found.items()},
        "network_ms": {place: round((schedule.predicted_us or 0.0) / 1e3, 3) for place, schedule in found.items()},
    }


def published() -> dict[str, Sequence[Stage]]:
    """The stages of each published schedule, in terms of the bundled network's operators."""
    concatenation = Stage(Strategy.CONCURRENT, ((BLOCK,),))
    return {place: (*map(_stage, words), concatenation) for place, words in PUBLISHED.items()}


def _block(schedule: Schedule) -> Sequence[Stage]:
    return next(block.stages for block in schedule.blocks if BLOCK in block.stages[-1].operators)


def _stage(words: str) -> Stage:
    merged = "+" in words
    groups = words.split("+" if merged else " ")
    return Stage(
        Strategy.MERGE if merged else Strategy.CONCURRENT,
        tuple(tuple(f"{BLOCK}/{LETTERS[letter]}" for letter in group) for group in groups),
    )


def _words(stage: Stage) -> str:
    letter = {f"{BLOCK}/{name}": letter for letter, name in LETTERS.items()} | {BLOCK: "concat"}
    groups = ("".join(letter[name] for name in group) for group in stage.groups)
    return ("+" if is_merged(stage) else " ").join(groups)


def _us(cost: AnalyticCost, stages: Sequence[Stage]) -> float:
    plain = tuple(replace(stage, predicted_us=None) for stage in stages)
    return round(cost.schedule_latency_us(Schedule((Block(0, plain),))), 1)
