"""Normalizations, pooling, elementwise operators and data movement, joined along the axis of their inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from batches import Weights, batch, variants
from onnx import TensorProto, helper
from small_models import weight

node = helper.make_node
ENDS = {"Concat", "Conv", "Reshape", "Split", "Transpose"}


def _size(seed: int, *shape: int) -> np.ndarray:
    return np.abs(weight(*shape, seed=seed)) + np.float32(0.5)


def _norm(seed: int) -> dict[str, np.ndarray]:
    return {name: _size(seed + place, 4) for place, name in enumerate(("scale", "shift", "mean", "variance"))}


NORM = ["scale", "shift", "mean", "variance"]
CASES: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "BatchNormalization": (node("BatchNormalization", ["i", *NORM], ["o"]), {}),
    "InstanceNormalization": (node("InstanceNormalization", ["i", "scale", "shift"], ["o"]), {}),
    "LRN": (node("LRN", ["i"], ["o"], size=3), {}),
    "LayerNormalization": (node("LayerNormalization", ["i", "wide", "wide"], ["o"], axis=-1), {}),
    "LayerNormalization of all": (node("LayerNormalization", ["i", "image"], ["o"], axis=1), {}),
    "MaxPool": (node("MaxPool", ["i"], ["o"], kernel_shape=[2, 2]), {}),
    "AveragePool": (node("AveragePool", ["i"], ["o"], kernel_shape=[3, 3], pads=[1] * 4), {}),
    "GlobalAveragePool": (node("GlobalAveragePool", ["i"], ["o"]), {}),
    "Clip": (node("Clip", ["i", "low", "high"], ["o"]), {}),
    "Cast": (node("Cast", ["i"], ["o"], to=TensorProto.FLOAT), {}),
    "Mul of channels": (node("Mul", ["i", "channels"], ["o"]), {}),
    "Add of an image": (node("Add", ["image", "i"], ["o"]), {}),
    "Sub of a number": (node("Sub", ["number", "i"], ["o"]), {}),
    "PRelu": (node("PRelu", ["i", "channels"], ["o"]), {}),
    "Concat of itself": (node("Concat", ["i", "x4", "i"], ["o"], axis=1), {}),
    "Concat of rows": (node("Concat", ["i", "x4"], ["o"], axis=-1), {}),
    "Concat of batches": (node("Concat", ["x4", "i"], ["o"], axis=0), {}),
    "Concat with a constant": (node("Concat", ["i", "fixed"], ["o"], axis=1), {}),
    "Flatten": (node("Flatten", ["i"], ["o"], axis=1), {}),
    "Flatten deep": (node("Flatten", ["i"], ["o"], axis=3), {}),
    "Reshape": (node("Reshape", ["i", "target"], ["o"]), {"target": np.array([0, 2, 2, -1])}),
    "Reshape across": (node("Reshape", ["i", "target"], ["o"]), {"target": np.array([-1, 9])}),
    "Unsqueeze": (node("Unsqueeze", ["i", "target"], ["o"]), {"target": np.array([1, -1])}),
    "Transpose": (node("Transpose", ["i"], ["o"], perm=[0, 2, 3, 1]), {}),
    "Transpose all": (node("Transpose", ["i"], ["o"]), {}),
    "Softmax": (node("Softmax", ["i"], ["o"], axis=1), {}),
    "ReduceMean": (node("ReduceMean", ["i"], ["o"], axes=[2, 3]), {}),
    "ReduceMax of channels": (node("ReduceMax", ["i"], ["o"], axes=[1], keepdims=0), {}),
    "ReduceSum": (node("ReduceSum", ["i", "target"], ["o"], keepdims=0), {"target": np.array([0, -1])}),
    "Slice": (
        node("Slice", ["i", "begin", "end", "target"], ["o"]),
        {"begin": np.array([1]), "end": np.array([3]), "target": np.array([1])},
    ),
    "Slice of rows": (
        node("Slice", ["i", "begin", "end", "target", "step"], ["o"]),
        {"begin": np.array([-1]), "end": np.array([-9]), "target": np.array([-1]), "step": np.array([-2])},
    ),
    "Pad": (node("Pad", ["i", "target"], ["o"]), {"target": np.array([0, 0, 1, 2, 0, 0, 0, 1])}),
    "Pad of channels": (node("Pad", ["i", "target"], ["o"]), {"target": np.array([0, 1, 0, 0, 0, 0, 0, 0])}),
    "Resize": (
        node("Resize", ["i", "", "scales"], ["o"], mode="nearest"),
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
}


def _weights(case: str, seed: int) -> Weights:
    """All constants that a case may read; those that define the node are the same for every seed."""
    constants = {
        **_norm(seed), "wide": _size(seed, 6), "image": weight(4, 6, 6, seed=seed), "number": weight(1, seed=seed),
        "channels": weight(4, 1, 1, seed=seed), "fixed": weight(2, 2, 6, 6, seed=seed), "low": np.float32(-0.5),
        "high": np.float32(0.6), "w": weight(4, 4, 3, 3, seed=seed), **CASES[case][1],
    }  # fmt: skip
    return {name: np.asarray(value) for name, value in constants.items()}


@pytest.mark.parametrize("differ", [True, False], ids=["own weights", "same weights"])
@pytest.mark.parametrize("behind", [True, False], ids=["behind groups", "alone"])
@pytest.mark.parametrize("case", CASES)
def test_one_node_replaces_those_of_all_models(case: str, behind: bool, differ: bool) -> None:
    """After convolutions of different weights, which are joined along the channels, or on the models' inputs."""
    own = CASES[case][0]
    first = [node("Conv", ["x", "w"], ["i"], pads=[1] * 4)] if behind else []
    source = {"x": [2, 4, 6, 6]} if behind else {"i": [2, 4, 6, 6]}
    inputs = {**source, **({"x4": [2, 4, 6, 6]} if "x4" in own.input else {})}
    read = {name for each in (*first, own) for name in each.input}

    def weights(seed: int) -> Weights:
        found = _weights(case, seed if differ else 0)
        fixed = {"w": _weights(case, seed)["w"]}
        return {name: value for name, value in {**found, **fixed}.items() if name in read}

    found = batch(variants([*first, own], inputs, ["o"], weights))
    expected = {own.op_type} | ({"Conv"} if behind else set())
    if own.op_type in ("Flatten", "Unsqueeze"):
        expected.discard(own.op_type)
    assert all(found.types[each] == 1 for each in expected - {"Concat", "Reshape", "Transpose"})
    assert found.types["Split"] == 1 + (own.op_type == "Split")
    assert found.types["Conv"] == int(behind)


@pytest.mark.parametrize("sizes", [None, [1, 3], [2, 2]])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("axis", [1, -1])
def test_splits_inside_the_models_are_batched(sizes: list[int] | None, behind: bool, axis: int) -> None:
    first = [node("Conv", ["x", "w"], ["i"], pads=[1] * 4)] if behind else []
    inputs = {"x": [2, 4, 6, 4]} if behind else {"i": [2, 4, 6, 4]}
    cut = node("Split", ["i", "sizes"] if sizes else ["i"], ["a", "b"], axis=axis)
    constants = {"sizes": np.array(sizes)} if sizes else {}
    nodes = [*first, cut, node("Relu", ["a"], ["o"]), node("Neg", ["b"], ["p"])]
    found = batch(
        variants(
            nodes, inputs, ["o", "p"],
            lambda seed: {**constants, **({"w": weight(4, 4, 3, 3, seed=seed)} if behind else {})},
            opset=13,
        )
    )  # fmt: skip
    assert (found.types["Relu"], found.types["Neg"], found.types["Split"]) == (1, 1, 3)


def test_a_channel_gate_scales_the_image_of_its_model() -> None:
    """Squeeze and excitation: the gate has extent 1 along rows and columns, and the members' channels."""
    nodes = [
        node("Conv", ["x", "w"], ["i"], pads=[1] * 4),
        node("GlobalAveragePool", ["i"], ["m"]),
        node("Conv", ["m", "v"], ["g"]),
        node("Sigmoid", ["g"], ["s"]),
        node("Mul", ["i", "s"], ["o"]),
    ]
    found = batch(
        variants(
            nodes, {"x": [2, 4, 6, 6]}, ["o"],
            lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), "v": weight(4, 4, 1, 1, seed=seed)},
        )
    )  # fmt: skip
    assert found.types == {"Concat": 1, "Conv": 2, "GlobalAveragePool": 1, "Sigmoid": 1, "Mul": 1, "Split": 1}


def test_a_mask_broadcast_over_the_channels_is_joined_along_the_batch() -> None:
    nodes = [node("ReduceMax", ["x"], ["m"], axes=[1]), node("Mul", ["m", "x"], ["o"])]
    found = batch(variants(nodes, {"x": [2, 4, 6, 6]}, ["o"], lambda _: {}))
    assert (found.types["Mul"], found.types["ReduceMax"], found.types["Transpose"]) == (1, 1, 0)


@pytest.mark.parametrize(("opset", "sizes"), [(9, "Upsample"), (11, "Softmax"), (12, "Split")])
def test_operators_of_older_opsets_are_batched(opset: int, sizes: str) -> None:
    own = {
        "Upsample": node("Upsample", ["i", "scales"], ["o"]),
        "Softmax": node("Softmax", ["i"], ["o"], axis=2),
        "Split": node("Split", ["i"], ["o", "p"], axis=1, split=[1, 3]),
    }[sizes]
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)} if sizes == "Upsample" else {}
    nodes = [node("Conv", ["x", "w"], ["i"], pads=[1] * 4), own]
    found = batch(
        variants(
            nodes, {"x": [2, 4, 6, 6]}, list(own.output),
            lambda seed: {"w": weight(4, 4, 3, 3, seed=seed), **scales}, opset=opset,
        )
    )  # fmt: skip
    assert found.types[sizes] == (3 if sizes == "Split" else 1)


def test_max_pools_that_return_indices_are_not_batched() -> None:
    nodes = [node("MaxPool", ["x"], ["o", "p"], kernel_shape=[2, 2])]
    protos = variants(nodes, {"x": [2, 4, 6, 6]}, ["o"], lambda _: {})
    for proto in protos:
        proto.graph.output.append(helper.make_tensor_value_info("p", TensorProto.INT64, None))
    assert batch(protos).types == {"MaxPool": 3}


def _rows(table: np.ndarray, axis: int = 0) -> onnx.ModelProto:
    nodes = [
        node("Cast", ["x"], ["c"], to=TensorProto.INT64), node("Abs", ["c"], ["a"]),
        node("Gather", ["table", "a"], ["g"], axis=axis), node("Relu", ["g"], ["o"]),
    ]  # fmt: skip
    return variants(nodes, {"x": [2, 3]}, ["o"], lambda _: {"table": table}, 1)[0]


@pytest.mark.parametrize("axis", [0, 1])
def test_members_with_the_same_table_gather_together(axis: int) -> None:
    """The third member has another table."""
    found = batch([_rows(weight(9, 9, seed=seed), axis) for seed in (0, 0, 1)])
    assert (found.types["Gather"], found.types["Abs"]) == (2, 1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gathers_of_constant_rows_are_batched(axis: int) -> None:
    nodes = [node("Neg", ["x"], ["n"]), node("Gather", ["n", "rows"], ["o"], axis=axis)]
    found = batch(variants(nodes, {"x": [3, 3, 4]}, ["o"], lambda _: {"rows": np.array([[0, 2], [1, -1]])}))
    assert found.types["Gather"] == found.types["Neg"] == 1


def test_argmax_is_batched_and_counts_in_each_model() -> None:
    nodes = [node("Neg", ["x"], ["i"]), node("ArgMax", ["i"], ["a"], axis=1), node("Cast", ["a"], ["o"], to=1)]
    found = batch(variants(nodes, {"x": [2, 4, 3]}, ["o"], lambda _: {}))
    assert found.types == {"Concat": 1, "Neg": 1, "ArgMax": 1, "Cast": 1, "Split": 1}


def test_operators_of_unknown_kinds_are_not_batched() -> None:
    nodes = [node("Relu", ["x"], ["i"]), node("CumSum", ["i", "axis"], ["o"])]
    found = batch(variants(nodes, {"x": [2, 4]}, ["o"], lambda _: {"axis": np.array(1)}))
    assert found.types == {"Concat": 1, "Relu": 1, "Split": 1, "CumSum": 3}
