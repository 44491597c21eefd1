"""Fatal cuDNN plans in the profile database and in schedules."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from iosched.models.errors import DeviceLostError, ExecutionError
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.store.database import ProfileDatabase


@pytest.mark.parametrize(("error", "fatal"), [(None, False), (ExecutionError, False), (DeviceLostError, True)])
def test_a_plan_is_fatal_where_the_gpu_is_lost_while_it_is_tried(error: type[Exception] | None, fatal: bool) -> None:
    with ProfileDatabase(None) as database:
        plans = StoredCudnnPlans(database, "gpu")
        try:
            with plans.trying("k", "eng1"):
                if error is not None:
                    raise error("while it runs")
        except (ExecutionError, DeviceLostError):
            pass
        assert ("eng1" in plans.fatal("k")) is fatal


def test_of_nested_trials_only_the_innermost_is_fatal() -> None:
    with ProfileDatabase(None) as database:
        plans = StoredCudnnPlans(database, "gpu")

        def lost_with(plan: str | None) -> None:
            with plans.trying("layout", "nhwc"):
                with plans.trying("k", "eng1"):
                    pass
                with nullcontext() if plan is None else plans.trying("k", plan):
                    raise DeviceLostError("gone")

        with pytest.raises(DeviceLostError):
            lost_with("eng2")
        assert (plans.fatal("k"), plans.fatal("layout")) == ({"eng2"}, frozenset())
        with pytest.raises(DeviceLostError):
            lost_with(None)
        assert plans.fatal("layout") == {"nhwc"}


def test_a_schedule_remembers_no_fatal_plans() -> None:
    plans = KnownCudnnPlans({"k": "eng1"})
    with pytest.raises(DeviceLostError), plans.trying("k", "eng1"):
        raise DeviceLostError("gone")
    assert plans.fatal("k") == frozenset()
