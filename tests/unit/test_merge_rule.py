"""Which convolutions may be merged: only those whose zero-padded kernels stay centred."""

from __future__ import annotations

from dataclasses import replace

import pytest
from onnx import TensorProto, helper
from side_by_side import Conv, side_by_side

from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.scheduler.merge import can_merge, merge_classes

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
def test_anything_else_does_not(other: dict[str, object]) -> None:
    assert not can_merge(graph_of(BASE, replace(BASE, **other)), ("o0", "o1"))


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


def test_the_branches_of_an_inception_block_merge() -> None:
    """Of the 1x1 convolutions of one input, those with 64 channels and those with 48 make one class."""
    graph = load_model(zoo.build("inception_v3").SerializeToString()).graph
    classes = merge_classes(graph, graph.by_name)
    channels = [[graph.by_name[name].attribute("out_channels") for name in names] for names in classes]
    assert [64, 48, 64] in channels
    assert len(classes) >= 9
