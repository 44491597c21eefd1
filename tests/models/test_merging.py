"""Merged convolutions compute the same, are unmerged bit for bit, and unsound merges are refused."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from iosched.models.editable_graph import EditableGraph
from iosched.models.export import annotate, write_model
from iosched.models.load import load_model
from iosched.models.merging.merge import MERGED_KEY, merge_operators, to_json, unmerge
from iosched.models.model import Model

_SIZE = 9


def _network(convs: list[dict[str, object]], opset: int = 17) -> onnx.ModelProto:
    """Convolutions of one input side by side; outputs o0, o1, …"""
    random = np.random.default_rng(0)
    nodes, weights, outputs = [], [], []
    for index, conv in enumerate(convs):
        kernel, name = conv["kernel"], f"o{index}"
        shape = (conv.get("channels", 2 + index), 3, *kernel)
        weights.append(numpy_helper.from_array(random.standard_normal(shape, dtype=np.float32), f"w{index}"))
        inputs = ["x", f"w{index}"]
        if conv.get("bias", True):
            inputs.append(f"b{index}")
            weights.append(numpy_helper.from_array(random.standard_normal(shape[0], dtype=np.float32), f"b{index}"))
        activation = conv.get("activation")
        inner = f"c{index}" if activation else name
        attributes = {key: conv[key] for key in ("pads", "strides", "dilations", "auto_pad") if key in conv}
        nodes.append(helper.make_node("Conv", inputs, [inner], **attributes))
        if activation:
            nodes.append(helper.make_node(activation, [inner], [name]))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, _SIZE, _SIZE])
    graph = helper.make_graph(nodes, "g", [x], outputs, weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model)


def _run(payload: bytes) -> list[np.ndarray]:
    x = np.random.default_rng(1).standard_normal((1, 3, _SIZE, _SIZE), dtype=np.float32)
    return ort.InferenceSession(payload).run(None, {"x": x})


def _merged(model: Model, names: tuple[str, ...]) -> bytes:
    order = [operator.name for operator in model.graph.operators]
    proto = annotate(model, order=order, notes={}, merges=[names], schedule_json="{}", version="1")
    return write_model(proto, model.weights, None)


def _restored(payload: bytes) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    proto = onnx.ModelProto.FromString(payload)
    graph = EditableGraph.of(proto, {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer})
    unmerge(graph)
    return graph.to_proto(), graph.weights


def test_several_merges_are_applied_at_once_and_undone_together() -> None:
    """Each merge starts from the graph left by the one before, and none takes nodes of another."""
    kernels = [[1, 1], [3, 3], [1, 1], [3, 3], [1, 1]]
    proto = _network([{"kernel": kernel, "pads": [kernel[0] // 2] * 4, "activation": "Relu"} for kernel in kernels])
    model = load_model(proto.SerializeToString(), name="model")
    names = [operator.name for operator in model.graph.operators]
    pairs = [(names[0], names[1]), (names[2], names[3])]
    merged = annotate(model, order=names, notes={}, merges=pairs, schedule_json="{}", version="1")
    payload = write_model(merged, model.weights, None)
    assert sum(node.op_type == "Conv" for node in merged.graph.node) == 3
    for ours, theirs in zip(_run(payload), _run(proto.SerializeToString()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    restored, weights = _restored(payload)
    by_output = {node.output[0]: node for node in restored.graph.node}
    assert {name: by_output[name] for name in by_output} == {node.output[0]: node for node in model.proto.graph.node}
    for name, array in model.weights.items():
        np.testing.assert_array_equal(weights[name], array)


@st.composite
def _mergeable(draw: st.DrawFn) -> list[dict[str, object]]:
    """Convolutions that satisfy the rule: all pads follow from one common slack, per side."""
    dilation = draw(st.integers(1, 2))
    stride = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    parity = [draw(st.integers(0, 1)), draw(st.integers(0, 1))]
    slack = [draw(st.integers(0, 1)) for _ in range(4)]
    activation = draw(st.sampled_from([None, "Relu", "Sigmoid"]))
    convs = []
    for _ in range(draw(st.integers(2, 3))):
        half = [draw(st.integers(0, 1)), draw(st.integers(0, 1))]
        pads = [dilation * half[axis % 2] + slack[axis] for axis in range(4)]
        kernel = [2 * h + 2 - p for h, p in zip(half, parity, strict=True)]
        convs.append(
            {
                "kernel": kernel, "pads": pads, "strides": stride, "dilations": [dilation, dilation],
                "bias": draw(st.booleans()), "activation": activation, "channels": draw(st.integers(1, 4)),
            }
        )  # fmt: skip
    return convs


@given(_mergeable())
def test_merged_model_computes_the_same_and_is_restored_bit_for_bit(convs: list[dict[str, object]]) -> None:
    original = _network(convs)
    model = load_model(original.SerializeToString())
    payload = _merged(model, tuple(f"o{index}" for index in range(len(convs))))
    merged = onnx.ModelProto.FromString(payload)
    onnx.checker.check_model(merged, full_check=True)
    assert [node.op_type for node in merged.graph.node].count("Conv") == 1
    for got, want in zip(_run(payload), _run(original.SerializeToString()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    restored, weights = _restored(payload)
    assert {name: array.tobytes() for name, array in weights.items()} == {
        name: array.tobytes() for name, array in model.weights.items()
    }
    del restored.graph.initializer[:]
    restored.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    assert load_model(restored.SerializeToString()).digest == model.digest


@pytest.mark.parametrize("opset", [11, 17])
def test_split_is_written_as_the_opset_wants_it(opset: int) -> None:
    convs = [{"kernel": [1, 1]}, {"kernel": [3, 3], "pads": [1] * 4}]
    original = _network(convs, opset)
    payload = _merged(load_model(original.SerializeToString()), ("o0", "o1"))
    assert onnx.ModelProto.FromString(payload).opset_import[0].version == opset
    for got, want in zip(_run(payload), _run(original.SerializeToString()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


_PLAIN = {"kernel": [3, 3], "pads": [1] * 4}


@pytest.mark.parametrize(
    ("convs", "reason"),
    [
        # Equal output sizes on even images, and wrong numbers if stacked.
        ([_PLAIN | {"strides": [2, 2]}, {"kernel": [2, 2], "strides": [2, 2]}], "centred"),
        ([_PLAIN, {"kernel": [1, 1], "pads": [1, 0, 0, 1]}], "centred"),
        ([_PLAIN, {"kernel": [3, 3]}], "centred"),
        ([{"kernel": [3, 3]}, {"kernel": [2, 2]}], "centred"),
        ([_PLAIN, _PLAIN | {"strides": [2, 2]}], "stride"),
        ([_PLAIN, _PLAIN | {"dilations": [2, 2]}], "dilation"),
        ([_PLAIN, _PLAIN | {"activation": "Relu"}], "activation"),
        ([_PLAIN | {"activation": "Tanh"}, _PLAIN | {"activation": "Relu"}], "activation"),
    ],
)
def test_unsound_merges_are_refused_with_the_reason(convs: list[dict[str, object]], reason: str) -> None:
    model = load_model(_network(convs).SerializeToString())
    with pytest.raises(ValueError, match=reason):
        _merged(model, ("o0", "o1"))


def test_one_convolution_is_no_merge() -> None:
    model = load_model(_network([_PLAIN, _PLAIN]).SerializeToString())
    with pytest.raises(ValueError, match="two different operators"):
        _merged(model, ("o0", "o0"))


def test_a_refused_merge_changes_nothing() -> None:
    model = load_model(_network([_PLAIN, {"kernel": [3, 3]}]).SerializeToString())
    graph = EditableGraph.of(model.proto, model.weights)
    with pytest.raises(ValueError, match="centred"):
        merge_operators(graph, model.graph.operators)
    assert graph.to_proto() == model.proto
    assert graph.weights.keys() == model.weights.keys()


def _with_metadata(text: str) -> tuple[onnx.ModelProto, bytes]:
    """A merged model whose metadata says `text`."""
    convs = [{"kernel": [1, 1], "activation": "Relu"}, _PLAIN | {"activation": "Relu"}]
    proto = onnx.ModelProto.FromString(_merged(load_model(_network(convs).SerializeToString()), ("o0", "o1")))
    for item in proto.metadata_props:
        if item.key == MERGED_KEY:
            item.value = text or item.value
    return proto, proto.SerializeToString()


def _edited(change: dict[str, object], part: dict[str, object], node: dict[str, object] | None = None) -> str:
    """Metadata with another first part, or another first node of it."""
    proto, _ = _with_metadata("")
    merge = json.loads(next(item.value for item in proto.metadata_props if item.key == MERGED_KEY))[0]
    merge["parts"][0]["nodes"][0].update(node or {})
    merge["parts"][0].update(part)
    merge.update(change)
    return json.dumps([merge])


def _attribute(name: str, *values: int) -> dict[str, object]:
    return {"attribute": [{"name": name, "ints": [str(value) for value in values], "type": "INTS"}]}


def _origin(**change: object) -> dict[str, object]:
    """Metadata for the location of the first part's kernels."""
    bias = {"source": "o0/merged/bias", "axis": 0, "shape": [2]}
    kernels = {"source": "o0/merged/weight", "axis": 0, "shape": [2, 3, 1, 1], **change}
    return {"constants": {"w0": kernels, "b0": bias}}


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[" * 100_000, "7", "null", "[7]", "[{}]", '[{"parts": []}]',
        _edited({"base": "nowhere"}, {}), _edited({"base": 3}, {}), _edited({"parts": [1]}, {}),
        _edited({"base": "o1"}, {}), _edited({"base": "x"}, {}),
        _edited({}, {"width": 3}), _edited({}, {"width": -1}), _edited({}, {"width": True}),
        _edited({}, {"constants": {}}), _edited({}, {"constants": 3}), _edited({}, {"constants": {"w0": 3}}),
        _edited({}, _origin(shape=[2, 3, 3, 3])), _edited({}, _origin(shape=[2, 3, 5, 5])),
        _edited({}, _origin(shape=[6])), _edited({}, _origin(shape=[])), _edited({}, _origin(shape=[2, 3, 1, -1])),
        _edited({}, _origin(axis=1)), _edited({}, _origin(axis=None)), _edited({}, _origin(axis=7)),
        _edited({}, _origin(source="x")), _edited({}, _origin(source="o0/merged/bias")), _edited({}, _origin(source=3)),
        _edited({}, {"nodes": 5}), _edited({}, {"nodes": []}), _edited({}, {"nodes": [{"no": "node"}]}),
        _edited({}, {"nodes": [{"opType": "Relu", "input": ["x"], "output": ["o0"]}]}),
        _edited({}, {}, {"input": ["x", "x"]}), _edited({}, {}, {"input": ["x"]}), _edited({}, {}, {"input": 3}),
        _edited({}, {}, {"input": ["x", "w1", "b1"]}), _edited({}, {}, {"input": ["o1", "w0", "b0"]}),
        _edited({}, {}, {"output": ["x"]}), _edited({}, {}, {"output": ["c1"]}), _edited({}, {}, {"output": ["w1"]}),
        _edited({}, {}, {"opType": "ConvTranspose"}), _edited({}, {}, {"domain": "elsewhere"}),
        _edited({}, {}, _attribute("pads", 9, 9, 9, 9)), _edited({}, {}, _attribute("strides", 2, 2)),
        _edited({}, {}, _attribute("dilations", 2)), _edited({}, {}, _attribute("evil", 2, 2)),
        _edited({}, {}, {"attribute": [{"name": "strides", "f": 1.0, "type": "FLOAT"}]}),
        _edited({}, {}, {"attribute": [{"name": "group"}]}),
    ],
)  # fmt: skip
def test_invalid_metadata_leaves_the_graph_unchanged(text: str) -> None:
    before, payload = _with_metadata(text)
    after, weights = _restored(payload)
    assert after == before
    assert weights.keys() == {tensor.name for tensor in before.graph.initializer}


def test_a_weight_edited_by_another_tool_keeps_the_merged_form() -> None:
    proto, payload = _with_metadata("")
    weights = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer}
    weights["o0/merged/weight"][0, 0, 0, 0] = 1.0  # outside the 1x1 kernel, where the zeros were
    graph = EditableGraph.of(proto, weights)
    unmerge(graph)
    assert list(graph.nodes) == list(onnx.ModelProto.FromString(payload).graph.node)


@pytest.mark.parametrize("inner", ["o0/merged", "o0/merged/linear"])
@pytest.mark.parametrize("how", ["node", "output"])
def test_a_merge_whose_inner_tensors_are_read_elsewhere_is_left_as_it_is(inner: str, how: str) -> None:
    """Another tool may have joined a Concat of all parts with the merged result: without it, its reader hangs."""
    proto, _ = _with_metadata("")
    name = inner
    if how == "node":
        proto.graph.node.append(helper.make_node("Neg", [inner], ["extra"]))
        name = "extra"
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 5, _SIZE, _SIZE]))
    before = onnx.ModelProto.FromString(proto.SerializeToString())
    after, _ = _restored(proto.SerializeToString())
    assert after == before
    onnx.checker.check_model(after, full_check=True)


def test_metadata_is_plain_json() -> None:
    proto, _ = _with_metadata("")
    text = next(item.value for item in proto.metadata_props if item.key == MERGED_KEY)
    assert [part["nodes"][-1]["output"] for part in json.loads(text)[0]["parts"]] == [["o0"], ["o1"]]
    assert to_json([]) == "[]"
