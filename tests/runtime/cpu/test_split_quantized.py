"""The parts of a divided integer operator, run one by one, have the bits of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from parts import check_model, check_parts
from quantized import quantized
from small_models import FLOAT, loaded, proto_of, weight

from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.split import split

node = helper.make_node
LIMITS = settings(max_examples=12)
PARTS = st.integers(2, 4)
UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8
FORMS = st.fixed_dictionaries({"weights": st.sampled_from(["uint8", "int8"]), "with_pairs": st.booleans()})
SCALES = {
    "s": np.float32(0.03), "z": np.uint8(100), "s2": np.float32(0.05), "z2": np.uint8(7), "s3": np.float32(0.04),
    "z3": np.uint8(90),
}  # fmt: skip


@LIMITS
@given(
    channels=st.integers(1, 9), results=st.integers(1, 40), kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.integers(1, 2), dilation=st.integers(1, 2), pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    batch=st.sampled_from([1, 1, 3]), parts=PARTS, form=FORMS, per_channel=st.booleans(),
)  # fmt: skip
def test_convolutions(
    channels: int, results: int, kernel: tuple[int, int], stride: int, dilation: int, pads: list[int], batch: int,
    parts: int, form: dict[str, Any], per_channel: bool,
) -> None:  # fmt: skip
    """With channels last by rows: kernel, stride and padding determine the rows needed above and below."""
    window = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], **window), node("Relu", ["c"], ["y"])]
    weights = {"w": weight(results, channels, *kernel), "b": weight(results)}
    proto = proto_of(nodes, {"x": (batch, channels, 9, 8)}, ["y"], weights)
    found = check_model(quantized(proto, per_channel=per_channel, **form), parts)
    assert found["com.microsoft", "QLinearConv"] == min(parts, batch) if batch > 1 else parts


@LIMITS
@given(
    groups=st.integers(1, 6), each=st.integers(1, 3), taken=st.integers(1, 2), size=st.sampled_from([1, 5]), parts=PARTS
)
def test_convolutions_in_groups_and_of_one_pixel(groups: int, each: int, taken: int, size: int, parts: int) -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], group=groups)]
    proto = proto_of(nodes, {"x": (1, groups * taken, size, size)}, ["y"], {"w": weight(groups * each, taken, 1, 1)})
    check_model(quantized(proto), parts)


@LIMITS
@given(channels=st.sampled_from([3, 40]), groups=st.integers(1, 4), results=st.integers(1, 20), parts=PARTS)
def test_volumes_and_convolutions_with_channels_first(channels: int, groups: int, results: int, parts: int) -> None:
    weights = {"w": weight(groups * results, channels, 2, 2, 2), "b": weight(groups * results)}
    nodes = [node("Conv", ["x", "w", "b"], ["y"], group=groups)]
    check_model(quantized(proto_of(nodes, {"x": (1, groups * channels, 3, 4, 3)}, ["y"], weights)), parts)

    whole = {"w": np.random.default_rng(0).integers(-90, 90, (groups * results, channels, 2, 2), np.int8)}
    nodes = [node("ConvInteger", ["x", "w", "z"], ["y"], group=groups)]
    given_x = {"x": (UINT8, (1, groups * channels, 4, 5))}
    proto = proto_of(nodes, given_x, {"y": TensorProto.INT32}, {**whole, "z": np.uint8(7)})
    found = check_model(proto, parts)
    assert found["", "ConvInteger"] == (2 if groups == 1 and results > 16 else 0)


@LIMITS
@given(
    kind=st.sampled_from(["MaxPool", "AveragePool"]), size=st.integers(5, 9), kernel=st.integers(2, 3),
    stride=st.integers(1, 3), pad=st.integers(0, 1), ceil=st.booleans(), counted=st.booleans(), parts=PARTS,
)  # fmt: skip
def test_pools(kind: str, size: int, kernel: int, stride: int, pad: int, ceil: bool, counted: bool, parts: int) -> None:
    options = {"count_include_pad": int(counted)} if kind == "AveragePool" else {}
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": int(ceil)}
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node(kind, ["a"], ["p"], **window, **options),
        node("Conv", ["p", "v"], ["y"]),
    ]
    weights = {"w": weight(20, 3, 1, 1), "v": weight(4, 20, 1, 1)}
    check_model(quantized(proto_of(nodes, {"x": (1, 3, size, size)}, ["y"], weights)), parts)


@LIMITS
@given(batch=st.sampled_from([1, 1, 2]), many=st.integers(2, 3), parts=PARTS, form=FORMS)
def test_sums_products_and_concats_between_convolutions(
    batch: int, many: int, parts: int, form: dict[str, Any]
) -> None:
    weights = {f"w{i}": weight(8, 3, 1, 1, seed=i) for i in range(many)}
    nodes = [node("Conv", ["x", name], [f"c{name}"]) for name in weights]
    weights.update(k=np.abs(weight(1, 8, 1, 1)), v=weight(4, 8 * many + 8, 1, 1))
    nodes += [
        node("Add", ["cw0", "cw1"], ["a"]),
        node("Mul", ["a", "k"], ["m"]),
        node("Concat", [*(f"cw{i}" for i in range(many)), "m"], ["j"], axis=1),
        node("Conv", ["j", "v"], ["t"]),
        node("GlobalAveragePool", ["t"], ["y"]),
    ]
    found = check_model(quantized(proto_of(nodes, {"x": (batch, 3, 7, 6)}, ["y"], weights), **form), parts)
    kinds = ["QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearConv"]
    assert {found["com.microsoft", kind] for kind in kinds} == {min(parts, batch) if batch > 1 else parts}


@LIMITS
@given(rows=st.integers(2, 20), results=st.integers(1, 40), per_channel=st.booleans(), parts=PARTS, form=FORMS)
def test_products(rows: int, results: int, per_channel: bool, parts: int, form: dict[str, Any]) -> None:
    proto = proto_of([node("MatMul", ["x", "w"], ["y"])], {"x": (1, rows, 12)}, ["y"], {"w": weight(12, results)})
    found = check_model(quantized(proto, per_channel=per_channel, **form), parts)
    assert found["", "QLinearMatMul"] == min(parts, -(-rows // 4)) or rows <= 4


@LIMITS
@given(results=st.integers(1, 70), per_channel=st.booleans(), bias=st.booleans(), parts=PARTS)
def test_products_of_one_row(results: int, per_channel: bool, bias: bool, parts: int) -> None:
    nodes = [node("Gemm", ["x", "w", *(["b"] if bias else [])], ["y"], transB=1)]
    proto = proto_of(nodes, {"x": (1, 24)}, ["y"], {"w": weight(results, 24), "b": weight(results)})
    found = check_model(quantized(proto, per_channel=per_channel), parts)
    assert found["com.microsoft", "QGemm"] == min(parts, -(-results // 16)) or results <= 16


@pytest.mark.parametrize("shape", [(1, 9, 16), (9, 16), (2, 5, 16)])
def test_products_of_dynamically_quantized_tensors(shape: Sequence[int]) -> None:
    """DynamicQuantizeLinear needs all numbers at once; the product after it does not."""
    nodes: list[onnx.NodeProto] = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("MatMulInteger", ["q", "w", "qz", "z"], ["i"]),
        node("Cast", ["i"], ["y"], to=FLOAT),
    ]
    weights = {"w": np.random.default_rng(0).integers(-90, 90, (16, 6), np.int8), "z": np.int8(0)}
    kernels = build_kernel_graph(loaded(proto_of(nodes, {"x": shape}, ["y"], weights)))
    found = {each.op_type: split(kernels, index, 2) for index, each in enumerate(kernels.nodes)}
    assert not found["DynamicQuantizeLinear"]
    assert len(found["MatMulInteger"]) == 2
    check_parts(kernels, [each.op_type for each in kernels.nodes].index("MatMulInteger"), found["MatMulInteger"])


def test_convolutions_of_dynamically_quantized_tensors() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("ConvInteger", ["q", "w", "qz"], ["i"], pads=[1] * 4),
        node("Cast", ["i"], ["y"], to=FLOAT),
    ]
    weights = {"w": np.random.default_rng(0).integers(0, 90, (40, 3, 3, 3), np.uint8)}
    found = check_model(proto_of(nodes, {"x": (1, 3, 6, 6)}, ["y"], weights), 2)
    assert found["", "ConvInteger"] == 2
