"""Files of the newest opsets, as exporters write them: from the file to the shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from iosched.models.source import MAX_IR_VERSION
from iosched.models.zoo.light import light_model


@pytest.mark.slow
@pytest.mark.parametrize("opset", [27, 28])
def test_a_network_is_optimized_and_computes_the_same(invoke, workdir: Path, opset: int) -> None:
    original = workdir / "light.onnx"
    model = light_model("squeezenet")
    model.ir_version = MAX_IR_VERSION
    onnx.save(onnx.version_converter.convert_version(model, opset), original)
    planned = invoke("optimize", original, "--device", "v100", "-o", "planned.onnx")
    fast = invoke("optimize", original, "--strategy", "greedy", "--threads", 1, "-o", "fast.onnx")
    for name, made in {"planned.onnx": planned, "fast.onnx": fast}.items():
        assert made.exit_code == 0, made.stderr
        assert onnx.load(name).opset_import[0].version == opset
        ran = invoke("run", name, "--against", original, "--json")  # by the schedule in it, if there is one
        assert ran.exit_code == 0, ran.stderr
        assert json.loads(ran.stdout)["check"]["passed"]
