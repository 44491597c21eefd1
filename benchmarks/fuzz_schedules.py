"""Edits of schedule files that keep their form: other stages, groups, lanes, settings and versions than were found."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

_NUMBERS = (0, -1, 1, 2, 3, 1023, 1024, 1025, 10**9, 10**17, 1.5, -0.0)


def edited_schedule(text: str, random: Random) -> str:
    """A schedule file with one to three edits."""
    content = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(_EDITS)(content, random)
    return json.dumps(content)


def _stages(content: Any) -> list[Any]:
    return [stage for block in content["blocks"] for stage in block["stages"]]


def _swap_operators(content: Any, random: Random) -> None:
    groups = [group for stage in _stages(content) for group in stage["groups"] if group]
    if groups:
        one, other = random.choice(groups), random.choice(groups)
        at, place = random.randrange(len(one)), random.randrange(len(other))
        one[at], other[place] = other[place], one[at]


def _swap_stages(content: Any, random: Random) -> None:
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    random.shuffle(stages)


def _join_stages(content: Any, random: Random) -> None:
    """The groups of a stage beside those of the next, or all operators of both in one group."""
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    if len(stages) < 2:
        return
    at = random.randrange(len(stages) - 1)
    groups = [*stages[at]["groups"], *stages.pop(at + 1)["groups"]]
    stages[at]["groups"] = groups if random.random() < 0.5 else [[name for group in groups for name in group]]


def _split_stage(content: Any, random: Random) -> None:
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    if stages:
        at = random.randrange(len(stages))
        groups = [[name] for group in stages[at]["groups"] for name in group]
        stages[at : at + 1] = [{**stages[at], "strategy": "concurrent", "groups": [group]} for group in groups]


def _join_blocks(content: Any, random: Random) -> None:
    stages = _stages(content)
    content["blocks"] = [{"index": 0, "optimal": random.random() < 0.5, "stages": stages}] if stages else []


def _other_strategy(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        random.choice(stages)["strategy"] = random.choice(("merge", "concurrent", "session", "stack", "both", ""))


def _lanes(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        stage = random.choice(stages)
        lanes = random.choice((1, 2, 3, 4, 1024))
        groups = [sorted(random.sample(range(lanes), random.randint(1, min(lanes, 4)))) for _ in stage["groups"]]
        stage["division"] = {"lanes": lanes, "groups": groups}


def _settings(content: Any, random: Random) -> None:
    key = random.choice(
        ("lanes", "by", "without_openvino", "threads", "precision", "launch", "barriers", "measured_share")
    )
    content["runtime"][key] = random.choice((*_NUMBERS, "onnxruntime", "openvino", "sequential", "bf16", None, [], {}))


def _teams(content: Any, random: Random) -> None:
    content["objective"] = random.choice(("throughput", "latency"))
    content["teams"] = {key: random.choice((1, 2, 4, 1024, 10**9)) for key in ("requests", "count", "images")}


def _shipped(content: Any, random: Random) -> None:
    content["shipped"] = random.choice(("iosched", "reference", "sequential", "openvino", "serial", "packed", "mixed"))
    content["device"]["kind"] = random.choice(("cpu", "cuda", "tpu", "../x"))


def _latency(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        random.choice(stages)["latency_us"][random.choice(("predicted", "measured"))] = random.choice((*_NUMBERS, None))
    content["cost"] = random.choice(("measured", "analytic"))


def _unstructured(content: Any, random: Random) -> None:
    """As versions wrote it that knew no structure: the digest of the whole model decides."""
    content.pop("structure", None)
    if random.random() < 0.5:
        content["model"]["inputs"] = {name: [random.choice(_NUMBERS)] for name in content["model"]["inputs"]}


_EDITS: tuple[Callable[[Any, Random], None], ...] = (
    *(_swap_operators, _swap_stages, _join_stages, _split_stage, _join_blocks, _other_strategy),
    *(_lanes, _lanes, _settings, _teams, _shipped, _latency, _latency, _unstructured),
)
