"""The structure depends on everything that affects a schedule, but not on weights, names and the order of nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from networks import zoo_file, zoo_model
from onnx import helper, numpy_helper
from small_models import data, proto_of, weight
from variants import renamed, retrained, shuffled

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.structure import Structure, first_difference

node = helper.make_node


def structure(proto: onnx.ModelProto, **bindings: int) -> Structure:
    return load_model(data(proto), **bindings).structure  # type: ignore[arg-type]


def names(structure: Structure) -> list[str]:
    return [operator.name for operator in structure.operators]


def cells(n: int = 2) -> onnx.ModelProto:
    """Cells as NASNet has them: separable convolutions of one value, all alike, summed in pairs and joined."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    source = "x"
    for cell in range(n):
        for branch in range(4):
            own = f"c{cell}b{branch}"
            weights |= {f"{own}d": weight(4, 1, 3, 3, seed=branch), f"{own}p": weight(4, 4, 1, 1, seed=branch)}
            nodes.append(node("Relu", [source], [f"{own}r"]))
            nodes.append(node("Conv", [f"{own}r", f"{own}d"], [f"{own}e"], group=4, pads=[1] * 4))
            nodes.append(node("Conv", [f"{own}e", f"{own}p"], [own]))
        pairs = [(f"c{cell}b0", f"c{cell}b1"), (f"c{cell}b2", f"c{cell}b3")]
        nodes += [node("Add", list(pair), [f"c{cell}s{index}"]) for index, pair in enumerate(pairs)]
        nodes.append(node("Concat", [f"c{cell}s0", f"c{cell}s1"], [f"c{cell}j"], axis=1))
        weights[f"c{cell}k"] = weight(4, 8, 1, 1)
        nodes.append(node("Conv", [f"c{cell}j", f"c{cell}k"], [f"c{cell}"]))
        source = f"c{cell}"
    return proto_of(nodes, {"x": [1, 4, 6, 6]}, [source], weights)


@pytest.mark.parametrize("seed", range(4))
def test_weights_names_and_order_do_not_count(seed: int) -> None:
    """Identical branches correspond by their place as operands, the only mapping that keeps all edges."""
    proto = cells()
    other = shuffled(renamed(retrained(proto, seed)), seed)
    there, here = structure(proto), structure(other)
    assert there.digest == here.digest
    assert first_difference(there, here) is None

    new_name = {old: new for a, b in zip(proto.graph.node, renamed(proto).graph.node, strict=True)
                for old, new in zip(a.output, b.output, strict=True)}  # fmt: skip
    assert names(here) == [new_name[name] for name in names(there)]


def test_operators_are_in_topological_order_once() -> None:
    model = load_model(data(shuffled(cells(), 5)))
    order = names(model.structure)
    assert sorted(order) == sorted(model.graph.by_name)
    for name in order:
        assert all(order.index(before) < order.index(name) for before in model.graph.predecessors[name])


def test_a_network_built_with_another_seed_has_the_same_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    first = zoo_model("squeezenet")
    monkeypatch.setattr("iosched.models.zoo.network.zlib.crc32", lambda _: 7)
    second = load_model(data(zoo.build("squeezenet")))
    assert first.digest != second.digest
    assert first.structure == second.structure


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception_v3", "nasnet_a", "randwire", "densenet121"])
def test_renamed_and_reordered_networks_have_the_same_structure(name: str) -> None:
    proto = onnx.load(zoo_file(name))
    assert structure(shuffled(renamed(proto), 1)).digest == zoo_model(name).structure.digest


def head(**changed: object) -> onnx.ModelProto:
    """A convolution with Clip, then a Slice, a Reshape and a product."""
    given: dict[str, object] = {
        "strides": [1, 1], "clip": [0.0, 6.0], "starts": [0], "ends": [4], "shape": [1, 256], "kernel": 3,
        "product": "MatMul", "opset": 17,
    } | changed  # fmt: skip
    kernel = given["kernel"]
    assert isinstance(kernel, int)
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[kernel // 2] * 4, strides=given["strides"]),
        node("Clip", ["c", "low", "high"], ["k"]),
        node("Slice", ["k", "starts", "ends", "axes"], ["s"]),
        node("Reshape", ["s", "shape"], ["r"]),
        node(str(given["product"]), ["r", "m"], ["y"]),
    ]
    low, high = np.asarray(given["clip"], np.float32)
    weights = {
        "w": weight(8, 3, kernel, kernel), "low": np.array(low), "high": np.array(high), "axes": np.array([1]),
        "starts": np.array(given["starts"]), "ends": np.array(given["ends"]), "shape": np.array(given["shape"]),
        "m": weight(256, 10) if given["shape"] == [1, 256] else weight(128, 10),
    }  # fmt: skip
    return proto_of(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights, opset=int(str(given["opset"])))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strides": [2, 2], "shape": [1, 64]}, "operator 'k': expected strides (1, 1) of its Conv, found (2, 2)"),
        ({"kernel": 1}, "operator 'k': expected float32 8x3x3x3 as input 1 of its Conv, found float32 8x3x1x1"),
        ({"clip": [0.0, 4.0]}, "operator 'k': expected float32 scalar = 6.0 as input 2 of its Clip"),
        ({"starts": [4], "ends": [8]}, "operator 's': expected int64 1 = (0,) as input 1, found int64 1 = (4,)"),
        ({"shape": [2, 128]}, "operator 'r': expected int64 2 = (1, 256) as input 1, found int64 2 = (2, 128)"),
        ({"product": "Gemm"}, "operator 'y': expected MatMul, found Gemm"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_shapes_and_attributes_count_and_are_named(changed: dict[str, object], words: str) -> None:
    proto = head(**changed)
    if changed.get("shape") == [1, 64]:
        proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(weight(64, 10), "m"))
    there, here = structure(head()), structure(proto)
    assert words in (first_difference(there, here) or "")
    assert first_difference(here, there) is not None
    assert there.digest != here.digest


def test_a_difference_names_the_operator_in_both_models() -> None:
    difference = first_difference(structure(head()), structure(renamed(head(starts=[4], ends=[8]))))
    assert difference is not None
    assert difference.startswith("operator 's' ('t")
    assert difference.endswith("in this model): expected int64 1 = (0,) as input 1, found int64 1 = (4,)")


def test_the_shape_of_an_input_counts_and_is_named() -> None:
    there, here = structure(cells()), structure(cells(), batch_size=2)
    assert first_difference(there, here) == "input 'x': expected float32 1x4x6x6, found float32 2x4x6x6"


def wired(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> Structure:
    return structure(proto_of(list(nodes), {"a": [2, 3], "b": [2, 3]}, outputs))


def test_wiring_counts() -> None:
    first, second = node("Tanh", ["a"], ["t"]), node("Exp", ["b"], ["e"])
    both = wired(first, second, node("Sub", ["t", "e"], ["y"]))
    assert wired(second, first, node("Sub", ["t", "e"], ["y"])) == both
    assert first_difference(both, wired(first, second, node("Sub", ["e", "t"], ["y"]))) is not None
    once = wired(first, node("Tanh", ["t"], ["u"]), node("Sub", ["t", "u"], ["y"]))
    twice = wired(first, node("Tanh", ["t"], ["u"]), node("Sub", ["u", "u"], ["y"]))
    assert "operator 'y': expected Sub" not in (first_difference(once, twice) or "")
    assert first_difference(once, twice) is not None


def test_graph_outputs_count() -> None:
    nodes = node("Tanh", ["a"], ["t"]), node("Exp", ["t"], ["y"])
    one, two = wired(*nodes), wired(*nodes, outputs=("y", "t"))
    assert one.digest != two.digest
    assert first_difference(one, two) is not None


def test_one_tensor_read_twice_differs_from_two_that_are_alike() -> None:
    def joined(second: str) -> Structure:
        nodes = [node("Relu", ["a"], ["p"]), node("Relu", ["a"], ["q"]), node("Sub", ["p", second], ["y"])]
        return wired(*nodes, outputs=("y", "q"))

    assert first_difference(joined("q"), joined("p")) is not None


def test_unread_inputs_count_by_type_and_shape() -> None:
    def fed(**inputs: list[int]) -> Structure:
        return structure(proto_of([node("Relu", ["x"], ["y"])], {"x": [3], **inputs}, ["y"]))

    assert fed(u=[2], v=[4]).digest == fed(p=[4], q=[2]).digest
    assert fed(u=[2]).digest != fed(u=[4]).digest
    assert first_difference(fed(u=[2]), fed()) == "expected 2 inputs, found 1"


def quantized(zero: int, bias: int) -> onnx.ModelProto:
    scale, point = np.array(0.1, np.float32), np.array(zero, np.uint8)
    inputs = ["q", "s", "z", "w", "s", "z", "s", "z", "b"]
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", inputs, ["c"]),
        node("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    weights = {"s": scale, "z": point, "w": np.full((2, 3, 1, 1), bias, np.uint8), "b": np.full(2, bias, np.int32)}
    return proto_of(nodes, {"x": [1, 3, 4, 4]}, ["y"], weights)


def test_quantized_weights_do_not_count() -> None:
    assert structure(quantized(3, 5)).digest == structure(quantized(8, 9)).digest


def table(rows: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    places = rows(np.arange(40))
    return proto_of([node("Gather", ["x", "i"], ["y"], axis=0)], {"x": [64, 3]}, ["y"], {"i": places})


def test_a_long_table_of_indices_counts() -> None:
    assert structure(table(np.sort)).digest == structure(table(np.array)).digest
    assert structure(table(np.sort)).digest != structure(table(np.flip)).digest


def test_opsets_count_only_where_they_change_an_operator() -> None:
    assert structure(head(opset=17)).digest == structure(head(opset=18)).digest

    def softmax(opset: int) -> Structure:
        return structure(proto_of([node("Softmax", ["x"], ["y"], axis=1)], {"x": [2, 3, 4]}, ["y"], opset=opset))

    assert first_difference(softmax(11), softmax(13)) == "operator 'y': expected Softmax of opset 11, found opset 13"


@pytest.mark.slow
def test_deep_and_wide_graphs_are_walked_without_recursion() -> None:
    """A long chain, and every node of it read again at its end."""
    n = 3000
    nodes = [node("Tanh", ["x" if index == 0 else f"t{index - 1}"], [f"t{index}"]) for index in range(n)]
    nodes.append(node("Concat", [f"t{index}" for index in range(n)], ["y"], axis=0))
    found = structure(proto_of(nodes, {"x": [1]}, ["y"]))
    assert names(found) == [*(f"t{index}" for index in range(n)), "y"]
    assert found.operators[-1].reads == tuple(range(1, n + 1))
