"""A schedule as an attachment for Netron: JSON shown next to the nodes of the optimized model.

Netron finds nodes and tensors by the first line of their names. `optimize` names every node after its first output; in
files with unnamed nodes, only tensors are found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from iosched.scheduler.schedule import Schedule, Stage

Place = tuple[int, int, int]
"""Block index, stage number and group number, from 0."""


@dataclass(frozen=True)
class PlacedNode:
    """A node of a model file, and its place in the schedule."""

    name: str
    outputs: tuple[str, ...]
    place: Place


def draw_netron(schedule: Schedule, nodes: Iterable[PlacedNode]) -> str:
    """Text of the JSON file.

    Nodes and their tensors get their place as metadata and the latency of the stage as metrics. Names with equal first
    lines are omitted, because Netron confuses them.

    Args:
        nodes: of the optimized model; those of blocks that are not in `schedule` are omitted.
    """
    stages = {(block.index, number): stage for block in schedule.blocks for number, stage in enumerate(block.stages)}
    drawn = [node for node in nodes if node.place[:2] in stages]
    targets = [*_targets("node", drawn), *_targets("value", drawn)]
    count = Counter((kind, name) for kind, name, _ in targets)
    metadata, metrics = [], []
    for kind, name, (block, number, group) in targets:
        if not name or count[kind, name] > 1:
            continue
        stage = stages[block, number]
        metadata += _entries(kind, name, _metadata(stage, block, number, group))
        metrics += _entries(kind, name, _metrics(stage))
    lists = {"metadata": metadata, "metrics": metrics}
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]" for name, entries in lists.items()]
    return '{"signature": "netron:attachment",\n' + ",\n".join(parts) + "}\n"


def _targets(kind: str, nodes: Iterable[PlacedNode]) -> Iterator[tuple[str, str, Place]]:
    for node in nodes:
        for name in (node.name,) if kind == "node" else node.outputs:
            yield kind, name.split("\n", 1)[0], node.place


def _metadata(stage: Stage, block: int, number: int, group: int) -> Mapping[str, object]:
    return {
        "block": block,
        "stage": number,
        "group": group,
        "groups side by side": len(stage.groups),
        "strategy": stage.strategy.value,
    }


def _metrics(stage: Stage) -> Mapping[str, object]:
    latencies = {"stage, predicted (us)": stage.predicted_us, "stage, measured (us)": stage.measured_us}
    return {name: round(latency, 3) for name, latency in latencies.items() if latency is not None}


def _entries(kind: str, target: str, values: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"kind": kind, "target": target, "name": name, "value": value} for name, value in values.items()]
