"""onnxruntime writes the nodes of one graph in several orders, and names tensors by them: we have one order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import zoo_model
from onnx import helper
from small_models import branches

from iosched.models.load import load_model
from iosched.models.wiring import reads, writes
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.optimized import build_kernel_graph, in_one_order

NETWORKS = ("squeezenet", pytest.param("inception_v3", marks=pytest.mark.slow))


@cache
def optimized(network: str) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
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
    """What the nodes are and which of them read which, whatever their tensors are called."""
    place = {name: (index, number) for index, node in enumerate(nodes) for number, name in enumerate(node.output)}
    return [(node.op_type, *(place.get(name) for name in node.input)) for node in nodes]


@pytest.mark.parametrize("network", NETWORKS)
@given(seed=st.integers(0, 2**32))
def test_nodes_of_any_order_and_any_names_get_the_same_order(network: str, seed: int) -> None:
    nodes, outputs = optimized(network)
    other = renamed(shuffled(nodes, seed), outputs)
    assert shape(in_one_order(other, outputs)) == shape(in_one_order(nodes, outputs))


@pytest.mark.parametrize("network", NETWORKS)
@given(seed=st.integers(0, 2**32))
def test_the_order_is_topological_and_has_every_node_once(network: str, seed: int) -> None:
    nodes, outputs = optimized(network)
    found = in_one_order(shuffled(nodes, seed), outputs)
    assert sorted(node.output[0] for node in found) == sorted(node.output[0] for node in nodes)
    known = {name for node in nodes for name in reads(node)} - {name for node in nodes for name in writes(node)}
    for node in found:
        assert known.issuperset(reads(node))
        known |= set(writes(node))


def test_what_no_output_needs_comes_last() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["idle"]), helper.make_node("Abs", ["x"], ["y"])]
    assert [node.op_type for node in in_one_order(nodes, ["y"])] == ["Abs", "Relu"]


def test_a_model_that_is_opened_again_has_the_same_stages() -> None:
    """Each of both convolutions was the first to read the input in about half of the openings."""
    model = load_model(branches().SerializeToString(), name="branches")
    found = set()
    with ProfileDatabase(":memory:") as database:
        for _ in range(12):
            with CpuBackend(model, lanes=2) as backend:
                cost = CpuStageCost(backend, database)
                found.add(tuple(cost.operator_key(name) for name in sorted(backend.graph.by_name)))
    assert len(found) == 1
