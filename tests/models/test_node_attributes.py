"""Reading a node's attributes, including missing ones and ones of another type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from iosched.models.node_attributes import assign, integer, integers, names, number, padding, serialized, text


def test_a_missing_attribute_reads_as_the_default():
    node = helper.make_node("Op", ["x"], ["y"])
    assert (integer(node, "a", 7), integers(node, "a", (1, 2)), number(node, "a", 0.5), text(node, "a", "t")) == (
        7, (1, 2), 0.5, "t",
    )  # fmt: skip


def test_an_attribute_of_another_type_reads_as_the_default():
    node = helper.make_node("Op", ["x"], ["y"], one=1, half=0.5, word="w", many=[1, 2])
    assert (integer(node, "half", 7), integers(node, "one", (3,)), text(node, "many", "t")) == (7, (3,), "t")
    assert (number(node, "one"), number(node, "half"), number(node, "word", 2.0)) == (1.0, 0.5, 2.0)


def test_assigning_changes_adds_and_takes_away():
    node = helper.make_node("Op", ["x"], ["y"], group=1, pads=[0, 0])
    assign(node, group=4, pads=None, strides=[2, 2])
    assert names(node) == {"group", "strides"}
    assert serialized(node) == serialized(helper.make_node("Op", ["x"], ["y"], strides=[2, 2], group=4))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_is_the_least_that_gives_every_stride_a_result(
    mode: str, size: int, extent: int, stride: int, dilation: int
):
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[stride], dilations=[dilation])
    begin, end = padding(node, [size], [extent])
    wanted = int(np.ceil(size / stride))
    results = [(size + total - (extent - 1) * dilation - 1) // stride + 1 for total in range(40)]
    least = next(total for total, count in enumerate(results) if count >= wanted)
    assert begin + end == least
    assert (end - begin if mode == "SAME_UPPER" else begin - end) == least % 2


@pytest.mark.parametrize(
    ("mode", "size", "extent", "stride", "expected"),
    [("SAME_UPPER", 8, 2, 1, (0, 1)), ("SAME_LOWER", 8, 2, 1, (1, 0)),
     ("SAME_UPPER", 7, 1, 4, (-1, -1)), ("SAME_LOWER", 7, 1, 4, (0, -2))],
)  # fmt: skip
def test_a_pool_pads_as_without_dilation_and_crops_unread_pixels(
    mode: str, size: int, extent: int, stride: int, expected: tuple[int, int]
):
    node = helper.make_node("AveragePool", ["x"], ["y"], auto_pad=mode, strides=[stride], dilations=[3])
    assert padding(node, [size], [extent]) == expected
