"""Schedules on NVIDIA GPUs: cuDNN plans and own kernels on streams, captured into one CUDA graph.

Everything up to the execution plan, and the interpreter that checks it, works without a GPU and without cupy.
"""
