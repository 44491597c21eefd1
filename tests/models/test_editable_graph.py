"""After any edits, the tables of a graph equal those of a new graph of its nodes."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from iosched.models.editable_graph import EditableGraph, bare_frame, node_name
from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.wiring import reads, writes


def _proto(nodes: list[onnx.NodeProto], outputs: tuple[str, ...] = ()) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", *outputs)]
    return helper.make_model(helper.make_graph(nodes, "graph", values[:1], values[1:]))


def _graph(*nodes: tuple[str, str], outputs: tuple[str, ...] = ("c",), weights: tuple[str, ...] = ()) -> EditableGraph:
    """Nodes as (inputs, outputs), where each letter is a tensor and x is the input."""
    protos = [helper.make_node("Sum", [*read], [*made]) for read, made in nodes]
    graph = EditableGraph.of(_proto(protos, outputs), {name: np.ones(2, np.float32) for name in weights})
    made = ["x", *(name for node in protos for name in node.output)]
    graph.tensors = {name: TensorSpec(name, "float32", (2,)) for name in made}
    return graph


def _wiring(graph: EditableGraph) -> list[tuple[str, str]]:
    return [("".join(node.input), "".join(node.output)) for node in graph.nodes]


def _check_tables(graph: EditableGraph) -> None:
    nodes = graph.nodes
    uses = Counter(name for node in nodes for name in reads(node)) + Counter([*graph.outputs])
    made = {name: node for node in nodes for name in writes(node)}
    assert graph.unread == made.keys() - {name for node in nodes for name in reads(node)}
    assert graph.missing == uses.keys() - made.keys() - graph.inputs.keys() - graph.weights.keys()
    for name in {*uses, *made, "nobody"}:
        assert graph.uses(name) == uses[name]
        assert graph.producer(name) is made.get(name)
        assert {node_name(node) for node in graph.consumers(name)} == {
            node_name(node) for node in nodes if name in reads(node)
        }
    assert all(graph.node(node_name(node)) is node for node in nodes)


@given(st.integers(0, 10_000))
def test_tables_follow_every_edit(seed: int) -> None:
    random = Random(seed)
    graph = EditableGraph.of(_proto([helper.make_node("Sum", ["x"], ["t0"])]), {})
    for number in range(1, 25):
        names = [node_name(node) for node in graph.nodes]
        read = random.choices(["x", *(name for node in graph.nodes for name in node.output)], k=2)
        new = helper.make_node("Sum", read, [f"t{number}", f"s{number}"][: random.randint(1, 2)])
        name = random.choice(names) if names else ""
        match random.randint(0, 7) if names else 0:
            case 0 | 1:
                graph.append(new)
            case 2:
                graph.insert_before(name, new)
            case 3:
                graph.insert_after(name, new)
            case 4:
                graph.replace(random.sample(names, min(len(names), random.randint(1, 3))), new)
            case 5:
                graph.set_inputs(name, read)
            case 6:
                graph.replace_all_uses(name, read[0])
            case 7:
                graph.rename(name, f"r{number}")
        _check_tables(graph)
    copied = graph.copy()
    copied.remove(*(node_name(node) for node in copied.nodes))
    assert copied.nodes == ()
    _check_tables(graph)
    graph.append(helper.make_node("Sum", ["x"], ["last"]))
    assert copied.consumers("x") == ()
    _check_tables(graph)


def test_nodes_are_inserted_at_the_given_positions() -> None:
    graph = _graph(("x", "a"), ("a", "b"), ("b", "c"))
    graph.insert_before("b", helper.make_node("Sum", ["x"], ["d"]))
    graph.insert_after("b", helper.make_node("Sum", ["d"], ["e"]))
    graph.replace({"b", "e"}, helper.make_node("Sum", ["a"], ["b"]), helper.make_node("Sum", ["d"], ["f"]))
    assert _wiring(graph) == [("x", "a"), ("x", "d"), ("a", "b"), ("d", "f"), ("b", "c")]


def test_descendants_are_found_along_all_paths() -> None:
    graph = _graph(("x", "ab"), ("b", "c"), ("ac", "d"), ("x", "e"), ("ed", "f"))
    assert graph.computed_from("a") == {*"abcdf"}
    assert graph.computed_from("f") == {"f"}
    cyclic = _graph(("b", "a"), ("a", "b"))
    assert cyclic.computed_from("a") == {"a", "b"}


def test_unread_nodes_are_dropped_with_their_weights() -> None:
    graph = _graph(("xv", "a"), ("xw", "d"), ("d", "e"), ("a", "c"), weights=("v", "w"))
    graph.drop_unread()
    assert _wiring(graph) == [("xv", "a"), ("a", "c")]
    assert [*graph.weights] == ["v"]
    assert {*graph.tensors} == {"x", "a", "c"}


def test_sorting_is_topological_and_refuses_cycles() -> None:
    graph = _graph(("b", "c"), ("x", "a"), ("a", "b"))
    graph.sort()
    assert _wiring(graph) == [("x", "a"), ("a", "b"), ("b", "c")]
    cyclic = _graph(("c", "a"), ("a", "c"))
    with pytest.raises(InvalidModelError, match="cycle"):
        cyclic.sort()


def test_one_tensor_has_one_producer_and_one_declaration() -> None:
    with pytest.raises(InvalidModelError, match="'a' is computed twice"):
        _graph(("x", "a"), ("x", "a"))
    with pytest.raises(InvalidModelError, match="output 'c' is declared twice"):
        EditableGraph.of(_proto([helper.make_node("Sum", ["x"], ["c"])], ("c", "c")), {})


def test_new_names_are_free() -> None:
    graph = _graph(("x", "a"), ("a", "c"), weights=("w",))
    assert [graph.fresh(name) for name in "xacwd"] == ["x'", "a'", "c'", "w'", "d"]
    assert graph.add_tensor("a", like="c", shape=[3]) == "a'"
    assert graph.tensors["a'"] == TensorSpec("a'", "float32", (3,))
    assert [graph.add_fresh_weight("w", np.ones(2, np.float32)) for _ in range(2)] == ["w'", "w''"]


def test_lists_of_integers_are_constants_with_free_names() -> None:
    graph = _graph(("x", "c"))
    first, second = graph.add_integers("n", (2, -1)), graph.add_integers("n", [3])
    assert (first, second) == ("n", "n'")
    assert [array.tolist() for array in graph.weights.values()] == [[2, -1], [3]]
    assert {array.dtype.name for array in graph.weights.values()} == {"int64"}


def test_a_declaration_is_dropped_when_its_shape_changes() -> None:
    graph = _graph(("x", "a"), ("a", "c"))
    graph.declared["a"] = helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])
    graph.set_shape("a", [2])
    assert [value.name for value in graph.to_proto().graph.value_info] == ["a"]
    graph.set_shape("a", [3])
    assert graph.shape("a") == (3,)
    assert not graph.to_proto().graph.value_info


def test_a_graph_does_not_change_its_model_and_converts_back_to_it() -> None:
    proto = _proto([helper.make_node("Sum", ["x", "w"], ["c"])], ("c",))
    proto.metadata_props.add(key="author", value="somebody")
    graph = EditableGraph.of(proto, {"w": np.ones(2, np.float32)})
    again = graph.to_proto()
    assert [tensor.name for tensor in again.graph.initializer] == ["w"]
    again.graph.ClearField("initializer")
    assert again == proto
    graph.set_inputs("c", ["x"])
    assert list(proto.graph.node[0].input) == ["x", "w"]


def test_a_part_is_cut_out_with_separate_inputs() -> None:
    graph = _graph(
        ("x", "a"), ("aw", "b"), ("av", "d"), ("bd", "c"), ("d", "e"), outputs=("c", "e"), weights=("v", "w")
    )
    graph.declared = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "abd"}
    graph.cut_out(["a", "d"], ["c", "nobody"])
    assert _wiring(graph) == [("aw", "b"), ("bd", "c")]
    assert ([*graph.inputs], [*graph.outputs], [*graph.weights]) == (["a", "d"], ["c"], ["w"])
    _check_tables(graph)


def test_a_frame_has_only_a_name_and_versions() -> None:
    frame = bare_frame("part", 9, [helper.make_opsetid("", 17)])
    assert (frame.graph.name, frame.ir_version, EditableGraph(frame).opset) == ("part", 9, 17)


def test_replacing_a_node_drops_its_types_and_renaming_updates_readers() -> None:
    graph = _graph(("x", "a"), ("a", "b"), ("b", "c"))
    graph.replace("a", helper.make_node("Sum", ["x"], ["d"]))
    graph.set_inputs("b", ["d"])
    assert "a" not in graph.tensors
    graph.rename("b", "e")
    assert _wiring(graph) == [("x", "d"), ("d", "e"), ("e", "c")]
    graph.tensors["f"] = graph.tensors["x"]
    assert graph.fresh("f") == "f'"


def test_weights_are_read_only_and_not_inputs_and_only_computed_tensors_are_declared() -> None:
    proto = _proto([helper.make_node("Sum", ["x"], ["c"])], ("c",))
    proto.graph.value_info.append(helper.make_tensor_value_info("nobody", TensorProto.FLOAT, [2]))
    graph = EditableGraph.of(proto, {"x": np.ones(2, np.float32)})
    assert not graph.inputs
    assert not graph.to_proto().graph.value_info
    weight = graph.weights[graph.add_weight("w", np.ones(2, np.float32))]
    assert not weight.flags.writeable
