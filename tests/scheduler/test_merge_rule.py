"""Which convolutions may be merged: only those whose zero-padded kernels stay centred."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from side_by_side import Conv, Product, products_side_by_side, side_by_side

from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.merging.rule import merge_key
from iosched.scheduler.strategies import can_merge, merge_classes

BASE = Conv(channels=4)


def graph_of(*convs: Conv, dtype: str = "float32") -> ComputationGraph:
    return load_model(side_by_side(convs, dtype=dtype).SerializeToString()).graph


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"kernel": (1, 1), "pads": (0, 0, 0, 0)},
        {"kernel": (5, 5), "pads": (2, 2, 2, 2)},
        {"kernel": (1, 3), "pads": (0, 1, 0, 1)},
        {"channels": 8},  # 128 and 256 merge to 384 in the thesis, section 3.2.2
        {"bias": False},
        {"auto_pad": "SAME_UPPER"},
    ],
)
def test_centred_kernels_of_one_input_merge(other: dict[str, object]) -> None:
    assert can_merge(graph_of(BASE, replace(BASE, **other)), ("o0", "o1"))


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": (2, 2), "pads": (0, 0, 0, 0)},  # the counterexample, at stride 1
        {"kernel": (1, 1)},  # too much padding
        {"kernel": (1, 1), "pads": (0, 0, 2, 2)},  # the right sum on the wrong sides
        {"strides": (2, 2)},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"group": 4},
        {"behind": ("Relu",)},
        {"source": "y"},
    ],
)
def test_other_convolutions_do_not_merge(other: dict[str, object]) -> None:
    assert not can_merge(graph_of(BASE, replace(BASE, **other)), ("o0", "o1"))


def test_an_operator_whose_pattern_forbids_merging_has_no_merge_key() -> None:
    graph = graph_of(BASE, BASE)
    assert merge_key(graph.operators[0]) is not None
    assert merge_key(replace(graph.operators[0], merges=False)) is None


def test_other_operators_with_a_kernel_do_not_merge() -> None:
    weight = numpy_helper.from_array(np.ones((3, 4, 3, 3), np.float32), "w")
    settings = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], [name], **settings) for name in ("a", "b")]
    shapes = {"x": (1, 3, 8, 8), "a": None, "b": None}
    x, *results = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    made = helper.make_graph(nodes, "transposed", [x], results, [weight])
    model = helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    graph = load_model(model.SerializeToString()).graph
    assert [merge_key(operator) for operator in graph.operators] == [None, None]


def test_equal_output_size_is_not_enough() -> None:
    """3x3 with padding 1 and 2x2 with padding 0, both at stride 2, have equal outputs on 4x4 and cannot be merged."""
    strided = replace(BASE, strides=(2, 2))
    assert not can_merge(graph_of(strided, replace(strided, kernel=(2, 2), pads=(0, 0, 0, 0))), ("o0", "o1"))


def test_grouped_convolutions_do_not_merge_with_their_like_either() -> None:
    grouped = replace(BASE, group=4)
    assert not can_merge(graph_of(grouped, grouped), ("o0", "o1"))
    assert merge_classes(graph_of(grouped, grouped), ("o0", "o1")) == ()


def test_pools_do_not_merge() -> None:
    proto = side_by_side([BASE, BASE])
    del proto.graph.node[:]
    proto.graph.node.extend(helper.make_node("MaxPool", ["x"], [name], kernel_shape=[2, 2]) for name in ("o0", "o1"))
    assert not can_merge(load_model(proto.SerializeToString()).graph, ("o0", "o1"))


@pytest.mark.parametrize(("kind", "merges"), [("Add", False), ("Mul", True)])
def test_a_constant_factor_merges_but_a_sum_with_a_tensor_does_not(kind: str, merges: bool) -> None:
    proto = side_by_side([BASE, BASE])
    for index, conv in enumerate(list(proto.graph.node)):
        conv.output[0] = f"c{index}"
        other = "x" if kind == "Add" else f"b{index}"
        proto.graph.node.append(helper.make_node(kind, [f"c{index}", other], [f"o{index}"]))
    for bias in proto.graph.initializer:
        if bias.name.startswith("b"):
            bias.dims[:] = [4, 1, 1]
    for conv in proto.graph.node[:2]:
        del conv.input[2:]
    graph = load_model(proto.SerializeToString()).graph
    assert set(graph.by_name) == {"o0", "o1"}
    assert can_merge(graph, ("o0", "o1")) == merges


def test_a_factor_for_each_pixel_is_a_separate_operator() -> None:
    """It is not part of the convolution, which can be merged without it."""
    proto = side_by_side([BASE, replace(BASE, behind=("Mul",))])
    factor = next(tensor for tensor in proto.graph.initializer if "Mul" in tensor.name)
    factor.CopyFrom(numpy_helper.from_array(np.ones((9, 9), np.float32), factor.name))
    graph = load_model(proto.SerializeToString()).graph
    assert [operator.type for operator in graph.operators] == ["Conv", "Conv", "Mul"]
    assert can_merge(graph, ("o0", "c1"))


@pytest.mark.parametrize("behind", [("BatchNormalization",), ("BatchNormalization", "Mul", "Add", "Relu"), ("Mul",)])
def test_channel_scales_and_shifts_do_not_prevent_merging(behind: tuple[str, ...]) -> None:
    like = [kind for kind in behind if kind == "Relu"]
    assert can_merge(graph_of(replace(BASE, behind=behind), replace(BASE, behind=tuple(like))), ("o0", "o1"))


def test_swish_in_two_nodes_is_an_activation() -> None:
    swish = replace(BASE, behind=("Gate",))
    graph = graph_of(swish, replace(swish, channels=8))
    assert [operator.attribute("activation") for operator in graph.operators] == ["Swish", "Swish"]
    assert can_merge(graph, ("o0", "o1"))
    assert not can_merge(graph_of(swish, replace(BASE, behind=("Sigmoid",))), ("o0", "o1"))


def test_convolutions_after_a_relu_merge_only_with_each_other() -> None:
    inner = Conv((1, 1), (0,) * 4, relu=True)
    assert can_merge(graph_of(inner, replace(inner, channels=16)), ("o0", "o1"))
    assert not can_merge(graph_of(inner, replace(inner, relu=False)), ("o0", "o1"))


def products(*found: Product, shape: tuple[int, ...] = (2, 3, 6)) -> ComputationGraph:
    return load_model(products_side_by_side(found, shape).SerializeToString()).graph


@pytest.mark.parametrize(
    ("one", "other", "merges"),
    [
        (Product(columns=4), Product(columns=8), True),
        (Product(bias="Add"), Product(bias="Add", columns=5), True),
        (Product(bias="Add", behind=("Relu",)), Product(bias="Add", behind=("Relu",)), True),
        (Product(), Product(bias="Add"), False),
        (Product(), Product(behind=("Relu",)), False),
    ],
)
def test_products_of_one_input_merge(one: Product, other: Product, merges: bool) -> None:
    assert can_merge(products(one, other), ("o0", "o1")) == merges


def test_a_bias_for_each_row_is_not_merged() -> None:
    proto = products_side_by_side([Product(bias="Add"), Product(bias="Add")], (3, 6))
    for tensor in proto.graph.initializer:
        if tensor.name.startswith("b"):
            tensor.CopyFrom(numpy_helper.from_array(np.ones((3, 8), np.float32), tensor.name))
    assert not can_merge(load_model(proto.SerializeToString()).graph, ("o0", "o1"))


def test_a_product_with_a_matrix_of_weights_on_the_left_is_not_merged() -> None:
    proto = products_side_by_side([Product(columns=6), Product(columns=6)], (6, 6))
    for node in proto.graph.node:
        node.input[:] = reversed(node.input)
    assert not can_merge(load_model(proto.SerializeToString()).graph, ("o0", "o1"))


def test_computed_weights_do_not_merge() -> None:
    proto = side_by_side([BASE, BASE])
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4, 3, 3]))
    for conv in proto.graph.node:
        conv.input[1] = "w"
    assert not can_merge(load_model(proto.SerializeToString()).graph, ("o0", "o1"))


DILATED = replace(BASE, dilations=(2, 2), pads=(2, 2, 2, 2))


@pytest.mark.parametrize(
    ("other", "merges"),
    [
        ({"kernel": (5, 5), "pads": (4, 4, 4, 4)}, True),
        ({"kernel": (1, 1), "pads": (0, 0, 0, 0)}, True),
        ({"kernel": (1, 1), "pads": (1, 1, 1, 1)}, False),
        ({"kernel": (2, 2), "pads": (1, 1, 1, 1)}, False),  # equal output size, but its taps fall between the others
    ],
)
def test_dilated_kernels_are_centred_by_their_reach(other: dict[str, object], merges: bool) -> None:
    assert can_merge(graph_of(DILATED, replace(DILATED, **other)), ("o0", "o1")) == merges


def test_an_operator_does_not_merge_alone_or_with_itself() -> None:
    graph = graph_of(BASE, BASE)
    assert not can_merge(graph, ["o0"])
    assert not can_merge(graph, ["o0", "o0"])


def test_classes_are_the_largest_mergeable_sets() -> None:
    graph = graph_of(
        BASE, replace(BASE, group=4), replace(BASE, kernel=(1, 1), pads=(0,) * 4), replace(BASE, source="y")
    )
    assert merge_classes(graph, ["o0", "o1", "o2", "o3"]) == (("o0", "o2"),)


@pytest.mark.slow
def test_the_branches_of_an_inception_block_merge() -> None:
    """Of the 1x1 convolutions of one input, those with 64 channels and those with 48 make one class."""
    graph = load_model(zoo.build("inception_v3").SerializeToString()).graph
    classes = merge_classes(graph, graph.by_name)
    channels = [[graph.by_name[name].attribute("out_channels") for name in names] for names in classes]
    assert [64, 48, 64] in channels
    assert len(classes) >= 9
