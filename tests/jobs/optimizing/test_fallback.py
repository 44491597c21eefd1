"""A plan that fails costs speed, never the result: `optimize` does without a stage, or without its own plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from faulty_plans import FAULTS, fail_where, falsify, has, is_side_by_side, is_whole
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from onnx import TensorProto, helper
from scripted import LATENCIES_US, fire, model_with, script_models, script_stages

from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.optimizing import fallback as containment
from iosched.jobs.optimizing import output_check as checked_module
from iosched.jobs.run import open_executor
from iosched.models.errors import (
    DeviceError,
    DeviceLostError,
    ExecutionError,
    InvalidModelError,
    MismatchError,
    PlanError,
    ResourceError,
    UsageError,
)
from iosched.models.model import Model
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.runtime.compare import compare
from iosched.runtime.cpu import backend as cpu_backend
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.hazards import HazardError
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument

ERRORS = pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
NO_FAULTS = (
    *(UsageError("u"), DeviceError("d"), DeviceLostError("l"), ResourceError("r")),
    *(OSError(28, "full"), MemoryError(), KeyboardInterrupt()),
)
REPORT = "Please report it with the output of 'iosched doctor'"
AS_A_WHOLE = "iosched's own plan fails ("


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def check_plain_ships(result: OptimizeResult, model: Model, place: str) -> None:
    assert (result.shipped, result.document.shipped) == ("reference", "reference")
    assert place in result.reason
    assert "please report it" in result.reason
    assert result.document.runtime["reason"] == result.reason
    (note,) = result.notes
    assert note.startswith("Plain onnxruntime ships: ")
    assert place in note
    assert REPORT in note
    inputs = random_inputs(model.graph.inputs)
    executor = open_executor(model, ScheduleDocument.from_json(result.document.to_json()), threads=2)
    assert executor.description.startswith("onnxruntime")
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    executor.close()


@ERRORS
def test_a_stage_that_fails_is_left_out(
    error: Exception, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, is_side_by_side, error)
    result = optimize(fire(), settings)
    assert result.shipped == "iosched"
    assert all(len(stage.groups) == 1 for stage in result.schedule.stages)
    assert result.check is not None
    assert result.check.passed
    of_stages = next(note for note in result.notes if note.startswith("Skipped because it fails: the stage of Conv "))
    assert REPORT in of_stages


def test_a_baseline_that_fails_is_left_out_of_the_comparison(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, is_side_by_side, FAULTS[0])
    result = optimize(fire(), settings)
    assert result.greedy_us is None
    assert any("the whole model with the schedule 'greedy' (HazardError: tasks clash)" in note for note in result.notes)


def test_a_stage_that_failed_is_not_kept_as_measured(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_where(patch, is_side_by_side, FAULTS[0])
        failing = optimize(fire(), settings)
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, StageRow)]
    assert len(rows) == failing.measurements
    assert all(row.samples_us for row in rows)
    later = optimize(fire(), settings)
    assert later.measurements > 0
    assert not [note for note in later.notes if "fails" in note]


@ERRORS
def test_plain_onnxruntime_ships_if_an_operator_fails(
    error: Exception, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, has("gs"), error)
    model = fire()
    check_plain_ships(optimize(model, settings), model, "Conv 'gs'")


@pytest.mark.parametrize("strategy", ["both", "sequential", "greedy"])
def test_plain_onnxruntime_ships_if_only_whole_plans_fail(
    strategy: str, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, is_whole, FAULTS[0])
    model = fire()
    check_plain_ships(optimize(model, replace(settings, strategy=strategy)), model, AS_A_WHOLE)


def test_plain_onnxruntime_ships_if_the_plan_for_a_given_schedule_fails(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fire()
    given = optimize(model, settings).document
    fail_where(monkeypatch, has("gs"), FAULTS[2])
    check_plain_ships(optimize(model, replace(settings, schedule_from=given)), model, "Conv 'gs' (KeyError: '')")


def test_plain_onnxruntime_ships_if_no_way_to_use_teams_of_cores_works(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, has("gs"), FAULTS[0])
    model = fire()
    check_plain_ships(optimize(model, replace(settings, objective="throughput")), model, "Conv 'gs'")


def test_plain_onnxruntime_ships_if_the_model_cannot_even_be_prepared(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is found by running each as a separate model."""
    fail_to_prepare(monkeypatch, "Concat", KeyError(""))
    model = fire()
    check_plain_ships(optimize(model, settings), model, "Concat 'fc' (KeyError: '')")


def test_an_operator_that_fails_only_with_its_producer_is_named(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, has("gs", "g1"), FAULTS[0])
    model = fire()
    result = optimize(model, replace(settings, strategy="sequential"))
    check_plain_ships(result, model, "Conv 'g1' (HazardError: tasks clash)")


def fail_to_prepare(monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception) -> None:
    build = cpu_backend.build_kernel_graph

    def failing(model: Model):
        if any(node.op_type == kind for node in model.proto.graph.node):
            raise error
        return build(model)

    monkeypatch.setattr(cpu_backend, "build_kernel_graph", failing)


def test_no_operator_is_named_if_none_is_found_in_time(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_prepare(monkeypatch, "Concat", KeyError(""))
    monkeypatch.setattr(containment, "_LOCATING_S", -1.0)
    model = fire()
    check_plain_ships(optimize(model, settings), model, AS_A_WHOLE)


def test_plain_onnxruntime_ships_if_the_plan_fails_only_when_it_is_checked(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise FAULTS[1]

    monkeypatch.setattr(checked_module, "_compared", fail)
    model = fire()
    check_plain_ships(optimize(model, settings), model, AS_A_WHOLE)


@pytest.mark.parametrize(
    ("where", "error"),
    [*((is_side_by_side, error) for error in NO_FAULTS), (has("gs"), MemoryError()), (is_whole, MemoryError())],
)
def test_errors_that_are_no_plan_faults_are_raised_unchanged(
    where, error: BaseException, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, where, error)
    with pytest.raises(type(error)) as raised:
        optimize(fire(), settings)
    assert raised.value is error


def test_a_model_that_onnxruntime_refuses_is_invalid(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if iosched's plan fails too."""
    fail_to_prepare(monkeypatch, "Relu", KeyError(""))
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)]
    model = model_with(nodes, TensorProto.INT16)
    with pytest.raises(InvalidModelError, match="onnxruntime cannot run this model") as raised:
        optimize(model, settings)
    assert not isinstance(raised.value, PlanError)


def test_no_model_ships_if_onnxruntime_cannot_run_it_as_written(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, has("gs"), FAULTS[0])
    run_plain = containment._run_plain

    def refuses_what_was_derived(model: Model) -> None:
        if model.original is None:
            raise InvalidModelError("onnxruntime cannot run this model")
        run_plain(model)

    monkeypatch.setattr(containment, "_run_plain", refuses_what_was_derived)
    with pytest.raises(PlanError, match="iosched's plan fails at Conv 'gs'"):
        optimize(fire(), settings)


@pytest.mark.parametrize(
    ("where", "error"), [*((has("gs"), error) for error in FAULTS), (is_side_by_side, FAULTS[0]), (is_whole, FAULTS[0])]
)
def test_strict_makes_every_fault_an_error(
    where, error: Exception, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_where(monkeypatch, where, error)
    with pytest.raises(PlanError, match="This is a bug in iosched, not in the model") as raised:
        optimize(fire(), replace(settings, strict=True))
    assert raised.value.__cause__ is error


def test_strict_makes_wrong_outputs_an_error(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    falsify(monkeypatch, "gs")
    with pytest.raises(MismatchError, match="The first operator that differs is Conv 'gs'"):
        optimize(fire(), replace(settings, strict=True))


def test_strict_changes_nothing_where_nothing_fails(settings: OptimizeSettings) -> None:
    result = optimize(fire(), replace(settings, strict=True))
    assert result.shipped == "iosched"
    assert result.schedule == optimize(fire(), settings).schedule


@needs_compiler
@pytest.mark.parametrize("strict", [False, True])
def test_on_a_gpu_one_operator_after_another_is_tried_first(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    fail_on_gpu(monkeypatch, but_sequential=True)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strict=strict)
    if strict:
        with pytest.raises(HazardError):
            optimize(fire(), settings)
        return
    result = optimize(fire(), settings)
    assert result.shipped == "sequential"
    assert any("the schedule found (HazardError: tasks clash)" in note for note in result.notes)


def fail_on_gpu(monkeypatch: pytest.MonkeyPatch, *, but_sequential: bool) -> None:
    compiled = CudaBackend.compile

    def failing(backend, schedule, **settings: object):
        names = [stage.groups for stage in schedule.stages]
        if not but_sequential or names != [stage.groups for stage in sequential(backend.graph).stages]:
            raise HazardError("tasks clash")
        return compiled(backend, schedule, **settings)

    monkeypatch.setattr(CudaBackend, "compile", failing)


@needs_compiler
def test_on_a_gpu_a_failing_sequential_schedule_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    fail_on_gpu(monkeypatch, but_sequential=False)
    with pytest.raises(HazardError, match="tasks clash"):
        optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))


def test_on_a_simulated_gpu_errors_are_not_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ExecutionError("the device cannot run block 0")

    monkeypatch.setattr("iosched.jobs.schedules.search_components", fail)
    with pytest.raises(ExecutionError, match="block 0"):
        optimize(fire(), OptimizeSettings(device="v100"))
