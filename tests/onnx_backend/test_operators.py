"""ONNX's backend suite, operator by operator, on the executors: they compute the same as onnxruntime.

Cases that onnxruntime refuses are left out when tests are collected; the summary has their number. All others are
loaded, and run on the CPU: by a plan, or whole on plain onnxruntime if no plan can be made, as with `run`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from backend_cases import Case, agree, case, case_names, on_the_cpu
from gpu_plans import interpreted

from iosched.models.errors import PlanError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel, is_supported
from iosched.runtime.cuda.lower.lowering import lower
from iosched.scheduler.baselines import greedy

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "onnx-backend.json"
REFUSED = "onnxruntime runs it, and iosched has no plan"


@cache
def published() -> Mapping[str, Any]:
    """The results of benchmarks/backend_suite.py."""
    found: Mapping[str, Any] = json.loads(RESULTS.read_text())
    return found


def is_published() -> bool:
    """Whether these results are from the installed versions."""
    return all(version(name) == known for name, known in published()["versions"].items() if name.startswith("onnx"))


@dataclass(frozen=True)
class Opened:
    """A loaded case, and onnxruntime's outputs of the file."""

    case: Case
    model: Model
    expected: Mapping[str, Any]


@pytest.fixture(scope="module", params=case_names())
def opened(request: pytest.FixtureRequest) -> Opened:
    found = case(request.param)
    return Opened(found, load_model(found.model, name=found.name, input_shapes=found.input_shapes), found.expected())


def test_outputs_on_the_cpu_match_onnxruntime(opened: Opened) -> None:
    """By our own plan, except for cases that are known to have none."""
    try:
        how, found = on_the_cpu(opened.case, opened.model)
    except PlanError as error:
        if opened.case.name not in published()["refused"]:
            raise
        pytest.skip(f"{REFUSED}: {str(error).splitlines()[0]}")
    assert how == "by a plan" or opened.case.name in published()["whole"]
    agree(found, opened.expected)


def test_plans_for_streams_match_onnxruntime(opened: Opened) -> None:
    if not is_supported(opened.model):
        pytest.skip(f"{REFUSED} for streams: sizes that only a run tells, no arrays, or nothing to compute")
    network = LoweredModel(opened.model, Precision("fp32"), Layout.NHWC)
    for each in [network, network.in_layout(Layout.NCHW)] if network.has_images else [network]:
        lowering = lower(each, greedy(opened.model.graph))
        agree(interpreted(lowering, opened.case.inputs, seed=0), opened.expected)


def test_the_published_counts_match_the_installed_versions() -> None:
    if not is_published():
        pytest.skip("benchmarks/reports/robustness.md was written for other versions of onnx and onnxruntime")
    assert published()["onnxruntime_runs"] == len(case_names())
