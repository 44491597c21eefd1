"""`optimize` ships only plans that compute the same as plain onnxruntime, and names the operator that differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import faulty_plans
import numpy as np
import pytest
from faulty_plans import falsify
from onnx import helper
from scripted import LATENCIES_US, fire, model_with, script_models, script_stages

from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.jobs.optimizing import output_check as checked_module
from iosched.jobs.run import open_executor
from iosched.models.model import Model
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.teams import Teams


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def test_the_shipped_plan_was_compared(settings: OptimizeSettings) -> None:
    result = optimize(fire(), settings)
    assert result.shipped == "iosched"
    assert result.check is not None
    assert result.check.passed
    assert result.first_difference is None


def test_plain_onnxruntime_ships_instead_of_a_plan_with_wrong_outputs(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    falsify(monkeypatch, "gs")
    result = optimize(fire(), settings)
    assert (result.shipped, result.document.shipped) == ("reference", "reference")
    assert result.shipped_us == LATENCIES_US["reference"]
    assert result.kernels_after == result.kernels_before
    assert "differ from those of onnxruntime" in result.reason
    assert result.check is not None
    assert result.first_difference is not None
    assert (result.check.passed, result.first_difference.operator) == (False, "gs")
    assert any("The first operator that differs is Conv 'gs'" in note for note in result.notes)
    check_right(fire(), result)


def check_right(model: Model, result: OptimizeResult) -> None:
    """The shipped plan computes the right outputs although kernels are wrong."""
    inputs = random_inputs(model.graph.inputs)
    executor = open_executor(model, result.document, threads=2)
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    executor.close()


def test_a_plan_that_differs_by_rounding_ships_with_a_note(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is subtracted from a result near one, which leaves the rounding error before it."""
    falsify(monkeypatch, "a")
    monkeypatch.setattr(faulty_plans, "twice_and", nudged)
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Constant", [], ["many"], value_float=300.0),
        helper.make_node("Mul", ["a", "many"], ["b"]),
        helper.make_node("Sin", ["b"], ["y"]),
    ]
    result = optimize(model_with(nodes), settings)
    assert result.shipped == "iosched"
    assert result.check is not None
    assert not result.check.passed
    assert result.first_difference is not None
    assert (result.first_difference.operator, result.first_difference.cause) == ("y", "rounding")
    assert any("no operator is wrong" in note for note in result.notes)


def nudged(graph, node, _: float):
    true = node.output[0]
    node.output[0] = f"{true}/computed"
    graph.initializer.append(helper.make_tensor(f"{true}/value", 1, [], np.array([5e-5], np.float32)))
    return [helper.make_node("Add", [f"{true}/computed", f"{true}/value"], [true])]


@pytest.mark.parametrize("why", ["random", "plain"])
def test_random_models_and_plain_onnxruntime_need_no_check(why: str, settings: OptimizeSettings, monkeypatch) -> None:
    monkeypatch.setattr(checked_module, "Reference", None)
    model = fire()
    if why == "random":
        model = model_with(
            [helper.make_node("RandomNormalLike", ["x"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])]
        )
    if why == "plain":
        script_models(monkeypatch, {**LATENCIES_US, "reference": 1.0})
    result = optimize(model, settings)
    assert result.check is None


def test_teams_are_not_compared_again(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fire(2)
    result = replace(optimize(model, settings), check=None)
    in_teams = replace(result, document=replace(result.document, teams=Teams(1, 2, 1)))
    monkeypatch.setattr(checked_module, "Reference", None)
    assert checked_module.checked(in_teams, model, resolve("cpu"), 2) is in_teams
