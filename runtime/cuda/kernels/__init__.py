"""Kernels, one per file: what each computes, and how a GPU runs it."""
