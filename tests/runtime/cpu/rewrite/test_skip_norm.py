"""A sum and its normalization that onnxruntime fuses into a slow kernel become two nodes again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from lowering import check_everything
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.models.node_attributes import number
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import build_kernel_graph

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
FUSED, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
SHAPE = (1, 6, 8)
WEIGHTS = {"scale": weight(8), "shift": weight(8, seed=1), "bias": weight(8, seed=2)}


def kinds(model: Model) -> Counter[str]:
    with CpuBackend(model, lanes=2) as backend:
        return Counter(made.op_type for made in backend.kernels.nodes)


def with_kernel(kind: str, operands: list[str], results: list[str], shape: tuple[int, ...] = SHAPE, **more) -> Model:
    """A model that has the kernel already, as onnxruntime's tool for transformers writes it."""
    made = node(kind, operands, ["n", *results[1:]], domain="com.microsoft", **more)
    nodes = [node("Sin", ["x"], ["a"]), made, node("Sin", ["n"], [results[0]])]
    inputs = {"x": shape, **({"s": shape} if "s" in operands else {})}
    weights = {name: WEIGHTS[name] for name in operands if name in WEIGHTS}
    proto = proto_of(nodes, inputs, [name for name in results if name], weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return loaded(proto)


def test_fused_skip_normalization_becomes_two_nodes() -> None:
    nodes = [
        node("Add", ["x", "s"], ["t"]),
        node("LayerNormalization", ["t", "scale", "shift"], ["n"]),
        node("Sin", ["n"], ["y"]),
    ]
    weights = {name: WEIGHTS[name] for name in ("scale", "shift")}
    model = loaded(proto_of(nodes, {"x": SHAPE, "s": SHAPE}, ["y"], weights))
    joined = Counter(made.op_type for made in build_kernel_graph(model).nodes)
    assert joined[FUSED] == 1, "onnxruntime no longer fuses it: the rewrite is obsolete"
    assert kinds(model) == {"Add": 1, "LayerNormalization": 1, "Sin": 1}
    check_everything(model, seeds=(0,))


@pytest.mark.parametrize(
    ("kind", "operands", "sums"),
    [
        (FUSED, ["a", "s", "scale"], 1),
        (FUSED, ["a", "s", "scale", "shift"], 1),
        (FUSED, ["a", "s", "scale", "shift", "bias"], 2),
        (FUSED, ["a", "s", "scale", "", "bias"], 2),
        (SIMPLE, ["a", "s", "scale"], 1),
        (SIMPLE, ["a", "s", "scale", "bias"], 2),
        (FUSED, ["a", "a", "scale"], 1),
    ],
)
@pytest.mark.parametrize("shape", [SHAPE, (6, 8)])
def test_fused_kernels_in_a_model_are_split(kind: str, operands: list[str], sums: int, shape: tuple[int, ...]) -> None:
    model = with_kernel(kind, operands, ["y"], shape, epsilon=0.25)
    found = kinds(model)
    assert (found[kind], found["Add"], found[kind.replace("Skip", "")]) == (0, sums, 1)
    check_everything(model, seeds=(0,))


def test_the_sum_may_be_read_by_others() -> None:
    """As in a decoder that normalizes before attention and adds again after it."""
    model = with_kernel(FUSED, ["a", "s", "scale", "shift", "bias"], ["y", "", "", "sum"])
    assert kinds(model)[FUSED] == 0
    check_everything(model, seeds=(0,))


def test_the_default_epsilon_is_that_of_the_fused_kernel() -> None:
    """The defaults of the two kernels differ, which shows on a row of nearly equal numbers."""
    with CpuBackend(with_kernel(FUSED, ["a", "s", "scale"], ["y"]), lanes=2) as backend:
        (made,) = [each for each in backend.kernels.nodes if each.op_type == "LayerNormalization"]
    assert number(made, "epsilon") == pytest.approx(1e-12)


def test_numbers_of_another_type_are_left_to_onnxruntime() -> None:
    made = node(FUSED, ["x", "s", "scale"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [made],
        "halves",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, SHAPE) for name in "xs"],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, SHAPE)],
        [onnx.numpy_helper.from_array(WEIGHTS["scale"].astype(np.float16), "scale")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = loaded(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert kinds(model)[FUSED] == 1
    check_everything(model, seeds=(0,))
