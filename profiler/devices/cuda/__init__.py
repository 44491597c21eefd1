"""Attached NVIDIA GPUs."""
