"""The names of the runtimes in this folder, in a file that imports none of them."""

from __future__ import annotations

FOR_THROUGHPUT = ("onnxruntime-sessions", "openvino-streams")
"""Peers that run as many requests at the same time as there are cores, and are measured only if asked for by name."""

ON_CPU = {
    "onnxruntime": "onnxruntime in its fastest setting",
    "onnxruntime-parallel": "onnxruntime in its parallel mode",
    "openvino": "OpenVINO, configured for latency",
    "onnxruntime-sessions": "onnxruntime, one request per core",
    "openvino-streams": "OpenVINO, configured for throughput",
}
ON_GPU = {
    "onnxruntime-cuda": "onnxruntime with its CUDA provider",
    "torch": "PyTorch, eager",
    "torch-cudagraph": "PyTorch in one CUDA graph",
    "torch-compile": "PyTorch, compiled by torch.compile",
}
"""What each peer is, by its name."""

SLOW_TO_OPEN = ("torch-compile",)
"""Peers that take minutes until their first run, and are measured only if they are asked for by name."""
