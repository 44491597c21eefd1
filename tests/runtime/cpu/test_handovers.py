"""In the sum over all stages, the bytes that another core wrote are handed over once, to their first reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scripted import fire

from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.handovers import Spans, fresh_spans
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule, Stage, Strategy


def dense(layers: int = 4) -> Model:
    """Each layer reads all before it, joined: the same bytes are read again and again."""
    random = np.random.default_rng(0)
    nodes, weights, source, channels = [], [], "x", 16
    for layer in range(layers):
        values = random.standard_normal((16, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [source, f"w{layer}"], [f"y{layer}"], pads=[1] * 4))
        if layer > 0:
            nodes.append(helper.make_node("Concat", [source, f"y{layer}"], [f"joined{layer}"], axis=1))
        source, channels = (f"joined{layer}", channels + 16) if layer > 0 else ("y0", 16)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])
    y = helper.make_tensor_value_info(source, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "dense", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(made.SerializeToString(), name="dense")


def fresh_bytes(backend: CpuBackend, stages: Sequence[Stage]) -> list[tuple[str, int]]:
    """Each byte of an input that a stage finds fresh, once for each such stage."""
    found = []
    for stage in stages:
        compiled = backend.compile_stage(stage)
        assert compiled is not None
        spans = [(name, span) for name, each in compiled.fresh.items() for span in each]
        found += [(name, byte) for name, (begin, end) in spans for byte in range(begin, end)]
    return found


def read_bytes(backend: CpuBackend, stages: Sequence[Stage]) -> list[tuple[str, int]]:
    """Each byte of an input that a stage reads, in the order of the stages."""
    found = []
    for stage in stages:
        compiled = backend.compile_stage(stage)
        assert compiled is not None
        read = {view.buffer: set[int]() for view in compiled.executor._inputs}  # type: ignore[attr-defined]
        for unit in stage.operators:
            for index in backend.coarse.nodes[unit]:
                for name in backend.kernels.reads[index]:
                    view = backend._placement.views.get(name)
                    if view is not None and view.buffer in read and index not in backend._placement.elided:
                        read[view.buffer] |= set(range(view.offset, view.offset + view.nbytes))
        found += [(name, byte) for name, each in read.items() for byte in sorted(each)]
    return found


@pytest.mark.parametrize("model", [fire, dense])
@pytest.mark.parametrize("baseline", [sequential, greedy])
def test_each_byte_is_handed_over_once_over_all_stages_of_a_schedule(
    model: Callable[[], Model], baseline: Callable[[ComputationGraph], Schedule]
) -> None:
    with CpuBackend(model(), lanes=2) as backend:
        stages = tuple(baseline(backend.graph).stages)
        fresh, read = fresh_bytes(backend, stages), read_bytes(backend, stages)
        assert len(fresh) == len(set(fresh))
        assert set(fresh) == set(read)
        assert baseline is greedy or len(read) > len(set(read)), "otherwise no byte is read twice"


def test_the_first_stage_in_graph_order_that_reads_a_byte_finds_it_fresh() -> None:
    with CpuBackend(dense(), lanes=2) as backend:
        met: set[tuple[str, int]] = set()
        for stage in sequential(backend.graph).stages:
            read = set(read_bytes(backend, [stage]))
            assert set(fresh_bytes(backend, [stage])) == read - met
            met |= read


def test_a_tensor_is_fresh_for_its_first_reader_or_for_both_together() -> None:
    with CpuBackend(fire(), lanes=2) as backend:

        def fresh_nbytes(*groups: tuple[str, ...]) -> int:
            return len(fresh_bytes(backend, [Stage(Strategy.CONCURRENT, groups)]))

        together = fresh_nbytes(("f1",), ("f3",))
        assert together > 0
        assert sorted([fresh_nbytes(("f1",)), fresh_nbytes(("f3",))]) == [0, together]


def test_equal_operators_with_different_fresh_inputs_are_measured_separately() -> None:
    """Two equal convolutions of one tensor: the second one reads what the first one has fetched."""
    with CpuBackend(twins(), lanes=2) as backend, ProfileDatabase(":memory:") as database:
        cost = CpuStageCost(backend, database)
        assert cost.operator_key("a") != cost.operator_key("b")
        assert cost.operator_key("a2") == cost.operator_key("b2")


def twins() -> Model:
    """Two equal branches of two convolutions each."""
    edges = (("x", "a"), ("x", "b"), ("a", "a2"), ("b", "b2"))
    random = np.random.default_rng(0)
    values = {f"w{name}": random.standard_normal((16, 16, 3, 3)).astype(np.float32) for _, name in edges}
    nodes = [helper.make_node("Conv", [source, f"w{name}"], [name], pads=[1] * 4) for source, name in edges]
    weights = [numpy_helper.from_array(each, name) for name, each in values.items()]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 8, 8]) for name in ("x", "a2", "b2")]
    graph = helper.make_graph(nodes, "twins", infos[:1], infos[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(made.SerializeToString(), name="twins")


def test_fresh_spans_change_no_result_and_no_input() -> None:
    with CpuBackend(fire(), lanes=2) as backend:
        compiled = backend.compile_stage(Stage(Strategy.CONCURRENT, (("f1",), ("f3",))))
        assert compiled is not None
        before = {name: array.copy() for name, array in compiled.inputs.items()}
        expected = compiled.executor.run(compiled.inputs)
        (name,) = compiled.inputs
        far: Spans = ((-64, 128), (192, 1 << 40))
        for fresh in ({}, {name: ()}, {name: ((64, 128), (256, 300))}, {name: far}, {"nobody": ((0, 64),)}):
            assert len(compiled.executor.time(compiled.inputs, 2, flush_nbytes=1 << 16, fresh=fresh)) == 2
            assert all(np.array_equal(array, before[name]) for name, array in compiled.inputs.items())
        found = compiled.executor.run(compiled.inputs)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_nodes_without_reads_have_no_fresh_spans() -> None:
    with CpuBackend(fire(), lanes=2) as backend:
        assert fresh_spans(backend.first_reads, backend._placement, [], []) == {}
