"""Runs operators of ONNX models in parallel with each other, by schedules found by measurement."""
