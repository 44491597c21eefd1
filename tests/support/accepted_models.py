"""Small models that onnxruntime runs and that are easy to get wrong, large enough to be split over cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper
from small_models import FLOAT, proto_of, weight

node = helper.make_node


def recurrent(kind: str, outputs: list[str], *, direction: str = "forward") -> onnx.ModelProto:
    """A cell with some outputs left out; a Tanh reads each of the others."""
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional")
    weights = {"w": weight(ways, gates * 16, 8), "r": weight(ways, gates * 16, 16)}
    nodes = [node(kind, ["x", "w", "r"], outputs, hidden_size=16, direction=direction)]
    nodes += [node("Tanh", [name], [f"{name}/tanh"]) for name in outputs if name]
    return proto_of(nodes, {"x": (5, 2, 8)}, [each.output[0] for each in nodes[1:]], weights)


def filters_as_an_input() -> onnx.ModelProto:
    """The number of filters equals the number of images."""
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    return proto_of(nodes, {"x": (4, 16, 64, 64), "w": (4, 16, 3, 3)}, ["y"])


def computed_filters() -> onnx.ModelProto:
    nodes = [
        node("Mul", ["w", "two"], ["twice"]),
        node("Conv", ["x", "twice"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["y"]),
    ]
    two = np.float32(2).reshape(())
    return proto_of(nodes, {"x": (4, 16, 64, 64), "w": (4, 16, 3, 3)}, ["y"], {"two": two})


def returned_constants() -> onnx.ModelProto:
    """One from the file and one that is folded, read by operators split over cores and by a Concat."""
    nodes = [
        node("Transpose", ["stored"], ["folded"], perm=[0, 1, 3, 2]),
        node("Add", ["x", "kept"], ["sum"]),
        node("Relu", ["sum"], ["r"]),
        node("Concat", ["r", "folded", "kept"], ["joined"], axis=1),
        node("Conv", ["joined", "filters"], ["y"]),
        node("Flatten", ["x"], ["row"], axis=3),
        node("Gemm", ["row", "matrix"], ["z"], transB=1),
    ]
    weights = {
        "stored": weight(1, 16, 48, 48), "kept": weight(1, 16, 48, 48, seed=1), "filters": weight(32, 48, 1, 1),
        "matrix": weight(64, 48),
    }  # fmt: skip
    outputs = ["y", "z", "kept", "folded", "filters", "matrix"]
    return proto_of(nodes, {"x": (1, 16, 48, 48)}, outputs, weights)


def dequantized_constants() -> onnx.ModelProto:
    """Constants of the file, constants that it quantizes itself, and one that it returns."""
    nodes = [
        node("QuantizeLinear", ["floats", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Flatten", ["d"], ["f"]),
        node("Flatten", ["x"], ["g"]),
        node("Add", ["f", "g"], ["y"]),
        node("DequantizeLinear", ["numbers", "scales", "zeros"], ["returned"], axis=1),
    ]
    numbers = np.random.default_rng(0).integers(-100, 100, (1, 32, 64, 64)).astype(np.int8)
    weights = {
        "floats": weight(8, 4, 64, 64), "s": np.float32(0.05).reshape(()), "z": np.int8(3).reshape(()),
        "numbers": numbers, "scales": np.abs(weight(32)), "zeros": numbers[0, :, 0, 0],
    }  # fmt: skip
    return proto_of(nodes, {"x": (8, 4, 64, 64)}, ["y", "returned"], weights)


def pools_that_round_up() -> onnx.ModelProto:
    """Shape inference gives them a row and a column more than onnxruntime's kernels compute."""
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}
    nodes = [
        node("MaxPool", ["x"], ["p", "places"], **window),
        node("Relu", ["p"], ["r"]),
        node("AveragePool", ["x"], ["a"], count_include_pad=1, **window),
        node("Concat", ["r", "a"], ["y"], axis=1),
    ]
    outputs = {"y": FLOAT, "places": TensorProto.INT64}
    return proto_of(nodes, {"x": (1, 16, 55, 55)}, outputs)


def pools_of_the_same_size_with_dilations() -> onnx.ModelProto:
    window = {"kernel_shape": [3, 3], "dilations": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["p"], auto_pad="SAME_UPPER", strides=[2, 2], **window),
        node("Conv", ["p", "w"], ["c"]),
        node("Sigmoid", ["p"], ["s"]),
        node("Add", ["c", "s"], ["y"]),
        node("LpPool", ["x"], ["z"], auto_pad="SAME_LOWER", **window),
        node("DequantizeLinear", ["numbers", "scale"], ["constant"]),
        node("MaxPool", ["constant"], ["t"], auto_pad="SAME_UPPER", **window),
    ]
    weights = {"w": weight(16, 16, 1, 1), "numbers": np.ones((1, 4, 9, 9), np.int8), "scale": np.float32(2).reshape(())}
    return proto_of(nodes, {"x": (1, 16, 55, 55)}, ["y", "z", "t"], weights, opset=19)


def resized_by_a_factor() -> onnx.ModelProto:
    nodes = [node("Resize", ["x", "", "by"], ["i"]), node("Relu", ["i"], ["y"])]
    return proto_of(nodes, {"x": (1, 16, 25, 25)}, ["y"], {"by": np.array([1, 1, 2.6, 2.6], np.float32)})


def recurrent_without_its_first_result() -> onnx.ModelProto:
    return recurrent("GRU", ["", "h"])


def names_with_nul() -> onnx.ModelProto:
    nodes = [node("Conv", ["a\0b", "w"], ["a\0c"], pads=[1] * 4), node("Relu", ["a\0b"], ["d"])]
    nodes += [node("Concat", ["a\0c", "d"], ["y"], axis=1)]
    return proto_of(nodes, {"a\0b": (1, 16, 32, 32)}, ["y"], {"w": weight(16, 16, 3, 3)})


def range_up_to_a_tensor_of_one_element() -> onnx.ModelProto:
    """onnxruntime runs it until it inlines the If, once a Size that we fold is a constant."""
    value = helper.make_tensor_value_info("n", TensorProto.INT64, [1])
    branches = {
        f"{name}_branch": helper.make_graph([node("Identity", [size], ["n"])], name, [], [value])
        for name, size in (("then", "eight"), ("else", "four"))
    }
    nodes = [
        node("Size", ["x"], ["size"]),
        node("Equal", ["size", "number"], ["is_full"]),
        node("If", ["is_full"], ["limit"], **branches),
        node("Range", ["zero", "limit", "one"], ["steps"]),
        node("Cast", ["steps"], ["floats"], to=FLOAT),
        node("Add", ["x", "floats"], ["y"]),
    ]
    numbers = {"number": 128, "zero": 0, "one": 1}
    weights = {name: np.int64(number).reshape(()) for name, number in numbers.items()}
    weights |= {"eight": np.array([8], np.int64), "four": np.array([4], np.int64)}
    return proto_of(nodes, {"x": (1, 16, 8)}, ["y"], weights)


MODELS: tuple[Callable[[], onnx.ModelProto], ...] = (
    recurrent_without_its_first_result, filters_as_an_input, computed_filters, returned_constants,
    dequantized_constants, pools_that_round_up, pools_of_the_same_size_with_dilations, resized_by_a_factor,
    names_with_nul, range_up_to_a_tensor_of_one_element,
)  # fmt: skip
