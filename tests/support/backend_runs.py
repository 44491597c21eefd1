"""A case of ONNX's backend suite on the CPU as `run` has it, and whether results agree with onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from backend_cases import Case

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential

How = Literal["by a plan", "whole on onnxruntime"]


def on_the_cpu(case: Case, model: Model) -> tuple[How, dict[str, Any]]:
    """How the case runs and what it computes: by a plan, or on plain onnxruntime where no plan can be made.

    Raises:
        PlanError: a plan that can be made fails.
    """
    with CpuBackend(model, lanes=2) as backend:
        if backend.is_supported():
            return "by a plan", backend.compile(sequential(backend.graph)).run(case.inputs)
    with Reference(model) as reference:
        return "whole on onnxruntime", reference.run(case.inputs)


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
