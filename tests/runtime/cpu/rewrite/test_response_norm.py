"""Local response normalizations become convolutions, stay in blocks, and compute the same."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import baselines, check_everything, check_schedules
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node


def model_of(channels: int, batch: int = 1, **attributes: float) -> Model:
    """Values large enough that the sum over the window matters."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("LRN", ["c"], ["n"], **attributes),
        node("Conv", ["n", "v"], ["y"]),
    ]
    weights = {"w": 8 * weight(channels, 3, 1, 1), "v": weight(32, channels, 1, 1)}
    return loaded(proto_of(nodes, {"x": (batch, 3, 5, 4)}, ["y"], weights))


def kinds(model: Model) -> Counter[str]:
    with CpuBackend(model, lanes=1) as backend:
        return Counter(made.op_type for made in backend.kernels.nodes)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
def test_a_response_normalization_stays_in_blocks(beta: float, batch: int) -> None:
    model = model_of(32, batch, size=5, alpha=0.5, beta=beta)
    found = kinds(model)
    assert (found["LRN"], found["ReorderInput"], found["ReorderOutput"]) == (0, 0, 1)
    check_everything(model, seeds=(0,))


def test_a_response_normalization_is_one_unit_of_the_schedule() -> None:
    with CpuBackend(model_of(32, size=5, alpha=0.5), lanes=1) as backend:
        assert [operator.type for operator in backend.graph.operators] == ["Conv", "LRN", "Conv"]
        assert sorted(len(nodes) for nodes in backend.coarse.nodes.values()) == [1, 2, 6]


def test_other_values_of_beta_are_left_to_onnxruntime() -> None:
    model = model_of(32, size=5, alpha=0.5, beta=0.7)
    assert kinds(model)["LRN"] == 1
    check_everything(model, seeds=(0,))


@settings(max_examples=15)
@given(
    channels=st.integers(1, 40), size=st.sampled_from([1, 3, 5, 9]), alpha=st.floats(0.01, 2),
    bias=st.floats(0.5, 3), beta=st.sampled_from([0.5, 0.75, 1.0]),
)  # fmt: skip
def test_any_window(channels: int, size: int, alpha: float, bias: float, beta: float) -> None:
    """Including windows of more channels than the image has, and channels that fill no block."""
    model = model_of(channels, size=size, alpha=alpha, bias=bias, beta=beta)
    with CpuBackend(model, lanes=2) as backend:
        assert "LRN" not in {made.op_type for made in backend.kernels.nodes}
        check_schedules(model, backend, baselines(backend.graph))
