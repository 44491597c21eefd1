"""The example for Triton's Python backend, called as Triton calls it; `triton_stand_in` replaces Triton."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import triton_stand_in
from example_scripts import EXAMPLES
from shipped import optimized_file
from small_models import branches
from triton_stand_in import InferenceRequest

import iosched
from iosched.jobs.export import export
from iosched.runtime.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
CONFIG = (EXAMPLES / "triton" / "config.pbtxt").read_text()
RUNTIMES = ("onnxruntime", "iosched")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m" / "1"
    export(optimized_file(tmp_path / "m.iosched.onnx", branches()), folder, threads=2)
    shutil.copy(EXAMPLES / "triton" / "model.py", folder)
    return tmp_path / "models" / "m"


@pytest.fixture
def opened(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Opens the model with the parameters of config.pbtxt, some of which are replaced by those given."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton_stand_in.module())

    def open_it(**parameters: str) -> Any:
        model = runpy.run_path(str(repository / "1" / "model.py"))["TritonPythonModel"]()
        given = {**dict(re.findall(r'key: "(\w+)" value { string_value: "(\w+)" }', CONFIG)), **parameters}
        config = {"parameters": {name: {"string_value": value} for name, value in given.items()}}
        model.initialize({"model_config": json.dumps(config)})
        return model

    yield open_it
    if any(device.ep_name == "iosched" for device in onnxruntime.get_ep_devices()):
        onnxruntime.unregister_execution_provider_library("iosched")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_requests_are_answered_in_order_and_only_bad_ones_fail(
    opened: Callable[..., Any], repository: Path, runtime: str
) -> None:
    model = opened(runtime=runtime, strict="1")
    shapes = InferenceRequest({"x": X[:, :4]}, ["y"])
    first, bad, missing, last = model.execute(
        [InferenceRequest({"x": X}, ["y"]), shapes, InferenceRequest({}, ["y"]), InferenceRequest({"x": -X}, ["y"])]
    )
    with iosched.load(repository / "1") as own:
        for response, x in ((first, X), (last, -X)):
            (tensor,) = response.output_tensors
            assert (response.error, tensor.name()) == (None, "y")
            np.testing.assert_array_equal(tensor.as_numpy(), own.run({"x": x})["y"])
    assert "x" in bad.error.message()
    assert missing.error is not None
    model.finalize()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.filterwarnings("ignore::iosched.PlanWarning")
def test_without_its_plan_a_model_runs_on_plain_onnxruntime_unless_strict(
    opened: Callable[..., Any], repository: Path, runtime: str
) -> None:
    (repository / "1" / "m.plan").unlink()
    (response,) = opened(runtime=runtime).execute([InferenceRequest({"x": X}, ["y"])])
    assert response.error is None
    with pytest.raises(Exception, match=r"fallback|No such file"):
        opened(runtime=runtime, strict="1")
