"""Chains that scale and shift channels become one batch normalization with equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import baselines, check_schedules
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.editable_graph import EditableGraph
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.rewrite.affine_chains import join_affine

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
CHANNELS = 32
NORM = {"g": weight(CHANNELS), "b": weight(CHANNELS, seed=1), "m": weight(CHANNELS, seed=2)}
NORM["v"] = np.abs(weight(CHANNELS, seed=3)) + 0.5


def joined(model: Model) -> EditableGraph:
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    join_affine(graph)
    return graph


def kinds(model: Model) -> Counter[str]:
    """Operators after the chains were joined; the model, run in that form, still computes the same."""
    with CpuBackend(model, lanes=2) as backend:
        check_schedules(model, backend, baselines(backend.graph))
    after = joined(model)
    assert {name for made in after.nodes for name in made.output} <= set(after.tensors)
    return Counter(made.op_type for made in after.nodes)


def model_of(
    nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], outputs: Sequence[str] = ("y",), batch: int = 1
) -> Model:
    """`nodes` compute t from p, which has 32 channels, between two convolutions."""
    around = {"first": weight(CHANNELS, 3, 3, 3), "last": weight(8, CHANNELS, 1, 1), **weights}
    before = [node("Conv", ["x", "first"], ["c"]), node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2])]
    after = [node("Relu", ["t"], ["r"]), node("Conv", ["r", "last"], ["y"])]
    return loaded(proto_of([*before, *nodes, *after], {"x": (batch, 3, 7, 7)}, outputs, around))


def per_channel(seed: int = 0) -> np.ndarray:
    return weight(1, CHANNELS, 1, 1, seed=seed)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_product_and_a_sum_after_a_normalization_join_it(batch: int) -> None:
    nodes = [
        node("BatchNormalization", ["p", *"gbmv"], ["n"], epsilon=1e-3),
        node("Mul", ["n", "k"], ["q"]),
        node("Add", ["s", "q"], ["t"]),
    ]
    model = model_of(nodes, {**NORM, "k": per_channel(4), "s": per_channel(5)}, batch=batch)
    assert kinds(model) == {"Conv": 2, "MaxPool": 1, "BatchNormalization": 1, "Relu": 1}
    with CpuBackend(model, lanes=1) as backend:
        left = Counter(made.op_type for made in backend.kernels.nodes)
        assert left == {"Conv": 3, "MaxPool": 1, "ReorderOutput": 1}  # the activation is in the convolution


def test_a_product_and_a_sum_become_a_normalization() -> None:
    nodes = [node("Mul", ["p", "k"], ["q"]), node("Add", ["q", "s"], ["t"])]
    assert kinds(model_of(nodes, {"k": per_channel(), "s": per_channel(1)}))["BatchNormalization"] == 1


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_a_single_product_or_sum_becomes_a_normalization(op: str) -> None:
    assert kinds(model_of([node(op, ["k", "p"], ["t"])], {"k": per_channel()}))["BatchNormalization"] == 1


def test_scalars_join_a_chain_but_do_not_make_one() -> None:
    half, three = np.float32(0.5).reshape(()), np.full((1,), 3, np.float32)
    nodes = [node("Mul", ["p", "half"], ["q"]), node("Add", ["q", "three"], ["t"])]
    assert kinds(model_of(nodes, {"half": half, "three": three}))["BatchNormalization"] == 0
    nodes.insert(1, node("Mul", ["q", "k"], ["q2"]))
    nodes[2].input[0] = "q2"
    found = kinds(model_of(nodes, {"half": half, "three": three, "k": per_channel()}))
    assert (found["BatchNormalization"], found["Mul"], found["Add"]) == (1, 0, 0)


def test_a_value_that_others_read_is_kept() -> None:
    nodes = [node("Mul", ["p", "k"], ["q"]), node("Add", ["q", "s"], ["u"]), node("Add", ["u", "q"], ["t"])]
    model = model_of(nodes, {"k": per_channel(), "s": per_channel(1)})
    assert kinds(model) == {"Conv": 2, "MaxPool": 1, "BatchNormalization": 2, "Add": 1, "Relu": 1}


def test_a_graph_output_in_a_chain_is_kept() -> None:
    nodes = [node("Mul", ["p", "k"], ["q"]), node("Add", ["q", "s"], ["t"])]
    model = model_of(nodes, {"k": per_channel(), "s": per_channel(1)}, outputs=("y", "q"))
    assert kinds(model)["BatchNormalization"] == 2


def test_a_chain_after_a_convolution_is_folded_into_it() -> None:
    nodes = [node("Conv", ["p", "w"], ["u"]), node("Mul", ["u", "k"], ["q"]), node("Add", ["q", "s"], ["t"])]
    weights = {"w": weight(CHANNELS, CHANNELS, 1, 1), "k": per_channel(), "s": per_channel(1)}
    model = model_of(nodes, weights)
    kinds(model)
    with CpuBackend(model, lanes=1) as backend:
        assert Counter(made.op_type for made in backend.kernels.nodes)["Conv"] == 3


@pytest.mark.parametrize("shape", [(1, CHANNELS, 4, 4), (1, CHANNELS, 1, 4), (1, 1, 4, 4)])
def test_other_constants_are_left_alone(shape: tuple[int, ...]) -> None:
    model = model_of([node("Mul", ["p", "k"], ["q"]), node("Add", ["q", "q"], ["t"])], {"k": weight(*shape)})
    assert kinds(model)["BatchNormalization"] == 0
    assert joined(model).to_proto() == model.proto


def image_last(steps: Sequence[str], batch: int = 1, *, outputs: Sequence[str] = ("y",)) -> Model:
    """Images with channels last, scaled and shifted as exported networks do it, and then a convolution."""
    weights = {"w": weight(16, 3, 3, 3)}
    nodes, last = [], "x"
    for index, step in enumerate(steps):
        op, kind = step.split("-")
        values = np.abs(weight(3, seed=index)) + 0.5
        weights[f"k{index}"] = {
            "one": values[:1].reshape(()), "last": values, "full": values.reshape(1, 1, 1, 3), "left": values,
        }[kind]  # fmt: skip
        names = [f"k{index}", last] if kind == "left" else [last, f"k{index}"]
        last = f"s{index}"
        nodes.append(node(op, names, [last]))
    nodes += [node("Transpose", [last], ["t"], perm=[0, 3, 1, 2]), node("Conv", ["t", "w"], ["y"])]
    return loaded(proto_of(nodes, {"x": (batch, 5, 6, 3)}, outputs, weights))


@pytest.mark.parametrize("batch", [1, 2])
def test_images_with_channels_last_are_scaled_after_the_transpose(batch: int) -> None:
    model = image_last(["Mul-one", "Add-full", "Mul-last"], batch)
    assert kinds(model) == {"Transpose": 1, "BatchNormalization": 1, "Conv": 1}
    assert joined(model).nodes[0].op_type == "Transpose"


def test_a_scaled_image_that_is_a_graph_output_is_unchanged() -> None:
    model = image_last(["Mul-one", "Add-full"], outputs=("y", "s1"))
    assert joined(model).to_proto() == model.proto


STEPS = st.sampled_from(
    [f"{op}-{kind}" for op in ("Add", "Sub", "Mul", "Div") for kind in ("one", "last", "full", "left")]
)


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=1, max_size=5), batch=st.integers(1, 2))
def test_any_chain_before_a_transpose(steps: list[str], batch: int) -> None:
    model = image_last(steps, batch)
    assert kinds(model)["Transpose"] == 1
    assert joined(model).nodes[0].op_type == "Transpose"


@pytest.mark.slow
@given(steps=st.lists(st.tuples(st.sampled_from(["Mul", "Add", "norm", "one", "twice"]), st.booleans()),
                      min_size=1, max_size=6))  # fmt: skip
def test_any_chain_of_channels(steps: list[tuple[str, bool]]) -> None:
    """`twice` adds a value to itself, which ends a chain."""
    weights, nodes, last = dict(NORM), [], "p"
    for index, (kind, left) in enumerate(steps):
        constant, result = f"k{index}", "t" if index == len(steps) - 1 else f"s{index}"
        weights[constant] = np.full((1,), 0.7, np.float32) if kind == "one" else per_channel(index)
        inputs = {"norm": [last, *"gbmv"], "twice": [last, last]}.get(
            kind, [constant, last] if left else [last, constant]
        )
        op = {"norm": "BatchNormalization", "one": "Mul", "twice": "Add"}.get(kind, kind)
        nodes.append(node(op, inputs, [result]))
        last = result
    kinds(model_of(nodes, {name: value for name, value in weights.items() if any(name in n.input for n in nodes)}))
