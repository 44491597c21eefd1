"""Functions of one element: numpy computes the same as onnxruntime, and the C++ source the same as numpy."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import blank, check, needs_compiler, put
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.elementwise import Unary
from iosched.runtime.cuda.source.activation import ACTIVATIONS, IDENTITY, Activation

PARAMETERS: dict[str, list[dict[str, float | str]]] = {
    "LeakyRelu": [{}, {"alpha": 0.3}],
    "Elu": [{}, {"alpha": 0.5}],
    "Celu": [{}, {"alpha": 2.0}],
    "Selu": [{}, {"alpha": 1.5, "gamma": 2.0}],
    "HardSigmoid": [{}, {"alpha": 0.3, "beta": 0.4}],
    "ThresholdedRelu": [{}, {"alpha": 0.25}],
    "Gelu": [{}, {"approximate": "tanh"}],
}
BY_NODE = [kind for kind in ACTIVATIONS if kind not in ("Clip", "Swish")]
POSITIVE = ("Log", "Sqrt", "Reciprocal")


def arguments(kind: str, *shape: int) -> np.ndarray:
    x = normal(*shape) * 3
    return np.abs(x) + 0.1 if kind in POSITIVE else x


@pytest.mark.parametrize("kind", BY_NODE)
def test_results_equal_onnxruntimes(kind: str) -> None:
    for parameters in PARAMETERS.get(kind, [{}]):
        node = helper.make_node(kind, ["x"], ["y"], **parameters)
        lowered(node, {"x": arguments(kind, 2, 5, 3, 4)}, opset=20).compare()


@needs_compiler
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_source_computes_the_same_as_numpy(kind: str) -> None:
    alpha, beta = {"Clip": (-1.0, 2.0), "Selu": (1.67, 1.05), "HardSigmoid": (0.2, 0.5)}.get(kind, (0.7, 0.0))
    x = arguments(kind, 3, 8, 5, 5)
    x.reshape(-1)[:6] = (1e-3, 0.5, 1.0, 2.0, 20.0, 80.0) if kind in POSITIVE else (0.0, -0.0, 0.5, -20.0, 20.0, 80.0)
    check(Unary(Activation(kind, alpha, beta)), [put(x, before=4)], [blank(x.shape)], 1e-4 if kind == "Exp" else 1e-5)


@needs_compiler
def test_gelu_by_tanh_and_parameters_beyond_float32() -> None:
    x = put(normal(100) * 3)
    check(Unary(Activation("Gelu", 0, 1)), [x], [blank((100,))])
    check(Unary(Activation("Clip", -1e300, 1.5)), [x], [blank((100,))])
    check(Unary(Activation("Clip", float("-inf"), float("inf"))), [x], [blank((100,))])
    check(Unary(IDENTITY), [x], [blank((100,))])


@needs_compiler
@pytest.mark.parametrize("kind", ["Relu", "Gelu", "HardSwish"])
def test_half_precision(kind: str) -> None:
    lowered(helper.make_node(kind, ["x"], ["y"]), {"x": normal(3, 16, 3, 5)}, opset=20, precision=FP16).compare(
        on_host=True, before=8
    )


def test_swish_scales_its_sigmoid() -> None:
    x = normal(20)
    np.testing.assert_allclose(Activation("Swish", 2.0)(x), x / (1 + np.exp(-2 * x)), rtol=1e-5)


@pytest.mark.parametrize("bounds", [("low", "high"), ("low", ""), ("", "high")])
def test_clip_takes_constant_bounds(bounds: tuple[str, str]) -> None:
    constants = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    given = {name: np.asarray(constants[name]) for name in bounds if name}
    lowered(helper.make_node("Clip", ["x", *bounds], ["y"]), {"x": normal(2, 3, 4, 4)}, given).compare()


def test_clip_with_computed_bounds_is_left_to_onnxruntime() -> None:
    node = helper.make_node("Clip", ["x", "low"], ["y"])
    assert not lowered(node, {"x": normal(4), "low": np.asarray(np.float32(0))}).calls


def test_integers_are_left_to_onnxruntime() -> None:
    node = helper.make_node("Abs", ["x"], ["y"])
    assert not lowered(node, {"x": np.arange(4)}, output_dtypes=("int64",)).calls


@needs_compiler
@pytest.mark.parametrize(("before", "after"), [("float32", "int64"), ("bool", "float32"), ("int32", "bool")])
def test_casts(before: str, after: str) -> None:
    kinds = {"float32": 1, "int64": 7, "bool": 9, "int32": 6}
    node = helper.make_node("Cast", ["x"], ["y"], to=kinds[after])
    x = (normal(2, 9) * 3).astype(before)
    lowered(node, {"x": x}, output_dtypes=(after,)).compare(on_host=True)
