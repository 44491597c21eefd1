"""Operators without a kernel, run by onnxruntime."""
