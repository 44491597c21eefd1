"""ONNX's own backend suite, operator by operator, on the executors: what onnxruntime computes, they compute.

A case is left out where onnxruntime refuses it or has its own opinion of it, and where its inputs are no arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from gpu_plans import interpreted

from iosched.models.errors import InvalidModelError, IoschedError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower import Network, is_supported, lower
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential

Arrays = dict[str, np.ndarray]


@cache
def cases() -> Mapping[str, Any]:
    from onnx.backend.test.case.node import collect_testcases

    return {case.name: case for case in collect_testcases(None)}


def opened(name: str) -> tuple[Model, Arrays, Arrays]:
    """The model, its inputs, and what onnxruntime makes of them."""
    case = cases()[name]
    given = [_array(value) for value in case.data_sets[0][0]]
    if not all(isinstance(value, np.ndarray | np.generic) for value in given):
        pytest.skip("its inputs are no arrays")
    names = [value.name for value in case.model.graph.input]
    inputs = {key: np.asarray(value) for key, value in zip(names, given, strict=False)}
    try:
        model = load_model(_with_shapes(case.model, inputs).SerializeToString(), name=name)
        with Reference(model) as reference:
            expected = reference.run(inputs)
    except IoschedError as error:
        pytest.skip(f"onnxruntime does not run it: {str(error).splitlines()[0]}")
    if not all(isinstance(value, np.ndarray) for value in expected.values()):
        pytest.skip("its outputs are no arrays")
    return model, inputs, expected


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _with_shapes(proto: onnx.ModelProto, inputs: Arrays) -> onnx.ModelProto:
    """The model with the sizes of its inputs fixed, as optimizing would fix them, and an IR that onnxruntime reads."""
    bound = onnx.ModelProto()
    bound.CopyFrom(proto)
    bound.ir_version = min(bound.ir_version, 10)
    for value in bound.graph.input:
        if value.type.HasField("tensor_type") and value.name in inputs:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for extent in inputs[value.name].shape:
                shape.dim.add().dim_value = extent
    return bound


def agree(found: Mapping[str, np.ndarray], expected: Arrays) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        if array.dtype.kind in "fc":
            tolerance = 2e-3 if array.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found[name], array)


def names() -> list[str]:
    """Those whose result is not drawn by chance."""
    random = ("bernoulli", "dropout", "random", "multinomial", "training")
    return sorted(name for name in cases() if not any(word in name for word in random))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_on_the_cpu(name: str) -> None:
    model, inputs, expected = opened(name)
    try:
        backend = CpuBackend(model, lanes=2)
    except InvalidModelError as error:
        pytest.skip(f"onnxruntime does not optimize it: {str(error).splitlines()[0]}")
    with backend:
        if not backend.is_supported():
            pytest.skip("sizes that only a run tells, or nothing to compute: plain onnxruntime runs it")
        agree(backend.compile(sequential(backend.graph)).run(inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_on_plans_for_streams(name: str) -> None:
    model, inputs, expected = opened(name)
    if not is_supported(model):
        pytest.skip("sizes that only a run tells, or nothing to compute: plain onnxruntime runs it")
    lowering = lower(Network(model, Precision("fp32")), greedy(model.graph))
    agree(interpreted(lowering, inputs, seed=0), expected)
