"""Operators that the rule lets merge are merged by the written model, the CPU and the GPU plan, with equal numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
from gpu_plans import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from side_by_side import Conv, Product, products_side_by_side, side_by_side

from iosched.models.editable_graph import EditableGraph
from iosched.models.export import annotate, write_model
from iosched.models.load import load_model
from iosched.models.merging.merge import unmerge
from iosched.models.model import Model
from iosched.runtime import hazards
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.strategies import can_merge

Arrays = Mapping[str, np.ndarray]


AFFINE = [(), ("BatchNormalization",), ("BatchNormalization", "Mul", "Add"), ("Mul",), ("Add", "Mul")]


@st.composite
def convolutions(draw: st.DrawFn) -> list[Conv]:
    """Of one input; mostly such that all pads follow from one common slack, so that they may be merged."""
    dilation = draw(st.integers(1, 2))
    parity = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    slack = [draw(st.integers(0, 1)) for _ in range(4)]
    strides = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    activation = draw(st.sampled_from([(), ("Relu",), ("Sigmoid",), ("Gate",), ("LeakyRelu",), ("HardSwish",)]))
    auto_pad = draw(st.sampled_from(["NOTSET"] * 4 + ["SAME_UPPER", "SAME_LOWER"])) if dilation == 1 else "NOTSET"
    convs = []
    for _ in range(draw(st.integers(2, 3))):
        half = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
        odd = draw(st.integers(0, 9)) == 0
        convs.append(
            Conv(
                kernel=tuple(2 * h + 2 - p for h, p in zip(half, parity, strict=True)),
                pads=tuple(dilation * half[axis % 2] + slack[axis] + odd for axis in range(4)),
                strides=strides,
                auto_pad=auto_pad,
                dilations=(dilation, dilation),
                channels=draw(st.sampled_from([1, 4, 8, 12, 16, 24])),
                bias=draw(st.booleans()),
                behind=(*draw(st.sampled_from(AFFINE)), *activation),
            )
        )
    return convs


@pytest.mark.slow
@given(convolutions(), st.randoms(use_true_random=False))
def test_convolutions_that_the_rule_allows_are_merged_everywhere(convs: Sequence[Conv], random: Random) -> None:
    _check(side_by_side(convs), random)


@settings(max_examples=10)
@given(st.lists(st.sampled_from([1, 8, 16, 24]), min_size=2, max_size=3), st.sampled_from(AFFINE), st.booleans())
def test_convolutions_after_separate_relus_are_merged_except_on_the_cpu(
    channels: Sequence[int], behind: tuple[str, ...], bias: bool
) -> None:
    convs = [Conv((1, 1), (0,) * 4, channels=n, behind=behind, bias=bias, relu=True) for n in channels]
    assert _check(side_by_side(convs), Random(0), cpu=False)


@st.composite
def products(draw: st.DrawFn) -> list[Product]:
    kind = draw(st.sampled_from(["MatMul", "Gemm"]))
    attributes = {"alpha": 0.5, "transB": draw(st.integers(0, 1))} if kind == "Gemm" else {}
    behind = draw(st.sampled_from([(), ("Relu",), ("Gelu",), ("Sigmoid",)]))
    bias = draw(st.sampled_from(["", "Add", "C"] if kind == "Gemm" else ["", "Add"]))
    columns = st.sampled_from([1, 5, 8, 16])
    return [
        Product(kind, draw(columns), bias, behind, tuple(attributes.items())) for _ in range(draw(st.integers(2, 4)))
    ]


@pytest.mark.slow
@given(products(), st.sampled_from([(1, 6), (4, 6), (2, 3, 6), (1, 5, 6), (2, 2, 3, 6)]))
def test_products_of_one_input_are_merged_everywhere(found: Sequence[Product], shape: Sequence[int]) -> None:
    """Three projections of one input, as attention has them, become one."""
    shape = shape if found[0].type == "MatMul" else (prod(shape[:-1]), shape[-1])
    assert _check(products_side_by_side(found, shape, opset=20), Random(0))


def _check(proto: onnx.ModelProto, random: Random, *, cpu: bool = True) -> bool:
    """Merges all operators of a model if allowed; returns whether it did."""
    model = load_model(proto.SerializeToString())
    names = [operator.name for operator in model.graph.operators]
    random.shuffle(names)
    if not can_merge(model.graph, names):
        return False
    inputs = random_inputs(model.graph.inputs, 0)
    expected = _by_onnxruntime(model.original, inputs)
    _alike(_written(model, names, inputs), expected)
    _alike(_planned_for_a_gpu(model, names, inputs), expected)
    _alike(_on_the_cpu(model, names, inputs, merges=cpu), expected)
    return True


def _by_onnxruntime(model: object, inputs: Arrays) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _alike(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-4)


def _merging(names: Sequence[str]) -> Schedule:
    return Schedule((Block(0, (Stage(Strategy.MERGE, tuple((name,) for name in names)),)),))


def _written(model: Model, names: Sequence[str], inputs: Arrays) -> dict[str, np.ndarray]:
    """The annotated model in plain onnxruntime: one convolution or product, that loads as the original, bit by bit."""
    proto = annotate(model, order=names, notes={}, merges=[tuple(names)], schedule_json="{}", version="1")
    payload = write_model(proto, model.weights, None)
    assert payload is not None
    onnx.checker.check_model(onnx.ModelProto.FromString(payload), full_check=True)
    anchors = [node for node in proto.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert len(anchors) == 1
    restored = onnx.ModelProto.FromString(payload)
    graph = EditableGraph.of(
        restored, {tensor.name: numpy_helper.to_array(tensor) for tensor in restored.graph.initializer}
    )
    unmerge(graph)
    assert {name: array.tobytes() for name, array in graph.weights.items()} == {
        name: array.tobytes() for name, array in model.weights.items()
    }
    assert load_model(payload).digest == model.digest
    return _by_onnxruntime(payload, inputs)


def _on_the_cpu(model: Model, names: Sequence[str], inputs: Arrays, *, merges: bool) -> dict[str, np.ndarray]:
    with CpuBackend(model, lanes=2) as backend:
        compiled = backend.compile(_merging(names))
        tasks = [task.name for lane in compiled.lowering.plan.lanes for task in lane]
        assert any("merged:" in task for task in tasks) or not merges
        hazards.check(compiled.lowering.plan)
        return compiled.run(inputs)


def _planned_for_a_gpu(model: Model, names: Sequence[str], inputs: Arrays) -> dict[str, np.ndarray]:
    network = LoweredModel(model, Precision("fp32"))
    assert network.merged_calls(tuple(names)) is not None
    lowering = lower(network, _merging(names))
    hazards.check(lowering.plan)
    return interpreted(lowering, inputs, seed=0)
