"""Objectives and constraints of a command line."""

from __future__ import annotations

import pytest

from iosched.jobs.exploring.objectives import (
    Constraint,
    Objective,
    parse_constraints,
    parse_objectives,
    total_violation,
)
from iosched.models.errors import UsageError


def test_model_properties_are_minimised_and_scores_maximised_by_default() -> None:
    assert parse_objectives(["latency:cpu,flops", "params,accuracy"]) == (
        Objective("latency:cpu", "min"),
        Objective("flops", "min"),
        Objective("params", "min"),
        Objective("accuracy", "max"),
    )


def test_min_and_max_override_the_default_direction() -> None:
    assert parse_objectives(["max:flops,min:loss, min:latency:v100"]) == (
        Objective("flops", "max"),
        Objective("loss", "min"),
        Objective("latency:v100", "min"),
    )


def test_the_loss_of_a_maximised_value_is_its_negative() -> None:
    assert Objective("loss", "min").loss(3.0) == 3.0
    assert Objective("accuracy", "max").loss(3.0) == -3.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latency", "lacks a device"),
        ("min:latency:", "lacks a device"),
        ("max:", "is not a value"),
        ("a b", "is not a value"),
        ("accuracy,accuracy", "twice"),
        ("max:accuracy,min:accuracy", "twice"),
        (",".join(f"k{number}" for number in range(17)), "too many: give 16"),
        ("k" * 300, "is not a value"),
    ],
)
def test_invalid_objectives_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_objectives([text])


def test_constraints_are_bounds_from_above_and_from_below() -> None:
    assert parse_constraints(["latency:cpu<=5000, accuracy >= 0.9"]) == (
        Constraint("latency:cpu", "<=", 5000.0),
        Constraint("accuracy", ">=", 0.9),
    )


@pytest.mark.parametrize("text", ["latency:cpu<5", "flops<=", "flops<=many", "flops<=nan", "<=3", "a<=1,a<=2"])
def test_invalid_constraints_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_constraints([text])


def test_only_violations_count_each_relative_to_its_bound() -> None:
    constraints = parse_constraints(["latency:cpu<=5000,accuracy>=0.5,params<=0"])
    assert total_violation(constraints, {"latency:cpu": 5000, "accuracy": 0.9, "params": 0}) == 0
    assert total_violation(constraints, {"latency:cpu": 7500, "accuracy": 0.9, "params": 0}) == 0.5
    assert total_violation(constraints, {"latency:cpu": 7500, "accuracy": 0.25, "params": 2}) == 3.0
