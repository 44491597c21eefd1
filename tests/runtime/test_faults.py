"""Faults of plans are contained and named; other errors are raised."""

from __future__ import annotations

import pytest
from scripted import fire

from iosched.models.errors import ExecutionError, InvalidModelError, PlanError, ResourceError
from iosched.runtime.faults import Faults, named, plan_error, summary


@pytest.mark.parametrize("error", [KeyError("k"), AssertionError(), ExecutionError("e"), InvalidModelError("m")])
def test_a_fault_ends_the_context_and_is_noted(error: Exception) -> None:
    faults = Faults()
    with faults.contained("the stage"):
        raise error
    assert faults.found == {"the stage": error}
    assert faults.first is error


@pytest.mark.parametrize("error", [ResourceError("out of memory"), OSError(28, "full"), KeyboardInterrupt()])
def test_deliberate_errors_are_raised(error: BaseException) -> None:
    faults = Faults()
    with pytest.raises(type(error)), faults.contained("the stage"):
        raise error
    assert faults.found == {}


def test_strict_raises_faults() -> None:
    faults = Faults(strict=True)
    with pytest.raises(KeyError), faults.contained("the stage"):
        raise KeyError
    assert faults.notes == ()


def test_a_note_has_the_first_fault_and_the_number_of_the_others() -> None:
    faults = Faults()
    for what in ("one", "two", "three"):
        with faults.contained(what):
            raise KeyError(what)
    (note,) = faults.notes
    assert note.startswith("Skipped because it fails: one (KeyError: 'one'), and 2 more. This is a bug in iosched")


def test_an_error_is_summed_up_in_one_line() -> None:
    assert summary(KeyError("")) == "KeyError: ''"
    assert summary(ExecutionError("a kernel fails.\nThe way out")) == "a kernel fails"
    assert summary(ExecutionError()) == "ExecutionError"
    assert summary(ValueError()) == "ValueError: "
    assert len(summary(ExecutionError("x" * 1000))) == 300


def test_the_first_of_many_operators_are_named() -> None:
    operators = fire().graph.operators
    assert named(operators[:1]) == "Conv 'fs'"
    assert named(operators) == "Conv 'fs', Conv 'f1', Conv 'f3', Concat 'fc' and 4 more"


def test_a_plan_error_asks_for_a_report() -> None:
    error = plan_error("Conv 'a'", KeyError("k"))
    assert isinstance(error, PlanError)
    assert error.place == "Conv 'a'"
    assert str(error).splitlines()[0] == "iosched's plan fails at Conv 'a': KeyError: 'k'."
    assert "report it with the output of 'iosched doctor'" in str(error)
    assert str(plan_error("", KeyError("k"))).startswith("iosched's plan fails: KeyError")
