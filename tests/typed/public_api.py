"""A script that uses the public API: mypy checks it in `.ci/lint`, and `tests/test_typed.py` runs it.

A line that is wrong on purpose names the error that mypy must find there; strict mode refuses unused ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import iosched

x = np.ones((1, 8, 6, 6), np.float32)

with iosched.load("model.iosched.onnx", device="cpu", threads=1) as model:
    assert_type(model, iosched.LoadedModel)
    assert_type(model.run({"x": x}), dict[str, np.ndarray])
    assert_type(model.inputs, tuple[iosched.TensorSpec, ...])
    assert_type(model.schedule, iosched.Schedule | None)

policy = iosched.ServingPolicy({"a": iosched.ModelPolicy(((0.5, 2),), priority=1)}, overlap_ratio=None)
with iosched.serve_together({"a": "model.iosched.onnx"}, policy, threads=2) as served:
    assert_type(served, iosched.ServedModels)
    assert_type(served.run("a", {"x": x}, timeout=60), dict[str, np.ndarray])

session = iosched.InferenceSession(Path("model.iosched.onnx"), providers=["CPUExecutionProvider"])
assert_type(session.run(None, {"x": x}), list[Any])
assert_type(session.get_inputs()[0].shape, list[int | str | None])
assert_type(session.get_providers(), list[str])

result = iosched.optimize("model.onnx", device="v100", batch_size=1, budget=60, profile_db="profile.sqlite")
assert_type(result, iosched.OptimizeResult)
assert_type(result.run({"x": x}), dict[str, np.ndarray])
bound = iosched.load_model("model.onnx", batch_size=1)
assert_type(iosched.write_model(bound.proto, bound.weights, "bound.onnx"), bytes | None)
same = iosched.optimize(iosched.load_model(Path("bound.onnx")), iosched.OptimizeSettings(device="v100"))
assert_type(same.schedule, iosched.Schedule)

try:
    iosched.load(3)  # type: ignore[arg-type]
except TypeError as error:
    print(error)

try:
    iosched.optimize("model.onnx", devise="v100")  # type: ignore[call-arg]
except TypeError as error:
    print(str(error).rpartition(" ")[2])
