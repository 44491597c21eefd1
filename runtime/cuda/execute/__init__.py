"""Runs a lowering on a GPU: launches, captured graphs, and arrays that callers keep on the GPU."""
