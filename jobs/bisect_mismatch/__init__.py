"""Finds the first operator of a model that computes something else than onnxruntime does."""
