"""The names of the baselines, in a file that imports none of them."""

from __future__ import annotations

FOR_THROUGHPUT = ("onnxruntime-sessions", "openvino-streams")
"""Baselines with one request per core, measured only by request."""

ON_CPU = {
    "onnxruntime": "onnxruntime in its fastest setting",
    "onnxruntime-parallel": "onnxruntime in its parallel mode",
    "openvino": "OpenVINO, configured for latency",
    "onnxruntime-sessions": "onnxruntime, one request per core",
    "openvino-streams": "OpenVINO, configured for throughput",
}
ON_GPU = {
    "onnxruntime-cuda": "onnxruntime with its CUDA provider",
    "onnxruntime-tensorrt": "onnxruntime with its TensorRT provider",
    "torch": "PyTorch, eager",
    "torch-cudagraph": "PyTorch in one CUDA graph",
    "torch-compile": "PyTorch, compiled by torch.compile",
}
"""A description of each baseline."""

UNDER_LOAD = {
    "iosched": "iosched.serve_together",
    "onnxruntime": "a session of onnxruntime for each model, in its default settings",
    "onnxruntime-divided": "a session for each model, with its share of the threads",
    "onnxruntime-sessions": "onnxruntime, one request per core",
    "openvino-streams": "OpenVINO, configured for throughput",
    "onnxruntime-processes": "a process with a session of onnxruntime for each model",
}
"""Ways to serve several models, with their descriptions."""

SLOW_TO_OPEN = ("onnxruntime-tensorrt", "torch-compile")
"""Baselines that take minutes until their first run, measured only by request."""
