"""Where mutators match: by type, by name, and in chains that nothing else reads from."""

from __future__ import annotations

from onnx import helper
from small_models import data, proto_of, weight

from iosched.models.load import load_model
from iosched.models.mutation.graph_view import GraphView, view_of
from iosched.models.mutation.mutator import Match, by_name, by_type, chain

node = helper.make_node


def graph() -> GraphView:
    """x - a - b - c - d, and e of b; d and e are returned, and c as well."""
    nodes = [node("Conv", ["abcde"["abcde".index(name) - 1] if name != "a" else "x", "w"], [name]) for name in "abcd"]
    nodes.append(node("Relu", ["b"], ["e"]))
    return view_of(load_model(data(proto_of(nodes, {"x": [1, 2, 3, 3]}, ["d", "e", "c"], {"w": weight(2, 2, 1, 1)}))))


def names(match: Match) -> list[str]:
    return ["".join(node.name for node in targets) for targets in match(graph())]


def test_by_type() -> None:
    assert names(by_type("Relu")) == ["e"]
    assert names(by_type("Relu", "Conv")) == ["a", "b", "c", "d", "e"]
    assert names(by_type("conv")) == []


def test_by_name() -> None:
    assert names(by_name("c")) == ["c"]
    assert names(by_name("[ad]", "e*")) == ["a", "d", "e"]


def test_chains_end_where_a_value_is_read_twice_or_returned() -> None:
    assert names(chain("Conv", "Conv")) == ["ab"]  # b is read twice, c is returned
    assert names(chain("Conv", "Relu")) == []
    assert names(chain("Conv")) == ["a", "b", "c", "d"]
    assert names(chain()) == []


def test_chains_do_not_overlap() -> None:
    nodes = [node("Relu", ["x"], ["a"]), *(node("Relu", [one], [other]) for one, other in ("ab", "bc", "cd", "de"))]
    line = view_of(load_model(data(proto_of(nodes, {"x": [2]}, ["e"]))))
    found = [[node.name for node in targets] for targets in chain("Relu", "Relu")(line)]
    assert found == [["a", "b"], ["c", "d"]]


def test_a_view_answers_how_tensors_are_connected() -> None:
    view = graph()
    node = view.nodes[0]
    assert view.producer(node.outputs[0]) == node
    assert all(node in view.consumers(tensor) for tensor in node.inputs)
    assert view.producer("x") is None
