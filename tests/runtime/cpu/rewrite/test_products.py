"""Products of one row with a constant matrix are divided among cores, in either layout of the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from lowering import check_everything
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.rewrite.products import transpose_row_weights
from iosched.runtime.cpu.split import split
from iosched.scheduler.baselines import sequential

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node
WEIGHTS = {"w": weight(40, 1000), "b": weight(1000)}


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([node("MatMul", ["x", "w"], ["y"])], 17),
        ([node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])], 17),
        ([node("Gemm", ["x", "w", "b"], ["m"], alpha=0.5), node("Relu", ["m"], ["y"])], 17),
        ([node("Gemm", ["x", "w", "b"], ["y"])], 9),
    ],
)
def test_one_row_is_split_by_results(nodes: list, opset: int) -> None:
    named = {name: WEIGHTS[name] for made in nodes for name in made.input if name in WEIGHTS}
    model = loaded(proto_of(nodes, {"x": (1, 40)}, ["y"], named, opset=opset))
    with CpuBackend(model, lanes=3) as backend:
        assert max(len(split(backend.kernels, index, 3)) for index in range(len(backend.kernels.nodes))) == 3
        tasks = backend.lower(sequential(backend.graph)).plan.lanes
        assert all(tasks)
    check_everything(model, seeds=(0,))


@pytest.mark.parametrize(
    ("made", "shape", "opset"),
    [
        (node("MatMul", ["x", "w"], ["y"]), (2, 40), 17),  # rows are split
        (node("MatMul", ["x", "w"], ["y"]), (1, 1, 40), 17),
        (node("MatMul", ["x", "w"], ["y"]), (1, 40), 9),  # where a Gemm needs a third operand
        (node("Gemm", ["x", "w"], ["y"], transA=1), (40, 1), 17),
        (node("Gemm", ["x", "w"], ["y"], transB=1), (1, 1000), 17),  # it has this layout already
    ],
)
def test_other_products_are_left_alone(made, shape: tuple[int, ...], opset: int) -> None:
    model = loaded(proto_of([made], {"x": shape}, ["y"], {"w": WEIGHTS["w"]}, opset=opset))
    graph = build_kernel_graph(model).graph
    before = graph.to_proto()
    transpose_row_weights(graph)
    assert graph.to_proto() == before
    check_everything(model, seeds=(0,))


def test_a_matrix_with_other_readers_is_kept_in_both_layouts() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["z", "w"], ["v"])]
    model = loaded(proto_of(nodes, {"x": (1, 40), "z": (3, 40)}, ["y", "v"], {"w": WEIGHTS["w"]}))
    graph = build_kernel_graph(model).graph
    transpose_row_weights(graph)
    found = graph.weights
    assert sorted(array.shape for array in found.values()) == [(40, 1000), (1000, 40)]
    assert any(np.array_equal(array, WEIGHTS["w"].T) for array in found.values())
    check_everything(model, seeds=(0,))
