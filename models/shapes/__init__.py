"""Tensor shapes: binds dynamic dimensions, infers the rest, and adapts Reshape nodes to a batch size."""
