"""The coarse graph: every optimized node and every operator is in one unit, and any order of units can be lowered."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowering import check_schedules, on_lanes, random_schedule
from networks import zoo_model
from onnx import helper
from small_models import fused_chain, loaded

from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.load import load_model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.ownership import CoarseGraph, coarsen
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy
from iosched.scheduler.unit_graph import Unit, unit_stages

node = helper.make_node


def graph_of(edges: dict[str, tuple[str, ...]], outputs: tuple[str, ...]) -> ComputationGraph:
    """Operators named by their outputs; all other names are inputs."""
    operators = tuple(Operator(name, name.upper(), (name,), reads, (name,)) for name, reads in edges.items())
    inputs = dict.fromkeys(n for reads in edges.values() for n in reads if n not in edges)
    specs = tuple(TensorSpec(name, "float32", (4,)) for name in inputs)
    tensors = tuple(TensorSpec(name, "float32", (4,)) for name in edges)
    return ComputationGraph("g", specs, outputs, operators, tensors)


def kernels_of(nodes: list[onnx.NodeProto], dynamic: tuple[str, ...] = ()) -> KernelGraph:
    """Optimized nodes; `x` is the input."""
    names = ["x", *(name for each in nodes for name in each.output if name)]
    tensors = {n: TensorSpec(n, "float32", None if n in dynamic else (4,)) for n in names}
    inputs, outputs = ([onnx.ValueInfoProto(name=name)] for name in ("x", nodes[-1].output[0]))
    graph = EditableGraph.of(helper.make_model(helper.make_graph(nodes, "kernels", inputs, outputs)), {}, tensors)
    return KernelGraph(graph, graph.nodes, 16)


def coarse_of(
    graph: ComputationGraph, nodes: list[onnx.NodeProto], dynamic: tuple[str, ...] = (), asked: tuple[Unit, ...] = ()
) -> CoarseGraph:
    owners = {name: operator.name for operator in graph.operators for name in operator.outputs}
    coarse = coarsen(graph, kernels_of(nodes, dynamic), owners, asked)
    check_coarse(graph, kernels_of(nodes, dynamic), coarse)
    return coarse


def check_coarse(graph: ComputationGraph, kernels: KernelGraph, coarse: CoarseGraph) -> None:
    """Units partition operators and nodes; their order is topological for the edges of both graphs."""
    place = {operator.name: index for index, operator in enumerate(coarse.units.graph.operators)}
    assert set(place) == set(coarse.units.members) == set(coarse.nodes)
    assert sorted(n for names in coarse.units.members.values() for n in names) == sorted(
        o.name for o in graph.operators
    )
    assert sorted(i for nodes in coarse.nodes.values() for i in nodes) == list(range(len(kernels.nodes)))
    unit_of = coarse.units.unit_of
    for operator in graph.operators:
        for before in graph.predecessors[operator.name]:
            assert place[unit_of[before]] <= place[unit_of[operator.name]]
    home = {index: unit for unit, nodes in coarse.nodes.items() for index in nodes}
    for index, reads in enumerate(kernels.reads):
        for name in reads:
            if name in kernels.producer and home[kernels.producer[name]] != home[index]:
                assert place[home[kernels.producer[name]]] < place[home[index]]
                assert home[kernels.producer[name]] in coarse.units.graph.predecessors[home[index]]
    for nodes in coarse.nodes.values():
        assert list(nodes) == sorted(nodes)


DIAMOND = graph_of({"a": ("x",), "b": ("a",), "c": ("a",), "d": ("b", "c")}, ("d",))


def test_without_fusion_units_are_operators() -> None:
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["a"], ["c"]), node("D", ["b", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes)
    assert [operator.name for operator in coarse.units.graph.operators] == ["a", "b", "c", "d"]
    assert coarse.nodes == {"a": (0,), "b": (1,), "c": (2,), "d": (3,)}


def test_an_operator_fused_into_its_reader_joins_the_unit_of_its_input() -> None:
    """b disappears into d; its unit is joined to what it reads."""
    nodes = [node("A", ["x"], ["a"]), node("C", ["a"], ["c"]), node("BD", ["a", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes)
    assert coarse.units.unit_of["b"] == coarse.units.unit_of["a"]
    assert len(coarse.units.graph.operators) == 3


def test_an_operator_without_a_node_joins_the_last_that_it_depends_on() -> None:
    """Joined with a, e would make a unit that comes both before and after b."""
    graph = graph_of({"a": ("x",), "b": ("a",), "e": ("a", "b"), "d": ("e",)}, ("d",))
    coarse = coarse_of(graph, [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("D", ["a", "b"], ["d"])])
    assert coarse.units.unit_of["e"] == coarse.units.unit_of["b"] != coarse.units.unit_of["a"]
    assert len(coarse.units.graph.operators) == 3


def test_an_operator_between_two_nodes_of_another_shares_its_unit() -> None:
    """The optimized nodes of b and c need each other's results, so no stage can hold one without the other."""
    nodes = [
        node("A", ["x"], ["a"]),
        node("B", ["a"], ["b_token_1"], name="b_token_1"),
        node("C", ["b_token_1"], ["c"]),
        node("B2", ["c"], ["b"]),
        node("D", ["b", "c"], ["d"]),
    ]
    coarse = coarse_of(DIAMOND, nodes)
    assert coarse.units.members["b"] == ("b", "c")
    assert coarse.nodes["b"] == (1, 2, 3)


def test_an_edge_that_only_the_optimized_nodes_have_is_kept() -> None:
    """onnxruntime lets c read b's node: c comes after b, though the model has no such edge."""
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["b"], ["c"]), node("D", ["b", "c"], ["d"])]
    assert "b" in coarse_of(DIAMOND, nodes).units.graph.predecessors["c"]


def test_a_tensor_of_unknown_size_joins_its_writer_and_reader() -> None:
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["a"], ["c"]), node("D", ["b", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes, dynamic=("b",))
    assert set(coarse.units.members[coarse.units.unit_of["b"]]) == {"b", "d"}


def test_a_requested_unit_grows_until_there_is_no_cycle() -> None:
    """b and d are one unit here, so one of a and b has d as well, and c, which lies between a and d."""
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["a"], ["c"]), node("D", ["b", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes, dynamic=("b",), asked=(("b", "a"),))
    assert list(coarse.units.members.values()) == [("a", "b", "c", "d")]


@pytest.mark.parametrize("name", ["b_nchwc", "b_token_12", "b_nchwc_token_3", "b/MatmulTransposeFusion/", "b_fused"])
def test_decorated_node_names_are_mapped_to_their_operators(name: str) -> None:
    nodes = [
        node("A", ["x"], ["a"]),
        node("C", ["a"], ["c"]),
        node("B", ["a"], ["reorder"], name=name),
        node("D", ["reorder", "c"], ["d"]),
    ]
    assert coarse_of(DIAMOND, nodes).nodes["b"] == (2,)


def test_a_node_of_unknown_origin_joins_its_producer_or_else_its_reader() -> None:
    nodes = [
        node("Cast", ["x"], ["from_input"]),
        node("A", ["from_input"], ["a"]),
        node("Transpose", ["a"], ["between"]),
        node("B", ["between"], ["b"]),
        node("C", ["a"], ["c"]),
        node("D", ["b", "c"], ["d"]),
    ]
    assert coarse_of(DIAMOND, nodes).nodes["a"] == (0, 1, 2)


@pytest.mark.parametrize("name", ["squeezenet", "light_shufflenet", "light_inception_v1", "densenet121"])
def test_networks(name: str) -> None:
    model = zoo_model(name)
    with CpuBackend(model, lanes=1) as backend:
        check_coarse(model.graph, backend.kernels, backend.coarse)
        assert len(backend.graph.operators) > len(model.graph.operators) / 2


def test_schedules_that_split_units_are_repaired() -> None:
    """Stages over the model's own operators, as another device may have chosen them."""
    model = loaded(fused_chain())
    with CpuBackend(model, lanes=2) as backend:
        assert len(backend.graph.operators) < len(model.graph.operators)
        for seed in range(12):
            schedule = random_schedule(model.graph, seed)
            stages = unit_stages(backend.coarse.units, schedule)
            units = [unit for stage in stages for unit in stage.operators]
            assert sorted(units) == sorted(backend.coarse.units.members)
            position = {unit: number for number, stage in enumerate(stages) for unit in stage.operators}
            group_of = {unit: group for stage in stages for group in stage.groups for unit in group}
            for unit in units:
                for before in backend.graph.predecessors[unit]:
                    assert position[before] <= position[unit]
                    if position[before] == position[unit]:
                        assert group_of[before] is group_of[unit]
            lanes = on_lanes(model.graph, schedule, seed)
            check_schedules(model, backend, iter([(f"seed {seed}", schedule), (f"lanes {seed}", lanes)]), seeds=(0,))


def test_units_stay_in_the_groups_that_a_schedule_put_them_in() -> None:
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["a"], ["c"]), node("D", ["b", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes)
    stages = (
        Stage(Strategy.CONCURRENT, (("a",),)),
        Stage(Strategy.CONCURRENT, (("b",), ("c",))),
        Stage(Strategy.CONCURRENT, (("d",),)),
    )
    found = unit_stages(coarse.units, Schedule((Block(0, stages),)))
    assert found == list(stages)


def test_divisions_follow_their_groups_and_are_dropped_for_other_groups() -> None:
    """Another tool may list groups in any order; b has no node, and runs with a."""
    nodes = [node("A", ["x"], ["a"]), node("B", ["a"], ["b"]), node("C", ["a"], ["c"]), node("D", ["b", "c"], ["d"])]
    swapped = Stage(Strategy.CONCURRENT, (("c",), ("b",)), division=Division(3, ((0,), (1, 2))))
    around = Stage(Strategy.CONCURRENT, (("a",),)), Stage(Strategy.CONCURRENT, (("d",),))
    schedule = Schedule((Block(0, (around[0], swapped, around[1])),))
    found = unit_stages(coarse_of(DIAMOND, nodes).units, schedule)[1]
    assert found.groups == (("b",), ("c",))
    assert found.division == Division(3, ((1, 2), (0,)))

    fewer = [node("A", ["x"], ["a"]), node("C", ["a"], ["c"]), node("D", ["a", "c"], ["d"])]
    assert {stage.division for stage in unit_stages(coarse_of(DIAMOND, fewer).units, schedule)} == {None}


def test_readers_of_a_unit_wait_for_its_last_operator() -> None:
    """b has no node and runs with a; c, placed between the two, moves after them."""
    nodes = [node("A", ["x"], ["a"]), node("C", ["a"], ["c"]), node("D", ["a", "c"], ["d"])]
    coarse = coarse_of(DIAMOND, nodes)
    stages = tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in ("a", "c", "b", "d"))
    found = unit_stages(coarse.units, Schedule((Block(0, stages),)))
    assert [stage.groups for stage in found] == [((coarse.units.unit_of["a"], "c"),), (("d",),)]


def test_readers_of_a_graph_input_do_not_wait_for_each_other() -> None:
    """onnxruntime converts the layout of `x` once for both; shared, it would chain the two convolutions."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((16, 16, 1, 1)).astype(np.float32) for name in ("wa", "wb")}
    nodes = [
        node("Conv", ["x", "wa"], ["a"], kernel_shape=[1, 1]),
        node("Conv", ["x", "wb"], ["b"], kernel_shape=[1, 1]),
        node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with CpuBackend(load_model(proto.SerializeToString())) as backend:
        assert backend.graph.predecessors["a"] == ()
        assert backend.graph.predecessors["b"] == ()
