"""The meaning of a session's settings if a model runs by a schedule."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest

from iosched.jobs.loading.inference_session import session_target
from iosched.models.errors import UsageError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def options(**values: Any) -> onnxruntime.SessionOptions:
    found = onnxruntime.SessionOptions()
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_without_settings_the_file_decides() -> None:
    assert session_target(None, None, None) == session_target(options(), None, None) == ("auto", None)


def test_threads_are_those_of_one_operator() -> None:
    assert session_target(options(intra_op_num_threads=3, inter_op_num_threads=5), None, None)[1] == 3


@pytest.mark.parametrize(
    "values",
    [
        {"enable_profiling": True},
        {"optimized_model_filepath": "m.onnx"},
        {"graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL},
    ],
)
def test_options_without_a_meaning_for_schedules_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(values))} cannot be combined with a schedule: .+"):
        session_target(options(**values), None, None)


@pytest.mark.parametrize(
    ("providers", "beside", "device"),
    [
        ([CPU], None, "cpu"),
        ([], None, "auto"),
        ([CUDA, CPU], None, "auto"),
        ([(CUDA, {"device_id": 1}), CPU], None, "cuda:1"),
        ([CUDA, CPU], [{"device_id": "2"}, {}], "cuda:2"),
        ([(CPU, {"use_arena": "0"})], None, "cpu"),
    ],
)
def test_providers_select_the_device(providers: Any, beside: Any, device: str) -> None:
    assert session_target(None, providers, beside)[0] == device


def test_a_provider_that_runs_no_schedules_is_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider"):
        assert session_target(None, ["TensorrtExecutionProvider", CPU], None)[0] == "cpu"


def test_more_provider_options_than_providers_are_refused() -> None:
    with pytest.raises(UsageError, match="same length"):
        session_target(None, [CPU], [{}, {}])
