"""Blocks, endings and the search for the best schedule; knows no ONNX and no device."""
