"""Latencies of a schedule in a profile database: looked up, never measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from onnx import helper
from scripted import LATENCIES_US, fire, script_models, script_stages
from small_models import loaded, proto_of, weight

from iosched.jobs.known_stages import KnownStages, in_a_row, known_stages
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument, one_by_one
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


@dataclass(frozen=True)
class Made:
    """A schedule that was measured on this machine with made-up latencies, its model, and the profile database."""

    model: Model
    document: ScheduleDocument
    profile_db: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    profile_db, model = tmp_path_factory.mktemp("known") / "p.sqlite", fire()
    with pytest.MonkeyPatch.context() as patch:
        script_models(patch, LATENCIES_US)
        script_stages(patch)
        yield Made(model, optimize(model, OptimizeSettings(device="cpu", profile_db=profile_db)).document, profile_db)


def test_stages_have_their_measurements_and_operators_their_single_latencies(made: Made) -> None:
    found = known_stages(made.model, made.document, made.profile_db)
    assert found.why is None
    stages = tuple(made.document.schedule.stages)
    assert len(found.stages) == len(stages)
    for stage, known in zip(stages, found.stages, strict=True):
        assert known.measured is not None
        assert known.measured.median_us == pytest.approx(stage.predicted_us)
        assert known.idle is None or 0 <= known.idle < 1
    alone = in_a_row(found, one_by_one(made.document))
    names = [name for stage in alone.stages for name in stage.operators]
    assert sorted(names) == sorted(operator.name for operator in made.model.graph.operators)
    assert all(stage.predicted_us is not None for stage in alone.stages)


def test_without_a_database_nothing_is_known_and_none_is_made(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    found = known_stages(made.model, made.document, other)
    assert all(each.measured is None and each.idle is None for each in found.stages)
    assert found.single_us == ()
    assert not other.exists()


def test_for_another_machine_the_reason_is_reported(made: Made) -> None:
    elsewhere = replace(made.document, device={**made.document.device, "name": "Another CPU"})
    other_design = replace(made.document, device={**made.document.device, "instructions": "none of ours"})
    for given in (elsewhere, other_design):
        assert "another machine" in (known_stages(made.model, given, made.profile_db).why or "")


def test_the_reason_is_reported_if_a_schedule_splits_fused_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime computes the sum of s in the convolution a."""
    script_models(monkeypatch, LATENCIES_US)
    script_stages(monkeypatch)
    nodes = [helper.make_node("Conv", ["x", f"w{name}"], [name]) for name in "ab"]
    nodes.append(helper.make_node("Add", ["a", "b"], ["s"]))
    model = loaded(proto_of(nodes, {"x": (1, 16, 6, 6)}, ["s"], {f"w{name}": weight(16, 16, 1, 1) for name in "ab"}))
    document = optimize(model, OptimizeSettings(device="cpu", profile_db=tmp_path / "p.db")).document
    assert known_stages(model, document, tmp_path / "p.db").why is None
    side_by_side = Schedule((Block(0, (Stage(Strategy.CONCURRENT, (("a",), ("s",))),)),))
    for apart in (in_order("as"), side_by_side):
        found = known_stages(model, replace(document, schedule=apart), tmp_path / "p.db")
        assert "joins other operators into units" in (found.why or "")


def test_for_a_simulated_gpu_latencies_of_single_operators_are_computed(made: Made) -> None:
    document = optimize(made.model, OptimizeSettings(device="v100", profile_db=made.profile_db)).document
    found = known_stages(made.model, document, made.profile_db)
    assert "nothing was measured" in (found.why or "")
    assert len(found.stages) == len(tuple(document.schedule.stages))
    assert all(each.measured is None for each in found.stages)
    before = next(each.schedule for each in document.alternatives if each.name == "sequential")
    assert dict(found.single_us) == {stage.operators: pytest.approx(stage.predicted_us) for stage in before.stages}


def in_order(*blocks: str) -> Schedule:
    stages = (tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in block) for block in blocks)
    return Schedule(tuple(Block(number, own) for number, own in enumerate(stages)))


def test_fused_operators_are_placed_where_the_first_of_them_is() -> None:
    known = KnownStages(single_us=((("a", "c"), 7.0), (("d",), 1.0)))
    found = in_a_row(known, in_order("abc", "d"))
    assert [(stage.operators, stage.predicted_us) for stage in found.stages] == [
        (("a", "c"), 7.0),
        (("b",), None),
        (("d",), 1.0),
    ]


def test_latencies_of_single_operators_in_the_file_take_precedence() -> None:
    order = Schedule((Block(0, (Stage(Strategy.CONCURRENT, (("a",),), 3.0),)),))
    assert in_a_row(KnownStages(single_us=((("a",), 7.0),)), order) == order


def test_operators_of_different_blocks_stay_apart() -> None:
    order = in_order("ab", "c")
    assert in_a_row(KnownStages(single_us=((("a", "c"), 7.0),)), order) == order
