"""The digest stays the same for the same computation, and changes with anything that affects a schedule or a result."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from small_models import data, proto_of, weight, with_weights

from iosched.models.export import annotate, write_model
from iosched.models.load import load_model

node = helper.make_node


def net(
    *, w: np.ndarray | None = None, inner: str = "c", kernel: str = "w", out: str = "y", slope: float = 0.1
) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", kernel], [inner], pads=[1] * 4),
        node("LeakyRelu", [inner], ["r"], alpha=slope),
        node("Tanh", ["x"], ["t"]),
        node("Concat", ["r", "t"], [out], axis=1),
    ]
    return proto_of(nodes, {"x": [1, 3, 8, 8]}, [out], {kernel: weight(8, 3, 3, 3) if w is None else w})


def digest(proto: onnx.ModelProto, **bindings: int) -> str:
    return load_model(data(proto), **bindings).digest  # type: ignore[arg-type]


def test_names_order_comments_and_metadata_do_not_count():
    proto = net(inner="renamed", kernel="k")
    for index, item in enumerate(proto.graph.node):
        item.name, item.doc_string = f"node{index}", "a comment"
    order = [2, 0, 1, 3]
    nodes = [onnx.NodeProto.FromString(proto.graph.node[index].SerializeToString()) for index in order]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    helper.set_model_props(proto, {"author": "someone"})
    assert digest(proto) == digest(net())


def test_opsets_count_only_where_they_change_an_operator():
    newer = net()
    newer.opset_import[0].version = 18
    assert digest(newer) == digest(net())

    def softmax(opset: int) -> str:
        return digest(proto_of([node("Softmax", ["x"], ["y"], axis=1)], {"x": [2, 3, 4]}, ["y"], opset=opset))

    assert softmax(11) != softmax(13)


def test_everything_that_matters_counts():
    changed = weight(8, 3, 3, 3)
    changed[7, 2, 2, 2] += 1
    variants = [
        net(), net(w=changed), net(out="z"), net(slope=0.2), net(w=weight(8, 3, 3, 3) * 2),
    ]  # fmt: skip
    swapped = net()
    swapped.graph.node[3].input[:] = ["t", "r"]
    assert len({digest(item) for item in [*variants, swapped]} | {digest(net(), batch_size=2)}) == 7


def test_the_working_graph_has_the_digest_of_its_file():
    model = load_model(data(net()))
    assert load_model(with_weights(model)).digest == model.digest


def test_a_filled_weight_hashes_like_its_bytes():
    """A constant fill is hashed without allocating it, and still equals the stored weight."""
    shape = (3, 700, 701)
    fill = node("ConstantOfShape", ["dims"], ["w"], value=numpy_helper.from_array(np.array([0.5], np.float32)))
    add = node("Add", ["x", "w"], ["y"])
    filled = load_model(data(proto_of([fill, add], {"x": [1]}, ["y"], {"dims": np.array(shape)})))
    stored = load_model(data(proto_of([add], {"x": [1]}, ["y"], {"w": np.full(shape, 0.5, np.float32)})))
    assert not any(filled.weights["w"].strides)
    assert filled.digest == stored.digest
    other = load_model(data(proto_of([add], {"x": [1]}, ["y"], {"w": np.full(shape, 0.25, np.float32)})))
    assert other.digest != stored.digest


def test_a_schedule_inside_the_model_is_read():
    proto = net()
    helper.set_model_props(proto, {"io.iosched.schedule": "{}"})
    assert load_model(data(proto)).schedule_json == "{}"
    assert load_model(data(net())).schedule_json is None


def test_an_annotated_model_with_merged_convolutions_is_the_same_model():
    nodes = [
        node("Conv", ["x", "a"], ["p"], pads=[1] * 4),
        node("Relu", ["p"], ["pr"]),
        node("Conv", ["x", "b"], ["q"]),
        node("Relu", ["q"], ["qr"]),
        node("Concat", ["pr", "qr"], ["y"], axis=1),
    ]
    weights = {"a": weight(16, 3, 3, 3), "b": weight(40, 3, 1, 1)}
    model = load_model(data(proto_of(nodes, {"x": [1, 3, 9, 9]}, ["y"], weights)))
    order = [operator.name for operator in model.graph.operators]
    annotated = annotate(model, order=order, notes={}, merges=[("pr", "qr")], schedule_json="{}", version="0")
    again = load_model(write_model(annotated, model.weights, None) or b"")
    assert "Split" in {item.op_type for item in annotated.graph.node}
    assert [operator.name for operator in again.graph.operators] == order
    assert again.digest == model.digest
    assert again.schedule_json == "{}"
