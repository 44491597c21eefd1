"""A ReLU that all readers of a tensor begin with is computed where the tensor is made, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from lowering import random_schedule
from networks import zoo_model
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cuda.builder import KernelCall
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batch_norm import ScaleShift
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.elementwise import Unary
from iosched.runtime.cuda.lower import lowered_model as network_module
from iosched.runtime.cuda.lower.hoist import hoisted, is_relu
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

FP32 = Precision("fp32")


class Graph:
    """Nodes over images of four channels."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, size: int = 1, channels: int = 4, groups: int = 1) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = weight(4, channels // groups, size, size, seed=len(self.weights))
        return self.add("Conv", x, name, pads=[size // 2] * 4, group=groups)

    def bn(self, x: str) -> str:
        names = [f"{kind}{len(self.weights)}" for kind in ("scale", "shift", "mean", "variance")]
        values = [np.float32(value) for value in ([1, 2, -1, 0.5], [0.1, -0.2, 0.3, 0], [0, 1, 0, -1], [1, 2, 3, 4])]
        self.weights |= dict(zip(names, map(np.asarray, values), strict=True))
        return self.add("BatchNormalization", x, *names)

    def relu_conv(self, x: str, channels: int = 4) -> str:
        return self.conv(self.add("Relu", x), 1, channels)

    def twice(self, x: str) -> list[str]:
        """Two readers: a ReLU that has a convolution to itself is fused into it long before."""
        return [self.relu_conv(x), self.relu_conv(x)]

    def sep_conv(self, x: str) -> str:
        return self.conv(self.conv(self.add("Relu", x), 3, groups=4))

    def model(self, *outputs: str) -> Model:
        return loaded(proto_of(self.nodes, {"x": (1, 4, 6, 6)}, outputs, self.weights))


def n_relus(network: LoweredModel) -> int:
    return sum(is_relu(call) for own in network.calls.values() for call in own)


def checked(model: Model, schedules: Sequence[Schedule] = (), tolerance: float = 1e-5) -> LoweredModel:
    """The network, after its outputs were compared with onnxruntime's."""
    network, inputs = LoweredModel(model, FP32), random_inputs(model.graph.inputs)
    expected = expected_outputs(model, inputs)
    for schedule in schedules or (sequential(model.graph), random_schedule(model.graph, 1)):
        plan = lower(network, schedule)
        assert relative_error(interpreted(plan, inputs, seed=1), expected) < tolerance
    return network


def test_batch_normalization_and_its_relu_are_one_kernel() -> None:
    graph = Graph()
    network = checked(graph.model(graph.relu_conv(graph.bn(graph.add("MaxPool", "x", kernel_shape=[1, 1])))))
    kernels = [call.kernel for own in network.calls.values() for call in own]
    assert ScaleShift(RELU) in kernels
    assert n_relus(network) == 0


def test_a_convolution_without_a_bias_gets_one_of_zeros() -> None:
    graph = Graph()
    network = checked(graph.model(*graph.twice(graph.conv("x"))))
    first = next(call for own in network.calls.values() for call in own)
    assert isinstance(first.kernel, Conv)
    assert first.kernel.bias
    assert len(first.reads) == 3


def test_a_relu_of_a_concatenation_goes_to_the_operands() -> None:
    graph = Graph()
    joined = graph.add(
        "Concat", graph.conv("x"), graph.add("Concat", graph.bn("x"), graph.conv("x", 3), axis=1), axis=1
    )
    network = checked(graph.model(graph.relu_conv(joined, 12), graph.relu_conv(joined, 12)))
    assert n_relus(network) == 0


def test_a_relu_is_also_removed_from_depthwise_kernels() -> None:
    graph = Graph()
    made = graph.conv("x")
    network = checked(graph.model(graph.relu_conv(made), graph.sep_conv(made)))
    assert n_relus(network) == 0


@pytest.mark.parametrize("use", ["output", "pool", "operand"])
def test_tensors_that_are_also_used_without_the_relu_are_unchanged(use: str) -> None:
    graph = Graph()
    made = graph.conv("x")
    outputs = [graph.relu_conv(made)]
    if use == "output":
        outputs.append(made)
    if use == "pool":
        outputs.append(graph.add("AveragePool", made, kernel_shape=[2, 2]))
    if use == "operand":
        joined = graph.add("Concat", made, graph.conv("x"), axis=1)
        outputs += [graph.relu_conv(joined, 8), graph.add("MaxPool", joined, kernel_shape=[2, 2])]
    network = checked(graph.model(*outputs))
    assert n_relus(network) >= 1


def test_a_separate_relu_operator_is_kept_and_does_not_prevent_hoisting() -> None:
    graph = Graph()
    made = graph.conv("x")
    network = checked(graph.model(graph.relu_conv(made), graph.conv(graph.add("Relu", made), 3)))
    kernels = [call.kernel for own in network.calls.values() for call in own]
    assert Unary(RELU) in kernels
    assert n_relus(network) == 0


def test_a_relu_that_is_a_separate_operator_is_not_dropped() -> None:
    graph = Graph()
    made = graph.conv("x")
    seen = graph.add("Relu", made)
    network = LoweredModel(graph.model(*graph.twice(made), graph.add("MaxPool", seen, kernel_shape=[2, 2])), FP32)
    calls = {**network.calls, seen: [KernelCall(AddN(RELU), (made,), (seen,))]}
    assert hoisted(network.builder, calls, {made})[seen] == calls[seen]


def test_nothing_is_moved_unless_it_saves_a_kernel() -> None:
    graph = Graph()
    network = checked(graph.model(graph.sep_conv(graph.conv("x"))))
    convolution = next(call.kernel for own in network.calls.values() for call in own)
    assert isinstance(convolution, Conv)
    assert convolution.activation.is_identity


@pytest.mark.parametrize("readers", ["both", "one"])
def test_merged_convolutions_end_with_the_relu(readers: str) -> None:
    graph = Graph()
    first, second = graph.conv("x"), graph.conv("x", 3)
    seen = graph.twice(second) if readers == "both" else [graph.add("MaxPool", second, kernel_shape=[2, 2])]
    model = graph.model(*graph.twice(first), *seen)
    merged = Stage(Strategy.MERGE, ((first,), (second,)))
    rest = [Stage(Strategy.CONCURRENT, ((each.name,),)) for each in model.graph.operators[2:]]
    network = checked(model, [Schedule((Block(0, (merged, *rest)),))])
    calls = network.merged_calls((first, second))
    assert calls is not None
    assert len(calls) == (2 if readers == "both" else 3)


def test_merged_convolutions_do_not_apply_the_relu_again() -> None:
    graph = Graph()
    made = graph.conv("x")
    model = graph.model(*graph.twice(made))
    names = tuple(each.name for each in model.graph.operators)
    stages = (Stage(Strategy.CONCURRENT, ((names[0],),)), Stage(Strategy.MERGE, ((names[1],), (names[2],))))
    network = checked(model, [Schedule((Block(0, stages),))])
    calls = network.merged_calls(names[1:])
    assert calls is not None
    assert len(calls) == 2


def random_graph(seed: int) -> Model:
    draw, graph = random.Random(seed), Graph()
    made = ["x"]
    for _ in range(draw.randint(3, 14)):
        x, other = draw.choice(made[-4:]), draw.choice(made)
        makers = {
            "conv": lambda x=x: graph.conv(x, draw.choice([1, 3])),
            "relu conv": lambda x=x: graph.relu_conv(x),
            "separable": lambda x=x: graph.sep_conv(x),
            "bn": lambda x=x: graph.bn(x),
            "relu": lambda x=x: graph.add("Relu", x),
            "sum": lambda x=x, other=other: graph.add("Add", x, other),
            "concat": lambda x=x, other=other: graph.relu_conv(graph.add("Concat", x, other, axis=1), 8),
            "pool": lambda x=x: graph.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4),
        }
        kinds = list(makers)
        made.append(makers[draw.choices(kinds, [2, 5, 2, 3, 1, 2, 3, 1])[0]]())
    read = {name for node in graph.nodes for name in node.input}
    ends = [node.output[0] for node in graph.nodes if node.output[0] not in read]
    return graph.model(*dict.fromkeys([*ends, *draw.sample(made[1:-1], draw.randint(0, 1))]))


@pytest.mark.slow
def test_random_graphs_compute_the_same() -> None:
    saved = 0
    for seed in range(60):
        model = random_graph(seed)
        network = checked(model, [random_schedule(model.graph, seed)])
        saved += len(network._rectified)
    assert saved > 20


@pytest.mark.slow
def test_densenet_has_no_kernel_that_is_a_relu_and_computes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo_model("densenet121")
    inputs = random_inputs(model.graph.inputs)
    network = LoweredModel(model, FP32)
    found = interpreted(lower(network, sequential(model.graph)), inputs, seed=0)
    monkeypatch.setattr(network_module, "rectifiable", lambda graph, calls: frozenset())
    plain = LoweredModel(model, FP32)
    assert (n_relus(network), n_relus(plain)) == (0, 61)
    expected = interpreted(lower(plain, sequential(model.graph)), inputs, seed=0)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
