"""Channel alignment changes no result, keeps every visible shape, and pads only with zeros."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import zoo_model
from onnx import TensorProto, helper, numpy_helper

from iosched.models.editable_graph import EditableGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.cpu.rewrite.align import align_channels
from iosched.runtime.cpu.rewrite.channels import ChannelMap, padded_channels
from iosched.runtime.inputs import random_inputs

ort = pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

SIZE = 5


@dataclass
class Net:
    """A network under construction; all images are (batch, C, 5, 5), or 1 x 1 after global pooling."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=lambda: {"x": 3})

    def node(self, op: str, inputs: Sequence[str], channels: int, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.channels[name] = channels
        return name

    def weight(self, *shape: int, positive: bool = False) -> str:
        name = f"w{len(self.weights)}"
        values = np.random.default_rng(len(self.weights)).standard_normal(shape, np.float32)
        self.weights.append(numpy_helper.from_array(np.abs(values) + 1 if positive else values, name))
        return name

    def conv(self, x: str, channels: int, kernel: int = 1, group: int = 1, bias: bool = True) -> str:
        weight = self.weight(channels, self.channels[x] // group, kernel, kernel)
        biases = [self.weight(channels)] if bias else []
        pads = [kernel // 2] * 4
        return self.node("Conv", [x, weight, *biases], channels, group=group, pads=pads)

    def depthwise(self, x: str) -> str:
        return self.conv(x, self.channels[x], 3, group=self.channels[x])

    def same(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.node(op, inputs, self.channels[inputs[0]], **attributes)

    def norm(self, x: str) -> str:
        c = self.channels[x]
        rest = [self.weight(c), self.weight(c), self.weight(c), self.weight(c, positive=True)]
        return self.same("BatchNormalization", x, *rest)

    def concat(self, *inputs: str) -> str:
        return self.node("Concat", inputs, sum(self.channels[name] for name in inputs), axis=1)

    def model(self, *outputs: str, batch: int = 1) -> Model:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, SIZE, SIZE])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        return load_model(proto.SerializeToString(), name="net")


def graph_of(model: Model) -> EditableGraph:
    return EditableGraph.of(model.proto, model.weights, model.graph.tensor)


def align(model: Model, block: int = 8, max_growth: float = 100) -> EditableGraph:
    graph = graph_of(model)
    align_channels(graph, block, max_growth=max_growth)
    graph.drop_unread()
    return graph


def maps_of(model: Model, block: int = 8) -> dict[str, ChannelMap]:
    return padded_channels(graph_of(model), block, max_growth=100)[1]


def tensors_of(graph: EditableGraph, model: Model) -> dict[str, np.ndarray]:
    """Every tensor of a graph, computed by onnxruntime with all optimizations off."""
    proto = graph.to_proto()
    tensors = [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in graph.weights.items()]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(tensors)
    public = {value.name for value in proto.graph.output}
    computed = [name for node in proto.graph.node for name in node.output if name not in public]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, random_inputs(model.graph.inputs)), strict=True))


def assert_same(model: Model, block: int = 8) -> EditableGraph:
    """Outputs agree in shape and value; changed tensors hold the real channels and exact zeros; specs are correct."""
    aligned = align(model, block)
    expected, found = tensors_of(graph_of(model), model), tensors_of(aligned, model)
    for value in model.proto.graph.output:
        assert_close(found[value.name], expected[value.name])
    public = {value.name for value in model.proto.graph.output}
    for name, channels in maps_of(model, block).items():
        padded = found[f"{name}/aligned" if name in public else name]
        assert_close(padded[:, list(channels.real)], expected[name])
        assert not np.delete(padded, list(channels.real), axis=1).any()
    assert {name: found[name].shape for name in found} == {name: aligned.tensors[name].shape for name in found}
    return aligned


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


def ops(graph: EditableGraph) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


def channels_of(graph: EditableGraph, name: str) -> int:
    return graph.shape(name)[1]


@st.composite
def networks(draw: st.DrawFn) -> Model:
    net = Net()
    pool = [net.conv("x", draw(st.integers(3, 20)))]
    for _ in range(draw(st.integers(1, 12))):
        x = draw(st.sampled_from(pool[-4:]))
        alike = [name for name in pool if net.channels[name] == net.channels[x]]
        op = draw(st.sampled_from(["conv", "depthwise", "concat", "binary", "pool", "unary", "norm"]))
        if op == "conv":
            made = net.conv(x, draw(st.sampled_from([5, 8, 12, net.channels[x]])), bias=draw(st.booleans()))
        elif op == "depthwise":
            made = net.depthwise(x)
        elif op == "concat" and net.channels[x] < 60:
            made = net.concat(x, *draw(st.lists(st.sampled_from([*pool, "x"]), min_size=1, max_size=2)))
        elif op == "binary":
            made = net.same(draw(st.sampled_from(["Add", "Sub", "Mul"])), x, draw(st.sampled_from(alike)))
        elif op == "pool":
            kind = draw(
                st.sampled_from([("MaxPool", {}), ("AveragePool", {"count_include_pad": 1}), ("AveragePool", {})])
            )
            made = net.same(kind[0], x, kernel_shape=[3, 3], pads=[1] * 4, **kind[1])
        elif op == "norm":
            made = net.norm(x)
        else:
            made = net.same(draw(st.sampled_from(["Relu", "LeakyRelu", "Sigmoid", "HardSwish", "Tanh", "Exp"])), x)
            made = net.same("Tanh", made)
        pool.append(made)
    outputs = draw(st.lists(st.sampled_from(pool[:-1]), max_size=1)) if len(pool) > 1 else []
    return net.model(*dict.fromkeys([*outputs, net.conv(net.depthwise(pool[-1]), 6)]), batch=draw(st.integers(1, 2)))


@given(networks(), st.sampled_from([8, 16]))
def test_any_network_computes_the_same_with_zeros_in_the_added_channels(model: Model, block: int) -> None:
    assert_same(model, block)


def test_a_separable_convolution_is_padded_to_whole_blocks_without_new_nodes() -> None:
    net = Net()
    first = net.conv("x", 11)
    depthwise = net.depthwise(net.same("Relu", first))
    model = net.model(net.conv(depthwise, 6))
    aligned = assert_same(model)
    assert ops(aligned) == ops(graph_of(model))
    assert [node.name for node in aligned.nodes] == [node.name for node in model.proto.graph.node]
    assert (channels_of(aligned, first), channels_of(aligned, depthwise)) == (16, 16)
    shapes = [aligned.weights[node.input[1]].shape for node in aligned.nodes if node.op_type == "Conv"]
    assert shapes == [(16, 3, 1, 1), (16, 1, 3, 3), (6, 16, 1, 1)]


def test_a_concat_scatters_the_weights_of_its_readers() -> None:
    net = Net()
    joined = net.concat(net.conv("x", 5), net.conv("x", 12), net.conv("x", 5))
    model = net.model(net.conv(net.same("Relu", joined), 6))
    aligned = assert_same(model)
    assert channels_of(aligned, joined) == 8 + 16 + 8
    assert maps_of(model)[joined].real == (*range(5), *range(8, 20), *range(24, 29))
    assert ops(aligned)["Gather"] == 0


def test_a_convolution_adopts_the_channel_map_of_the_concat_it_is_added_to() -> None:
    net = Net()
    added = net.same("Add", net.concat(net.conv("x", 5), net.conv("x", 6)), net.conv("x", 11))
    aligned = assert_same(net.model(net.conv(net.depthwise(added), 6)))
    assert channels_of(aligned, added) == 16
    assert ops(aligned)["Gather"] == 0


def test_sum_of_disagreeing_concats_is_unchanged() -> None:
    net = Net()
    parts = [net.conv("x", channels) for channels in (5, 6, 3, 8)]
    added = net.same("Add", net.concat(*parts[:2]), net.concat(*parts[2:]))
    aligned = assert_same(net.model(net.conv(added, 6)))
    assert channels_of(aligned, added) == 11


def test_concat_without_whole_blocks_or_readers_of_them_is_unchanged() -> None:
    with_input, read_outside = Net(), Net()
    joined = with_input.concat(with_input.conv("x", 5), "x")
    outside = read_outside.concat(read_outside.conv("x", 5), read_outside.conv("x", 6))
    for model in (with_input.model(with_input.conv(joined, 6)), read_outside.model(outside)):
        assert align(model).to_proto() == model.proto


@pytest.mark.parametrize("op", ["Sigmoid", "Exp", "Cos", "Softplus"])
def test_operators_that_change_zero_get_the_real_channels(op: str) -> None:
    net = Net()
    depthwise = net.depthwise(net.conv("x", 11))
    closed = net.same(op, depthwise)
    aligned = assert_same(net.model(net.conv(closed, 6)))
    assert (channels_of(aligned, depthwise), channels_of(aligned, closed)) == (16, 11)
    assert ops(aligned)["Gather"] == 1


@pytest.mark.parametrize(("low", "high", "passes"), [(0.0, 6.0, True), (-1.0, 0.0, True), (0.5, 6.0, False)])
def test_a_clip_keeps_zeros_that_are_within_its_limits(low: float, high: float, passes: bool) -> None:
    net = Net()
    limits = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("l", low), ("h", high))]
    net.weights.extend(limits)
    clipped = net.same("Clip", net.conv("x", 11), "l", "h")
    aligned = assert_same(net.model(net.conv(net.depthwise(clipped), 6)))
    assert channels_of(aligned, clipped) == (16 if passes else 11)


def test_a_graph_output_keeps_its_name_and_shape() -> None:
    net = Net()
    depthwise = net.depthwise(net.conv("x", 11))
    model = net.model(depthwise, net.conv(depthwise, 6))
    aligned = assert_same(model)
    assert aligned.tensors[depthwise].shape == (1, 11, SIZE, SIZE)
    assert [*aligned.outputs] == [value.name for value in model.proto.graph.output]


def test_a_tensor_that_an_inner_graph_reads_keeps_its_name_and_shape() -> None:
    net = Net()
    depthwise = net.depthwise(net.conv("x", 11))
    named = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    branch = helper.make_graph([helper.make_node("Relu", [depthwise], ["inner"])], "branch", [], named)
    positive = net.same("Greater", net.node("ReduceMax", [depthwise], 1, keepdims=0), "zero")
    net.weights.append(numpy_helper.from_array(np.float32(0), "zero"))
    chosen = net.node("If", [positive], 11, then_branch=branch, else_branch=branch)
    model = net.model(chosen, net.conv(depthwise, 6))
    aligned = align(model)
    assert (channels_of(aligned, f"{depthwise}/aligned"), channels_of(aligned, depthwise)) == (16, 11)
    for name, expected in tensors_of(graph_of(model), model).items():
        if name in aligned.outputs or name == depthwise:
            assert_close(tensors_of(aligned, model)[name], expected)


def test_a_grouped_convolution_gets_the_real_channels() -> None:
    net = Net()
    depthwise = net.depthwise(net.conv("x", 12))
    aligned = assert_same(net.model(net.conv(depthwise, 6, group=3)))
    assert channels_of(aligned, depthwise) == 16


def test_aligned_dense_or_expensive_models_are_unchanged() -> None:
    for channels, op in ((16, "depthwise"), (11, "dense")):
        net = Net()
        x = net.conv("x", channels)
        model = net.model(net.conv(net.depthwise(x) if op == "depthwise" else x, 6))
        aligned = align(model)
        assert aligned.to_proto() == model.proto
        assert aligned.tensors == model.graph.tensor
    net = Net()
    model = net.model(net.depthwise(net.depthwise(net.depthwise(net.conv("x", 9)))))
    assert align(model, 1).to_proto() == model.proto
    assert align(model, 64, max_growth=1.25).to_proto() == model.proto
    assert align(model, 64).to_proto() != model.proto


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_randwire_stays_in_the_blocked_layout_and_computes_the_same(batch: int) -> None:
    from iosched.runtime.cpu.backend import CpuBackend
    from iosched.runtime.reference import Reference
    from iosched.scheduler.baselines import sequential

    model = zoo_model("randwire", batch)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    with CpuBackend(model) as backend:
        if backend.kernels.channel_block > 1:
            assert sum(node.op_type.startswith("Reorder") for node in backend.kernels.nodes) <= 2
        compiled = backend.compile(sequential(backend.graph))
        assert compare(compiled.run(inputs), expected, rtol=1e-5).passed
        compiled.close()


@pytest.mark.parametrize(("value", "gathers"), [(None, 0), (0.0, 0), (1.5, 1)])
def test_a_pad_with_zeros_keeps_the_added_channels(value: float | None, gathers: int) -> None:
    """The added channels are then zero everywhere; with other padding they would not be."""
    net = Net()
    net.weights.append(numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 0, 0, 2]), "pads"))
    if value is not None:
        net.weights.append(numpy_helper.from_array(np.float32(value).reshape(()), "value"))
    padded = net.same("Pad", net.depthwise(net.conv("x", 5)), "pads", *(["value"] if value is not None else []))
    aligned = assert_same(net.model(net.conv(net.depthwise(padded), 4)))
    assert ops(aligned)["Gather"] == gathers


@pytest.mark.parametrize(("axes", "gathers"), [([2, 3], 0), ([-1, -2], 0), ([2, 1], 1)])
def test_a_slice_of_pixels_keeps_the_added_channels(axes: list[int], gathers: int) -> None:
    net = Net()
    for name, numbers in (("starts", [1, 0]), ("ends", [9, 5]), ("axes", axes), ("steps", [2, 1])):
        net.weights.append(numpy_helper.from_array(np.array(numbers), name))
    x = net.depthwise(net.conv("x", 5))
    some = net.same("Slice", x, "starts", "ends", "axes", "steps")
    aligned = assert_same(net.model(net.conv(net.same("Relu", some), 4)))
    assert ops(aligned)["Gather"] == gathers
