"""ONNX's own backend suite, operator by operator, on the executors: what onnxruntime computes, they compute.

What onnxruntime refuses is left out when tests are collected; a line of the summary says how much that was. What it
runs is loaded, and runs on the CPU: by a plan, or whole on plain onnxruntime where no plan can be made, as with `run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from backend_cases import Case, case, case_names
from gpu_plans import interpreted

from iosched.models.errors import InvalidModelError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.network import Network, is_supported
from iosched.runtime.cuda.lower.plan import lower
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential

pytestmark = pytest.mark.slow
REFUSED = "onnxruntime runs it, and iosched has no plan"


@dataclass(frozen=True)
class Opened:
    """A case as it is loaded, and what onnxruntime makes of the file."""

    case: Case
    model: Model
    expected: Mapping[str, Any]


@pytest.fixture(scope="module", params=case_names())
def opened(request: pytest.FixtureRequest) -> Opened:
    found = case(request.param)
    return Opened(found, load_model(found.model, name=found.name, input_shapes=found.input_shapes), found.expected())


def agree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        agree_on(found[name], value)


def agree_on(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            agree_on(one, other)
    elif expected is None:
        assert found is None
    else:
        agree_on_array(found, expected)


def agree_on_array(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind == "V":  # of a type that numpy has not; every value of it is a float64
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(found, expected)
    elif expected.dtype.kind in "fc":
        tolerance = 2e-3 if expected.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


def test_on_the_cpu(opened: Opened) -> None:
    try:
        backend = CpuBackend(opened.model, lanes=2)
    except InvalidModelError as error:
        pytest.skip(f"{REFUSED}: {str(error).splitlines()[0]}")
    with backend:
        if backend.is_supported():
            found = backend.compile(sequential(backend.graph)).run(opened.case.inputs)
        else:
            with Reference(opened.model) as reference:
                found = reference.run(opened.case.inputs)
    agree(found, opened.expected)


def test_on_plans_for_streams(opened: Opened) -> None:
    if not is_supported(opened.model):
        pytest.skip(f"{REFUSED} for streams: sizes that only a run tells, no arrays, or nothing to compute")
    network = Network(opened.model, Precision("fp32"), Layout.NHWC)
    for each in [network, network.in_layout(Layout.NCHW)] if network.has_images else [network]:
        lowering = lower(each, greedy(opened.model.graph))
        agree(interpreted(lowering, opened.case.inputs, seed=0), opened.expected)
