"""The optimized graph: its blocks of channels, and one order of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import zoo_model
from onnx import TensorProto, helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from small_models import branches

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError, PlanError
from iosched.models.load import load_model
from iosched.models.wiring import reads, writes
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu import optimized
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import block_of, build_kernel_graph, in_one_order


def convolution(channels: int) -> onnx.ModelProto:
    """A separable convolution of `channels` channels."""
    weights = {"d": np.ones((channels, 1, 3, 3), np.float32), "p": np.ones((channels, channels, 1, 1), np.float32)}
    graph = make_graph(
        [
            make_node("Conv", ["x", "p"], ["a"]),
            make_node("Conv", ["a", "d"], ["b"], group=channels, pads=[1] * 4),
            make_node("Conv", ["b", "p"], ["y"]),
        ],
        "convolution",
        [make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 8, 8])],
        [make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, 8, 8])],
        [from_array(array, name) for name, array in weights.items()],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def by_onnxruntime(model: onnx.ModelProto, folder: Path, *, blocks: bool) -> onnx.ModelProto:
    """The model as onnxruntime optimizes it; without `blocks`, as on a machine without kernels for them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / f"{blocks}.onnx")
    left_out = [] if blocks else ["NchwcTransformer"]
    onnxruntime.InferenceSession(model.SerializeToString(), options, disabled_optimizers=left_out)
    return onnx.load(options.optimized_model_filepath)


def test_a_machine_without_kernels_for_blocks_has_blocks_of_one_channel(tmp_path: Path) -> None:
    assert block_of(by_onnxruntime(convolution(8), tmp_path, blocks=False)) == 1


def test_block_size_is_read_from_padded_weights(tmp_path: Path) -> None:
    made = by_onnxruntime(convolution(3), tmp_path, blocks=True)
    if not any(node.domain == "com.microsoft.nchwc" for node in made.graph.node):
        pytest.skip("onnxruntime has no kernels for blocks on this machine")
    assert block_of(made) in (8, 16)


def test_without_blocks_no_channels_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimized, "_channel_block", lambda: 1)
    made = build_kernel_graph(load_model(convolution(9).SerializeToString()))
    assert made.channel_block == 1
    assert not any("aligned" in name for name in made.graph.names)


def test_an_invalid_derived_graph_is_reported_as_a_bug_in_iosched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(convolution(9).SerializeToString())

    def broken(graph: EditableGraph) -> None:
        for node in graph.nodes:
            graph.replace(node_name(node), make_node("NoSuchOperator", node.input, node.output))

    monkeypatch.setattr(optimized, "model_rewrites", lambda block: (broken,))
    with pytest.raises(PlanError, match=r"a graph that iosched derived from this model: .*NoSuchOperator") as raised:
        build_kernel_graph(model)
    assert "This is a bug in iosched, not in the model" in str(raised.value)


def test_a_model_that_onnxruntime_refuses_is_invalid() -> None:
    relu = make_node("Relu", ["x"], ["y"])  # onnxruntime has no kernel for this type
    x, y = (make_tensor_value_info(name, TensorProto.INT16, [2]) for name in "xy")
    made = make_model(make_graph([relu], "small", [x], [y]), opset_imports=[make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InvalidModelError, match="onnxruntime cannot run this model"):
        build_kernel_graph(load_model(made.SerializeToString()))


NETWORKS = ("squeezenet", pytest.param("inception_v3", marks=pytest.mark.slow))


@cache
def optimized_nodes(network: str) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
    graph = build_kernel_graph(zoo_model(network))
    return graph.nodes, graph.outputs


def shuffled(nodes: Sequence[onnx.NodeProto], seed: int) -> list[onnx.NodeProto]:
    """The nodes in some other topological order."""
    random, left, known = Random(seed), list(nodes), set[str]()
    computed = {name for node in nodes for name in writes(node)}
    found = []
    while left:
        ready = [node for node in left if all(name in known for name in reads(node) if name in computed)]
        chosen = ready[random.randrange(len(ready))]
        left.remove(chosen)
        known |= set(writes(chosen))
        found.append(chosen)
    return found


def renamed(nodes: Sequence[onnx.NodeProto], kept: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes with tensors numbered as they come."""
    name_of = {name: name for name in ("", *kept)}
    found = []
    for node in nodes:
        copied = onnx.NodeProto.FromString(node.SerializeToString())
        for names in (copied.input, copied.output):
            names[:] = [name_of.setdefault(name, f"t{len(name_of)}") for name in names]
        found.append(copied)
    return found


def shape(nodes: Sequence[onnx.NodeProto]) -> list[tuple[object, ...]]:
    """The types of the nodes and which nodes read which, independent of tensor names."""
    place = {name: (index, number) for index, node in enumerate(nodes) for number, name in enumerate(node.output)}
    return [(node.op_type, *(place.get(name) for name in node.input)) for node in nodes]


@pytest.mark.parametrize("network", NETWORKS)
@given(seed=st.integers(0, 2**32))
def test_the_order_does_not_depend_on_node_order_or_names(network: str, seed: int) -> None:
    nodes, outputs = optimized_nodes(network)
    other = renamed(shuffled(nodes, seed), outputs)
    assert shape(in_one_order(other, outputs)) == shape(in_one_order(nodes, outputs))


@pytest.mark.parametrize("network", NETWORKS)
@given(seed=st.integers(0, 2**32))
def test_the_order_is_topological_and_has_every_node_once(network: str, seed: int) -> None:
    nodes, outputs = optimized_nodes(network)
    found = in_one_order(shuffled(nodes, seed), outputs)
    assert sorted(node.output[0] for node in found) == sorted(node.output[0] for node in nodes)
    known = {name for node in nodes for name in reads(node)} - {name for node in nodes for name in writes(node)}
    for node in found:
        assert known.issuperset(reads(node))
        known |= set(writes(node))


def test_unneeded_nodes_come_last() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["idle"]), helper.make_node("Abs", ["x"], ["y"])]
    assert [node.op_type for node in in_one_order(nodes, ["y"])] == ["Abs", "Relu"]


def test_a_model_has_the_same_operator_keys_each_time_it_is_opened() -> None:
    """Each of the two convolutions used to be the first reader in about half of the openings."""
    model = load_model(branches().SerializeToString(), name="branches")
    found = set()
    with ProfileDatabase(":memory:") as database:
        for _ in range(12):
            with CpuBackend(model, lanes=2) as backend:
                cost = CpuStageCost(backend, database)
                found.add(tuple(cost.operator_key(name) for name in sorted(backend.graph.by_name)))
    assert len(found) == 1
