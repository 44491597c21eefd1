"""Schedules for several batch sizes: their file, the nearest one, and models of other batch sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import document
from small_models import branches, data

from iosched.jobs.schedule_selection import SelectedSchedule, for_batch, taken_over
from iosched.models.dynamic_batch import DynamicBatchModel, with_dynamic_batch
from iosched.models.errors import InvalidScheduleError
from iosched.models.load import load_model, read_unbound
from iosched.scheduler.batch_schedules import BatchSchedules, read_schedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Strategy

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schedule.schema.json").read_text())
MODEL: DynamicBatchModel = with_dynamic_batch(read_unbound(data(branches("n"))), (1, 4, 16))


def schedules(*sizes: int) -> BatchSchedules:
    found = {}
    for size in sizes:
        model = MODEL.at(size)
        way = "sequential" if size == 1 else "greedy"
        found[size] = replace(document(model, way), structure=model.structure)
    return BatchSchedules(MODEL.name, MODEL.inputs, found)


def stages(found: Schedule) -> list[tuple[Strategy, tuple[tuple[str, ...], ...]]]:
    return [(stage.strategy, stage.groups) for stage in found.stages]


def test_a_file_is_read_as_it_was_written_and_fits_the_schema() -> None:
    written = schedules(1, 4)
    text = written.to_json()
    jsonschema.validate(json.loads(text), SCHEMA)
    assert read_schedules(text) == BatchSchedules.from_json(text) == written
    assert BatchSchedules.from_json(text).to_json() == text


def test_each_schedule_in_it_is_a_file_of_version_1() -> None:
    content = json.loads(schedules(1, 4).to_json())
    for entry in content["schedules"]:
        jsonschema.validate(entry["schedule"], SCHEMA)
        alone = json.dumps(entry["schedule"], indent=1, sort_keys=True) + "\n"
        assert ScheduleDocument.from_json(alone).to_json() == alone
        assert isinstance(read_schedules(alone), ScheduleDocument)


def test_a_file_of_the_other_kind_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="for several batch sizes: read it with BatchSchedules"):
        ScheduleDocument.from_json(schedules(1, 4).to_json())
    with pytest.raises(InvalidScheduleError, match="for one batch size: read it with ScheduleDocument"):
        BatchSchedules.from_json(schedules(1, 4).by_size[1].to_json())


def _remove(content: dict[str, Any]) -> None:
    content["schedules"].clear()


def _swap(content: dict[str, Any]) -> None:
    content["schedules"].reverse()


def _twice(content: dict[str, Any]) -> None:
    content["schedules"].append(content["schedules"][-1])


def _nested(content: dict[str, Any]) -> None:
    content["schedules"][0]["schedule"] = json.loads(schedules(1).to_json())


def _many(content: dict[str, Any]) -> None:
    content["schedules"] = [{**content["schedules"][0], "batch_size": size} for size in range(1, 66)]


def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message", "fits_schema"),
    [
        (put("version", value=3), "schedule version 3 is not supported", False),
        (put("version", value=True), "schedule version True is not supported", False),
        (put("model", value={}), "model", False),
        (put("model", "inputs", "x", value=["n", "m", 6, 6]), "exactly one name for the batch size", True),
        (put("model", "inputs", "x", value=[1, 8, 6, 6]), "exactly one name for the batch size", True),
        (put("model", "inputs", "x", value=["", 8, 6, 6]), r"inputs\[...\]\[0\]", False),
        (put("model", "inputs", "x", value=["n", 8, 6, -6]), r"inputs\[...\]\[3\]", False),
        (put("model", "inputs", "x", value=["n", 8, 7, 6]), "batch size 1 has other input shapes", True),
        (put("schedules", 0, "batch_size", value=0), r"schedules\[0\].batch_size", False),
        (put("schedules", 0, "batch_size", value=2**31), r"schedules\[0\].batch_size", False),
        (put("schedules", 0, "batch_size", value=2), "batch size 2 has other input shapes", True),
        (put("schedules", 1, "schedule", "cost", value="guessed"), r"batch size 4: broken schedule: .*cost", False),
        (put("schedules", 1, "schedule", "device", value={}), r"batch size 4: broken schedule: \$.device.kind", False),
        (put("schedules", 1, "schedule", value=[]), r"schedules\[1\].schedule", False),
        (put("schedules", 1, "schedule", value={}), "batch size 4: not a schedule", False),
        (_remove, "schedules", False),
        (_swap, "in ascending order of batch size", True),
        (_twice, "in ascending order of batch size", True),
        (_nested, "batch size 1: .*nested in each other", False),
        (_many, "schedules", False),
    ],
)
def test_a_broken_file_is_refused(change: Callable[[Any], None], message: str, fits_schema: bool) -> None:
    content = json.loads(schedules(1, 4).to_json())
    change(content)
    with pytest.raises(InvalidScheduleError, match=message):
        read_schedules(json.dumps(content))
    if fits_schema:
        jsonschema.validate(content, SCHEMA)
        return
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SCHEMA)


@pytest.mark.parametrize(
    ("batch_size", "nearest"), [(1, 1), (2, 1), (3, 4), (4, 4), (7, 4), (8, 4), (9, 16), (16, 16), (10**9, 16)]
)
def test_the_nearest_batch_size_is_nearest_in_ratio_and_else_the_smaller(batch_size: int, nearest: int) -> None:
    assert schedules(1, 4, 16).nearest(batch_size) == nearest


@given(batch_size=st.integers(1, 2**31 - 1))
def test_the_batch_size_follows_from_the_input_shapes(batch_size: int) -> None:
    found = schedules(1, 4)
    assert found.batch_of(found.shapes_at(batch_size)) == batch_size
    assert found.batch_of({"x": (batch_size, 8, 6, 7)}) is None
    assert found.batch_of({"x": (batch_size, 8, 6)}) is None
    assert found.batch_of({}) is None


def test_a_model_takes_the_schedule_for_its_batch_size() -> None:
    assert for_batch(schedules(1, 4), MODEL.at(4)) == SelectedSchedule(schedules(1, 4).by_size[4], 4, is_exact=True)


def test_the_nearest_schedule_is_adapted_without_its_latencies() -> None:
    model = MODEL.at(6)
    given_ = schedules(1, 4)
    timed = replace(given_.by_size[4], latency_us={"predicted": 5.0}, proven="whole")
    taken = for_batch(replace(given_, by_size={**given_.by_size, 4: timed}), model)
    found = taken.document
    assert (taken.batch_size, taken.is_exact) == (4, False)
    assert stages(found.schedule) == stages(timed.schedule)
    assert (found.inputs, found.sha256, found.structure) == (model.bindings, model.digest, model.structure)
    assert (dict(found.latency_us), found.proven) == ({}, None)
    found.validate_for(model.graph, model.digest, model.bindings)


def renamed(batch: int, suffix: str = "_") -> bytes:
    """The model with other names and weights."""
    proto = branches(batch)
    for node in proto.graph.node:
        node.input[:] = [name + suffix for name in node.input]
        node.output[:] = [name + suffix for name in node.output]
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.name += suffix
    return proto.SerializeToString()


@pytest.mark.parametrize(("batch_size", "is_exact"), [(4, True), (6, False)])
def test_a_renamed_model_is_an_exact_match_only_if_its_batch_size_has_a_schedule(
    batch_size: int, is_exact: bool
) -> None:
    taken = for_batch(schedules(1, 4), load_model(renamed(batch_size)))
    assert (taken.batch_size, taken.is_exact) == (4, is_exact)


@pytest.mark.parametrize("batch_size", [4, 6])
def test_a_retrained_model_with_other_names_reuses_the_schedules(batch_size: int) -> None:
    model = load_model(renamed(batch_size))
    for source in (schedules(1, 4), schedules(1, 4).by_size[4]):
        found = taken_over(source, model)
        assert sorted(name for stage in found.schedule.stages for name in stage.operators) == ["b_", "c_", "y_"]
        found.validate_for(model.graph, model.digest, model.bindings)


def test_a_schedule_for_one_batch_size_is_taken_over_at_another() -> None:
    found = taken_over(schedules(4).by_size[4], MODEL.at(16))
    assert found.inputs == {"x": (16, 8, 6, 6)}


def test_other_dimensions_than_the_batch_may_not_differ() -> None:
    larger = load_model(data(branches(6, channels=4)))
    with pytest.raises(InvalidScheduleError, match="shape 4x8x6x6, not 6x4x6x6"):
        taken_over(schedules(4).by_size[4], larger)
    with pytest.raises(InvalidScheduleError, match="shape"):
        for_batch(schedules(1, 4), larger)


def test_a_model_of_another_structure_is_refused() -> None:
    proto = branches(6)
    proto.graph.node[2].op_type = "Sigmoid"
    with pytest.raises(InvalidScheduleError, match="another structure"):
        for_batch(schedules(1, 4), load_model(data(proto)))
