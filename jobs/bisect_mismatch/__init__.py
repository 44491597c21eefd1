"""Finds the first operator of a model that computes other values than onnxruntime does."""
