"""Fusion patterns: which ONNX nodes make one operator. One pattern per file."""
