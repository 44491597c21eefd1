"""The names of the runtimes in this folder, in a file that imports none of them."""

from __future__ import annotations

FOR_THROUGHPUT = ("onnxruntime-sessions", "openvino-streams")
"""Peers that run as many requests at the same time as there are cores, and are measured only if asked for by name."""

ON_CPU = ("onnxruntime", "onnxruntime-parallel", "openvino", *FOR_THROUGHPUT)
ON_GPU = ("onnxruntime-cuda", "torch", "torch-cudagraph", "torch-compile")

SLOW_TO_OPEN = ("torch-compile",)
"""Peers that take minutes until their first run, and are measured only if they are asked for by name."""
