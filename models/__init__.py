"""ONNX in and out: read, check, infer shapes, fuse into operators, annotate."""
