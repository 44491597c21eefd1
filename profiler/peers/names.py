"""The other runtimes that can be measured beside ours, by name; nothing heavy is imported to know them."""

from __future__ import annotations

ON_CPU = ("onnxruntime", "onnxruntime-parallel", "openvino")
ON_GPU = ("onnxruntime-cuda", "torch", "torch-cudagraph", "torch-compile")

SLOW_TO_OPEN = ("torch-compile",)
"""Measured only where asked for by name: these take minutes before the first run."""
