"""Kernels of a model are counted by how the CPU executor calls them."""

from __future__ import annotations

import pytest
from onnx import helper
from small_models import loaded, proto_of

from iosched.jobs.doctor.diagnosis import DoctorRequest, Section
from iosched.jobs.doctor.machine import check_kernels
from iosched.runtime.cpu.library import available


def test_without_a_model_nothing_is_opened() -> None:
    assert check_kernels(DoctorRequest()) == Section()


@pytest.mark.skipif(not available(), reason="there is no compiled executor")
def test_operators_and_sessions_are_counted_apart() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "r"], ["y"])]
    found = check_kernels(DoctorRequest(model=loaded(proto_of(nodes, {"x": [4, 4]}, ["y"]))))
    assert found.values == {"invoked": {"Relu": 1}, "sessions": {"MatMul": 1}}
    assert dict(found.rows) == {"called without a session": "1: 1 Relu", "sessions": "1: 1 MatMul"}
