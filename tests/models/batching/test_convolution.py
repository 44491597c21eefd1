"""Convolutions of several models become one, in groups, over a larger batch, or stacked."""

from __future__ import annotations

import pytest
from batches import batch, variants
from onnx import helper
from small_models import weight

node = helper.make_node
X = {"x": [2, 4, 7, 7]}


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"pads": [1] * 4}, (6, 4, 3, 3)),
        ({"group": 2, "strides": [2, 1]}, (6, 2, 3, 3)),
        ({"group": 4, "dilations": [2, 2], "kernel_shape": [3, 3]}, (4, 1, 3, 3)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (5, 4, 2, 2)),
    ],
)
def test_different_weights_become_groups(
    attributes: dict[str, object], shape: tuple[int, ...], batch_size: int
) -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["y"], **attributes)]
    found = batch(
        variants(nodes, X, ["y"], lambda seed: {"w": weight(*shape, seed=seed), "b": weight(shape[0], seed=seed)}),
        batch_size=batch_size,
    )
    assert found.types == {"Concat": 1, "Conv": 1, "Split": 1}


@pytest.mark.parametrize("size", [1, 3])
def test_images_of_one_and_three_dimensions(size: int) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])]
    shape = [2, 4, *[5] * size]
    found = batch(variants(nodes, {"x": shape}, ["y"], lambda seed: {"w": weight(3, 4, *[2] * size, seed=seed)}))
    assert found.types == {"Concat": 1, "Conv": 1, "Relu": 1, "Split": 1}


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions_become_groups(group: int) -> None:
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["y"], group=group, strides=[2, 2], output_padding=[1, 1])]
    found = batch(
        variants(nodes, X, ["y"], lambda seed: {"w": weight(4, 3, 3, 3, seed=seed), "b": weight(3 * group, seed=seed)})
    )
    assert found.types == {"Concat": 1, "ConvTranspose": 1, "Split": 1}


def test_equal_weights_take_a_larger_batch() -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    found = batch(variants(nodes, X, ["y"], lambda _: {"w": weight(5, 4, 3, 3), "b": weight(5)}))
    assert found.types == {"Concat": 1, "Conv": 1, "Relu": 1, "Split": 1}
    (conv,) = (each for each in found.model.proto.graph.node if each.op_type == "Conv")
    assert all(each.i == 1 for each in conv.attribute if each.name == "group")
    assert found.whole.weights.together_nbytes == found.whole.weights.alone_nbytes / 3


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_convolutions_of_one_tensor_are_stacked_without_groups(op_type: str) -> None:
    nodes = [node(op_type, ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    found = batch(
        variants(nodes, X, ["y"], lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), "b": weight(4, seed=seed)}), ["x"]
    )
    assert found.types == {op_type: 1, "Relu": 1, "Split": 1}


def test_convolutions_of_one_tensor_that_have_groups_read_it_repeated() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], group=4)]
    found = batch(variants(nodes, X, ["y"], lambda seed: {"w": weight(4, 1, 3, 3, seed=seed)}), ["x"])
    assert found.types == {"Concat": 1, "Conv": 1, "Split": 1}


def test_a_common_residual_is_repeated_for_stacked_convolutions() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("Add", ["c", "z"], ["s"]), node("Relu", ["s"], ["y"])]
    inputs = {**X, "z": [2, 6, 7, 7]}
    found = batch(variants(nodes, inputs, ["y"], lambda seed: {"w": weight(6, 4, 3, 3, seed=seed)}), ["x", "z"])
    assert found.types == {"Conv": 1, "Concat": 1, "Add": 1, "Relu": 1, "Split": 1}


def test_chains_of_groups_need_nothing_between_them() -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1] * 4),
        node("Add", ["c", "b"], ["d"]),
        node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2]),
        node("Conv", ["e", "w2"], ["y"], group=2),
    ]
    found = batch(
        variants(
            nodes, X, ["y"],
            lambda seed: {
                "w0": weight(6, 4, 3, 3, seed=seed), "w1": weight(6, 6, 3, 3, seed=seed),
                "w2": weight(4, 3, 1, 1, seed=seed),
            },
        )
    )  # fmt: skip
    assert found.types == {"Concat": 1, "Conv": 3, "Relu": 1, "Add": 1, "MaxPool": 1, "Split": 1}


def test_an_output_inside_a_chain_is_split_and_the_chain_continues() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"]), node("Conv", ["y", "v"], ["z"])]
    found = batch(
        variants(
            nodes, X, ["y", "z"], lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), "v": weight(3, 4, 1, 1, seed=seed)}
        )
    )
    assert found.types == {"Concat": 1, "Conv": 2, "Split": 2}
