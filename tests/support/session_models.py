"""Models with operators that no CUDA kernel does."""

from __future__ import annotations

import numpy as np
import onnx
from lowering import loaded, proto_of
from onnx import helper

from iosched.models.model import Model


def sliced() -> Model:
    """LpNormalization of a part of one Concat into a part of another, TopK of it, and ReLUs around."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["x"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["c"], axis=1),
        helper.make_node("LpNormalization", ["a"], ["n"], axis=1, p=1),
        helper.make_node("Concat", ["n", "b"], ["d"], axis=1),
        helper.make_node("TopK", ["n", "k"], ["top", "at"], axis=3),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Exp", ["top"], ["t"]),
    ]
    weights = {"k": np.array([2], np.int64)}
    outputs = {"c": onnx.TensorProto.FLOAT, "e": onnx.TensorProto.FLOAT, "t": onnx.TensorProto.FLOAT}
    return loaded(proto_of(nodes, {"x": (2, 3, 4, 5)}, {**outputs, "at": onnx.TensorProto.INT64}, weights))


def counted() -> Model:
    """CumSum along an axis that an input tells: kernels for GPUs want it on the host."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("CumSum", ["a", "axis"], ["c"]),
        helper.make_node("Exp", ["c"], ["e"]),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    return loaded(proto_of(nodes, {"x": (3, 8), "axis": (onnx.TensorProto.INT64, [])}, ["y"]))
