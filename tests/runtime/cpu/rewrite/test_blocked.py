"""Tensors stay in the blocked layout where onnxruntime would convert, with equal results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import baselines, check_schedules, drawn
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.rewrite.blocked import keep_blocked

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

SIZE = 6


@dataclass
class Net:
    """A network under construction; every image is (batch, C, H, W) with H = W."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, int]] = field(default_factory=lambda: {"x": (3, SIZE)})

    def node(self, op: str, inputs: list[str], shape: tuple[int, int], **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shapes[name] = shape
        return name

    def constant(self, value: np.ndarray) -> str:
        self.weights[f"w{len(self.weights)}"] = value
        return f"w{len(self.weights) - 1}"

    def conv(self, x: str, channels: int) -> str:
        channels_in, size = self.shapes[x]
        return self.node("Conv", [x, self.constant(weight(channels, channels_in, 1, 1))], (channels, size))

    def same(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.node(op, list(inputs), self.shapes[inputs[0]], **attributes)

    def swish(self, x: str) -> str:
        return self.same("Mul", x, self.same("Sigmoid", x))

    def excite(self, x: str, *, squeezed: bool) -> str:
        """Each channel times a number that is computed from all channels, as squeeze-and-excitation does."""
        channels, _ = self.shapes[x]
        mean = self.node("GlobalAveragePool", [x], (channels, 1))
        if squeezed:
            flat = self.node("Squeeze", [mean, self.constant(np.array([2, 3]))], (channels, 1))
            mean = self.node("Reshape", [flat, self.constant(np.array([-1, channels, 1, 1]))], (channels, 1))
        gate = self.same("Sigmoid", self.conv(self.conv(mean, 4), channels))
        return self.same("Mul", x, gate)

    def scaled(self, x: str, op: str, *, left: bool = False) -> str:
        channel = self.constant(weight(1, self.shapes[x][0], 1, 1))
        return self.node(op, [channel, x] if left else [x, channel], self.shapes[x])

    def concat(self, *inputs: str) -> str:
        return self.node(
            "Concat", list(inputs), (sum(self.shapes[n][0] for n in inputs), self.shapes[inputs[0]][1]), axis=1
        )

    def pad(self, x: str, value: float) -> str:
        channels, size = self.shapes[x]
        pads, fill = np.array([0, 0, 1, 0, 0, 0, 0, 1]), np.float32(value).reshape(())
        return self.node("Pad", [x, self.constant(pads), self.constant(fill)], (channels, size + 1))

    def crop(self, x: str) -> str:
        channels, size = self.shapes[x]
        starts, ends, axes = (self.constant(np.array(v)) for v in ([1, 0], [size, size - 1], [2, -1]))
        return self.node("Slice", [x, starts, ends, axes], (channels, size - 1))

    def pool(self, x: str, op: str) -> str:
        return self.same(op, x, kernel_shape=[3, 3], pads=[1] * 4)

    def model(self, output: str, batch: int = 1) -> Model:
        """Ends in a convolution, so that one reader needs blocks."""
        last = self.conv(output, 32)
        return loaded(proto_of(self.nodes, {"x": (batch, 3, SIZE, SIZE)}, [last], self.weights))


def conversions(kernels: KernelGraph) -> int:
    """Number of layout conversions of images; those of one number per channel are free."""
    names = [name for node in kernels.nodes if node.op_type.startswith("Reorder") for name in node.output]
    return sum((kernels.tensors[name].shape or ())[2:] != (1, 1) for name in names)


def check(model: Model, *, at_most: int | None = None, more: int = 0) -> KernelGraph:
    """Outputs agree; there are at most `at_most` conversions, or `more` more than onnxruntime has."""
    before, after = build_kernel_graph(model), build_kernel_graph(model)
    keep_blocked(after.graph, after.channel_block)
    after = replace(after, nodes=after.graph.nodes)
    assert conversions(after) <= (conversions(before) + more if at_most is None else at_most)
    for lanes in (1, 2):
        with CpuBackend(model, lanes=lanes) as backend:
            check_schedules(model, backend, iter([*baselines(backend.graph), *drawn(backend.graph, [lanes])]))
    return after


def stem(channels: int) -> tuple[Net, str]:
    net = Net()
    return net, net.conv("x", channels)


AT_THE_END = 1
"""The model's output is plain."""


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("channels", [20, 32, 48])
def test_squeeze_and_excitation_stays_in_blocks(channels: int, batch: int, squeezed: bool) -> None:
    """Factors in the plain layout have no number for the unused channels of a block."""
    net, x = stem(channels)
    after = check(net.model(net.excite(net.swish(x), squeezed=squeezed), batch), at_most=AT_THE_END)
    assert "Mul" not in {node.op_type for node in after.nodes}


def test_factors_shared_by_all_images_stay_a_product() -> None:
    """They are an input, since constants are folded."""
    net, x = stem(32)
    net.shapes["g"] = (32, 1)
    last = net.conv(net.same("Mul", net.swish(x), net.same("Sigmoid", "g")), 32)
    inputs = {"x": (2, 3, SIZE, SIZE), "g": (1, 32, 1, 1)}
    after = check(loaded(proto_of(net.nodes, inputs, [last], net.weights)))
    assert "Mul" in {node.op_type for node in after.nodes}


@pytest.mark.parametrize("batch", [1, 2])
def test_products_with_computed_numbers_are_split_by_channels(batch: int) -> None:
    net, x = stem(48)
    model = net.model(net.excite(net.swish(x), squeezed=True), batch)
    with CpuBackend(model, lanes=3) as backend:
        check_schedules(model, backend, baselines(backend.graph))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [20, 32])
def test_a_constant_for_each_channel(channels: int, batch: int, op: str, left: bool) -> None:
    """A difference has no rule, and is computed in the plain layout."""
    net, x = stem(channels)
    made = net.scaled(net.pool(x, "MaxPool"), op, left=left)
    check(net.model(made, batch), at_most=None if op == "Sub" else AT_THE_END)


def test_an_activation_after_a_constant_per_channel_is_applied_by_the_convolution() -> None:
    net, x = stem(20)
    after = check(net.model(net.same("Relu", net.scaled(net.pool(x, "MaxPool"), "Add"))), at_most=AT_THE_END)
    assert Counter(node.op_type for node in after.nodes) == {"Conv": 3, "MaxPool": 1, "ReorderOutput": 1}


def test_activation_is_not_fused_into_a_sum_with_other_readers() -> None:
    net, x = stem(20)
    shifted = net.scaled(net.pool(x, "MaxPool"), "Add")
    check(net.model(net.same("Add", net.same("Relu", shifted), shifted)), at_most=AT_THE_END)


@pytest.mark.parametrize("channels", [(16, 32), (48, 16, 16), (20, 12)])
def test_concat_stays_blocked_if_operands_fill_their_blocks(channels: tuple[int, ...]) -> None:
    net = Net()
    parts = [net.scaled(net.pool(net.conv("x", count), "MaxPool"), "Add") for count in channels]
    check(net.model(net.concat(*parts)), at_most=None if any(c % 16 for c in channels) else AT_THE_END)


@pytest.mark.parametrize("value", [0.0, 2.5])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [20, 32])
def test_pad_and_slice_work_on_another_view_of_the_blocks(channels: int, batch: int, value: float) -> None:
    net, x = stem(channels)
    padded = net.pad(net.pool(x, "MaxPool"), value)
    pooled = net.same("Add", net.pool(padded, "MaxPool"), net.pool(padded, "AveragePool"))
    check(net.model(net.crop(pooled), batch), at_most=AT_THE_END)


@pytest.mark.parametrize(
    ("pads", "mode"), [([0, 1, 0, 0, 0, 0, 0, 0], "constant"), ([0, 0, 1, 1, 0, 0, 1, 1], "reflect")]
)
def test_other_pads_are_left_alone(pads: list[int], mode: str) -> None:
    net, x = stem(32)
    name = net.constant(np.array(pads))
    check(net.model(net.node("Pad", [net.swish(x), name], (32 + pads[1], SIZE + 2 * pads[2]), mode=mode)))


def test_a_tensor_read_in_both_layouts_needs_no_extra_conversion() -> None:
    net, x = stem(32)
    swish = net.swish(x)
    plain = net.same("Softmax", swish, axis=1)
    check(net.model(net.concat(net.excite(swish, squeezed=False), plain)))


def test_a_graph_output_in_between_keeps_its_name_and_its_shape() -> None:
    net, x = stem(20)
    between = net.excite(net.swish(x), squeezed=True)
    last = net.conv(between, 32)
    check(loaded(proto_of(net.nodes, {"x": (1, 3, SIZE, SIZE)}, [last, between], net.weights)))


def test_models_without_blocks_are_unchanged() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = loaded(proto_of(nodes, {"x": (2, 8)}, ["y"], {"w": weight(8, 4)}))
    graph = build_kernel_graph(model).graph
    before = graph.to_proto()
    keep_blocked(graph, 8)
    assert graph.to_proto() == before


UNARY = ["Relu", "Sigmoid", "HardSwish", "Tanh", "Exp", "Softplus", "Neg"]
KINDS = st.sampled_from(
    ["swish", "excite", "excite2", "Mul", "Add", "concat", "sum", "pad", "crop", "pool", "unary", "conv"]
)


@pytest.mark.slow
@given(steps=st.lists(st.tuples(KINDS, st.integers(0, 9)), min_size=1, max_size=7), batch=st.integers(1, 2),
       channels=st.sampled_from([3, 16, 20, 32]))  # fmt: skip
def test_any_chain_of_operators(steps: list[tuple[str, int]], batch: int, channels: int) -> None:
    net, x = stem(channels)
    seen = [x]
    for kind, number in steps:
        other = seen[number % len(seen)]
        if kind in ("concat", "sum"):
            same = net.shapes[other][1] == net.shapes[x][1] if kind == "concat" else net.shapes[other] == net.shapes[x]
            x = x if not same else net.concat(x, other) if kind == "concat" else net.same("Add", x, other)
        else:
            x = _one(net, kind, x, number)
        seen.append(x)
    # An excited image that a Concat of incomplete blocks reads may be converted once more.
    excited = sum(kind.startswith("excite") for kind, _ in steps)
    check(net.model(x, batch), more=excited if channels % 16 else 0)


def _one(net: Net, kind: str, x: str, number: int) -> str:
    made = {
        "swish": lambda: net.swish(x),
        "excite": lambda: net.excite(x, squeezed=False),
        "excite2": lambda: net.excite(x, squeezed=True),
        "Mul": lambda: net.scaled(x, "Mul", left=number % 2 == 0),
        "Add": lambda: net.scaled(x, "Add"),
        "pad": lambda: net.pad(x, number / 2),
        "crop": lambda: net.crop(x) if net.shapes[x][1] > 2 else x,
        "pool": lambda: net.pool(x, ["MaxPool", "AveragePool"][number % 2]),
        "unary": lambda: net.same(UNARY[number % len(UNARY)], x),
        "conv": lambda: net.conv(x, 16 + 4 * number),
    }
    return made[kind]()


def test_conversions_are_counted() -> None:
    """The count that the tests above rely on."""
    net, x = stem(32)
    plain = build_kernel_graph(net.model(net.excite(x, squeezed=False)))
    found = Counter(node.op_type for node in plain.nodes)
    assert found["ReorderInput"]
    assert found["ReorderOutput"]


def test_rows_are_joined_as_rows() -> None:
    net, x = stem(32)
    first, second = net.swish(net.conv(x, 32)), net.swish(net.conv(x, 32))
    joined = net.node("Concat", [first, second], (32, SIZE), axis=2)
    check(net.model(joined))


@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("channels", [1, 16])
def test_one_channel_is_repeated_for_all(op: str, channels: int) -> None:
    net, x = stem(32)
    wide, narrow = net.swish(net.conv(x, 16)), net.swish(net.conv(x, channels))
    check(net.model(net.same(op, wide, narrow)))
