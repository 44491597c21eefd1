"""Serves an exported model in Triton Inference Server, through its Python backend.

The model repository, made on a machine like the server's:

    mkdir -p models/digits
    iosched export digits.iosched.onnx -o models/digits/1       # digits.onnx and digits.plan
    cp model.py models/digits/1/
    cp config.pbtxt models/digits/                              # names, types and shapes of this model

The Python of Triton's container needs iosched and its [cpu] extra. config.pbtxt sets these parameters:

    runtime   onnxruntime: plain onnxruntime with iosched's plugin; iosched: iosched.InferenceSession
    strict    1: loading fails if the plan cannot be used here; 0: plain onnxruntime runs the model then

Each instance of instance_group is a process. Give each its share of the cores (docs/serving.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

import iosched


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Opens the model when Triton loads it; an exception means that it cannot be loaded."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        values = {name: each["string_value"] for name, each in parameters.items()}
        (path,) = Path(__file__).parent.glob("*.onnx")
        opened = {"onnxruntime": by_onnxruntime, "iosched": by_iosched}[values.get("runtime", "onnxruntime")]
        self.session = opened(path, strict=values.get("strict") == "1")
        self.inputs = [each.name for each in self.session.get_inputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers each request; Triton expects one response per request, in their order."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        try:
            given = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            names = request.requested_output_names()
            found = self.session.run(names, given)
        except Exception as error:  # noqa: BLE001 - one bad request does not concern the others
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        tensors = [pb_utils.Tensor(name, array) for name, array in zip(names, found, strict=True)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def finalize(self) -> None:
        """Closes the model when Triton unloads it."""
        del self.session


def by_onnxruntime(path: Path, *, strict: bool) -> Any:
    """A session of plain onnxruntime that runs the model by its plan."""
    import onnxruntime

    if not any(device.ep_name == "iosched" for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library("iosched", iosched.plugin_path())
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", str(int(strict)))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "iosched"]
    options.add_provider_for_devices(devices, {})
    return onnxruntime.InferenceSession(str(path), options)


def by_iosched(path: Path, *, strict: bool) -> Any:
    """A session with the same methods, each of whose threads stays on its own core."""
    return iosched.InferenceSession(path, strict=strict)
