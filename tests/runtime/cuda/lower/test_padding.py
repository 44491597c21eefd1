"""Channels are padded with zeros that stay zero, and the results are the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import random_schedule
from networks import zoo_model
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cuda.builder import KernelCall
from iosched.runtime.cuda.kernel import Gpu, Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower import padding
from iosched.runtime.cuda.lower.fused import KernelChoice
from iosched.runtime.cuda.lower.joined import sums_in_separables
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

FP16 = Precision("fp16")
TOLERANCES = {"fp16": (4e-3, 1e-1), "tf32": (1e-5, 1e-4)}
"""Against the plan that is not padded, and against onnxruntime; rounding to fp16 adds up to 4 % in some models."""

ACTIVATIONS = ("Relu", "LeakyRelu", "HardSwish", "Sigmoid", "Softplus", "Tanh")  # two of them are not zero at zero


class Graph:
    """Nodes over images of any number of channels."""

    def __init__(self, draw: random.Random, channels: int = 5) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
        self.channels = {"x": channels}

    def add(self, kind: str, inputs: Sequence[str], channels: int, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        self.channels[name] = channels
        return name

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = weight(*shape, seed=len(self.weights))
        return name

    def conv(self, x: str, channels: int, size: int = 3, groups: int = 1) -> str:
        names = [x, self.constant(channels, self.channels[x] // groups, size, size), self.constant(channels)]
        return self.add("Conv", names, channels, pads=[size // 2] * 4, group=groups)

    def depthwise(self, x: str, multiplier: int = 1) -> str:
        return self.conv(x, multiplier * self.channels[x], groups=self.channels[x])

    def relu(self, x: str) -> str:
        return self.add("Relu", [x], self.channels[x])

    def function(self, x: str) -> str:
        return self.add(self.draw.choice(ACTIVATIONS), [x], self.channels[x])

    def residual(self, x: str, other: str) -> str:
        return self.relu(self.add("Add", [self.conv(x, self.channels[other]), other], self.channels[other]))

    def concat(self, *names: str) -> str:
        return self.add("Concat", names, sum(self.channels[name] for name in names), axis=1)

    def bn(self, x: str) -> str:
        channels = self.channels[x]
        vectors = [self.constant(channels) for _ in range(4)]
        self.weights[vectors[3]] = 1 + np.abs(self.weights[vectors[3]])
        return self.add("BatchNormalization", [x, *vectors], channels)

    def pool(self, x: str) -> str:
        kind = self.draw.choice(["MaxPool", "AveragePool"])
        return self.add(kind, [x], self.channels[x], kernel_shape=[3, 3], pads=[1] * 4)

    def average(self, x: str) -> str:
        return self.add("AveragePool", [x], self.channels[x], kernel_shape=[3, 3], pads=[1] * 4)

    def separable(self, x: str, channels: int) -> str:
        return self.conv(self.depthwise(self.relu(x)), channels, 1)

    def sum(self, x: str, other: str) -> str:
        return self.add("Add", [x, other], self.channels[x])

    def split(self, x: str) -> str:
        first = self.draw.randint(1, self.channels[x] - 1)
        return self.draw.choice(self.parts(x, (first, self.channels[x] - first)))

    def halves(self, x: str) -> tuple[str, str]:
        return self.parts(x, (self.channels[x] // 2,) * 2)

    def parts(self, x: str, sizes: tuple[int, int]) -> tuple[str, str]:
        name = f"t{len(self.nodes)}"
        self.weights[f"{name}/sizes"] = np.array(sizes)
        self.nodes.append(helper.make_node("Split", [x, f"{name}/sizes"], [name, f"{name}b"], axis=1))
        self.channels |= {name: sizes[0], f"{name}b": sizes[1]}
        return name, f"{name}b"

    def dense(self, x: str) -> str:
        channels, hidden = self.channels[x], self.draw.randint(3, 13)
        flat = self.add("Flatten", [self.add("GlobalAveragePool", [x], channels)], channels)
        first = self.add("Gemm", [flat, self.constant(channels, hidden), self.constant(hidden)], hidden)
        return self.add("Gemm", [self.add("Relu", [first], hidden), self.constant(hidden, 9)], 9)

    def model(self, *outputs: str) -> Model:
        return loaded(proto_of(self.nodes, {"x": (2, self.channels["x"], 6, 6)}, outputs, self.weights))


def random_model(seed: int) -> Model:
    draw = random.Random(seed)
    graph = Graph(draw)
    made = [graph.conv("x", draw.randint(3, 20))]
    for _ in range(draw.randint(2, 12)):
        x = draw.choice(made[-4:])
        alike = draw.choice([name for name in made if graph.channels[name] == graph.channels[x]])
        makers = {
            "conv": lambda x=x: graph.conv(x, draw.randint(1, 20), draw.choice([1, 3])),
            "relu conv": lambda x=x: graph.conv(graph.relu(x), graph.channels[x], 1),
            "siblings": lambda x=x: graph.concat(*(graph.conv(x, draw.randint(1, 12), 1) for _ in range(3))),
            "residual": lambda x=x, alike=alike: graph.residual(x, alike),
            "separable": lambda x=x: graph.separable(x, draw.randint(1, 20)),
            "separable of a sum": lambda x=x, alike=alike: graph.separable(graph.sum(x, alike), draw.randint(1, 20)),
            "sum of separables": lambda x=x, alike=alike: graph.sum(graph.separable(x, 11), graph.separable(alike, 11)),
            "sum of pools": lambda x=x, alike=alike: graph.sum(graph.pool(x), graph.pool(alike)),
            "average": lambda x=x: graph.conv(graph.average(x), max(graph.channels[x] - 1, 1), 1),
            "depthwise": lambda x=x: graph.depthwise(x, draw.choice([1, 1, 2])),
            "function": lambda x=x: graph.function(x),
            "bn": lambda x=x: graph.bn(x),
            "sum": lambda x=x, alike=alike: graph.sum(x, alike),
            "concat": lambda x=x: graph.concat(x, draw.choice(made)),
            "pool": lambda x=x: graph.pool(x),
            "split": lambda x=x: graph.split(x) if graph.channels[x] > 1 else graph.pool(x),
        }
        made.append(makers[draw.choice(list(makers))]())
    outputs = [graph.conv(made[-1], 5), graph.dense(made[-1]), *draw.sample(made, draw.choice([0, 0, 0, 1]))]
    return graph.model(*dict.fromkeys(outputs))


def without_padding(model: Model, precision: Precision, layout: Layout, *, fused: bool = False) -> LoweredModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padding, "_multiple", lambda builder: 1)
        return LoweredModel(model, precision, layout).with_fused(
            dict.fromkeys(model.graph.by_name, KernelChoice(0)) if fused else {}
        )


def zeros_are_zero(network: LoweredModel, inputs: dict[str, np.ndarray]) -> int:
    """Number of padded tensors; each is computed without placement, and checked."""
    builder, gaps = network.builder, network._padding._gaps
    values = {name: array.astype(builder.tensors[name].dtype) for name, array in inputs.items()} | builder.weights
    for own in network.calls.values():
        for call in own:
            for name in call.writes:
                values[name] = np.full(builder.shape(name), np.nan, builder.tensors[name].dtype)
            call.kernel.interpret([values[name] for name in call.reads], [values[name] for name in call.writes])
            for name in call.writes:
                taken = [at for at, count in gaps.get(name, ()) for _ in range(count)]
                added = np.insert(np.zeros(builder.shape(name)[1] - len(taken)), taken, 1) > 0 if taken else []
                assert not values[name][:, added].any() if taken else not np.isnan(values[name]).any(), name
    return len(gaps)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["fp16", "tf32"]), st.sampled_from(Layout), st.booleans())
def test_random_models_compute_the_same_with_zeros(seed: int, name: PrecisionName, layout: Layout, fused: bool) -> None:
    model, precision = random_model(seed), Precision(name)
    inputs = random_inputs(model.graph.inputs)
    network, plain = LoweredModel(model, precision, layout), without_padding(model, precision, layout, fused=fused)
    network = network.with_fused(dict.fromkeys(model.graph.by_name, KernelChoice(0)) if fused else {})
    zeros_are_zero(network, inputs)
    plan = lower(network, random_schedule(model.graph, seed))
    found = interpreted(plan, inputs, seed)
    unpadded = interpreted(lower(plain, random_schedule(model.graph, seed)), inputs, seed)
    near, far = TOLERANCES[name]
    assert relative_error(found, unpadded) < near
    assert relative_error(found, expected_outputs(model, inputs)) < far


def test_most_odd_channels_of_random_models_are_padded() -> None:
    """The property above is not vacuous."""
    n_padded = n_odd = 0
    for seed in range(40):
        model = random_model(seed)
        padded, plain = (made(model, FP16, Layout.NHWC) for made in (LoweredModel, without_padding))
        n_padded += len(padded._padding._gaps)
        n_odd += sum(len(s.shape) == 4 and s.shape[1] % 8 > 0 for s in plain.builder.tensors.values() if s.shape)
    assert n_padded > n_odd / 4 > 50


@pytest.mark.parametrize("joins", [
    lambda call: isinstance(call.kernel, Pool) and call.kernel.pooled > 1,
    lambda call: isinstance(call.kernel, Pool) and "pixels" in call.reads[-1],
    lambda call: isinstance(call.kernel, Depthwise | Separable) and call.kernel.terms > 1,
    lambda call: isinstance(call.kernel, Separable) and len(call.reads) > call.kernel.terms + 3,
], ids=["pools", "bias", "terms", "added"])  # fmt: skip
def test_joined_kernels_are_padded(joins: Callable[[KernelCall], bool]) -> None:
    """They are among those that the property above compares."""
    found = 0
    for seed in range(60):
        model = random_model(seed)
        network = LoweredModel(model, FP16).with_fused(dict.fromkeys(model.graph.by_name, KernelChoice(0)))
        calls = sums_in_separables([(call, None) for own in network.calls.values() for call in own], network.private)
        found += sum(joins(call) and call.writes[0] in network._padding._gaps for call, _ in calls)
    assert found > 2


def channels_of(network: LoweredModel) -> list[int]:
    """Of all images that the model's operators write, in order."""
    written = (name for own in network.calls.values() for call in own for name in call.writes)
    return [network.builder.shape(name)[1] for name in written]


@pytest.mark.parametrize(
    ("precision", "capability", "stored"),
    [("fp16", 90, 16), ("fp16", 70, 16), ("fp16", 60, 10), ("tf32", 80, 12), ("tf32", 75, 10), ("fp32", 90, 10)],
)
def test_channels_fill_the_multiple_of_the_tensor_cores(precision: PrecisionName, capability: int, stored: int) -> None:
    graph = Graph(random.Random(0))
    model = graph.model(graph.conv(graph.conv("x", 10), 10))
    network = LoweredModel(model, Precision(precision), gpu=Gpu(capability, 80))
    assert channels_of(network) == [stored, 10]  # outputs are not padded
    assert (network.builder is network._plain) == (stored == 10)


READERS: dict[str, tuple[Callable[[Graph, str], str], list[int]]] = {
    "grouped convolution": (lambda g, x: g.conv(x, 8, groups=2), [10, 8]),
    "several filters a channel": (lambda g, x: g.depthwise(x, 2), [10, 20]),
    "no zero at zero": (lambda g, x: g.add("Sigmoid", [x], 10), [10, 10]),
    "sum over channels": (lambda g, x: g.add("ReduceMean", [x], 1, axes=[1]), [10, 1]),
    "neighbouring channels": (lambda g, x: g.add("LRN", [x], 10, size=3), [10, 10]),
    "no kernel of ours": (lambda g, x: g.add("GlobalLpPool", [x], 10), [10, 10]),
    "sum with an input": (lambda g, x: g.add("Add", [x, "x"], 10), [10]),
    "odd concatenation": (lambda g, x: g.concat(x, "x"), [10, 20]),
    "other axis": (lambda g, x: g.add("Concat", [x, x], 10, axis=2), [10, 10]),
    "depthwise": (lambda g, x: g.depthwise(x), [16, 16]),
    "pool": (lambda g, x: g.pool(x), [16, 16]),
    "upsampled": (lambda g, x: g.add("Resize", [x, "", "scales"], 10), [16, 16]),
    "even concatenation": (lambda g, x: g.concat(x, g.conv("x", 8)), [16, 8, 24]),
    "two of one": (lambda g, x: g.concat(x, x), [16, 32]),
    "sum": (lambda g, x: g.add("Add", [x, g.conv("x", 10)], 10), [16, 16]),
    "parts": (lambda g, x: g.split(x), [24, 8, 16]),
}
"""What reads ten channels that a convolution made, and the channels then stored by all but the last convolution."""


@pytest.mark.parametrize("name", READERS)
def test_readers_that_keep_zeros_store_padded_channels(name: str) -> None:
    """Zeros are stored up to the next convolution."""
    graph, (read, stored) = Graph(random.Random(2), channels=10), READERS[name]
    model = graph.model(graph.conv(read(graph, graph.conv("x", 10)), 8))
    network, inputs = LoweredModel(model, FP16), random_inputs(model.graph.inputs)
    assert channels_of(network)[:-1] == stored
    found = interpreted(lower(network, random_schedule(model.graph, 1)), inputs, seed=1)
    assert relative_error(found, expected_outputs(model, inputs)) < 2e-2


def test_outputs_and_tensors_added_to_them_are_not_padded() -> None:
    graph = Graph(random.Random(0))
    first = graph.conv("x", 10)
    second = graph.conv(graph.relu(first), 10)
    model = graph.model(second, graph.conv(graph.add("Add", [first, second], 10), 8))
    assert set(channels_of(LoweredModel(model, FP16))) == {10, 8}


def test_the_number_of_kernels_is_the_same() -> None:
    for seed in range(10):
        model = random_model(seed)
        networks = [made(model, FP16, Layout.NHWC) for made in (LoweredModel, without_padding)]
        padded, plain = (sum(map(len, network.calls.values())) for network in networks)
        assert padded == plain


SIBLINGS: dict[str, tuple[Callable[[Graph, str], str], list[int]]] = {
    "convolutions": (lambda g, x: g.conv(x, 8), [32, 16, 16]),
    "not zero at zero": (lambda g, x: g.add("LRN", [x], 12, size=3), [28, 16, 12]),
    "split": (lambda g, x: g.concat(*g.halves(x)), [32, 16, 16]),
}
"""What reads the second of two convolutions, and the channels of their merged result and of its parts."""


@pytest.mark.parametrize("kind", ["", "LeakyRelu", "Sigmoid"])
@pytest.mark.parametrize("name", SIBLINGS)
def test_merged_convolutions_write_the_same_zeros(name: str, kind: str) -> None:
    """Each part's zeros are after or inside that part."""
    graph, (read, channels) = Graph(random.Random(0)), SIBLINGS[name]
    parts = [graph.conv("x", channels, size) for channels, size in ((10, 1), (12, 3))]
    parts = [graph.add(kind, [part], graph.channels[part]) if kind else part for part in parts]
    model = graph.model(graph.conv(parts[0], 8), graph.conv(read(graph, parts[1]), 8))
    network, inputs = LoweredModel(model, FP16), random_inputs(model.graph.inputs)
    calls = network.merged_calls(tuple(parts))
    assert calls is not None
    stored = [network.builder.shape(each)[1] for each in (*calls[-1].reads, *calls[-1].writes)]
    assert stored == ([22, 10, 12] if kind == "Sigmoid" else channels)
    left = [each.name for each in model.graph.operators if each.name not in parts]
    stages = Stage(Strategy.MERGE, tuple((name,) for name in parts)), Stage(Strategy.CONCURRENT, (tuple(left),))
    found = interpreted(lower(network, Schedule((Block(0, stages),))), inputs, seed=0)
    assert relative_error(found, expected_outputs(model, inputs)) < 2e-2


def test_calls_that_cannot_write_the_same_zeros_are_refused() -> None:
    graph = Graph(random.Random(0), channels=10)
    made = graph.conv("x", 10)
    network = LoweredModel(graph.model(graph.conv(made, 8)), FP16)
    (call,) = network._lowered[made]
    assert network._padding.merged([call]) == network.calls[made]
    assert isinstance(call.kernel, Conv)
    grouped = replace(call, kernel=replace(call.kernel, groups=2))
    assert network._padding.merged([grouped]) is None


def test_filters_of_the_fused_kernel_fill_its_tiles() -> None:
    for gpu in (Gpu(70, 80), Gpu(90, 132)):
        graph = Graph(random.Random(0), channels=8)
        made = graph.conv(graph.depthwise(graph.relu(graph.conv("x", 250))), 130, 1)
        model = graph.model(graph.conv(made, 8))
        network = LoweredModel(model, FP16, gpu=gpu).with_fused({made: KernelChoice(0)})
        (call,) = network.calls[made]
        x, y = (network.builder.shape(name)[1] for name in (call.reads[0], *call.writes))
        assert (x, y) == (256, 136)
        wide = (256, 256)
        assert network.builder.shape(call.reads[2]) == wide


def test_a_mean_that_moves_channels_to_another_axis_computes_the_same() -> None:
    """A mean over batch and rows: ten images of ten channels leave ten columns."""
    graph = Graph(random.Random(0))
    mean = graph.add("ReduceMean", [graph.conv("x", 10)], 10, axes=[0, 2], keepdims=0)
    end = graph.add("Gemm", [mean, graph.constant(10, 4)], 4)
    model = loaded(proto_of(graph.nodes, {"x": (10, 5, 3, 10)}, [end], graph.weights))
    inputs = random_inputs(model.graph.inputs)
    found = interpreted(lower(LoweredModel(model, FP16), random_schedule(model.graph, 1)), inputs, seed=1)
    assert relative_error(found, expected_outputs(model, inputs)) < 2e-2


def test_all_convolutions_of_randwire_have_channels_for_tensor_cores() -> None:
    network = LoweredModel(zoo_model("randwire"), FP16)
    written = [call for own in network.calls.values() for call in own if isinstance(call.kernel, Conv)]
    odd = [call.writes for call in written if any(network.builder.shape(name)[1] % 8 for name in call.writes)]
    assert len(written) > 40
    assert not odd
