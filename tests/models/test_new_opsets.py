"""Operators that the newest opsets redefine are computed accordingly, or left to onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import proto_of

from iosched.models.load import load_model
from iosched.models.source import MAX_OPSET
from iosched.runtime.reference import Reference

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

LOOKED_UP = {
    # new: no rule names them
    "CausalConvWithState": 27, "LinearAttention": 27, "SwiGLU": 28,
    # more or fewer types of elements: rules ask for the types that they know
    "BitShift": 28, "Cast": 28, "Celu": 28, "Compress": 28, "DepthToSpace": 28, "DequantizeLinear": 28, "Einsum": 28,
    "OneHot": 28, "Optional": 28, "OptionalGetElement": 28, "OptionalHasElement": 28, "QuantizeLinear": 28,
    "ReduceLogSum": 28, "ReduceLogSumExp": 28, "ReverseSequence": 28, "Unique": 28,
    # the attribute `stash_type`, for short floats: folded by onnx's own definition of that opset, if at all
    "Range": 27,
    # `fmod=0` of floats: likewise
    "Mod": 28,
    # the attribute `mode`: no rule looks inside, OpenVINO is not given it
    "SpaceToDepth": 28,
}  # fmt: skip
"""Operators redefined by opsets after 26, compared with the rules for operators of these types."""

node = helper.make_node


def test_every_operator_changed_by_a_supported_opset_was_reviewed() -> None:
    newest: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and 26 < schema.since_version <= MAX_OPSET:
            newest[schema.name] = max(schema.since_version, newest.get(schema.name, 0))
    assert newest == {name: since for name, since in LOOKED_UP.items() if since <= MAX_OPSET}


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_constant_remainder_of_floats_is_that_of_onnxruntime(dtype: type, fmod: int) -> None:
    inf, nan = np.inf, np.nan
    a = np.array([0.0, -0.0, 0.0, -0.0, inf, -inf, 1, -1, 1, -1, 1, nan, 5.5, -5.5, 5.5], dtype)
    b = np.array([3, 3, -3, -3, 2, 2, inf, inf, -inf, -inf, 0, 1, 2, 2, -2], dtype)
    nodes = [node("Mod", ["a", "b"], ["m"], fmod=fmod), node("Add", ["m", "x"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = proto_of(nodes, {"x": (kind, a.shape)}, {"y": kind}, {"a": a, "b": b}, opset=28)
    assert agrees(proto, np.full(a.shape, -0.0, dtype)) == ["Add"]


@pytest.mark.parametrize("stash", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize(("limit", "delta"), [(3000, 1), (1, 0.1), (40, 0.3)])
def test_a_constant_range_of_short_floats_is_that_of_onnxruntime(limit: float, delta: float, stash: int) -> None:
    half = TensorProto.FLOAT16
    nodes = [node("Range", ["start", "limit", "delta"], ["r"], stash_type=stash), node("Add", ["r", "x"], ["y"])]
    numbers = {"start": np.float16(0), "limit": np.float16(limit), "delta": np.float16(delta)}
    weights = {name: np.array(number) for name, number in numbers.items()}
    agrees(proto_of(nodes, {"x": (half, (1,))}, {"y": half}, weights, opset=27), np.zeros(1, np.float16))


def agrees(proto: onnx.ModelProto, x: np.ndarray) -> list[str]:
    """The types of the nodes left after loading; asserts that they compute the same as the file, signs included."""
    model = load_model(proto.SerializeToString())
    with Reference(model) as given, Reference(replace(model, original=None)) as made:
        expected, found = given.run({"x": x})["y"], made.run({"x": x})["y"]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    return [item.op_type for item in model.proto.graph.node]
