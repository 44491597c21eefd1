"""Each core may run whole images of a batch, one at a time; this is compared with the other whole models."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from scripted import OPENVINO_OPENED, fire, script_models, script_openvino, script_operators
from shipped import optimized_file
from small_models import branches, loaded, node, proto_of

import iosched
from iosched.jobs.export import export
from iosched.jobs.open_model import opened
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import Way
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.teams import Teams

WHOLE = {"greedy": 90.0, "reference": 80.0, "iosched": 85.0, "sequential": 70.0, "by_image": 40.0}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    script_operators(monkeypatch)
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def by_image(model: Model, threads: int, folder: Path) -> Way | None:
    with opened(resolve("cpu"), model, OptimizeSettings(threads=threads).opening, folder / "p.db") as there:
        assert there.attached is not None
        return there.attached.by_image()


def shipping_by_image(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> OptimizeResult:
    script_models(monkeypatch, WHOLE)
    return optimize(fire(4), settings)


def test_a_plan_by_image_ships_if_it_is_fastest(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shipping_by_image(settings, monkeypatch)
    assert (found.shipped, found.candidate, found.measured_us) == ("iosched", "by_image", 40.0)
    assert found.reason.startswith("one image at a time on each core runs at 2.000x")
    assert found.document.teams == Teams(1, 2, 1)
    assert ScheduleDocument.from_json(found.document.to_json()).teams == found.document.teams
    inputs = random_inputs(fire(4).graph.inputs)
    with Reference(fire(4)) as reference, closing(resolve("cpu").executor(fire(4), found.document, 2)) as executor:
        assert "2 teams, 1 image at once" in executor.description
        assert compare(executor.run(inputs), reference.run(inputs)).passed


def test_an_exported_plan_runs_one_image_at_a_time_too(tmp_path: Path) -> None:
    path = optimized_file(tmp_path / "m.onnx", branches(4), teams=Teams(1, 2, 1), way="sequential")
    (program,) = export(path, tmp_path / "out", threads=2).programs
    inputs = random_inputs(load_model(branches(4).SerializeToString()).graph.inputs)
    with iosched.load(path, threads=2) as own, iosched.load(tmp_path / "out", threads=2) as plan:
        assert compare(plan.run(inputs), own.run(inputs)).passed
    alone = export(optimized_file(tmp_path / "one.onnx", branches(1), way="sequential"), tmp_path / "one", threads=1)
    assert program.kernels == 4 * alone.programs[0].kernels


def test_a_file_that_ships_openvino_has_no_teams(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, {**WHOLE, "openvino": 10.0})
    script_openvino(monkeypatch, OPENVINO_OPENED)
    found = optimize(fire(4), settings)
    assert (found.shipped, found.document.teams) == ("openvino", None)
    assert found.document.runtime["without_openvino"] == "reference"


def test_each_core_runs_its_own_images(tmp_path: Path) -> None:
    way = by_image(fire(4), 2, tmp_path)
    assert way is not None
    assert way.teams == Teams(1, 2, 1)
    assert way.text.endswith("in 2 teams, 1 image at once")


def test_fewer_images_than_cores_have_several_cores_each(tmp_path: Path) -> None:
    way = by_image(fire(2), 4, tmp_path)
    assert way is not None
    assert way.teams == Teams(1, 2, 1)


@pytest.mark.parametrize(("batch", "threads"), [(1, 2), (4, 1)])
def test_one_image_or_one_core_is_not_divided(batch: int, threads: int, tmp_path: Path) -> None:
    assert by_image(fire(batch), threads, tmp_path) is None


def test_a_model_that_mixes_images_is_not_divided(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("ReduceMax", ["r"], ["m"], axes=[0]), node("Sub", ["r", "m"], ["y"])]
    model = loaded(proto_of(nodes, {"x": [4, 3]}, ["y"], name="mixing"), "mixing")
    assert by_image(model, 2, tmp_path) is None
