"""Schedules on NVIDIA GPUs: cuDNN plans and own kernels on streams, captured into one CUDA graph.

Everything up to the checked execution plan works without a GPU and without cupy.
"""
