"""The example of a pass for Olive, run as Olive runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from example_scripts import EXAMPLES, environment
from small_models import branches

import iosched
from iosched.runtime.cpu import library

# In a separate process, since Olive imports PyTorch.
SCRIPT = """
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive_pass import IoschedPlan

made = create_pass_from_dict(IoschedPlan, {"budget": 1, "threads": 1, "always": True}, disable_search=True)
found = made.run(ONNXModelHandler("model.onnx"), "out/model")
print(found.model_path, *found.model_attributes["additional_files"], sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")
@pytest.mark.skipif(find_spec("olive") is None, reason="Olive is not installed: it brings PyTorch")
def test_a_pass_writes_a_model_whose_plan_is_used(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "model.onnx")
    paths = os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": paths, "OLIVE_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    model, plan = map(Path, done.stdout.splitlines()[-2:])
    assert (model.parent, plan.name) == (plan.parent, "model.plan")
    iosched.load(model, strict=True).close()
