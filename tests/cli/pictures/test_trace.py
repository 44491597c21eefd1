"""Traces: events of measured and of predicted times, as trace viewers read them."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from iosched.cli.pictures.theme import Style
from iosched.cli.pictures.trace import draw_trace
from iosched.runtime.executor import TaskOrigin, TracedRuns, TracedTask
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

SCHEDULE = Schedule(
    (
        Block(
            0,
            (
                Stage(Strategy.CONCURRENT, (("a", "b"), ("c",)), predicted_us=120.0, measured_us=100.0),
                Stage(Strategy.MERGE, (("d",), ("e",)), predicted_us=30.5),
            ),
        ),
        Block(1, (Stage(Strategy.SESSION, (("g",), ("h", "i")), predicted_us=1.25),)),
    )
)
LOOKS = {"a": Style("Conv", "Conv 3×3")}  # noqa: RUF001
RUNS = TracedRuns(
    times_us=(190.0, 171.0, 100.0),
    number=1,
    tasks=(
        TracedTask(TaskOrigin("ka+kb", 0, 0, ("a", "b")), 1.0, 90.0),
        TracedTask(TaskOrigin("kd", 0, 1, ("d", "e")), 90.00049, 130.0),
        TracedTask(TaskOrigin("kc", 1, 0, ("c",)), 2.0, 100.0),
        TracedTask(TaskOrigin("ks", 1, 2, ("g", "h", "i")), 130.0, 170.0),
    ),
)


def drawn(schedule: Schedule = SCHEDULE, runs: TracedRuns | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(draw_trace(schedule, facts={"model": "net"}, styles=LOOKS, runs=runs))
    return found


def rows(trace: dict[str, Any], process: str) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The complete events of a process by row, in the order of their begins."""
    (pid,) = [e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name" and e["args"] == {"name": process}]
    own = [event for event in trace["traceEvents"] if event["pid"] == pid]
    names = {e["tid"]: e["args"]["name"] for e in own if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in sorted((e for e in own if e["ph"] == "X"), key=lambda e: e["ts"]):
        found[event["tid"], names[event["tid"]]].append(event)
    return dict(found)


def spans(events: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"], event["dur"]) for event in events]


def test_predictions_have_a_row_of_stages_and_one_for_each_group() -> None:
    found = {name: spans(events) for (_, name), events in rows(drawn(), "predicted").items()}
    assert found == {
        "stages": [("block 0 stage 0", 0, 120), ("block 0 stage 1", 120, 30.5), ("block 1 stage 0", 150.5, 1.25)],
        "group 0": [("Conv 3×3 a + 1 more", 0, 120), ("d + 1 more", 120, 30.5), ("g + 2 more", 150.5, 1.25)],  # noqa: RUF001
        "group 1": [("c", 0, 120)],
    }


def test_events_have_their_place_in_the_schedule() -> None:
    args = [
        event["args"] for (_, name), events in rows(drawn(), "predicted").items() for event in events if "group" in name
    ]
    assert args == [
        {"block": 0, "stage": 0, "group": 0, "strategy": "concurrent", "operators": ["a", "b"]},
        {"block": 0, "stage": 1, "group": [0, 1], "strategy": "merge", "operators": ["d", "e"]},
        {"block": 1, "stage": 0, "group": [0, 1], "strategy": "session", "operators": ["g", "h", "i"]},
        {"block": 0, "stage": 0, "group": 1, "strategy": "concurrent", "operators": ["c"]},
    ]


def test_measured_runs_have_a_row_for_each_lane() -> None:
    found = {name: spans(events) for (_, name), events in rows(drawn(runs=RUNS), "measured").items() if "lane" in name}
    assert found == {
        "lane 0": [("Conv 3×3 a + 1 more", 1, 89), ("d + 1 more", 90, 40)],  # noqa: RUF001
        "lane 1": [("c", 2, 98), ("g + 2 more", 130, 40)],
    }


def test_a_task_has_its_kernels_and_its_groups() -> None:
    lanes = rows(drawn(runs=RUNS), "measured")
    args = {
        event["args"]["kernels"]: event["args"]
        for _, events in lanes.items()
        for event in events
        if event["cat"] == "task"
    }
    assert {name: each["group"] for name, each in args.items()} == {"ka+kb": 0, "kc": 1, "kd": [0, 1], "ks": [0, 1]}
    assert (args["ks"]["block"], args["ks"]["stage"], args["ks"]["strategy"]) == (1, 0, "session")


def test_stages_that_overlap_get_separate_rows() -> None:
    """A lane that finishes early continues with the next stage; events of one row must not overlap."""
    found = [
        spans(events) for (_, name), events in sorted(rows(drawn(runs=RUNS), "measured").items()) if "stage" in name
    ]
    assert found == [
        [("block 0 stage 0", 1, 99), ("block 1 stage 0", 130, 40)],
        [("block 0 stage 1", 90, 40)],
    ]


def test_measured_stages_have_their_prediction() -> None:
    stages = [events for (_, name), events in rows(drawn(runs=RUNS), "measured").items() if name == "stages"]
    assert [event["args"]["predicted_us"] for events in stages for event in events] == [120.0, 1.25]


def test_no_event_of_a_row_begins_before_the_last_has_ended() -> None:
    trace = drawn(runs=RUNS)
    for process in ("measured", "predicted"):
        for events in rows(trace, process).values():
            ends = [round(event["ts"] + event["dur"], 6) for event in events]
            assert all(end <= after["ts"] for end, after in zip(ends, events[1:], strict=False))


def test_a_stage_of_unknown_latency_is_drawn_and_says_so() -> None:
    unknown = Block(2, (Stage(Strategy.CONCURRENT, (("y",), ("z",))), Stage(Strategy.CONCURRENT, (("x",),), 2.0)))
    schedule = Schedule((*SCHEDULE.blocks, unknown))
    for runs in (None, RUNS):
        found = {name: events for (_, name), events in rows(drawn(schedule, runs), "predicted").items()}
        name, begin_us, length_us = spans(found["stages"])[3]
        assert name == "block 2 stage 0 (latency unknown)"
        assert length_us > 0
        assert found["stages"][3]["args"]["predicted_us"] is None
        assert spans(found["stages"])[4] == ("block 2 stage 1", begin_us + length_us, 2)
        assert spans(found["group 1"])[-1] == ("z", begin_us, length_us)


def test_a_run_without_predictions_has_no_predicted_events() -> None:
    schedule = Schedule((Block(0, tuple(Stage(stage.strategy, stage.groups) for stage in SCHEDULE.stages)),))
    assert {event["pid"] for event in drawn(schedule, RUNS)["traceEvents"]} == {1}
    assert {event["pid"] for event in drawn(schedule)["traceEvents"]} == {2}


def test_names_may_hold_anything() -> None:
    name = 'a"\\\n\x00é\ud800'
    schedule = Schedule((Block(0, (Stage(Strategy.CONCURRENT, ((name,),), 1.0),)),))
    text = draw_trace(schedule, facts={}, styles={})
    assert text.isascii()
    events = json.loads(text)["traceEvents"]
    assert [event["args"]["operators"] for event in events if event["ph"] == "X"] == [[name], [name]]
