"""Concat, Split and reshapes are free where bytes can be written in place, and correct elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowering import check_everything
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.placement import place_tensors
from iosched.runtime.placement import Placement

node = helper.make_node
SPLIT_SIZES = {"sizes": np.array([4, 8, 4], np.int64)}
AXIS = {"axis0": np.array([0], np.int64)}


def placed(proto: onnx.ModelProto) -> tuple[KernelGraph, Placement]:
    kernels = build_kernel_graph(loaded(proto))
    return kernels, place_tensors(kernels)


def elided(proto: onnx.ModelProto) -> list[str]:
    kernels, placement = placed(proto)
    return [kernels.nodes[index].op_type for index in sorted(placement.elided)]


def copied(proto: onnx.ModelProto) -> list[str]:
    return [name for copies in placed(proto)[1].copies.values() for name, _ in copies]


def concat(*operands: str, result: str = "y") -> onnx.NodeProto:
    return node("Concat", list(operands), [result], axis=1)


SHAPE = (1, 4, 3, 3)
TWO = [node("Exp", ["x"], ["a"]), node("Sin", ["x"], ["b"])]


def two_operands() -> onnx.ModelProto:
    return proto_of([*TWO, concat("a", "b")], {"x": SHAPE}, ["y"])


def the_same_twice() -> onnx.ModelProto:
    return proto_of([*TWO, concat("a", "a", "b", "a")], {"x": SHAPE}, ["y"])


def a_graph_input() -> onnx.ModelProto:
    return proto_of([*TWO, concat("a", "x", "b")], {"x": SHAPE}, ["y"])


def an_operand_that_is_an_output() -> onnx.ModelProto:
    return proto_of([*TWO, concat("a", "b")], {"x": SHAPE}, ["y", "a"])


def in_two_concats() -> onnx.ModelProto:
    nodes = [*TWO, concat("a", "b", result="c"), concat("b", "a", result="d"), node("Sub", ["c", "d"], ["y"])]
    return proto_of(nodes, {"x": SHAPE}, ["y"])


def concat_of_concats() -> onnx.ModelProto:
    """The inner one is read by another node too, so it is not flattened away."""
    nodes = [*TWO, concat("a", "b", result="c"), node("Neg", ["c"], ["n"]), concat("x", "c", "n")]
    return proto_of(nodes, {"x": SHAPE}, ["y"])


def concat_with_itself() -> onnx.ModelProto:
    nodes = [*TWO, concat("a", "b", result="c"), concat("c", "a", "c", result="y")]
    return proto_of(nodes, {"x": SHAPE}, ["y", "c"])


def reshape_of_split_of_concat() -> onnx.ModelProto:
    nodes = [
        *TWO,
        concat("a", "b", "x", "a", result="c"),
        node("Split", ["c", "sizes"], ["p", "q", "r"], axis=1),
        node("Flatten", ["q"], ["f"]),
        node("Cos", ["p"], ["e"]),
        node("Neg", ["r"], ["n"]),
        node("Sin", ["f"], ["y"]),
        concat("e", "n", result="z"),
    ]
    return proto_of(nodes, {"x": SHAPE}, ["y", "z"], SPLIT_SIZES)


def split_and_put_together_again(*order: str) -> onnx.ModelProto:
    """All parts in order fill the split tensor's buffer whole, so it moves as one."""
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Split", ["e", "sizes"], ["p", "q", "r"], axis=1),
        concat(*order, result="c"),
        node("Sin", ["q"], ["z"]),
        node("Cos", ["c"], ["y"]),
    ]
    return proto_of(nodes, {"x": (1, 16, 3, 3)}, ["y", "z"], SPLIT_SIZES)


def in_order() -> onnx.ModelProto:
    return split_and_put_together_again("p", "q", "r")


def out_of_order() -> onnx.ModelProto:
    return split_and_put_together_again("r", "q", "p")


def in_order_behind_another() -> onnx.ModelProto:
    return split_and_put_together_again("x", "p", "q", "r")


def in_order_with_one_missing() -> onnx.ModelProto:
    return split_and_put_together_again("p", "q", "x")


def split_into_outputs() -> onnx.ModelProto:
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Split", ["e", "sizes"], ["p", "q", "r"], axis=1),
        node("Sin", ["q"], ["y"]),
    ]
    return proto_of(nodes, {"x": (1, 16, 2, 2)}, ["y", "p", "r"], SPLIT_SIZES)


def squeezes() -> onnx.ModelProto:
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Squeeze", ["e", "axis0"], ["s"]),
        node("Sin", ["s"], ["t"]),
        node("Unsqueeze", ["t", "axis0"], ["u"]),
        node("Cos", ["u"], ["c"]),
        concat("c", "u", "x"),
    ]
    return proto_of(nodes, {"x": SHAPE}, ["y"], AXIS)


def reshape_of_an_input() -> onnx.ModelProto:
    nodes = [node("Flatten", ["x"], ["f"]), node("Exp", ["f"], ["e"]), concat("f", "e"), node("Sin", ["x"], ["z"])]
    return proto_of(nodes, {"x": SHAPE}, ["y", "z"])


def reshape_into_an_output() -> onnx.ModelProto:
    return proto_of(
        [node("Exp", ["x"], ["e"]), node("Flatten", ["e"], ["y"]), node("Sin", ["e"], ["z"])], {"x": SHAPE}, ["y", "z"]
    )


def reshape_of_an_output() -> onnx.ModelProto:
    nodes = [node("Exp", ["x"], ["e"]), node("Flatten", ["e"], ["f"]), node("Sin", ["f"], ["z"]), concat("f", "z")]
    return proto_of(nodes, {"x": SHAPE}, ["e", "y"])


def reshape_before_concat() -> onnx.ModelProto:
    """The tensor that the reshape views moves into the Concat."""
    nodes = [*TWO, node("Flatten", ["a"], ["f"]), node("Flatten", ["b"], ["g"]), concat("f", "g", "f")]
    return proto_of(nodes, {"x": SHAPE}, ["y"])


def concat_with_a_weight() -> onnx.ModelProto:
    return proto_of([*TWO, concat("a", "w", "b")], {"x": SHAPE}, ["y"], {"w": weight(*SHAPE)})


def written_in_part_read_whole() -> onnx.ModelProto:
    """On one lane in one stage: `c` is read right after the operand that is written into it."""
    nodes = [*TWO, concat("a", "b", result="c"), node("Sin", ["c"], ["s"]), node("Exp", ["s"], ["y"])]
    return proto_of(nodes, {"x": SHAPE}, ["y"])


CASES = (
    two_operands, the_same_twice, a_graph_input, an_operand_that_is_an_output, in_two_concats, concat_of_concats,
    concat_with_itself, reshape_of_split_of_concat, in_order, out_of_order, in_order_behind_another,
    in_order_with_one_missing, split_into_outputs, squeezes, reshape_of_an_input, reshape_into_an_output,
    reshape_of_an_output, reshape_before_concat, concat_with_a_weight, written_in_part_read_whole,
)  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_outputs_equal_plain_onnxruntime(make) -> None:
    check_everything(loaded(make()), lanes=(1, 2), seeds=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("make", "nodes", "operands"),
    [
        (two_operands, ["Concat"], []),
        (the_same_twice, ["Concat"], ["a", "a"]),
        (a_graph_input, ["Concat"], ["x"]),
        (an_operand_that_is_an_output, ["Concat"], ["a"]),
        (in_two_concats, ["Concat", "Concat"], ["b", "a"]),
        (in_order, ["Split", "Concat"], []),
        (out_of_order, ["Split", "Concat"], ["r", "q", "p"]),
        (in_order_behind_another, ["Split", "Concat"], ["x"]),
        (in_order_with_one_missing, ["Split", "Concat"], ["p", "q", "x"]),
        (split_into_outputs, [], []),
        (squeezes, ["Squeeze", "Unsqueeze", "Concat"], ["x"]),
        (reshape_into_an_output, [], []),
        (reshape_before_concat, ["Flatten", "Flatten", "Concat"], ["f"]),
        (concat_with_a_weight, [], []),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_elided_and_copied_operands(make, nodes: list[str], operands: list[str]) -> None:
    made = make()
    assert elided(made) == nodes
    assert sorted(copied(made)) == sorted(operands)


def test_at_larger_batches_a_concat_of_channels_is_a_kernel() -> None:
    assert elided(proto_of([*TWO, concat("a", "b")], {"x": (2, 4, 3, 3)}, ["y"])) == []
    first_axis = node("Concat", ["a", "b"], ["y"], axis=0)
    assert elided(proto_of([*TWO, first_axis], {"x": (2, 4, 3, 3)}, ["y"])) == ["Concat"]


def test_operands_are_adjacent_in_the_buffer_of_the_concat() -> None:
    _, placement = placed(two_operands())
    places = {name: (view.buffer, view.offset, view.nbytes) for name, view in placement.views.items()}
    assert places["a"] == ("y", 0, 144)
    assert places["b"] == ("y", 144, 144)
