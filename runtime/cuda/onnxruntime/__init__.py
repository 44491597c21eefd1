"""Operators that no kernel does, run by onnxruntime between the captured parts of the network."""
