"""Guesses of how long nodes take: good enough to see what is worth splitting."""

from __future__ import annotations

from onnx import ModelProto, helper
from quantized import quantized
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.work import node_work_us


def longest_us(proto: ModelProto) -> float:
    kernels = build_kernel_graph(loaded(proto))
    return max(node_work_us(kernels, index) for index in range(len(kernels.nodes)))


def test_a_convolution_in_whole_numbers_takes_a_third_of_one_in_floats() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    proto = proto_of([node], {"x": (1, 64, 28, 28)}, ["y"], {"w": weight(64, 64, 3, 3)})
    floats, whole = longest_us(proto), longest_us(quantized(proto))
    assert 2.5 < floats / whole < 3.5
