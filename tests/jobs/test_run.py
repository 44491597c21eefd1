"""Opening a model with its schedule: on any number of lanes, on plain onnxruntime, or not if it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from onnx import TensorProto, helper
from scripted import fire, model_with
from shipped import WAYS, document

from iosched.jobs.run import Executor, open_executor, run
from iosched.models.composition.compose import compose
from iosched.models.errors import DeviceError, InvalidScheduleError, UsageError
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu import shipped as shipping
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.teams import Teams


def check_numbers(model: Model, executor: Executor) -> None:
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    assert len(executor.time(inputs, 3)) == 3
    executor.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_schedule_made_with_other_lanes_runs(way: str, threads: int) -> None:
    model = fire()
    executor = open_executor(model, document(model, way, lanes=64), threads=threads)
    assert executor.description.startswith(f"iosched, {threads} threads")
    check_numbers(model, executor)


def test_another_model_is_refused() -> None:
    with pytest.raises(InvalidScheduleError):
        open_executor(fire(), replace(document(fire()), sha256="0" * 64), threads=2)
    other = model_with([helper.make_node("Relu", ["x"], ["y"])])
    for shipped in ("iosched", "reference"):
        with pytest.raises(InvalidScheduleError):
            open_executor(fire(), document(other, shipped=shipped), threads=2)


@pytest.mark.parametrize("shipped", ["iosched", "sequential", "reference"])
def test_another_shape_is_refused(shipped: str) -> None:
    with pytest.raises(InvalidScheduleError, match="2x16x6x6"):
        open_executor(fire(4), document(fire(2), shipped=shipped), threads=2)


@pytest.mark.parametrize(
    ("sessions", "described"),
    [
        ({"lanes": 1, "threads": 2}, "a session for each model, one after another, 2 threads"),
        ({"lanes": 64, "threads": 1}, "a session for each model, 2 at a time with 1 thread each"),
        ({"lanes": "two"}, "sequential mode, 2 threads"),
        (None, "sequential mode, 2 threads"),
    ],
)
def test_each_of_several_models_runs_in_its_session_where_that_was_shipped(sessions: object, described: str) -> None:
    model = compose({"a": fire(), "b": fire()}).model
    executor = open_executor(model, document(model, shipped="packed", by="onnxruntime", sessions=sessions), threads=2)
    assert executor.description == f"onnxruntime, {described}"
    check_numbers(model, executor)


def test_plain_onnxruntime_runs_where_it_was_shipped() -> None:
    model = fire()
    setting = {"mode": "parallel", "intra_threads": 1, "inter_threads": 2}
    executor = open_executor(model, document(model, shipped="reference", reference=setting), threads=2)
    assert "parallel mode, 2 x 1" in executor.description
    check_numbers(model, executor)


@pytest.mark.parametrize(
    "setting", [None, "fast", {"mode": "warp"}, {"mode": "parallel", "intra_threads": "2"}, {"mode": "sequential"}]
)
def test_a_setting_that_makes_no_sense_falls_back(setting: object) -> None:
    model = fire()
    executor = open_executor(model, document(model, shipped="reference", reference=setting), threads=2)
    assert executor.description == "onnxruntime, sequential mode, 2 threads"
    executor.close()


def test_more_threads_than_asked_for_are_never_used() -> None:
    model = fire()
    setting = {"mode": "parallel", "intra_threads": 64, "inter_threads": 32}
    executor = open_executor(model, document(model, shipped="reference", reference=setting), threads=2)
    assert "2 x 2" in executor.description
    executor.close()


@pytest.mark.parametrize(
    ("kept", "cores", "words"),
    [
        ({"dynamic_block_base": 4}, 2, "sequential mode, 2 threads, dynamic blocks from 4"),
        ({"dynamic_block_base": 10**30}, 2, "sequential mode, 2 threads"),
        ({"dynamic_block_base": "4", "binds_threads": "yes"}, 2, "sequential mode, 2 threads"),
        ({"binds_threads": True}, 2, "sequential mode, 2 threads, bound to cores"),
        ({"binds_threads": True}, 8, "sequential mode, 2 threads"),
    ],
)
def test_plain_onnxruntime_runs_with_the_threads_it_was_measured_with(
    kept: dict[str, object], cores: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime's default is used if it is the same number."""
    monkeypatch.setattr(shipping, "physical_cores", lambda: cores)
    monkeypatch.setattr(shipping, "has_whole_machine", lambda: True)
    model = fire()
    setting = {"mode": "sequential", "intra_threads": 2, "inter_threads": 1, **kept}
    executor = open_executor(model, document(model, shipped="reference", reference=setting), threads=4)
    assert executor.description == f"onnxruntime, {words}"
    check_numbers(model, executor)


def test_a_model_without_a_plan_runs_on_plain_onnxruntime() -> None:
    model = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    executor = open_executor(model, replace(document(model), dtype="string"), threads=2)
    assert executor.description.startswith("onnxruntime")
    executor.close()


def test_no_schedule_means_plain_onnxruntime() -> None:
    executor = open_executor(fire(), None, threads=2)
    assert executor.description.startswith("onnxruntime, ")
    check_numbers(fire(), executor)


def test_outputs_that_differ_from_run_to_run_are_not_compared() -> None:
    """Otherwise operators that draw random numbers would be reported as wrong."""
    model = model_with([helper.make_node("RandomNormalLike", ["x"], ["y"])])
    for schedule in (None, document(model)):
        found = run(model, schedule, random_inputs(model.graph.inputs), reference=model, threads=1)
        assert found.check is None
        assert "Outputs were not compared: RandomNormalLike 'y' differs from run to run." in found.notes


def test_auto_and_cpu_open_a_model_and_missing_gpus_are_refused() -> None:
    for name in ("auto", "cpu", " CPU "):
        check_numbers(fire(), open_executor(fire(), None, device=name, threads=2))
    for name in ("cuda", "h100"):
        with pytest.raises(DeviceError, match=name):
            open_executor(fire(), None, device=name)


@pytest.mark.parametrize("shipped", ["iosched", "reference", "openvino"])
def test_a_traced_run_uses_the_schedule_whatever_shipped(shipped: str) -> None:
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    found = run(model, document(model, shipped=shipped), inputs, repeats=5, threads=2, trace=True, reference=model)
    assert found.description.startswith("iosched, 2 threads")
    assert found.check is not None
    assert found.check.passed
    assert found.trace is not None
    assert found.trace.document.shipped == shipped
    assert found.trace.runs.times_us == found.timing.samples_us
    names = {operator.name for operator in model.graph.operators}
    assert {name for task in found.trace.runs.tasks for name in task.origin.operators} <= names


def test_a_run_is_traced_only_where_it_is_asked_for() -> None:
    model = fire()
    assert run(model, document(model), random_inputs(model.graph.inputs), threads=2).trace is None


def test_runs_without_lanes_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fire(2)
    inputs = random_inputs(model.graph.inputs)
    with pytest.raises(UsageError, match="no schedule"):
        run(model, None, inputs, trace=True)
    with pytest.raises(UsageError, match="2 teams"):
        run(model, replace(document(model), teams=Teams(1, 2, 1)), inputs, threads=2, trace=True)
    monkeypatch.setattr(CpuBackend, "is_supported", lambda _: False)
    with pytest.raises(UsageError, match="onnxruntime, sequential mode"):
        run(model, document(model), inputs, threads=2, trace=True)
