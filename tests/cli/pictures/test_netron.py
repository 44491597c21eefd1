"""Attachments for Netron, as its viewer reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from iosched.cli.pictures.netron import PlacedNode, draw_netron
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

SCHEDULE = Schedule(
    (
        Block(0, (Stage(Strategy.CONCURRENT, (("a",), ("b",)), predicted_us=12.34567, measured_us=11.0),)),
        Block(2, (Stage(Strategy.MERGE, (("c",), ("d",)), predicted_us=3.0), Stage(Strategy.CONCURRENT, (("e",),)))),
    )
)
NODES = [
    PlacedNode("a", ("a", "a2"), (0, 0, 0)),
    PlacedNode("b", ("b",), (0, 0, 1)),
    PlacedNode("c", ("c",), (2, 0, 0)),
    PlacedNode("e", ("e",), (2, 1, 0)),
]


def attached(
    nodes: Iterable[PlacedNode] = NODES, schedule: Schedule = SCHEDULE
) -> dict[str, dict[str, dict[str, object]]]:
    """The file as Netron 9.3.3 reads it: metadata and metrics, by kind and first line of a name.

    Its viewer (view.js, `metadata.Attachment`) requires this signature and reads entries with a kind and a target.
    """
    data = json.loads(draw_netron(schedule, nodes))
    assert data["signature"] == "netron:attachment"
    found: dict[str, dict[str, dict[str, object]]] = {}
    for container in ("metadata", "metrics"):
        for item in data[container]:
            own = found.setdefault(container, {}).setdefault(f"{item['kind']}::{item['target']}", {})
            assert item["name"] not in own, "a later entry would hide an earlier one"
            own[item["name"]] = item["value"]
    return found


def test_nodes_and_their_tensors_have_their_place_in_the_schedule() -> None:
    found = attached()["metadata"]
    assert list(found) == [f"node::{name}" for name in "abce"] + [
        f"value::{name}" for name in ("a", "a2", "b", "c", "e")
    ]
    place = {"block": 0, "stage": 0, "group": 1, "groups side by side": 2, "strategy": "concurrent"}
    assert found["node::b"] == found["value::b"] == place
    assert found["node::c"] == {"block": 2, "stage": 0, "group": 0, "groups side by side": 2, "strategy": "merge"}


def test_known_latencies_are_metrics() -> None:
    found = attached()["metrics"]
    assert found["node::a"] == {"stage, predicted (us)": 12.346, "stage, measured (us)": 11.0}
    assert found["value::c"] == {"stage, predicted (us)": 3.0}
    assert "node::e" not in found


def test_blocks_that_are_not_drawn_are_omitted() -> None:
    found = attached(schedule=Schedule(SCHEDULE.blocks[1:]))["metadata"]
    assert {name for name in found if name.startswith("node")} == {"node::c", "node::e"}


def test_a_node_without_a_name_is_identified_by_its_tensor() -> None:
    found = attached([PlacedNode("", ("y",), (0, 0, 0))])["metadata"]
    assert list(found) == ["value::y"]


def test_names_are_cut_to_their_first_line_unless_two_share_it() -> None:
    nodes = [
        PlacedNode("x\n1", ("é\n",), (0, 0, 0)),
        PlacedNode("z\n1", ("z",), (0, 0, 0)),
        PlacedNode("z", ("w",), (0, 0, 1)),
    ]
    assert list(attached(nodes)["metadata"]) == ["node::x", "value::é", "value::z", "value::w"]


def test_an_empty_schedule_is_an_empty_attachment() -> None:
    assert attached([]) == {}
