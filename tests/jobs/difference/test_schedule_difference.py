"""Two schedule files: compared by which operators run together, with the names of a model if one is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_models import branches
from variants import renamed, retrained, shuffled

from iosched.jobs.difference.schedule_difference import compare_schedules
from iosched.jobs.schedule_file import document_from
from iosched.models.errors import MismatchError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.resolve import resolve
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument

MODEL = load_model(branches().SerializeToString(), name="branches")
OTHER = load_model(shuffled(renamed(retrained(branches(), 2)), 3).SerializeToString(), name="other")


def document(model: Model = MODEL, device: str = "v100", *, in_a_row: bool = False) -> ScheduleDocument:
    made = sequential(model.graph) if in_a_row else greedy(model.graph)
    return document_from(model, resolve(device), None, made)


def test_equal_schedules_do_not_differ() -> None:
    found = compare_schedules((document(), None), (document(), None))
    assert found.failure is None
    assert found.remarks == ()


def test_operators_that_differ_are_counted() -> None:
    found = compare_schedules((document(), None), (document(in_a_row=True), None))
    assert isinstance(found.failure, MismatchError)
    count = len(found.found.operators)
    assert f"{count} of {len(MODEL.graph.operators)} operators" in str(found.failure)


def test_other_devices_are_a_remark() -> None:
    found = compare_schedules((document(), None), (document(device="k80"), None))
    assert found.failure is None
    (remark,) = found.remarks
    assert "Different devices: Tesla V100" in remark


@pytest.mark.parametrize("at_hand", ["first", "second"])
def test_a_model_of_the_same_structure_may_have_other_operator_names(at_hand: str) -> None:
    first, second = (document(), None), (document(OTHER), OTHER)
    found = compare_schedules(first, second) if at_hand == "second" else compare_schedules(second, first)
    assert found.failure is None
    assert found.before.model == found.after.model == "other"


def test_schedules_of_different_models_need_the_anyway_option() -> None:
    one = (document(), None)
    other = (replace(document(OTHER), sha256="0" * 64, structure=None), None)
    with pytest.raises(UsageError, match=r"different models \(branches and other\).*--anyway"):
        compare_schedules(one, other)
    found = compare_schedules(one, other, anyway=True)
    assert all(each.before is None or each.after is None for each in found.found.operators)


def test_schedules_of_other_shapes_need_the_anyway_option() -> None:
    one = document()
    other = replace(one, inputs={name: (8, *shape[1:]) for name, shape in one.inputs.items()})
    with pytest.raises(UsageError, match="or input shapes"):
        compare_schedules((one, None), (other, None))
    assert compare_schedules((one, None), (other, None), anyway=True).failure is None
